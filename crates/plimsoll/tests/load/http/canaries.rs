//! Puts a canary in every place that accepts a secret: it must be in no output, log, run directory,
//! page, process list or panic message.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::{MAX_WAIT, Place, SERVER_TLS, Server, output, output_watched, text};

/// The canary. It is valid base64, so that it can be used in PEM.
pub(crate) const CANARY: &str = "Zc4naryZc4naryZc4naryZc4naryZc4naryZc4nary";

/// Returns whether the canary is in `bytes`: as text, wrapped over lines of a framed message, or as
/// numbers.
fn contains_canary(bytes: &[u8]) -> bool {
    let plain = text(bytes);
    let joined: String = plain
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '│')
        .collect();
    let numbers: Vec<String> = CANARY.bytes().take(6).map(|b| b.to_string()).collect();
    let in_hex: Vec<String> = CANARY.bytes().take(6).map(|b| format!("{b:02x}")).collect();
    joined.contains(CANARY)
        || joined.contains(&CANARY[..12])
        || joined.contains(&numbers.join(","))
        || plain.to_lowercase().contains(&in_hex.concat())
}

#[track_caller]
pub(crate) fn assert_output_clean(what: &str, output: &Output) {
    for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        assert!(!contains_canary(bytes), "{what}, {stream}: {}", text(bytes));
    }
}

/// Asserts that no file below `folder` has the canary in its name or content.
#[track_caller]
pub(crate) fn assert_files_clean(what: &str, folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        assert!(
            !contains_canary(path.as_os_str().as_encoded_bytes()),
            "{what}: {}",
            path.display()
        );
        if path.is_dir() {
            assert_files_clean(what, &path);
            continue;
        }
        let content = fs::read(&path).expect("a file");
        assert!(!contains_canary(&content), "{what}: {}", path.display());
    }
}

/// Asserts that no child of `parent` has it on its command line. Between fork and exec a child
/// still shows the parent's own.
#[track_caller]
fn assert_no_child_shows_canary(what: &str, parent: u32) {
    let own = fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            assert!(
                line == own || !contains_canary(&line),
                "{what}: {}",
                text(&line)
            );
        }
    }
}

/// Variants of a private key's file with a part missing.
fn broken_keys() -> [(&'static str, String); 5] {
    let (begin, end) = ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----");
    [
        ("joined", format!("{begin}{CANARY}{end}")),
        ("blanks", format!("{begin} {CANARY} {end}")),
        ("escaped", format!(r"{begin}\n{CANARY}\n{end}\n")),
        ("cut", format!("{begin}\n{CANARY}\n")),
        ("damaged", format!("{begin}\n{CANARY}?\n{end}\n")),
    ]
}

#[test]
fn broken_private_keys_never_appear_in_messages() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "bus"]);
    let sidecar = "[tls]\nca = \"certs/ca.crt\"\ncert = \"certs/server.crt\"\nkey = \"secret.key\"\n\
                   [[route]]\nlisten = \"127.0.0.1:0\"\nupstream = \"tcp://127.0.0.1:1\"\n";
    fs::write(place.path("sidecar.toml"), sidecar).unwrap();
    let url = "https://127.0.0.1:1/";
    let load = ["--clients", "1", "--calls", "1", "--out", "run"];
    let client = [
        "--insecure",
        "--cert",
        "certs/client.crt",
        "--key",
        "secret.key",
    ];
    let server = [
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "secret.key",
        "--listen",
        "127.0.0.1:0",
    ];
    let redis = [
        "--redis",
        "rediss://127.0.0.1:1",
        "--redis-cert",
        "certs/client.crt",
        "--redis-key",
        "secret.key",
        "--listen",
        "127.0.0.1:0",
    ];
    let grpc = ["grpc", "list", "grpcs://127.0.0.1:1"];
    let commands: [(&str, Vec<&str>); 9] = [
        ("a client", [&["http", url][..], &load, &client].concat()),
        (
            "a CA",
            [&["http", url][..], &load, &["--ca", "secret.key"]].concat(),
        ),
        (
            "a certificate",
            [
                &["http", url][..],
                &load,
                &["--cert", "secret.key", "--key", "secret.key"],
            ]
            .concat(),
        ),
        ("grpc list", [&grpc[..], &client].concat()),
        ("serve http", [&["serve", "http"][..], &server].concat()),
        ("serve score", [&["serve", "score"][..], &server].concat()),
        ("serve llm", [&["serve", "llm"][..], &redis].concat()),
        ("relay sidecar", vec!["relay", "sidecar", "sidecar.toml"]),
        (
            "a rendezvous",
            [
                &[
                    "http",
                    url,
                    "--rendezvous",
                    "tcp://127.0.0.1:0",
                    "--rendezvous-certs",
                    "bus",
                    "--shard",
                    "0",
                    "--shards",
                    "2",
                ][..],
                &load,
            ]
            .concat(),
        ),
    ];
    for (name, key) in broken_keys() {
        fs::write(place.path("secret.key"), &key).unwrap();
        for known in ["server.key", "client.key"] {
            fs::write(place.path("bus").join(known), &key).unwrap();
        }
        for (what, command) in &commands {
            let mut command = place.command(command);
            command.env("JWT_SECRET", "x".repeat(32));
            command.env("PLIMSOLL_RENDEZVOUS_TOKEN", "y".repeat(32));
            let ended = output(&mut command, MAX_WAIT);
            let what = format!("{what}, {name}");
            assert!(!ended.status.success(), "{what}");
            assert_output_clean(&what, &ended);
        }
    }
}

/// Runs a load with documents, logs and a second process; none of them contains the canary.
#[track_caller]
pub(crate) fn assert_run_clean(
    place: &Place,
    what: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) {
    let _ = fs::remove_dir_all(place.path("out"));
    fs::create_dir(place.path("out")).expect("a folder");
    let documents = [
        "--out",
        "out/run",
        "--json",
        "--html",
        "out/page.html",
        "--junit",
        "out/junit.xml",
        "--markdown",
        "out/summary.md",
        "--save-plan",
        "out/plan.toml",
        "--requests",
        "--verbose",
    ];
    let mut command = place.command(&[arguments, &documents].concat());
    command.envs(environment.iter().copied());
    let mut parent = None;
    let ended = output_watched(&mut command, MAX_WAIT, |child| {
        parent = Some(child.id());
        assert_no_child_shows_canary(what, child.id());
    });
    assert!(
        parent.is_some(),
        "{what}: the process ended before it was checked"
    );
    assert!(
        place.path("out/run/run.json").exists(),
        "{what}: {}",
        text(&ended.stderr)
    );
    assert_output_clean(what, &ended);
    assert_files_clean(what, &place.path("out"));
    // A report made of it is clean, too.
    assert_output_clean(what, &place.run(&["report", "out/run"]));
}

#[test]
fn call_secrets_never_appear_in_any_output() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let url = format!("http://{}/a", server.address());
    let query = format!("{url}?api_key={CANARY}&n=1");
    let oauth =
        format!("{url}?code={CANARY}&state={CANARY}&client_secret={CANARY}#id_token={CANARY}");
    let signed = format!("{url}?X-Amz-Signature={CANARY}&sig={CANARY}&assertion={CANARY}");
    let header = format!("Authorization: Bearer {CANARY}");
    let load = ["--clients", "2", "--calls", "40"];
    let from_variable = ["-H", "authorization: $SECRET"];
    for processes in ["1", "2"] {
        let spread = ["--processes", processes];
        for (what, url, flags, variables) in [
            ("a header", &url, vec!["-H", header.as_str()], vec![]),
            (
                "a header of a variable",
                &url,
                from_variable.to_vec(),
                vec![("SECRET", CANARY)],
            ),
            (
                "headers in the environment",
                &url,
                vec![],
                vec![("PLIMSOLL_HEADER", header.as_str())],
            ),
            ("a query", &query, vec![], vec![]),
            ("a query of OAuth", &oauth, vec![], vec![]),
            ("a signed query", &signed, vec![], vec![]),
        ] {
            let command = [&["http", url][..], &load, &flags, &spread].concat();
            assert_run_clean(&place, what, &command, &variables);
        }
    }
    // The saved plan gives the same run once the variable is set.
    let command = [&["http", &query][..], &load].concat();
    assert_run_clean(&place, "a query", &command, &[]);
    let again = ["run", "out/run/plan.toml", "--out", "again", "-q"];
    assert_eq!(place.run(&again).status.code(), Some(2));
    let mut command = place.command(&again);
    let ended = output(command.env("PLIMSOLL_QUERY_API_KEY", CANARY), MAX_WAIT);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert_files_clean("the same run again", &place.path("again"));
    let page = place.run(&["http", &query, "--clients", "1", "--dry-run"]);
    assert_output_clean("a dry run", &page);
    let traced = [
        "--clients",
        "1",
        "--calls",
        "1",
        "--trace",
        "--out",
        "traced",
    ];
    let secret = ["http", &query, "-H", &header];
    assert_output_clean("a trace", &place.run(&[&secret[..], &traced].concat()));
}

/// The report of an injected panic does not contain it either.
#[cfg(debug_assertions)]
#[test]
fn call_secrets_never_appear_in_panic_report() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let url = format!("http://{}/?token={CANARY}", server.address());
    let header = format!("Cookie: {CANARY}");
    let load = [
        "-H",
        &header,
        "--clients",
        "1",
        "--calls",
        "20",
        "--out",
        "run",
    ];
    let mut command = place.command(&[&["http", &url][..], &load].concat());
    command
        .env("PLIMSOLL_FAULT", "call:3")
        .env("RUST_BACKTRACE", "full");
    let ended = output(&mut command, MAX_WAIT);
    assert_eq!(ended.status.code(), Some(70), "{}", text(&ended.stderr));
    assert_output_clean("a panic", &ended);
    assert_files_clean("a panic", &place.path("run"));
}

#[test]
fn rejected_values_do_not_echo_secrets() {
    let place = Place::new();
    let user = format!("http://me:{CANARY}@127.0.0.1:1/");
    let no_port = format!("http://me:{CANARY}@127.0.0.1:0/?key={CANARY}");
    let slashed = format!("redis://:a/{CANARY}@127.0.0.1:1/2");
    let redis = format!("redis://:{CANARY}@127.0.0.1:1/x");
    let proxy = format!("http://me:{CANARY}@127.0.0.1:1");
    let secret = format!("Authorization {CANARY}");
    let unprintable = format!("Authorization: {CANARY}\u{7f}");
    let url = "http://127.0.0.1:1/";
    let load = ["--clients", "1", "--calls", "1"];
    let gateway = ["relay", "gateway", "--listen", "127.0.0.1:0"];
    let commands: [(&str, Vec<&str>); 8] = [
        ("a user in a target", vec!["http", &user]),
        ("a target that is wrong in two ways", vec!["http", &no_port]),
        (
            "a user of Redis",
            [&gateway[..], &["--redis", &redis]].concat(),
        ),
        (
            "a slash in Redis' password",
            [&gateway[..], &["--redis", &slashed]].concat(),
        ),
        (
            "a proxy's user",
            [&["http", url, "--proxy", &proxy][..], &load].concat(),
        ),
        (
            "a header without a colon",
            [&["http", url, "-H", &secret][..], &load].concat(),
        ),
        (
            "a header that can't be sent",
            [&["http", url, "-H", &unprintable][..], &load].concat(),
        ),
        (
            "a flag that is not there",
            vec!["http", &user, "--no-such-flag"],
        ),
    ];
    for (what, command) in &commands {
        let mut command = place.command(command);
        let ended = output(command.env("JWT_SECRET", "x".repeat(32)), MAX_WAIT);
        assert!(!ended.status.success(), "{what}");
        assert_output_clean(what, &ended);
    }
    let mut short = place.command(&gateway);
    assert_output_clean(
        "a short secret of tokens",
        &output(short.env("JWT_SECRET", &CANARY[..20]), MAX_WAIT),
    );
}

#[test]
fn plan_errors_do_not_show_secrets() {
    let place = Place::new();
    let plan = format!(
        "target = \"http://me:{CANARY}@127.0.0.1:1/?api_key={CANARY}\"\n[call.http]\nbody = 1.5\n\
         headers = {{ authorization = \"{CANARY}\", x-token = \"{CANARY}\" }}\nnosuch = 1\n\
         [load]\nrate = \"x\"\nnosuch = 1\n"
    );
    let table = format!(
        "target = \"http://127.0.0.1:1/\"\n[call.http.headers]\ncookie = '{CANARY}'\n\
         authorization = \"{CANARY}\nx-key = \"{CANARY}\"\n[load]\nclients = 1\n"
    );
    for (name, plan) in [("inline.toml", &plan), ("table.toml", &table)] {
        fs::write(place.path(name), plan).unwrap();
        let ended = place.run(&["run", name]);
        assert_eq!(ended.status.code(), Some(2), "{}", text(&ended.stderr));
        assert_output_clean(name, &ended);
        // The plan may come from stdin, too.
        let mut command = place.command(&["run", "-"]);
        command.stdin(fs::File::open(place.path(name)).unwrap());
        let ended = crate::support::output_with_stdin(&mut command, MAX_WAIT);
        assert_eq!(ended.status.code(), Some(2));
        assert_output_clean(name, &ended);
    }
}

#[test]
fn help_does_not_show_environment_secrets() {
    let place = Place::new();
    let redis = format!("redis://:{CANARY}@127.0.0.1:1");
    let header = format!("authorization: Bearer {CANARY}");
    let proxy = format!("http://me:{CANARY}@127.0.0.1:1");
    let variables = [
        ("PLIMSOLL_REDIS", &redis),
        ("PLIMSOLL_HEADER", &header),
        ("PLIMSOLL_METADATA", &header),
        ("PLIMSOLL_PROXY", &proxy),
        ("PLIMSOLL_RENDEZVOUS_TOKEN", &CANARY.to_owned()),
    ];
    let commands = [
        &["http"][..],
        &["grpc"],
        &["grpc", "list"],
        &["bolt"],
        &["relay", "gateway"],
        &["serve", "llm"],
    ];
    for command in commands {
        let help = [command, &["--help"]].concat();
        let mut by_environment = place.command(&help);
        by_environment.envs(
            variables
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        assert_output_clean(&format!("{help:?}"), &output(&mut by_environment, MAX_WAIT));
    }
    let lines = variables.map(|(name, value)| format!("{name}=\"{value}\"\n"));
    fs::write(place.path(".env"), lines.concat()).unwrap();
    for command in commands {
        let help = [command, &["--help"]].concat();
        assert_output_clean(&format!(".env, {help:?}"), &place.run(&help));
    }
}

/// An unreachable telemetry collector, a gateway whose clients present tokens, and an unreachable
/// bus.
#[test]
fn external_system_secrets_stay_out_of_logs() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["http"][..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/", server.port);
    let collector = format!("http://me:{CANARY}@127.0.0.1:1/?api_key={CANARY}");
    let load = [
        "--clients",
        "1",
        "--calls",
        "3",
        "--ca",
        "certs/ca.crt",
        "--out",
        "run",
    ];
    let field = format!("authorization: Bearer {CANARY}");
    let telemetry = ["--telemetry", &collector, "--telemetry-header", &field];
    let mut command = place.command(&[&["http", &url][..], &telemetry, &load].concat());
    command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("x-api-key={CANARY}"));
    let ended = output(&mut command, MAX_WAIT);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert_output_clean("a collector", &ended);
    assert_files_clean("a collector", &place.path("run"));
    let mut gateway = place.command(&[
        "serve",
        "llm",
        "--listen",
        "127.0.0.1:0",
        "--with-gateway",
        "127.0.0.1:0",
        "--verbose",
    ]);
    let log = fs::File::create(place.path("gateway.log")).unwrap();
    gateway.env("JWT_SECRET", "x".repeat(32)).stderr(log);
    let mut gateway = Server::start(&mut gateway);
    let socket = format!("ws://{}/ws?token={CANARY}", gateway.next_address());
    let refused = place.run(&[
        "ws",
        &socket,
        "--clients",
        "1",
        "--calls",
        "1",
        "--message",
        "x",
        "--out",
        "ws",
    ]);
    assert_output_clean("a socket's client", &refused);
    drop(gateway);
    assert!(
        !contains_canary(place.read("gateway.log").as_bytes()),
        "{}",
        place.read("gateway.log")
    );
}
