//! Real peers: our client against third-party gRPC servers, our servers against third-party
//! clients, in plaintext, over TLS and over mutual TLS.
//!
//! `make setup` installs them. If one is missing these tests fail and say so: a skipped test proves
//! nothing.

use crate::support;

use std::fs;
use std::process::{Command, Stdio};

use support::peers::{peer, python, run_successfully, tool};
use support::{
    CLIENT_MTLS, CLIENT_TLS, MAX_WAIT, ORDER, Place, SCORE, SERVER_MTLS, SERVER_TLS, Server,
    output, stderr_of, text,
};

/// How a link is secured: its name in `run.json`, the server's flags and the client's.
struct LinkSecurity {
    name: &'static str,
    server: &'static [&'static str],
    client: &'static [&'static str],
}

const LINK_SECURITIES: [LinkSecurity; 3] = [
    LinkSecurity {
        name: "plaintext",
        server: &[],
        client: &[],
    },
    LinkSecurity {
        name: "tls",
        server: &SERVER_TLS,
        client: &CLIENT_TLS,
    },
    LinkSecurity {
        name: "mutual-tls",
        server: &SERVER_MTLS,
        client: &CLIENT_MTLS,
    },
];

impl LinkSecurity {
    fn url(&self, server: &Server) -> String {
        match self.name {
            "plaintext" => server.plaintext(),
            _ => server.tls(),
        }
    }
}

fn grpcio_server(place: &Place, security: &LinkSecurity) -> Server {
    Server::start(python(place, "grpcio_server.py").args(security.server))
}

/// Runs a small load: every call must succeed, on persistent connections and on new ones.
#[track_caller]
fn assert_calls_succeed(place: &Place, url: &str, call: &[&str], security: &LinkSecurity) {
    for (load, calls) in [
        (&["--rate", "200/s", "--calls", "200"][..], 200),
        (
            &["--clients", "16", "--connections", "3", "--calls", "400"],
            400,
        ),
        (&["--cold", "--rate", "20/s", "--calls", "10"], 10),
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let flags = ["grpc", url, "-q", "--json", "--out", "run"];
        let arguments = [&flags, call, security.client, load].concat();
        let run = place.expect_run(0, &arguments);
        assert_eq!(run["total"]["ok"], calls, "{run}");
        assert_eq!(run["total"]["errors"], 0, "{run}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        assert_eq!(run["security"], security.name);
        let replaced = load.contains(&"--cold").then_some(1);
        assert_eq!(run["calls_per_connection"].as_u64(), replaced, "{run}");
    }
}

#[test]
fn our_client_calls_grpcio() {
    let place = Place::new();
    place.certificates();
    for security in &LINK_SECURITIES {
        let server = grpcio_server(&place, security);
        let url = security.url(&server);
        assert_calls_succeed(&place, &url, &SCORE, security);
        assert_calls_succeed(&place, &url, &ORDER, security);
        assert_eq!(server.stop().0, 0);
    }
}

#[test]
fn grpcio_statuses_are_distinguished() {
    let place = Place::new();
    let server = grpcio_server(&place, &LINK_SECURITIES[0]);
    let url = server.plaintext();
    for code in [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ] {
        // A status message that must be percent-encoded.
        let message = format!("{code}: 100 % überlastet");
        let vector = serde_json::json!({ "status": code, "message": message }).to_string();
        let data = serde_json::json!({ "json": vector }).to_string();
        let arguments = [
            "grpc",
            &url,
            "-q",
            "-m",
            SCORE[1],
            "-d",
            &data,
            "--clients",
            "1",
            "--calls",
            "3",
            "--out",
            code,
        ];
        place.expect(1, &arguments);
        let run = place.run_json(code);
        let errors = run["total"]["errors_by_code"].as_array().expect("a list");
        assert_eq!(errors.len(), 1, "{run}");
        assert_eq!(errors[0]["code"], code);
        assert_eq!(errors[0]["count"], 3);
        assert!(
            run["details"][0]["text"]
                .as_str()
                .is_some_and(|text| text.contains(&message)),
            "{}",
            run["details"]
        );
    }
    // A method that the server does not have.
    fs::write(
        place.path("other.proto"),
        "syntax = \"proto3\"; package other; service S { rpc M(E) returns (E); } message E {}",
    )
    .expect("writable");
    let arguments = [
        "grpc",
        &url,
        "-q",
        "--proto",
        "other.proto",
        "-m",
        "other.S/M",
        "--clients",
        "1",
        "--calls",
        "3",
        "--out",
        "other",
    ];
    let out = place.expect(1, &arguments);
    assert!(out.contains("UNIMPLEMENTED"), "{out}");
}

/// gRPC's C core closes the connection without a TLS alert.
#[test]
fn client_certificate_rejected_by_grpcio_is_suspected() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "other"]);
    let server = grpcio_server(&place, &LINK_SECURITIES[2]);
    let url = server.tls();
    let strange = [
        "--ca",
        "certs/ca.crt",
        "--cert",
        "other/client.crt",
        "--key",
        "other/client.key",
    ];
    let load = ["--clients", "1", "--calls", "1"];
    let call = [&["grpc", &url][..], &SCORE, &load, &strange].concat();
    let called = place.run(&[&call[..], &["--out", "run"]].concat());
    // A server of TLS 1.2 checks the certificate during the handshake.
    let old = ["--tls-version", "1.2", "--out", "old"];
    let called_by_tls_1_2 = place.run(&[&call[..], &old].concat());
    let listed = place.run(&[&["grpc", "list", &url][..], &strange].concat());
    for ended in [called, called_by_tls_1_2, listed] {
        let printed = stderr_of(&ended);
        assert_eq!(ended.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("it probably refuses the client certificate other/client.crt"),
            "{printed}"
        );
        assert!(printed.contains("issued by"), "{printed}");
        assert!(!printed.contains("is the server running"), "{printed}");
    }
}

#[test]
fn slow_grpcio_server_exceeds_deadline() {
    let place = Place::new();
    let server = Server::start(python(&place, "grpcio_server.py").args(["--delay-ms", "1000"]));
    let url = server.plaintext();
    let flags = [
        "grpc",
        &url,
        "-q",
        "--clients",
        "1",
        "--calls",
        "3",
        "--deadline",
        "100ms",
        "--out",
        "run",
    ];
    place.expect(1, &[&flags, &SCORE[..]].concat());
    let run = place.run_json("run");
    assert_eq!(
        run["total"]["errors_by_code"][0]["code"],
        "DEADLINE_EXCEEDED"
    );
    assert_eq!(run["total"]["errors_by_code"][0]["count"], 3);
}

#[test]
fn grpcio_rejects_client_without_certificate() {
    let place = Place::new();
    place.certificates();
    let server = grpcio_server(&place, &LINK_SECURITIES[2]);
    let url = server.tls();
    let flags = [
        "grpc", &url, "-q", "--cold", "--rate", "50/s", "--calls", "3", "--out", "run",
    ];
    place.expect(1, &[&flags, &SCORE[..], &CLIENT_TLS].concat());
    let run = place.run_json("run");
    let errors = run["total"]["errors_by_code"].as_array().expect("a list");
    assert_eq!(errors.len(), 1, "{run}");
    assert_eq!(
        errors[0]["code"], "TLS_CLIENT_CERTIFICATE_REQUIRED",
        "{run}"
    );
}

#[test]
fn grpcio_calls_our_servers() {
    let place = Place::new();
    place.certificates();
    for security in &LINK_SECURITIES {
        for service in ["score", "orders", "echo"] {
            let server = place.serve(&[&[service], security.server].concat());
            // The client's flags are named like ours; certificates are for the host name.
            let address = format!("localhost:{}", server.port);
            run_successfully(
                python(&place, "grpcio_client.py")
                    .args([service, &address, "--calls", "50"])
                    .args(security.client),
            );
            let (code, said) = server.stop();
            assert_eq!(code, 0, "{said}");
            let counted = match service {
                // One more call, with an invalid vector.
                "score" => "scored 50, invalid 1",
                // One call of each kind, with 1, 10, 1 and 25 answers.
                "echo" => "messages sent 1850",
                _ => "processed 50",
            };
            assert!(said.contains(counted), "{said}");
        }
    }
}

#[test]
fn gzip_works_with_grpcio_and_grpc_go() {
    let place = Place::new();
    // A message that gzip shrinks a lot.
    let data = format!(r#"{{"message": "{}"}}"#, "hi ".repeat(1000));
    let gzip = ["--compression", "gzip"];
    let server = Server::start(python(&place, "grpcio_server.py").arg("--gzip"));
    let url = server.plaintext();
    let echo = |code: i32, method: &str, flags: &[&str]| {
        let method = format!("grpc.examples.echo.Echo/{method}");
        let mut arguments = vec!["grpc", &url, "-q", "--json", "-m", &method, "-d", &data];
        arguments.extend(["--clients", "4", "--calls", "40"]);
        arguments.extend(flags);
        place.expect_run(code, &arguments)
    };
    for (method, flags, messages) in [
        ("UnaryEcho", &[][..], 40),
        ("ServerStreamingEcho", &["--expect", "10"], 400),
        (
            "BidirectionalStreamingEcho",
            &["--messages", "5", "--expect", "5"],
            200,
        ),
    ] {
        let run = echo(0, method, &[&gzip, flags].concat());
        assert_eq!(run["total"]["ok"], 40, "{run}");
        let bytes = run["total"]["bytes_received"].as_u64().expect("bytes");
        assert!(bytes < messages * 200, "{method}: {bytes}");
    }
    // This server compresses for every client; an unrequested compression is reported.
    let run = echo(1, "UnaryEcho", &[]);
    let errors = &run["total"]["errors_by_code"];
    assert_eq!(errors[0]["code"], "COMPRESSION_UNSUPPORTED", "{run}");
    assert_eq!(errors[0]["count"], 40, "{run}");
    drop(server);

    // grpc-go compresses its answers if the request was compressed.
    let server = Server::start(&mut Command::new(peer("bin/go-health")));
    let url = server.plaintext();
    let health = [
        "grpc",
        &url,
        "-q",
        "--json",
        "-m",
        "grpc.health.v1.Health/Check",
    ];
    let load = ["--clients", "4", "--calls", "40"];
    let run = place.expect_run(0, &[&health[..], &load, &gzip].concat());
    assert_eq!(run["total"]["ok"], 40, "{run}");
    // Without compression there would be two bytes.
    let bytes = run["total"]["bytes_received"].as_u64().expect("bytes");
    assert!(bytes > 40 * 20, "{bytes}");

    // Our servers with a client that compresses.
    for service in ["score", "orders", "echo"] {
        let server = place.serve(&[service]);
        let address = format!("localhost:{}", server.port);
        run_successfully(
            python(&place, "grpcio_client.py").args([service, &address, "--calls", "5", "--gzip"]),
        );
    }
}

#[test]
fn grpcio_client_sees_server_error_codes() {
    let place = Place::new();
    place.certificates();
    let expects = |server: &Server, service: &str, code: &str, flags: &[&str]| {
        let address = format!("localhost:{}", server.port);
        run_successfully(
            python(&place, "grpcio_client.py")
                .args([service, &address, "--expect", code])
                .args(flags),
        );
    };
    let score = place.serve(&["score", "--delay", "2s", "--drain", "100ms"]);
    expects(&score, "orders", "UNIMPLEMENTED", &[]);
    expects(&score, "score", "DEADLINE_EXCEEDED", &["--timeout", "0.1"]);
    let mutual = place.serve(&[&["score"], &SERVER_MTLS[..]].concat());
    expects(&mutual, "score", "UNAVAILABLE", &CLIENT_TLS);
}

#[test]
fn our_client_calls_grpc_go() {
    let place = Place::new();
    place.certificates();
    for security in &LINK_SECURITIES {
        // Go's flag package accepts two dashes, too.
        let mut command = Command::new(peer("bin/go-score"));
        command.args(security.server).current_dir(place.path(""));
        let server = Server::start(&mut command);
        assert_calls_succeed(&place, &security.url(&server), &SCORE, security);
    }
}

#[test]
fn openssl_agrees_with_our_server() {
    let place = Place::new();
    place.certificates();
    let connect = |server: &Server, flags: &[&str]| {
        let mut command = tool("openssl");
        command
            .args(["s_client", "-connect", &server.address(), "-alpn", "h2"])
            .args(["-CAfile", "certs/ca.crt", "-verify_return_error"])
            .args(["-servername", "localhost", "-verify_hostname", "localhost"])
            .args(flags)
            .current_dir(place.path(""));
        output(&mut command, MAX_WAIT)
    };
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let agreed = connect(&server, &[]);
    let said = text(&agreed.stdout);
    assert!(agreed.status.success(), "{said}");
    for expected in [
        "New, TLSv1.3",
        "ALPN protocol: h2",
        "Verify return code: 0 (ok)",
        "Verified peername: localhost",
    ] {
        assert!(said.contains(expected), "{expected:?}: {said}");
    }
    let old = connect(&server, &["-tls1_2"]);
    assert!(!old.status.success());
    let said = text(&old.stderr);
    assert!(said.contains("alert protocol version"), "{said}");

    // A client certificate is requested and accepted.
    let server = place.serve(&[&["score"], &SERVER_MTLS[..]].concat());
    let known = ["-cert", "certs/client.crt", "-key", "certs/client.key"];
    let agreed = connect(&server, &known);
    let said = text(&agreed.stdout);
    assert!(agreed.status.success(), "{said}");
    assert!(
        said.contains("Acceptable client certificate CA names"),
        "{said}"
    );
}

#[test]
fn missing_common_parameters_with_openssl_are_reported() {
    let place = Place::new();
    place.certificates();
    for (flags, code) in [
        // It agrees on the version, but on no protocol.
        (&["-tls1_2"][..], "TLS_ALPN"),
        (&["-tls1_3", "-alpn", "http/1.1"], "TLS_ALPN"),
        (&["-tls1_3"], "TLS_ALPN"),
        (&["-tls1_3", "-groups", "P-521"], "TLS_NO_COMMON_PARAMETERS"),
    ] {
        let mut command = tool("openssl");
        command
            .args(["s_server", "-accept", "127.0.0.1:0", "-www"])
            .args(["-cert", "certs/server.crt", "-key", "certs/server.key"])
            .args(flags)
            .current_dir(place.path(""))
            .stderr(Stdio::null());
        let server = Server::start(&mut command);
        let _ = fs::remove_dir_all(place.path("run"));
        let url = server.tls();
        let cold = [
            "grpc", &url, "-q", "--cold", "--rate", "50/s", "--calls", "3", "--out", "run",
        ];
        place.expect(1, &[&cold, &SCORE[..], &CLIENT_TLS].concat());
        let run = place.run_json("run");
        let errors = run["total"]["errors_by_code"].as_array().expect("a list");
        assert_eq!(errors.len(), 1, "{flags:?}: {run}");
        assert_eq!(errors[0]["code"], code, "{flags:?}: {run}");
    }
}

/// h2load is strict about HTTP/2 and knows nothing of gRPC, so it sees our servers as any HTTP/2
/// client does.
#[test]
fn h2load_reports_no_server_errors() {
    let place = Place::new();
    place.certificates();
    // score.JsonVector { json: "[0.5]" } behind gRPC's prefix.
    fs::write(place.path("frame"), b"\0\0\0\0\x07\x0a\x05[0.5]").expect("writable");
    for security in &LINK_SECURITIES[..2] {
        for service in ["fast", "score"] {
            let server = place.serve(&[&[service], security.server].concat());
            let scheme = if security.name == "plaintext" {
                "http"
            } else {
                "https"
            };
            let url = format!(
                "{scheme}://{}/score.ScoreService/GetScore",
                server.address()
            );
            let mut command = tool("h2load");
            command
                .args(["-n", "2000", "-c", "4", "-m", "20", "-d", "frame"])
                .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
                .arg(url)
                .current_dir(place.path(""));
            let said = text(&run_successfully(&mut command).stdout);
            for expected in [
                "2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout",
                "status codes: 2000 2xx",
            ] {
                assert!(said.contains(expected), "{service}: {expected:?}: {said}");
            }
            let (code, said) = server.stop();
            assert_eq!(code, 0);
            let counted = if service == "fast" {
                "answered 2000"
            } else {
                "scored 2000"
            };
            assert!(said.contains(counted), "{said}");
        }
    }
}
