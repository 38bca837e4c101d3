//! Files installed with the binary: completions, manual pages, the version text, and the action for
//! GitHub workflows.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{MAX_WAIT, Place, SCORE, output, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns what bash completes when the cursor is behind the last word.
fn bash_completions(place: &Place, words: &[&str]) -> Vec<String> {
    let script = r#"
        set -eu
        source plimsoll.bash
        [[ $(complete -p plimsoll) == *" -F _plimsoll "* ]]
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _plimsoll "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let done = output(
        Command::new("bash")
            .args(["--norc", "--noprofile", "-c", script, "bash"])
            .args(words)
            .current_dir(place.path(".")),
        MAX_WAIT,
    );
    assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    let lines = text(&done.stdout);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let place = Place::new();
    let script = place.expect(0, &["completions", "bash"]);
    fs::write(place.path("plimsoll.bash"), script).expect("writable");
    let offers = |words: &[&str]| bash_completions(&place, words);
    assert_eq!(offers(&["plimsoll", "lad"]), ["ladder"]);
    assert_eq!(offers(&["plimsoll", "serve", "sco"]), ["score"]);
    assert_eq!(offers(&["plimsoll", "grpc", "--objec"]), ["--objective"]);
    assert_eq!(offers(&["plimsoll", "--progress", "l"]), ["live", "lines"]);
    assert_eq!(offers(&["plimsoll", "completions", "z"]), ["zsh"]);
    // The command exists for this program itself.
    assert_eq!(offers(&["plimsoll", "shar"]), [""]);
}

#[test]
fn zsh_and_fish_complete_same_commands() {
    let place = Place::new();
    for (shell, commands) in [
        ("zsh", ["_plimsoll__grpc", "_plimsoll__serve__score"]),
        ("fish", ["-a \"grpc\"", "-a \"score\""]),
    ] {
        let script = place.expect(0, &["completions", shell]);
        for command in commands {
            // The generators join names differently.
            let joined = script.replace("__subcmd__", "__");
            assert!(joined.contains(command), "{shell}: no {command}");
        }
        assert!(!script.contains("shard_commands"), "{shell}");
    }
    let wrong = place.run(&["completions", "csh"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("bash, zsh, fish"));
}

#[test]
fn every_command_has_valid_manual_page() {
    let place = Place::new();
    place.expect(0, &["man", "pages"]);
    let pages: BTreeSet<String> = fs::read_dir(place.path("pages"))
        .expect("made")
        .map(|page| {
            page.expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let main = rendered_page(&place, "plimsoll.1");
    let (_, listed) = main.split_once("SUBCOMMANDS").expect("a section");
    let listed: Vec<&str> = listed
        .split_whitespace()
        .filter_map(|word| word.strip_suffix("(1)"))
        .filter(|name| name.starts_with("plimsoll-"))
        .collect();
    assert!(listed.len() > 20, "{listed:?}");
    for name in listed {
        assert!(pages.contains(&format!("{name}.1")), "no page of {name}");
    }
    assert!(!pages.contains("plimsoll-shard.1"));
    assert!(pages.contains("plimsoll-serve-score.1"));
    for section in ["NAME", "SYNOPSIS", "EXAMPLES", "ENVIRONMENT", "EXIT STATUS"] {
        assert!(main.contains(section), "{section}:\n{main}");
    }
    let grpc = rendered_page(&place, "plimsoll-grpc.1");
    for part in [
        "plimsoll grpc [OPTIONS]",
        "--objective",
        "PLIMSOLL_OBJECTIVE",
        "plimsoll(1)",
    ] {
        assert!(grpc.contains(part), "{part}:\n{grpc}");
    }
    let mut lint = Command::new("mandoc");
    lint.args(["-T", "lint", "-W", "warning"]).args(&pages);
    let done = output(lint.current_dir(place.path("pages")), MAX_WAIT);
    // A page has no date, so that every build produces the same; empty lines are those that the
    // generator puts between an option and its values.
    let printed = text(&done.stdout);
    let complaints: Vec<&str> = printed
        .lines()
        .filter(|line| {
            !line.contains("missing date") && !line.contains("skipping paragraph macro: br")
        })
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert!(printed.contains("missing date"), "mandoc read no page");
}

/// Returns a page as a terminal without bold type shows it.
fn rendered_page(place: &Place, page: &str) -> String {
    let mut mandoc = Command::new("mandoc");
    mandoc.args(["-T", "ascii", "-O", "width=300", page]);
    let done = output(mandoc.current_dir(place.path("pages")), MAX_WAIT);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let printed = text(&done.stdout);
    let mut plain = String::new();
    for character in printed.chars() {
        match character {
            // A bold character is printed twice, and an underlined one over a line.
            '\u{8}' => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn long_version_describes_build() {
    let place = Place::new();
    let version = env!("CARGO_PKG_VERSION");
    let short = place.expect(0, &["-V"]);
    assert_eq!(short, format!("plimsoll {version}\n"));
    let long = place.expect(0, &["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], format!("plimsoll {version}"));
    let keys = ["commit: ", "build: ", "features: ", "locked libraries: "];
    for (line, key) in lines[1..].iter().zip(keys) {
        assert!(line.starts_with(key) && line.len() > key.len(), "{long}");
    }
    assert_eq!(lines.len(), 1 + keys.len(), "{long}");
    assert!(lines[2].contains("linux"), "{long}");
    // The versions of the lock file, not those that a manifest requires.
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("a lock file");
    for library in ["rustls", "aws-lc-rs", "tokio"] {
        let entry = format!("name = \"{library}\"\nversion = \"");
        let (_, rest) = lock.split_once(&entry).expect(library);
        let (locked, _) = rest.split_once('"').expect(library);
        assert!(lines[4].contains(&format!("{library} {locked}")), "{long}");
    }
}

/// A registry would reject a crate with missing files; this check is quicker.
#[test]
fn every_crate_can_be_published() {
    let crates = fs::read_dir(root().join("crates")).expect("crates");
    let mut seen = 0;
    for entry in crates {
        let manifest = entry.expect("an entry").path().join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("a manifest");
        let at = manifest.display();
        for key in ["description", "license", "readme", "keywords", "categories"] {
            let line = text.lines().find(|line| line.starts_with(key));
            assert!(line.is_some(), "{at}: no {key}");
        }
        assert!(!text.contains("\npublish"), "{at}");
        seen += 1;
    }
    assert!(seen >= 9);
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let version = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    let by_path = workspace
        .lines()
        .filter(|line| line.contains("path = \"crates/"));
    for dependency in by_path {
        assert!(dependency.contains(&version), "{dependency}");
    }
}

/// Runs the action's only step with its inputs as GitHub passes them.
fn run_action(place: &Place, inputs: &[(&str, &str)]) -> (i32, String) {
    let mut step = Command::new("python3");
    step.arg(root().join("action/run.py").canonicalize().expect("there"))
        .current_dir(place.path("."))
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("LOAD_BINARY", env!("CARGO_BIN_EXE_plimsoll"))
        .env("GITHUB_STEP_SUMMARY", place.path("summary.md"))
        .env("GITHUB_OUTPUT", place.path("output"));
    for (name, value) in inputs {
        step.env(format!("LOAD_{name}"), value);
    }
    let done = output(&mut step, MAX_WAIT);
    let printed = text(&done.stdout) + &text(&done.stderr);
    (done.status.code().unwrap_or(-1), printed)
}

#[test]
fn action_runs_plan_and_compares_with_base() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let plan = format!(
        "name = \"of the action\"\ntarget = \"{}\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n\
         message = {{ json = \"[0.1]\" }}\n[load]\nclients = 2\ncalls = 400\n",
        server.plaintext()
    );
    fs::write(place.path("plan.toml"), plan).expect("writable");
    let (code, printed) = run_action(&place, &[("PLAN", "plan.toml"), ("FOLDER", "base")]);
    assert_eq!(code, 0, "{printed}");
    assert_eq!(place.run_json("base/run")["total"]["ok"], 400);
    let inputs = [
        ("PLAN", "plan.toml"),
        ("BASE", "base/run"),
        ("FLAGS", "--calls '300' --clients 3"),
    ];
    let (code, printed) = run_action(&place, &inputs);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("::notice title=Compared"), "{printed}");
    assert!(!printed.contains("::error"), "{printed}");
    for file in ["junit.xml", "comment.md", "report.html", "compare.html"] {
        assert!(place.path("load-test").join(file).is_file(), "{file}");
    }
    let summary = place.read("summary.md");
    assert!(summary.matches("of the action").count() > 0, "{summary}");
    assert!(summary.contains("95 % interval"), "{summary}");
    assert_eq!(place.run_json("load-test/run")["total"]["ok"], 300);
    let outputs = place.read("output");
    assert_eq!(outputs.matches("exit-code=0\nresult=pass\n").count(), 2);
    assert!(outputs.ends_with("run=load-test/run\n"), "{outputs}");
}

#[test]
fn action_reports_failures_as_annotations() {
    let place = Place::new();
    // Nothing listens there, so that no call succeeds on any machine.
    let line = [
        "grpc",
        "grpc://127.0.0.1:1",
        SCORE[0],
        SCORE[1],
        "--clients 1 --calls 3",
    ]
    .join(" ");
    let (code, printed) = run_action(&place, &[("COMMAND", &line)]);
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("::error title="), "{printed}");
    assert!(place.read("output").contains("exit-code=1\nresult=error\n"));
    // A mistake in the inputs is reported before anything runs.
    let (code, printed) = run_action(&place, &[]);
    assert_eq!(code, 2, "{printed}");
    assert!(printed.contains("::error title=No plan::"), "{printed}");
    // The documents of the previous load are not taken for this one's.
    let (code, printed) = run_action(&place, &[("PLAN", "missing.toml")]);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("::error title=Nothing was measured::plimsoll ended with 1"),
        "{printed}"
    );
}

/// The step reads exactly the inputs that action.yml passes on, and its page lists the same.
#[test]
fn action_inputs_match_step_and_page() {
    let read = |file: &str| fs::read_to_string(root().join("action").join(file)).expect(file);
    let (definition, step, page) = (read("action.yml"), read("run.py"), read("README.md"));
    let inputs: Vec<&str> = definition
        .lines()
        .filter_map(|line| line.split_once("${{ inputs.")?.1.strip_suffix(" }}"))
        .collect();
    assert_eq!(inputs.len(), 7);
    for input in inputs {
        let variable = input.to_uppercase().replace('-', "_");
        assert!(definition.contains(&format!("\n  {input}:\n")), "{input}");
        assert!(
            definition.contains(&format!("LOAD_{variable}: ")),
            "{input}"
        );
        assert!(step.contains(&format!("given(\"{variable}\")")), "{input}");
        assert!(page.contains(&format!("| `{input}` |")), "{input}");
    }
}
