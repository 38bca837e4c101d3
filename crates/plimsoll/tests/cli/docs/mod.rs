//! Follows the documentation pages as a newcomer would: runs every command of a page from top to
//! bottom in an empty folder, with the servers that the page starts.
//!
//! HTML comments of a page, which readers do not see, tell the test what to check:
//!
//! | comment | means |
//! |---|---|
//! | `<!-- file NAME -->` before a block | the block is the content of that file |
//! | `<!-- not run: REASON -->` before a block | its commands are not run |
//! | `<!-- exit 99 -->` after a block of commands | the last of them ends with this code; others with 0 |
//! | `<!-- prints TEXT -->` | the block's commands print this, however it is wrapped |
//! | `<!-- run DIR: total.ok = 600 -->` | the `run.json` in DIR has this value |
//!
//! A `text` block after a block of commands shows their output: each of its lines must be printed, with any figures,
//! and anything may follow where a line ends with `…`. The test changes only ports, to free ones, and the arguments
//! that [`PAGES`] shortens.
//!
//! This file is long because it lists all pages as well as following them.

mod parts;

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use parts::{PagePart, parts, plain, shape, without_low_ends};
use serde_json::Value;
use support::ports::free_port;
use support::{MAX_WAIT, Place, output, text};

/// A page, with shorter replacements for some of its commands' arguments.
struct Page {
    file: &'static str,
    /// The commands run in a clone of the repository, so its plans exist.
    in_clone: bool,
    shorter: &'static [(&'static str, &'static str)],
}

const SHORT_DURATION: &[(&str, &str)] = &[("--duration 10s", "--duration 1s")];

const SHORT_PLAN_DURATION: &[(&str, &str)] = &[
    ("--duration 10s", "--duration 1s"),
    ("duration    = \"10s\"", "duration    = \"1s\""),
];

const fn page(file: &'static str, shorter: &'static [(&'static str, &'static str)]) -> Page {
    Page {
        file,
        in_clone: false,
        shorter,
    }
}

const PAGES: &[Page] = &[
    page("docs/tutorial.md", &[("--duration 20s", "--duration 3s")]),
    page("docs/install.md", &[]),
    Page {
        file: "docs/coming-from.md",
        in_clone: false,
        shorter: &[
            ("--duration 10s", "--duration 1s"),
            ("--duration 30s", "--duration 1s"),
            ("duration = \"10s\"", "duration = \"1s\""),
            ("--fleet 100000 --calls 1000000", "--fleet 50 --calls 5000"),
        ],
    },
    page(
        "docs/coming-from-scripts.md",
        &[("duration = \"10s\"", "duration = \"2s\"")],
    ),
    page(
        "docs/bolt.md",
        &[("-z 10s", "-z 1s"), ("--rate 2000/s", "--rate 200/s")],
    ),
    page("docs/assay.md", SHORT_DURATION),
    page("docs/doctor.md", SHORT_DURATION),
    page("docs/environment.md", &[]),
    page("docs/exports.md", SHORT_DURATION),
    page("docs/ci.md", &[]),
    page("docs/fetch.md", SHORT_DURATION),
    page("docs/gateway.md", &[]),
    page(
        "docs/hold.md",
        &[("--connections 18000 --for 10s", "--connections 50 --for 1s")],
    ),
    page("docs/hostile.md", &[]),
    page("docs/journeys.md", &[]),
    Page {
        file: "docs/plugin.md",
        in_clone: true,
        shorter: &[("-z 10s", "-z 1s"), ("--rate 2000/s", "--rate 200/s")],
    },
    page(
        "docs/session.md",
        &[("--clients 1000 --queries 10", "--clients 10 --queries 2")],
    ),
    Page {
        file: "docs/shards.md",
        in_clone: true,
        shorter: &[],
    },
    page("docs/sidecar.md", SHORT_DURATION),
    Page {
        file: "docs/unix.md",
        in_clone: false,
        shorter: &[
            ("--duration 10s", "--duration 1s"),
            ("--rate 1000/s", "--rate 200/s"),
        ],
    },
    page("docs/certificates.md", SHORT_DURATION),
    Page {
        file: "docs/grpc.md",
        in_clone: false,
        shorter: &[
            ("--duration 10s", "--duration 1s"),
            ("--duration 30s", "--duration 1s"),
            ("--duration 60s", "--duration 3s"),
            ("--warmup 5s", "--warmup 1s"),
            ("--fleet 10000 --calls 1000000", "--fleet 50 --calls 5000"),
            ("--progress-every 100000", "--progress-every 1000"),
            ("over = \"60s\"", "over = \"2s\""),
            ("duration = \"90s\"", "duration = \"3s\""),
            ("to = \"2000/s\"", "to = \"200/s\""),
        ],
    },
    page("docs/http.md", SHORT_PLAN_DURATION),
    page("docs/llm.md", SHORT_PLAN_DURATION),
    page("docs/faq.md", &[]),
    page("docs/traces.md", SHORT_DURATION),
    page("docs/arrivals.md", SHORT_DURATION),
    page("docs/cookbook.md", SHORT_DURATION),
];

/// Commands whose flags describe a single load, which a plan can be saved from.
const LOAD_COMMANDS: [&str; 9] = [
    "grpc", "bolt", "http", "llm", "ws", "fetch", "hold", "plugin", "session",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The state of following a page from its top.
struct PageRun<'a> {
    page: &'a Page,
    place: Place,
    bin: PathBuf,
    ports: BTreeMap<u16, u16>,
    used: Vec<bool>,
    /// Environment variables that earlier commands have set for later ones.
    exports: String,
    servers: Vec<(String, Child)>,
}

impl Drop for PageRun<'_> {
    fn drop(&mut self) {
        for (_, server) in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl<'a> PageRun<'a> {
    fn new(page: &'a Page) -> PageRun<'a> {
        let place = Place::new();
        let bin = place.path(".bin");
        fs::create_dir(&bin).expect("writable");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_plimsoll"), bin.join("plimsoll"))
            .expect("writable");
        if page.in_clone {
            for folder in ["crates", "plans"] {
                std::os::unix::fs::symlink(root().join(folder), place.path(folder))
                    .expect("writable");
            }
        }
        PageRun {
            page,
            place,
            bin,
            ports: BTreeMap::new(),
            used: vec![false; page.shorter.len()],
            exports: String::new(),
            servers: Vec::new(),
        }
    }

    /// Returns the command as the test runs it.
    fn adapt(&mut self, words: &str) -> String {
        let mut words = words.to_owned();
        for ((long, short), used) in self.page.shorter.iter().zip(&mut self.used) {
            *used |= words.contains(long);
            words = words.replace(long, short);
        }
        for host in ["localhost:", "127.0.0.1:", "DF_PORT="] {
            let mut moved = String::new();
            let mut rest = words.as_str();
            while let Some((before, after)) = rest.split_once(host) {
                let digits = after.chars().take_while(char::is_ascii_digit).count();
                moved = moved + before + host;
                rest = &after[digits..];
                moved += &match after[..digits].parse::<u16>() {
                    Ok(0) | Err(_) => after[..digits].to_owned(),
                    Ok(port) => self.ports.entry(port).or_insert_with(free_port).to_string(),
                };
            }
            words = moved + rest;
        }
        words
    }

    fn bash(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        // This environment has the modules that a notebook imports.
        let python = root().join(".peers/venv/bin");
        command
            .args(["-c", &format!("{}{script}", self.exports)])
            .current_dir(self.place.path("."))
            .env_clear()
            .env(
                "PATH",
                format!("{}:{}:{path}", self.bin.display(), python.display()),
            )
            .env("HOME", self.place.path("."))
            .env("NO_COLOR", "1");
        command
    }

    /// A server runs until the page ends or starts another one in its place.
    fn start_server(&mut self, command: &str) {
        let words = command.trim().trim_end_matches('&');
        let listens = words.split("--listen ").nth(1);
        let address = listens
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap_or_default()
            .to_owned();
        let same = |at: &str| !at.is_empty() && at == address;
        for (_, server) in self.servers.iter_mut().filter(|(at, _)| same(at)) {
            let _ = server.kill();
            let _ = server.wait();
        }
        let mut child = self
            .bash(&format!("exec {words}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is there");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        self.servers.push((address, child));
        let (sender, first) = mpsc::channel();
        // Reads to the end, so that a full pipe never stops the server.
        std::thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|n| n > 0) {
                let _ = sender.send(std::mem::take(&mut line));
            }
        });
        let mut said = String::new();
        let address = &self.servers.last().expect("pushed").0;
        let is_there = |said: &str| {
            said.contains("listening") || (!address.is_empty() && said.contains(address.as_str()))
        };
        while !is_there(&said) {
            match first.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => said += &line,
                Err(error) => panic!("{words}: not listening ({error}): {said}"),
            }
        }
    }

    /// Runs the commands of a block; returns their output and the exit code of the last one.
    fn run(&mut self, commands: &[String], code: i32) -> (String, i32) {
        let mut printed = String::new();
        let mut ended = 0;
        for (number, command) in commands.iter().enumerate() {
            let command = self.adapt(command);
            let is_server = ["plimsoll serve ", "plimsoll relay "]
                .iter()
                .any(|begin| command.starts_with(begin));
            if is_server && !command.contains(" --list ") {
                self.start_server(&command);
                continue;
            }
            if command.starts_with("export ") {
                self.exports += &command;
                continue;
            }
            self.assert_saved_plan_matches(&command);
            let done = output(&mut self.bash(&command), MAX_WAIT);
            printed += &text(&done.stdout);
            printed += &text(&done.stderr);
            let expected = if number + 1 == commands.len() {
                code
            } else {
                0
            };
            ended = done.status.code().unwrap_or(-1);
            // Whether generator and server keep up on a busy machine does not matter to the page.
            let is_slow = |line: &str| line.starts_with("objective p") && line.contains("MISSED");
            let is_too_busy = match ended {
                90 => printed.contains("enerator") || command.starts_with("plimsoll find "),
                99 => printed.lines().any(is_slow),
                _ => false,
            };
            assert!(
                ended == expected || (is_too_busy && matches!(expected, 0 | 99)),
                "{}: exit code {ended}, expected {expected}\n$ {command}\n{printed}",
                self.page.file
            );
        }
        (printed, ended)
    }

    /// The plan saved from a load's flags must resolve as the flags do.
    fn assert_saved_plan_matches(&self, command: &str) {
        let name = command
            .strip_prefix("plimsoll ")
            .and_then(|rest| rest.split_whitespace().next());
        let is_load = name.is_some_and(|name| LOAD_COMMANDS.contains(&name));
        // Excluded are loads that read stdin, which is consumed once, ladder modes, which are saved
        // as ladders, and shards, which need each other.
        let is_other = [
            "@-",
            " | ",
            " > ",
            " && ",
            "; ",
            "--mode both",
            "--save-plan",
            "--shard",
            "--dry-run",
            "--help",
            // These are queries to a service, not loads.
            "grpc list",
            "grpc describe",
            "grpc check",
        ]
        .iter()
        .any(|part| command.contains(part));
        if !is_load || is_other {
            return;
        }
        let shown = |command: &str| {
            let done = output(&mut self.bash(command), MAX_WAIT);
            let (out, error) = (text(&done.stdout), text(&done.stderr));
            assert_eq!(done.status.code(), Some(0), "$ {command}\n{out}\n{error}");
            out
        };
        let flags = shown(&format!(
            "{} --dry-run --save-plan .saved.toml",
            command.trim_end()
        ));
        let plan = shown("plimsoll run .saved.toml --dry-run");
        assert_eq!(flags, plan, "{}: $ {command}", self.page.file);
    }

    fn check_page(mut self) {
        let page = fs::read_to_string(root().join(self.page.file)).expect("the page");
        let parts = parts(&page);
        let mut printed = String::new();
        let mut is_as_shown = true;
        let mut commands_seen = 0;
        for (number, part) in parts.iter().enumerate() {
            let claims = &parts[number + 1..];
            match part {
                PagePart::File { name, content } => {
                    let content = self.adapt(content);
                    fs::write(self.place.path(name), content).expect("writable");
                }
                PagePart::Commands(commands) => {
                    let code = claims
                        .iter()
                        .take_while(|part| !matches!(part, PagePart::Commands(_)))
                        .find_map(|part| match part {
                            PagePart::Exit(code) => Some(*code),
                            _ => None,
                        });
                    commands_seen += commands.len();
                    let ended;
                    (printed, ended) = self.run(commands, code.unwrap_or(0));
                    is_as_shown = ended == code.unwrap_or(0);
                }
                PagePart::Exit(_) => {}
                PagePart::Prints(words) => {
                    let words = self.adapt(words);
                    assert!(
                        plain(&printed).contains(&plain(&words)),
                        "{}: not printed: {words}\n{printed}",
                        self.page.file
                    );
                }
                PagePart::Output(shown) => {
                    let mut there: Vec<String> = printed.lines().map(shape).collect();
                    // A late generator adds a column to the times.
                    there.extend(printed.lines().map(|line| without_low_ends(&shape(line))));
                    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
                        let is_verdict = ["verdict", "objective", "load line"]
                            .iter()
                            .any(|word| line.contains(word));
                        let is_there = match line.trim_end().strip_suffix('…') {
                            Some(begin) => {
                                let begin = shape(begin);
                                there.iter().any(|printed| printed.starts_with(&begin))
                            }
                            None => there.contains(&shape(line)),
                        };
                        assert!(
                            is_there || (is_verdict && !is_as_shown),
                            "{}: not printed: {line}\n{printed}",
                            self.page.file
                        );
                    }
                }
                PagePart::Run { dir, key, value } => {
                    let run = self.place.run_json(dir);
                    let pointer = format!("/{}", key.replace('.', "/"));
                    assert_eq!(
                        run.pointer(&pointer),
                        Some(value),
                        "{}: {dir}: {key}\n{run}",
                        self.page.file
                    );
                }
            }
        }
        assert!(commands_seen > 0, "{}: no command", self.page.file);
        for ((long, _), used) in self.page.shorter.iter().zip(&self.used) {
            assert!(used, "{}: has no `{long}` to shorten", self.page.file);
        }
    }
}

/// A page whose commands are never run would need a reason at each block.
#[test]
fn every_page_with_commands_is_listed() {
    let mut pages = vec![
        PathBuf::from("README.md"),
        PathBuf::from("deploy/README.md"),
    ];
    for entry in fs::read_dir(root().join("docs")).expect("docs/ is there") {
        pages.push(Path::new("docs").join(entry.expect("an entry").file_name()));
    }
    for page in pages {
        let is_followed = PAGES
            .iter()
            .any(|followed| Path::new(followed.file) == page);
        if is_followed || page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(root().join(&page)).expect("a page");
        let has_commands = parts(&text)
            .iter()
            .any(|part| matches!(part, PagePart::Commands(_)));
        assert!(!has_commands, "{}: list it in PAGES", page.display());
    }
}

/// Declares a test per page, so that pages run in parallel and failures name the page.
macro_rules! followed {
    ($($name:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $name() {
                let page = PAGES.iter().find(|page| page.file == $file);
                PageRun::new(page.expect("listed")).check_page();
            }
        )*

        #[test]
        fn every_listed_page_has_test() {
            let tested = [$($file),*];
            for page in PAGES {
                assert!(tested.contains(&page.file), "{} has no test", page.file);
            }
        }
    };
}

followed! {
    // The longest page, so it comes first.
    a_tutorial_of_ten_minutes: "docs/tutorial.md",
    coming_from_another_tool: "docs/coming-from.md",
    coming_from_scripts: "docs/coming-from-scripts.md",
    bolt: "docs/bolt.md",
    certificates: "docs/certificates.md",
    grpc: "docs/grpc.md",
    environment: "docs/environment.md",
    exports: "docs/exports.md",
    continuous_integration: "docs/ci.md",
    fetch: "docs/fetch.md",
    gateway: "docs/gateway.md",
    hold: "docs/hold.md",
    hostile: "docs/hostile.md",
    journeys: "docs/journeys.md",
    plugin: "docs/plugin.md",
    session: "docs/session.md",
    shards: "docs/shards.md",
    sidecar: "docs/sidecar.md",
    unix: "docs/unix.md",
    http: "docs/http.md",
    language_models: "docs/llm.md",
    installing: "docs/install.md",
    the_faq: "docs/faq.md",
    the_cookbook: "docs/cookbook.md",
    traces: "docs/traces.md",
    arrivals: "docs/arrivals.md",
    assay: "docs/assay.md",
    doctor: "docs/doctor.md",
}
