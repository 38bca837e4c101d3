//! Puts the canary into bodies and subprotocols, and has a server repeat it in its answers: it must be in no output, log,
//! run directory or page.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::canaries::{CANARY, assert_files_clean, assert_output_clean, assert_run_clean};
use crate::support::{MAX_WAIT, Place, output, text};

/// Serves requests over HTTP/1.1 on threads of this process. `respond` gets the head and the body of a request, and
/// returns the response without its content length.
fn serve_requests(respond: fn(&str, &str) -> (String, String)) -> SocketAddr {
    fn serve(stream: &TcpStream, respond: fn(&str, &str) -> (String, String)) -> Option<()> {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).ok()? == 0 {
                    return None;
                }
            }
            let lower = head.to_lowercase();
            let length = lower.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).ok()?;
            let (first, answer) = respond(&head, &text(&body));
            let size = answer.len();
            let whole = format!("HTTP/1.1 {first}\r\ncontent-length: {size}\r\n\r\n{answer}");
            writer.write_all(whole.as_bytes()).ok()?;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(&stream, respond));
        }
    });
    address
}

#[test]
fn secrets_repeated_by_server_stay_hidden() {
    let place = Place::new();
    // The answer to a refused request is the request itself.
    let address = serve_requests(|head, body| {
        let secret = head
            .split("x-api-key: ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let first = format!("401 not {}", secret.unwrap_or("you"));
        (first, format!("{body} {head}"))
    });
    let url = format!("http://{address}/a");
    let query = format!("{url}?ticket={CANARY}&n=1");
    let bearer = format!("Authorization: Bearer {CANARY}");
    let key = format!("x-api-key: {CANARY}");
    let cookie = format!("cookie: theme=light; sid={CANARY}");
    let user = format!("me:{CANARY}");
    let body = format!("{{\"n\":1,\"password\":\"{CANARY}\"}}");
    let load = ["--clients", "2", "--calls", "6"];
    for processes in ["1", "2"] {
        for (what, url, flags) in [
            ("a bearer token", &url, ["-H", &bearer]),
            ("a key", &url, ["-H", &key]),
            ("a cookie", &url, ["-H", &cookie]),
            ("a user", &url, ["-u", &user]),
            ("a query", &query, ["-H", "accept: text/plain"]),
            ("a body", &url, ["-d", &body]),
        ] {
            let spread = ["--processes", processes];
            let command = [&["http", url][..], &load, &flags, &spread].concat();
            let what = format!("{what} that an answer repeats");
            assert_run_clean(&place, &what, &command, &[]);
            let run = place.run_json("out/run");
            assert_ne!(run["total"]["due"], run["total"]["ok"], "{what}");
            let traced = ["--trace", "--out", "traced"];
            let ended = place.run(&[&["http", url][..], &load, &flags, &traced].concat());
            assert_output_clean(&what, &ended);
            fs::remove_dir_all(place.path("traced")).expect("a run");
        }
    }
}

#[test]
fn secrets_of_bodies_appear_nowhere() {
    let place = Place::new();
    let address = serve_requests(|_, body| {
        // Whatever was sent in place of the secret is refused.
        let first = if body.contains(CANARY) {
            "200 OK"
        } else {
            "400 Bad Request"
        };
        (first.to_owned(), String::new())
    });
    let url = format!("http://{address}/a");
    let json = format!("{{\"user\":\"ada\",\"password\":\"{CANARY}\"}}");
    let form = format!("grant_type=password&password={CANARY}");
    let part = format!("password={CANARY}");
    let load = ["--clients", "2", "--calls", "20"];
    for (what, flags) in [
        ("a body", ["-d", &json]),
        ("a form", ["-d", &form]),
        ("a part of a form", ["-F", &part]),
    ] {
        for processes in ["1", "2"] {
            let spread = ["--processes", processes];
            let command = [&["http", &url][..], &load, &flags, &spread].concat();
            assert_run_clean(&place, what, &command, &[]);
            assert_eq!(place.run_json("out/run")["total"]["ok"], 20, "{what}");
        }
        let again = ["run", "out/run/plan.toml", "--out", "again", "-q"];
        assert_eq!(place.run(&again).status.code(), Some(2), "{what}");
        let mut command = place.command(&again);
        let ended = output(command.env("PLIMSOLL_BODY_PASSWORD", CANARY), MAX_WAIT);
        assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
        assert_files_clean(what, &place.path("again"));
        fs::remove_dir_all(place.path("again")).expect("a run");
        let shown = [&["http", &url, "--clients", "1", "--dry-run"][..], &flags].concat();
        assert_output_clean(what, &place.run(&shown));
    }
}

#[test]
fn secrets_of_steps_appear_nowhere() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let address = server.address();
    for offered in [
        format!("v1, bearer, {CANARY}"),
        format!("base64url.bearer.authorization.k8s.io.{CANARY}"),
    ] {
        let plan = format!(
            "target = \"http://{address}\"\n[load]\nclients = 1\ncalls = 1\n\
             [[steps]]\npath = \"/echo\"\nbody = '{{\"client_secret\":\"{CANARY}\"}}'\n\
             [[steps]]\ntarget = \"ws://{address}\"\npath = \"/echo\"\nsubprotocol = \"{offered}\"\n\
             send = \"refresh_token={CANARY}\"\n"
        );
        fs::write(place.path("steps.toml"), plan).unwrap();
        assert_run_clean(&place, &offered[..6], &["run", "steps.toml"], &[]);
    }
}

#[test]
fn plan_errors_show_no_body_secrets() {
    let place = Place::new();
    let plan = format!(
        "target = \"http://127.0.0.1:1/\"\n[load]\nclients = 1\n[[steps]]\npath = \"/a\"\n\
         body = '{{\"password\":\"{CANARY}\"}}'\nnosuch = 1\n[[steps]]\npath = \"/b\"\n\
         body = \"client_secret={CANARY}&a=b\"\nnosuch = 1\n"
    );
    fs::write(place.path("plan.toml"), plan).unwrap();
    let ended = place.run(&["run", "plan.toml"]);
    assert_eq!(ended.status.code(), Some(2), "{}", text(&ended.stderr));
    assert_output_clean("a plan with wrong keys", &ended);
}
