//! Services described by the server itself: ours, grpc-go (grpc.reflection.v1) and grpcio (v1alpha
//! only), listed, described and called without files. `make setup` builds both.

use crate::support;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use support::{CLIENT_TLS, Place, Server, stderr_of};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn peer(name: &str) -> PathBuf {
    let path = root().join(".peers").join(name);
    assert!(path.exists(), "no .peers/{name}: run `make setup-tests`");
    path
}

fn go_health(reflection: bool) -> Server {
    let mut command = Command::new(peer("bin/go-health"));
    command.arg(format!("-reflection={reflection}"));
    Server::start(command.stderr(Stdio::null()))
}

fn grpcio_server(flags: &[&str]) -> Server {
    let mut command = Command::new(peer("venv/bin/python"));
    command.arg(root().join("tests/peers/grpcio_server.py"));
    command.args(flags);
    Server::start(&mut command)
}

/// Starts a server on protobuf's Python runtime with a service of each of `files`.
fn python_server(files: &[(&str, &str)], flags: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let mut command = Command::new(peer("venv/bin/python"));
    command.arg(root().join("tests/peers/editions.py"));
    command.arg("serve").arg(folder.path()).args(flags);
    (Server::start(&mut command), folder)
}

const PROTO3_FILE: (&str, &str) = (
    "old.proto",
    r#"syntax = "proto3"; package old;
    message M { string text = 1; }
    service S { rpc Call(M) returns (M); }"#,
);
const NEW: (&str, &str) = (
    "new.proto",
    r#"edition = "2023"; package new;
    import "old.proto";
    option features.enum_type = CLOSED;
    enum Kind { ONE = 1; TWO = 2; }
    message M {
      int32 bare = 1 [features.field_presence = IMPLICIT];
      int32 kept = 2;
      M inside = 3 [features.message_encoding = DELIMITED];
      Kind kind = 4;
      repeated int32 loose = 5 [features.repeated_field_encoding = EXPANDED];
      old.M old = 6;
    }
    service S { rpc Call(M) returns (M); }"#,
);

#[test]
fn editions_and_proto3_services_are_listed_together() {
    let place = Place::new();
    let (server, _folder) = python_server(&[PROTO3_FILE, NEW], &[]);
    let url = server.plaintext();
    let listed = place.expect(0, &["grpc", "list", &url]);
    for line in [
        "new.S/Call (unary): new.M -> new.M",
        "old.S/Call (unary): old.M -> old.M",
    ] {
        assert!(listed.contains(line), "{line} in {listed}");
    }
    let described = place.expect(0, &["grpc", "describe", &url, "new.S/Call"]);
    for part in [
        "  int32 bare = 1;",
        "  optional int32 kept = 2;",
        "enum new.Kind {\n  ONE = 1;\n  TWO = 2;\n}",
        "message old.M {",
    ] {
        assert!(described.contains(part), "{part} in {described}");
    }
    let json = r#"{"bare": 0, "kept": 0, "inside": {"kept": 1}, "kind": 2, "loose": [1, 2], "old": {"text": "x"}}"#;
    let call = [
        "grpc",
        &url,
        "-m",
        "new.S/Call",
        "-d",
        json,
        "--clients",
        "1",
        "--calls",
        "3",
    ];
    place.expect(0, &[&call[..], &["-q"]].concat());
    let wrong = ["grpc", &url, "-m", "new.S/Call", "-d", r#"{"kind": 3}"#];
    let wrong = place.run(&[&wrong[..], &["--clients", "1", "--calls", "1"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr_of(&wrong).contains("3 is not a valid value of new.Kind"),
        "{}",
        stderr_of(&wrong)
    );
}

#[test]
fn compressed_descriptions_are_read() {
    let place = Place::new();
    for server in ["--gzip", "--deflate"].map(|flag| grpcio_server(&[flag])) {
        let listed = place.expect(0, &["grpc", "list", &server.plaintext()]);
        assert!(listed.contains("OrderService/Submit"), "{listed}");
    }
}

#[test]
fn malformed_service_descriptor_does_not_hide_others() {
    let place = Place::new();
    let (server, _folder) = python_server(&[PROTO3_FILE, NEW], &["--break", "odd.S"]);
    let url = server.plaintext();
    let said = place.run(&["grpc", "list", &url]);
    assert_eq!(said.status.code(), Some(0));
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        text.contains("old.S/Call") && text.contains("new.S/Call"),
        "{text}"
    );
    assert!(!text.contains("odd.S"), "{text}");
    let warned = stderr_of(&said);
    assert!(
        warned.contains("service odd.S: ") && warned.contains("no.such.Message"),
        "{warned}"
    );
    for what in ["odd.S", "odd.S/Call"] {
        let said = place.run(&["grpc", "describe", &url, what]);
        assert_eq!(said.status.code(), Some(1));
        assert!(
            stderr_of(&said).contains("no.such.Message"),
            "{}",
            stderr_of(&said)
        );
    }
    let call = [
        "grpc",
        &url,
        "-m",
        "odd.S/Call",
        "--clients",
        "1",
        "--calls",
        "1",
    ];
    let said = place.run(&call);
    assert_eq!(said.status.code(), Some(2));
    assert!(
        stderr_of(&said).contains("no.such.Message"),
        "{}",
        stderr_of(&said)
    );
}

#[test]
fn our_servers_answer_reflection_except_fast() {
    let place = Place::new();
    for (name, method) in [
        ("score", "score.ScoreService/GetScore"),
        ("orders", "orders.OrderService/Submit"),
        ("echo", "grpc.examples.echo.Echo/UnaryEcho"),
    ] {
        let server = place.serve(&[name]);
        let url = server.plaintext();
        let listed = place.expect(0, &["grpc", "list", &url]);
        let service = method.split('/').next().expect("a service");
        for line in listed.lines() {
            assert!(line.starts_with(service), "{listed}");
        }
        assert!(listed.contains(method), "{listed}");
        place.expect(0, &["grpc", "describe", &url, method]);
        let call = ["grpc", &url, "-m", method, "--reflection", "--dry-run"];
        place.expect(
            0,
            &[&call[..], &["--clients", "1", "--calls", "1"]].concat(),
        );
    }
    let server = place.serve(&["fast"]);
    let said = place.run(&["grpc", "list", &server.plaintext()]);
    assert_eq!(said.status.code(), Some(1));
    let said = stderr_of(&said);
    assert!(
        said.contains("does it send the same answer for every method?"),
        "{said}"
    );
}

/// Planning a method that only the server knows takes one connection, besides those of the load.
#[test]
fn search_plans_each_trial_once() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let plan = format!(
        "target = \"{}\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nreflection = true\n\
         message = {{ json = \"[0.1, 0.2]\" }}\n[load]\nrate = \"20/s\"\ndeadline = \"1s\"\n[objective]\n\"p50\" = \"< 50ms\"\n\
         [find]\nmost = \"20/s\"\nprobe = \"500ms\"\ntrial = \"500ms\"\nconfirm = \"1s\"\nbudget = \"15s\"\ncurve = false\n",
        server.plaintext()
    );
    std::fs::write(place.path("plan.toml"), plan).expect("a plan");
    place.run(&["find", "plan.toml", "--out", "search"]);
    let record = place.read("search/search.json");
    let record: serde_json::Value = serde_json::from_str(&record).expect("a search");
    let trials = record["trials"].as_array().expect("trials").len();
    assert!(trials > 0, "{record}");
    let (_, counted) = server.stop();
    let connections = format!(", connections {},", 1 + 2 * trials);
    assert!(counted.contains(&connections), "{trials} trials: {counted}");
}

#[test]
fn grpc_go_server_answers_reflection() {
    let place = Place::new();
    let server = go_health(true);
    let url = server.plaintext();
    let listed = place.expect(0, &["grpc", "list", &url]);
    assert!(
        listed.contains(
            "grpc.health.v1.Health/Watch (server streaming): grpc.health.v1.HealthCheckRequest -> grpc.health.v1.HealthCheckResponse"
        ),
        "{listed}"
    );
    assert!(!listed.contains("grpc.reflection"), "{listed}");
    let described = place.expect(
        0,
        &["grpc", "describe", &url, "grpc.health.v1.Health/Check"],
    );
    for part in ["string service = 1;", "SERVING = 1;"] {
        assert!(described.contains(part), "{part} in {described}");
    }
    let misplaced = place.run(&["grpc", "--rate", "1/s", "list", &url]);
    assert_eq!(misplaced.status.code(), Some(2));
    assert!(
        stderr_of(&misplaced).contains("`rate` of `plimsoll grpc`"),
        "{}",
        stderr_of(&misplaced)
    );
    let missing = place.run(&["grpc", "describe", &url, "grpc.health.v1.Helth"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        stderr_of(&missing).contains("did you mean grpc.health.v1.Health?"),
        "{}",
        stderr_of(&missing)
    );

    let call = ["grpc", &url, "-m", "grpc.health.v1.Health/Check"];
    let with = |more: &[&str]| {
        let mut arguments = call.to_vec();
        arguments.extend(["--clients", "2", "--calls", "20", "-q", "--json"]);
        arguments.extend(more);
        place.run(&arguments)
    };
    assert_eq!(with(&[]).status.code(), Some(0));
    let wrong = with(&["-d", r#"{"servce": ""}"#]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr_of(&wrong).contains("did you mean service?"),
        "{}",
        stderr_of(&wrong)
    );
}

#[test]
fn grpcio_reflection_falls_back_to_v1alpha() {
    let place = Place::new();
    let server = grpcio_server(&[]);
    let url = server.plaintext();
    let listed = place.expect(0, &["grpc", "list", &url]);
    for kind in [
        "UnaryEcho (unary)",
        "BidirectionalStreamingEcho (bidirectional streaming)",
    ] {
        let line = format!("grpc.examples.echo.Echo/{kind}");
        assert!(listed.contains(&line), "{line} in {listed}");
    }
    assert!(
        listed.contains("orders.OrderService/Submit (unary)"),
        "{listed}"
    );

    for (method, flags, received) in [
        ("UnaryEcho", &[][..], None),
        ("ServerStreamingEcho", &["--expect", "10"], Some(400)),
        ("ClientStreamingEcho", &["--messages", "5"], Some(40)),
        (
            "BidirectionalStreamingEcho",
            &["--messages", "5", "--pace", "answers", "--expect", "5"],
            Some(200),
        ),
    ] {
        let method = format!("grpc.examples.echo.Echo/{method}");
        let mut arguments = vec!["grpc", &url, "-m", &method, "-d", r#"{"message": "hi"}"#];
        arguments.extend([
            "--reflection",
            "--clients",
            "4",
            "--calls",
            "40",
            "-q",
            "--json",
        ]);
        arguments.extend(flags);
        let run = place.expect_run(0, &arguments);
        assert_eq!(run["total"]["ok"], 40, "{method}");
        assert_eq!(
            run["total"]["messages"]["received"].as_u64(),
            received,
            "{method}"
        );
    }
    place.expect(0, &["check", "echo", &url]);
}

/// `list`, `describe`, `check` and the query before a load send the caller's authorization.
#[test]
fn reflection_requests_carry_authorization_metadata() {
    let place = Place::new();
    let server = grpcio_server(&["--authorization", "Bearer 7"]);
    let url = server.plaintext();
    let method = "grpc.examples.echo.Echo/UnaryEcho";
    let load = ["grpc", &url, "-m", method, "--reflection", "--clients", "1"];
    let load = [&load[..], &["--calls", "3", "-q"]].concat();
    for (exit, arguments) in [
        (1, &["grpc", "list", &url][..]),
        (1, &["grpc", "describe", &url, method]),
        (2, &load),
    ] {
        let bare = place.run(arguments);
        let said = stderr_of(&bare);
        assert_eq!(bare.status.code(), Some(exit), "{said}");
        for part in ["status UNAUTHENTICATED", "--metadata"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let known = place
            .command(&[arguments, &["--metadata", "authorization: $TOKEN"]].concat())
            .env("TOKEN", "Bearer 7")
            .output()
            .expect("plimsoll runs");
        assert_eq!(known.status.code(), Some(0), "{}", stderr_of(&known));
    }
    let check = ["check", "echo", &url];
    let document = place.expect_json(1, &[&check[..], &["--json"]].concat());
    assert_eq!(document["cases"][0]["status"], "UNAUTHENTICATED");
    let metadata = ["--metadata", "authorization: Bearer 7", "--json"];
    let document = place.expect_json(0, &[&check[..], &metadata].concat());
    assert_eq!(document["cases"][3]["status"], "OK");
    let wrong = place.run(&["grpc", "list", &url, "--metadata", "a b: 1"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr_of(&wrong));
    assert!(
        stderr_of(&wrong).contains("`--metadata a b`"),
        "{}",
        stderr_of(&wrong)
    );
}

#[test]
fn server_without_reflection_is_reported() {
    let place = Place::new();
    let server = go_health(false);
    let url = server.plaintext();
    let said = place.run(&["grpc", "list", &url]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        stderr_of(&said).contains("the server has no reflection"),
        "{}",
        stderr_of(&said)
    );
    let call = [
        "grpc",
        &url,
        "-m",
        "grpc.health.v1.Health/Check",
        "--rate",
        "1/s",
        "--calls",
        "1",
    ];
    let said = place.run(&call);
    assert_eq!(said.status.code(), Some(2));
    for part in [
        "is not in the built-in protos",
        "the server has no reflection",
    ] {
        assert!(
            stderr_of(&said).contains(part),
            "{part} in {}",
            stderr_of(&said)
        );
    }
    drop(server);
    assert_eq!(place.run(&["grpc", "list", &url]).status.code(), Some(1));
}

#[test]
fn list_accepts_connection_flags() {
    let place = Place::new();
    place.certificates();
    for (flags, more, expected) in [
        // The server does not speak HTTP/2, which shows after TLS: no SETTINGS arrive.
        (
            &["-tls1_2", "-alpn", "h2"][..],
            &["--tls-version", "1.2"][..],
            "the server's greeting",
        ),
        (&["-tls1_3", "-alpn", "http/1.1"], &[], "TLS_ALPN"),
        (&["-tls1_3"], &[], "TLS_ALPN"),
        (
            &["-tls1_3", "-alpn", "h2"],
            &["--suite", "no"],
            "--suite: `no`",
        ),
    ] {
        let server = support::openssl::s_server(&place, &[&["-www"], flags].concat());
        let url = server.tls();
        let words = ["grpc", "list", &url];
        let said = place.run(&[&words[..], &CLIENT_TLS, more].concat());
        let said = stderr_of(&said);
        assert!(said.contains(expected), "{flags:?}: {expected}: {said}");
    }
}

/// Starts a proxy that accepts one CONNECT; returns its address.
fn connect_proxy() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let mut reader = BufReader::new(client.try_clone().expect("a socket"));
        let mut target = String::new();
        reader.read_line(&mut target).expect("a request");
        let target = target.split(' ').nth(1).expect("a target");
        let server = TcpStream::connect(target).expect("a server");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a field");
        }
        let answer = b"HTTP/1.1 200 OK\r\n\r\n";
        (&client).write_all(answer).expect("answered");
        let back = server.try_clone().expect("a socket");
        let to_client = client.try_clone().expect("a socket");
        thread::spawn(move || io::copy(&mut &back, &mut &to_client));
        let _ = io::copy(&mut reader, &mut &server);
    });
    address
}

#[test]
fn list_works_through_proxy() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let proxy = format!("http://{}", connect_proxy());
    let listed = place.expect(0, &["grpc", "list", &server.plaintext(), "--proxy", &proxy]);
    assert!(listed.contains("score.ScoreService/GetScore"), "{listed}");
    let wrong = ["grpc", "list", "grpc://a:1", "--proxy", "ftp://b:1"];
    let wrong = place.run(&wrong);
    assert_eq!(wrong.status.code(), Some(2));
    let said = stderr_of(&wrong);
    assert!(
        said.contains("--proxy: `ftp` is not a supported kind of proxy"),
        "{said}"
    );
}

#[test]
fn proto_files_replace_reflection() {
    let place = Place::new();
    std::fs::write(place.path(PROTO3_FILE.0), PROTO3_FILE.1).expect("a file");
    let files = ["--proto", PROTO3_FILE.0];
    let listed = place.expect(
        0,
        &[&["grpc", "list", "grpc://127.0.0.1:1"], &files[..]].concat(),
    );
    assert_eq!(listed, "old.S/Call (unary): old.M -> old.M\n");
    let described = ["grpc", "describe", "grpc://127.0.0.1:1", "old.M"];
    let described = place.expect(0, &[&described[..], &files].concat());
    assert!(described.contains("string text = 1;"), "{described}");
    let server = place.serve(&["score"]);
    let listed = ["grpc", "list", &server.plaintext(), "--reflection"];
    let listed = place.expect(0, &[&listed[..], &files].concat());
    for line in ["old.S/Call", "score.ScoreService/GetScore"] {
        assert!(listed.contains(line), "{line} in {listed}");
    }
}
