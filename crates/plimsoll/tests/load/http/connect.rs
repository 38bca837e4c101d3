//! gRPC-Web and Connect against connect-go.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{run_http, url};
use crate::support::peers::peer;
use crate::support::{Place, Server};

/// How the calls of a run ended, and the number of messages in their answers.
fn outcome_and_messages(run: &Value) -> (String, u64) {
    let code = run["total"]["errors_by_code"][0]["code"].as_str();
    let messages = run["total"]["messages"]["received"].as_u64();
    (code.unwrap_or("OK").to_owned(), messages.unwrap_or(0))
}

#[test]
fn connect_go_grpc_web_and_connect_are_parsed() {
    let place = Place::new();
    let server = Server::start(&mut Command::new(peer("bin/go-connect")));
    // A string in the protobuf encoding of a message with one field.
    fs::write(place.path("hello.bin"), b"\x0a\x05hello").unwrap();
    let load = ["--clients", "2", "--calls", "6"];
    for version in ["1.1", "2"] {
        for (stream, path, body, expected) in [
            ("grpc-web", "/echo.Echo/Say", "\"hello\"", ("OK", 6)),
            ("grpc-web", "/echo.Echo/Say", "@hello.bin", ("OK", 6)),
            (
                "grpc-web",
                "/echo.Echo/Say",
                "\"number {{seq}}\"",
                ("OK", 6),
            ),
            (
                "grpc-web",
                "/echo.Echo/Say",
                "\"missing\"",
                ("NOT_FOUND", 0),
            ),
            ("grpc-web", "/echo.Echo/Repeat", "\"hello\"", ("OK", 18)),
            (
                "grpc-web",
                "/echo.Echo/Repeat",
                "\"busy\"",
                ("UNAVAILABLE", 6),
            ),
            ("grpc-web", "/echo.Echo/Repeat", "\"silence\"", ("OK", 0)),
            ("connect", "/echo.Echo/Repeat", "\"silence\"", ("OK", 0)),
            ("connect", "/echo.Echo/Repeat", "\"hello\"", ("OK", 18)),
            ("connect", "/echo.Echo/Repeat", "@hello.bin", ("OK", 18)),
            (
                "connect",
                "/echo.Echo/Repeat",
                "\"number {{seq}}\"",
                ("OK", 18),
            ),
            (
                "connect",
                "/echo.Echo/Repeat",
                "\"missing\"",
                ("NOT_FOUND", 6),
            ),
        ] {
            let flags = [
                "--stream",
                stream,
                "--data",
                body,
                "--http-version",
                version,
            ];
            let code = i32::from(expected.0 != "OK");
            let run = run_http(
                &place,
                code,
                &url(&server, path),
                &[&load[..], &flags].concat(),
            );
            let (outcome, messages) = outcome_and_messages(&run);
            assert_eq!(
                (outcome.as_str(), messages),
                expected,
                "{version} {stream} {path} {body}"
            );
        }
        // Unary Connect calls are plain requests.
        for (body, kind, expected) in [
            ("\"hello\"", "application/json", "OK"),
            ("@hello.bin", "application/proto", "OK"),
            ("\"missing\"", "application/json", "HTTP_404"),
            ("\"busy\"", "application/json", "HTTP_503"),
        ] {
            let kind = format!("content-type: {kind}");
            let flags = ["--data", body, "-H", &kind, "--http-version", version];
            let code = i32::from(expected != "OK");
            let url = url(&server, "/echo.Echo/Say");
            let run = run_http(&place, code, &url, &[&load[..], &flags].concat());
            assert_eq!(outcome_and_messages(&run).0, expected, "{version} {body}");
        }
    }
}
