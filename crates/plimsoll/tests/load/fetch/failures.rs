//! Failures of fetches.

use super::*;

/// Starts a TLS server that announces ten bytes, sends four and closes, with or without
/// close_notify.
const TRUNCATING_SERVER: &str = r#"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("certs/server.crt", "certs/server.key")
listener = socket.create_server(("127.0.0.1", 0))
print("listening on 127.0.0.1:%d" % listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    try:
        link = context.wrap_socket(connection, server_side=True)
        link.recv(4096)
        link.sendall(b"HTTP/1.1 200 OK\r\n" + sys.argv[2].encode() + b"\r\nfour")
        if sys.argv[1] == "polite":
            link.unwrap()
        link.shutdown(socket.SHUT_RDWR)
        link.close()
    except OSError:
        pass
"#;

#[test]
fn wrong_status_length_and_missing_file_fail() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).expect("a folder");
    place.expect(0, &["payload", "100KiB", "site/a.bin"]);
    assert_eq!(
        fs::metadata(place.path("site/a.bin"))
            .expect("a file")
            .len(),
        102_400
    );
    place.expect(1, &["payload", "1KiB", "site/a.bin"]);
    place.expect(0, &["payload", "1KiB", "site/a.bin", "--force"]);
    let server = place.serve(&[&["files", "site"], &SERVER_TLS[..]].concat());
    let load = ["--calls", "3", "--clients", "1"];
    let run = fetch(&place, 0, &url(&server, "/a.bin"), &load);
    assert_eq!(run["total"]["bytes_received"], 3 * 1024);
    let run = fetch(&place, 1, &url(&server, "/b.bin"), &load);
    assert_eq!(first_error(&run), ("HTTP_404", 3));
    assert_eq!(run["details"][0]["text"], "GET /b.bin: 404 Not Found");
    let sized = [&load[..], &["--size", "2KiB"]].concat();
    let run = fetch(&place, 1, &url(&server, "/a.bin"), &sized);
    assert_eq!(first_error(&run), ("BODY_LENGTH", 3));
    assert_eq!(
        run["details"][0]["text"],
        "GET /a.bin: a body of 1024 bytes instead of 2048"
    );
}

#[test]
fn unusable_certificate_file_is_named() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("names")).expect("a folder");
    for end in ["crt", "key"] {
        fs::copy(
            place.path(&format!("certs/server.{end}")),
            place.path(&format!("names/a.test.{end}")),
        )
        .expect("a copy");
    }
    let flags = [&["files", "--tls-certs", "names"], &SERVER_TLS[..]].concat();
    let server = place.serve(&flags);
    let run = fetch(
        &place,
        0,
        &url(&server, "/bytes/9"),
        &["--calls", "1", "--clients", "1"],
    );
    assert_eq!(run["total"]["ok"], 1);
    fs::write(place.path("names/b.test.crt"), "nothing").expect("a file");
    let refused = place.run(&[&["serve"], &flags[..], &["--listen", "127.0.0.1:0"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let printed = stderr_of(&refused);
    assert!(
        printed.contains("certificate folder names/b.test.crt: holds no PEM certificate"),
        "{printed}"
    );
}

#[test]
fn short_body_or_missing_close_notify_fails() {
    let place = Place::new();
    place.certificates();
    fs::write(place.path("short.py"), TRUNCATING_SERVER).expect("a file");
    for (manner, header, code) in [
        ("polite", "Content-Length: 10\r\n", "BODY_LENGTH"),
        ("rude", "Content-Length: 10\r\n", "TRUNCATED"),
        ("rude", "Connection: close\r\n", "TRUNCATED"),
    ] {
        let mut python = Command::new("python3");
        python
            .args(["short.py", manner, header])
            .current_dir(place.path(""));
        let server = Server::start(&mut python);
        let flags = ["--mode", "new", "--calls", "2", "--clients", "1"];
        let run = fetch(&place, 1, &url(&server, "/x"), &flags);
        assert_eq!(first_error(&run), (code, 2), "{manner} {header}");
    }
}

/// Python's own server speaks HTTP/1.0 and closes after each answer: connections planned to be
/// reused are not, which the run must report and which satisfies no objective.
#[test]
fn connection_close_after_each_response_is_reported() {
    let place = Place::new();
    fs::write(place.path("file"), "text").expect("writable");
    let mut command = Command::new("python3");
    // `http.server` prints a line with its port before it serves.
    command
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut python = command.spawn().expect("python3 starts");
    let mut out = BufReader::new(python.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    let port = line
        .split("port ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let url = format!("http://127.0.0.1:{}/file", port.expect("a port"));
    let load = ["--clients", "2", "--connections", "2", "--calls", "200"];
    let run = fetch(
        &place,
        90,
        &url,
        &[&load[..], &["--objective", "p99 < 30s"]].concat(),
    );
    let _ = python.kill();
    let _ = python.wait();
    assert_eq!(run["total"]["ok"], 200, "{run}");
    let made = run["total"]["connections_full"].as_u64().expect("a count");
    assert!(made >= 200, "{run}");
    assert_eq!(run["state"], "invalid", "{run}");
    let problems = run["health"]["problems"].as_array().expect("a list");
    let problem = problems.iter().find(|p| p["kind"] == "not_reused");
    assert_eq!(
        problem.expect("it is reported")["invalidates"],
        true,
        "{run}"
    );
    // The line may be wrapped anywhere.
    let report = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = report.split_whitespace().collect();
    let report = words.join(" ");
    assert!(report.contains("the target closes connections"), "{report}");
}

/// Sends six hundred requests for a FIFO, a socket and a device: none blocks, and other files are
/// served.
#[test]
fn fifo_in_served_directory_does_not_block() {
    let place = Place::new();
    fs::create_dir(place.path("site")).expect("writable");
    fs::write(place.path("site/file"), "text").expect("writable");
    let made = Command::new("mkfifo").arg(place.path("site/fifo")).status();
    assert!(made.expect("mkfifo is there").success());
    let server = place.serve(&["files", "site"]);
    let url = format!("http://{}/fifo", server.address());
    let load = ["--clients", "20", "--calls", "600"];
    // None of them succeeds, and all are answered.
    let run = fetch(&place, 1, &url, &load);
    assert_eq!(first_error(&run).1, 600, "{run}");
    assert_ne!(first_error(&run).0, "DEADLINE_EXCEEDED", "{run}");
    let url = format!("http://{}/file", server.address());
    assert_eq!(fetch(&place, 0, &url, &load)["total"]["ok"], 600);
    let (code, printed) = server.stop();
    assert_eq!(
        (code, server_count(&printed, "refused")),
        (0, 600),
        "{printed}"
    );
}
