use super::*;

fn translated(line: &str) -> Option<String> {
    let words = shell_words::split(line).expect("words of a shell");
    let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    let ours = translate(&words).unwrap_or_else(|failure| panic!("{line}: {failure}"))?;
    Some(quote_for_shell(&ours))
}

#[test]
fn variables_of_tools_set_their_flags() {
    let read = |line: &str| {
        let words = line.split(' ').map(str::to_owned).collect();
        let variable = |name: &str| match name {
            "K6_VUS" => Some("5".to_owned()),
            "K6_NO_CONNECTION_REUSE" => Some("true".to_owned()),
            "LOCUST_HOST" => Some("http://a.test".to_owned()),
            _ => None,
        };
        add_tool_variables(words, &variable).join(" ")
    };
    assert_eq!(
        read("k6 run a.js"),
        "k6 run --vus=5 --no-connection-reuse=true a.js"
    );
    assert_eq!(
        read("k6 run -u 7 a.js"),
        "k6 run --no-connection-reuse=true -u 7 a.js"
    );
    assert_eq!(read("locust -u 3"), "locust --host=http://a.test -u 3");
    assert_eq!(read("hey http://a.test/"), "hey http://a.test/");
}

/// A line of another tool, with what is piped into it; whether it runs, and without a part of it; ours.
struct Case {
    theirs: String,
    runs: bool,
    has_notes: bool,
    ours: String,
}

/// Reads `tests/foreign_lines.txt`. Each line of another tool is followed by its translation, after `=` if it runs,
///, `~` (it runs without what
/// a notice names) or after `?` if it is only printed.
fn cases() -> Vec<Case> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign_lines.txt");
    let text = std::fs::read_to_string(file).expect(file);
    let mut lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut cases = Vec::new();
    while let Some(theirs) = lines.next() {
        let ours = lines.next().expect(theirs);
        let (mark, ours) = ours.split_once(' ').expect(ours);
        assert!(["=", "~", "?"].contains(&mark), "{theirs}: {mark}");
        cases.push(Case {
            theirs: theirs.to_owned(),
            runs: mark != "?",
            has_notes: mark == "~",
            ours: ours.to_owned(),
        });
    }
    cases
}

#[test]
fn lines_of_other_tools_become_ours() {
    plimsoll_protocols::registry::register_protocols();
    let cases = cases();
    assert!(cases.len() >= 200, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let (theirs, ours) = (&case.theirs, &case.ours);
        let mut words = shell_words::split(theirs).expect("words of a shell");
        // The program that starts a script is not part of its line.
        words.retain(|word| word != "python3");
        let pipe = words.iter().position(|word| word == "|");
        let input = pipe.map(|at| {
            let before: Vec<String> = words.drain(..=at).collect();
            before[1].clone()
        });
        let (line, reasons, notes) = match registry::find_foreign_line(&words) {
            Some(line) => {
                let translated = line
                    .translate(input)
                    .unwrap_or_else(|e| panic!("{theirs}: {e:?}"));
                (
                    translated.words.into_iter().map(OsString::from).collect(),
                    translated.reasons,
                    translated.notes,
                )
            }
            None => {
                let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
                (
                    super::translate(&words).expect(theirs).expect(theirs),
                    Vec::new(),
                    Vec::new(),
                )
            }
        };
        let shown = quote_for_shell(&line);
        let has_notes = case.runs && !notes.is_empty();
        if shown != *ours || reasons.is_empty() != case.runs || has_notes != case.has_notes {
            wrong.push(format!("{theirs}\n{ours}\n{shown}\n{reasons:?} {notes:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Every line that is suggested must be accepted.
#[test]
fn every_suggested_line_is_read_by_our_parser() {
    plimsoll_protocols::registry::register_protocols();
    for Case { theirs, ours, .. } in cases() {
        let line = shell_words::split(&format!("plimsoll {ours}")).expect("words of a shell");
        let words: Vec<OsString> = line.into_iter().map(OsString::from).collect();
        let read = commands::command_for_words(&words).try_get_matches_from(&words);
        let matches = read.unwrap_or_else(|error| panic!("{theirs}: {error}"));
        let cli = commands::Cli::from_matches(&matches);
        assert!(cli.is_ok(), "{theirs}: {ours}: {:?}", cli.err());
    }
}

/// Describes the methods of the lines, so that no server is asked.
const PROTO: &str = "syntax = \"proto3\"; package a; import \"google/protobuf/struct.proto\";\n\
    service B { rpc C(M) returns (M); }\n\
    message M { google.protobuf.Value id = 1; google.protobuf.Value a = 2; google.protobuf.Value w = 3; }";

/// Each line that runs is a plan, as `--dry-run` would show it; files that it names may be missing.
#[test]
fn every_line_that_runs_is_a_plan() {
    plimsoll_protocols::registry::register_protocols();
    let dir = tempfile::tempdir().expect("a folder");
    let proto_file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let proto = proto_file("a.proto", PROTO);
    let streams = proto_file("b.proto", &PROTO.replace("(M)", "(stream M)"));
    let environment = crate::settings::environment::Environment::of(&[
        ("PASSWORD", "x"),
        ("COOKIE", "a=b"),
        ("X_API_KEY", "x"),
    ]);
    let mut planned = 0;
    for Case { theirs, ours, .. } in cases().into_iter().filter(|case| case.runs) {
        // Stdin is that of the test.
        if ours.contains("@-") {
            continue;
        }
        // The shell replaces this variable.
        let shown = format!("plimsoll {}", ours.replace("${TOKEN:?}", "x"));
        let mut line = shell_words::split(&shown).expect("words of a shell");
        let names_files = ["--proto", "--descriptor-set"]
            .iter()
            .any(|flag| line.iter().any(|word| word == flag));
        if line[1] == "grpc" && ours.contains("-m a.B") && !names_files {
            let is_stream = ours.contains("--messages");
            let file = if is_stream { &streams } else { &proto };
            line.extend(["--proto".to_owned(), file.clone()]);
        }
        let words: Vec<OsString> = line.into_iter().map(OsString::from).collect();
        let matches = commands::command_for_words(&words)
            .try_get_matches_from(&words)
            .unwrap_or_else(|error| panic!("{theirs}: {error}"));
        let cli = commands::Cli::from_matches(&matches)
            .unwrap_or_else(|error| panic!("{theirs}: {error}"));
        let commands::ParsedCommand::Call(arguments) = cli.command else {
            panic!("{theirs}: not a call");
        };
        if arguments.matches.subcommand().is_some() {
            continue;
        }
        let origins = crate::settings::origins::FlagOrigins::default();
        let plan =
            commands::protocol_command::resolve_invocation(&arguments, &origins, &environment)
                .and_then(|call| {
                    let source = crate::settings::problems::PlanSource::Flags;
                    crate::load::planning::resolve_plan(&call.spec, &environment, &source)
                });
        match plan {
            Ok(_) => planned += 1,
            Err(failure) => {
                let said = failure.to_string();
                assert!(
                    ["can't read", "no such file", "not a directory"]
                        .iter()
                        .any(|missing| said.contains(missing)),
                    "{theirs}: {ours}: {said}"
                );
            }
        }
    }
    assert!(planned > 180, "{planned}");
}

/// Scripts with several requests become plans that `plimsoll run` accepts.
#[test]
fn plans_of_scripts_are_valid() {
    plimsoll_protocols::registry::register_protocols();
    for (line, part) in [
        ("k6 run tests/foreign/k6-steps.js", "pause = \"1s to 3s\""),
        (
            "locust -f tests/foreign/locust-tasks.py -u 10 -t 30s",
            "rate = \"5/s\"",
        ),
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found = registry::find_foreign_line(&words).expect(line);
        let translated = found
            .translate(None)
            .unwrap_or_else(|e| panic!("{line}: {e:?}"));
        let plan = translated.plan.expect(line);
        assert!(plan.contains(part), "{plan}");
        let spec = plimsoll_model::spec::read(&plan);
        let spec = spec.unwrap_or_else(|problems| panic!("{plan}\n{problems:?}"));
        let environment = crate::settings::environment::Environment::of(&[]);
        let source = crate::settings::problems::PlanSource::Flags;
        let resolved = crate::load::planning::resolve_plan(&spec, &environment, &source);
        assert!(resolved.is_ok(), "{plan}\n{:?}", resolved.err());
    }
}

/// Compares a tool's table with the tool's own help, in which flags that take a value have a placeholder.
fn check_against_help(tool: &str, arguments: &[&str]) {
    let printed = std::process::Command::new(tool).args(arguments).output();
    let printed = printed.unwrap_or_else(|e| panic!("{tool}: {e}: `make setup` installs it"));
    let help = String::from_utf8_lossy(&printed.stdout).into_owned();
    let table = registry::find_foreign_line(&[tool.to_owned()])
        .expect(tool)
        .tool;
    let mut checked = 0;
    // Lines that are indented further continue a description.
    let is_entry = |line: &&str| line.len() - line.trim_start().len() <= 8;
    for line in help
        .lines()
        .filter(is_entry)
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
    {
        // The flags and, in <>, a placeholder for a value end at two spaces.
        let spelled = line.split("  ").next().unwrap_or_default();
        let takes_value = spelled.contains("=<")
            || spelled.contains("=(")
            || spelled
                .split_whitespace()
                .any(|word| word.starts_with(['<', '[']));
        let names = spelled
            .split([' ', ',', '='])
            .filter(|word| word.starts_with('-'));
        let names: Vec<&str> = names.map(|word| word.trim_start_matches('-')).collect();
        for flag in table
            .flags
            .iter()
            .filter(|flag| flag.names().iter().any(|name| names.contains(name)))
        {
            assert_eq!(flag.takes_value(), takes_value, "{tool}: {line}");
            checked += 1;
        }
    }
    assert!(checked > 25, "{tool}: {checked}");
}

#[test]
fn flags_of_curl_and_h2load_match_their_help() {
    check_against_help("curl", &["--help", "all"]);
    check_against_help("h2load", &["--help"]);
}

#[test]
fn run_reads_scripts_of_tools() {
    plimsoll_protocols::registry::register_protocols();
    for (line, said) in [
        (
            "run --vus 5 tests/foreign/k6.js",
            "line of k6: tests/foreign/k6.js is a program",
        ),
        (
            "run -f tests/foreign/locustfile.py -u 5",
            "line of locust: what its users do",
        ),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let failure = translate(&words).expect_err(line).to_string();
        assert!(failure.contains(said), "{line}: {failure}");
    }
    assert_eq!(translated("run plan.toml --clients 5"), None);
}

#[test]
fn bare_urls_choose_command_by_scheme() {
    plimsoll_protocols::registry::register_protocols();
    for (line, ours) in [
        ("http://a:1/b", Some("http http://a:1/b")),
        ("https://a --rate 5", Some("http https://a --rate 5")),
        (
            "-X POST -d '{}' http://a",
            Some("http -X POST -d {} http://a"),
        ),
        ("-q ws://a:1", Some("ws -q ws://a:1")),
        ("grpcs://a:1 -m a.B/C", Some("grpc grpcs://a:1 -m a.B/C")),
        ("sofa://a:1", Some("bolt sofa://a:1")),
        ("session://a:1", Some("session session://a:1")),
        ("ftp://a:1", None),
        ("http http://a:1", None),
        ("-q run http://a:1", None),
        ("--version", None),
        ("-h", None),
        ("localhost:80", None),
    ] {
        assert_eq!(translated(line).as_deref(), ours, "{line}");
    }
}

#[test]
fn secrets_of_fields_are_not_printed() {
    let line = "curl -H 'authorization: Bearer hush' -H 'x-a: b' http://a -u me:hush";
    let shown = translated(line).expect("a line");
    assert!(
        !shown.contains("hush") && !shown.contains("bWU6"),
        "{shown}"
    );
    assert!(
        shown.contains("-H \"authorization: Bearer ${TOKEN:?}\" -H 'x-a: b' -u 'me:$PASSWORD'"),
        "{shown}"
    );
}

#[test]
fn words_without_counterpart_are_named() {
    let words = ["ab", "-w", "-n", "5", "http://a"].map(OsString::from);
    let failure = translate(&words).expect_err("no counterpart").to_string();
    assert!(
        failure.starts_with("this is a command line of ab: `-w` has no counterpart"),
        "{failure}"
    );
    let words = ["hey", "--vus", "3", "http://a"].map(OsString::from);
    let failure = translate(&words).expect_err("no flag of hey").to_string();
    assert!(failure.contains("unknown flag `--vus`"), "{failure}");
}
