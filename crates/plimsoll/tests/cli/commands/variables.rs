//! Environment variables, env files, and secrets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

/// Returns the text of all files below a folder.
fn all_text_in(dir: &Path) -> String {
    fs::read_dir(dir)
        .expect("a folder")
        .map(|entry| text(&fs::read(entry.expect("an entry").path()).expect("a file")))
        .collect()
}

#[test]
fn variables_and_env_file_substitute_for_flags() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    fs::write(
        place.path(".env"),
        format!("DF_HOST=127.0.0.1\nDF_PORT={}\nN_RPS=1\nT_DURATION_SEC=1\nT_WARMUP_SEC=0\nTOKEN=hush\n", server.port),
    )
    .expect("writable");
    let mut command = place.command(&["grpc", "--quiet", "--metadata", "authorization: $TOKEN"]);
    // The process environment overrides .env, and a flag's own variable overrides an alias.
    command
        .args(SCORE)
        .env("N_RPS", "100")
        .env("PLIMSOLL_OUT", "run")
        .env("PLIMSOLL_DURATION", "500ms");
    let output = command.output().expect("plimsoll starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(place.run_json("run")["total"]["ok"], 50);
}

/// A plan cannot contain non-UTF-8 text, but file names may.
#[test]
fn non_utf8_values_are_rejected_by_flag() {
    let place = Place::new();
    let bytes = OsStr::from_bytes(b"\xff");
    let call = [
        "grpc",
        "grpcs://127.0.0.1:1",
        "--rate",
        "1/s",
        "--calls",
        "1",
    ];
    for (flag, named) in [
        ("--ca", "`--ca`"),
        ("--key-log", "`--key-log`"),
        ("--rows", "`rows.file`"),
        ("--proto", "`call.grpc`"),
    ] {
        let mut command = place.command(&call);
        command.args(SCORE).arg(flag).arg(bytes).arg("--dry-run");
        let output = command.output().expect("plimsoll starts");
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        let why = format!("{named}: path contains invalid UTF-8 characters");
        assert!(printed.contains(&why), "{flag}: {printed}");
        assert!(
            printed.contains("not valid UTF-8, which a plan needs"),
            "{flag}: {printed}"
        );
    }
    // A mistake in another flag is reported even if a value is not UTF-8.
    let mut command = place.command(&["run"]);
    command.arg(bytes).args(["--clients", "x"]);
    let output = command.output().expect("plimsoll starts");
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("--clients"), "{printed}");
}

#[test]
fn multi_value_variables_split_on_newlines() {
    let place = Place::new();
    let env = "PLIMSOLL_METADATA=\"x-one: 1\nx-two: 2, and more\"\n";
    fs::write(place.path(".env"), env).expect("writable");
    let mut command = place.command(&["grpc", "grpc://127.0.0.1:1", "--rate", "1/s"]);
    command
        .args(SCORE)
        .args(["--calls", "1", "--dry-run"])
        .env("PLIMSOLL_OBJECTIVE", "p99 < 20ms\nerrors < 1%");
    let output = command.output().expect("plimsoll starts");
    let (plan, printed) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(
        printed.starts_with("from the environment: PLIMSOLL_METADATA, PLIMSOLL_OBJECTIVE\n"),
        "{printed}"
    );
    for line in [
        "x-one = \"1\"",
        "x-two = \"2, and more\"",
        "p99 = \"< 20ms\"",
        "errors = \"< 1%\"",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
}

#[test]
fn secrets_stay_out_of_run_directory() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "5",
        "--out",
        "run",
        "--requests",
        "-q",
        "--metadata",
        "authorization: Bearer hush",
        "--save-plan",
        "saved.toml",
    ];
    arguments.extend(SCORE);
    place.expect(0, &arguments);
    let kept = all_text_in(&place.path("run")) + &place.read("saved.toml");
    assert!(!kept.contains("hush"), "{kept}");
    assert!(kept.contains("PLIMSOLL_METADATA_AUTHORIZATION"), "{kept}");
    // The saved plan asks for the secret, and is then equal.
    let output = place.run(&["run", "saved.toml", "--out", "again", "-q"]);
    assert_eq!(output.status.code(), Some(2));
    let mut command = place.command(&["run", "run/plan.toml", "--out", "again", "-q"]);
    let output = command
        .env("PLIMSOLL_METADATA_AUTHORIZATION", "Bearer hush")
        .output()
        .expect("plimsoll starts");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(place.read("again/plan.toml"), place.read("run/plan.toml"));
}

#[test]
fn directory_or_fifo_as_file_is_rejected() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).expect("a folder");
    let fifo = place.path("fifo.proto");
    let made = Command::new("mkfifo").arg(fifo).status();
    assert!(made.expect("mkfifo is there").success());
    let imports = "syntax = \"proto3\";\nimport \"fifo.proto\";\n";
    fs::write(place.path("imports.proto"), imports).expect("writable");
    let load = ["--clients", "1", "--calls", "1", "-q"];
    let grpc = ["grpc", "grpc://127.0.0.1:1", "-m", "a.B/C"];
    let bolt = ["bolt", "sofa://127.0.0.1:1"];
    for (command, flags, problem) in [
        (
            &bolt[..],
            ["--data", "@folder"],
            "--data: can't read folder: a folder, not a file",
        ),
        (&bolt, ["--content", "@folder"], "a folder, not a file"),
        (&grpc, ["--data", "@folder"], "a folder, not a file"),
        (&grpc, ["--proto", "imports.proto"], "a FIFO, not a file"),
        (
            &grpc,
            ["--data", "@-"],
            "@-: can't read stdin: a folder, not a file",
        ),
        (
            &bolt,
            ["--data", "@-"],
            "@-: can't read stdin: a folder, not a file",
        ),
    ] {
        let class: &[&str] = match flags[0] {
            "--content" => &["--class", "a.B"],
            _ => &[],
        };
        let mut command = place.command(&[command, &flags, class, &load].concat());
        command.stdin(fs::File::open(place.path("folder")).expect("a folder"));
        let output = output_with_stdin(&mut command, Duration::from_secs(30));
        let said = stderr_of(&output);
        assert!(
            !output.status.success() && said.contains(problem),
            "{flags:?}: {said}"
        );
        assert!(!said.contains("os error"), "{said}");
    }
}

/// An env file as projects keep it next to their Compose file.
const COMPOSE_ENV: &str = "\
# Load test
N_RPS=50
T_DURATION_SEC=1
T_WARMUP_SEC=3   # not of fleets
LLM_RESPONSE_TEXT=The quick brown fox jumps over the lazy dog
PUBSUB_POOL_SIZE=1024
export TOKEN_DELAY_MS=\"1\"
JWT_ALGORITHM: HS256
";

#[test]
fn compose_env_file_fails_no_command() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    fs::write(place.path(".env.loadtest"), COMPOSE_ENV).expect("writable");
    place.expect(0, &["--version"]);
    let url = server.plaintext();
    let call = |flags: &[&str]| {
        let command = [&["grpc", &url][..], &SCORE, &["--dry-run", "-q"], flags].concat();
        place.expect(0, &command)
    };
    let steady = call(&[]);
    for line in ["rate = \"50/s\"", "warmup = \"3s\"", "duration = \"1s\""] {
        assert!(steady.contains(line), "{line}: {steady}");
    }
    for flags in [
        &["--fleet", "2"][..],
        &["--clients", "2"],
        &["--cold"],
        &["--cold", "--clients", "2"],
    ] {
        let other = call(flags);
        assert!(
            !other.contains("50/s") && !other.contains("warmup = \"3s\""),
            "{flags:?}: {other}"
        );
        assert!(other.contains("duration = \"1s\""), "{flags:?}: {other}");
    }
    // The plan's own load settings count as well.
    let plan = format!(
        "target = \"{url}\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = {{ json = \"[0.1]\" }}\n\
         [load]\nclients = 2\nwarmup = \"0s\"\n"
    );
    fs::write(place.path("plan.toml"), plan).expect("writable");
    let shown = place.expect(0, &["run", "plan.toml", "--dry-run", "-q"]);
    assert!(
        shown.contains("clients = 2") && shown.contains("warmup = \"0s\""),
        "{shown}"
    );
    let mut llm = place.command(&["serve", "llm", "--listen", "127.0.0.1:0"]);
    llm.env("JWT_SECRET", "x".repeat(32));
    let llm = Server::start(&mut llm);
    assert_eq!(llm.stop().0, 0);
}

#[test]
fn malformed_env_line_fails_only_affected_commands() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let lines = "T_DURATION_SEC='secret\nno name at all\nJWT_SECRET=\"secret\" secret\n";
    fs::write(place.path(".env.loadtest"), lines).expect("writable");
    place.expect(0, &["--version"]);
    let url = server.plaintext();
    let call = [
        &["grpc", &url][..],
        &SCORE,
        &["--clients", "1", "--calls", "5"],
    ]
    .concat();
    let refused = place.run(&call);
    let printed = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{printed}");
    assert!(
        printed.contains(".env.loadtest, line 1: T_DURATION_SEC: a quote is not closed"),
        "{printed}"
    );
    assert!(!printed.contains("secret"), "{printed}");
    let typed = place.run(&[&call[..], &["--duration", "10s", "--out", "run"]].concat());
    let printed = text(&typed.stderr);
    assert_eq!(typed.status.code(), Some(0), "{printed}");
    for line in [
        "line 1: T_DURATION_SEC",
        "line 2: expected NAME=value",
        "line 3: JWT_SECRET",
    ] {
        assert!(
            printed.contains(&format!(".env.loadtest, {line}")),
            "{line}: {printed}"
        );
    }
    assert!(!printed.contains("secret"), "{printed}");
}

#[test]
fn large_pubsub_pools_warn_once() {
    let place = Place::new();
    for size in ["64", "512", "1024", "2048"] {
        let mut gateway = place.command(&[
            "relay",
            "gateway",
            "--redis",
            "redis://127.0.0.1:1",
            "--listen",
            "127.0.0.1:0",
        ]);
        gateway
            .env("PUBSUB_POOL_SIZE", size)
            .env("JWT_SECRET", "x".repeat(32));
        // The missing Redis is the only error.
        let ended = output(&mut gateway, MAX_WAIT);
        let printed = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{printed}");
        let said = printed
            .matches("64 connections suffice for any load")
            .count();
        assert_eq!(said, usize::from(size != "64"), "{size}: {printed}");
    }
}
