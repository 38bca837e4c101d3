//! OpenSSL and third-party echo servers as peers.

use super::*;

/// A child process that reads commands and prints.
struct InteractiveChild {
    child: Child,
    stdin: ChildStdin,
    heard: Arc<Mutex<String>>,
}

impl InteractiveChild {
    fn start(command: &mut Command) -> InteractiveChild {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let heard = Arc::new(Mutex::new(String::new()));
        let mut out = child.stdout.take().expect("it is piped");
        let hears = Arc::clone(&heard);
        thread::spawn(move || {
            let mut piece = [0; 1024];
            while let Ok(n @ 1..) = out.read(&mut piece) {
                hears
                    .lock()
                    .expect("whole")
                    .push_str(&String::from_utf8_lossy(&piece[..n]));
            }
        });
        InteractiveChild {
            stdin: child.stdin.take().expect("it is piped"),
            child,
            heard,
        }
    }

    fn send_text(&mut self, text: &str) {
        self.stdin.write_all(text.as_bytes()).expect("it listens");
        self.stdin.flush().expect("it listens");
        // One command per read.
        thread::sleep(Duration::from_millis(150));
    }

    /// Waits until `needle` has been printed `times` times.
    #[track_caller]
    fn wait_for_text(&self, needle: &str, times: usize) -> String {
        let end = Instant::now() + MAX_WAIT;
        loop {
            let heard = self.heard.lock().expect("whole").clone();
            if heard.matches(needle).count() >= times {
                return heard;
            }
            assert!(Instant::now() < end, "no {needle:?} in {heard}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for InteractiveChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssl_client_survives_key_updates_and_resumes() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "other"]);
    fs::create_dir(place.path("names")).expect("a folder");
    for end in ["crt", "key"] {
        fs::copy(
            place.path(&format!("other/server.{end}")),
            place.path(&format!("names/a.test.{end}")),
        )
        .expect("a copy");
    }
    let flags = [&["hold", "--tls-certs", "names"], &SERVER_MTLS[..]].concat();
    let server = place.serve(&flags);
    let address = server.address();
    let mutual = [
        "-cert",
        "certs/client.crt",
        "-key",
        "certs/client.key",
        "-verify_return_error",
    ];
    for (session, ca, name) in [
        ("-sess_out", "certs/ca.crt", "localhost"),
        ("-sess_in", "certs/ca.crt", "localhost"),
        // A client that asks for another name is shown that name's certificate.
        ("-sess_out", "other/ca.crt", "a.test"),
    ] {
        let fixed = [
            "s_client",
            "-connect",
            &address,
            "-CAfile",
            ca,
            "-servername",
            name,
            session,
            "session.pem",
        ];
        let mut client =
            InteractiveChild::start(&mut openssl(&place, &[&fixed[..], &mutual].concat()));
        client.send_text("hello there\n");
        client.wait_for_text("hello there", 1);
        // `K` updates the keys here and requests an update from the peer; `k` only updates here.
        client.send_text("K\n");
        client.send_text("new keys\n");
        client.wait_for_text("new keys", 1);
        client.send_text("k\n");
        client.send_text("newer keys\n");
        client.wait_for_text("newer keys", 1);
        client.send_text("Q\n");
        assert_eq!(wait(&mut client.child), 0);
    }
    let (code, printed) = server.stop();
    assert_eq!(code, 0);
    assert_eq!(server_count(&printed, "full handshakes"), 2, "{printed}");
    assert_eq!(server_count(&printed, "resumed handshakes"), 1, "{printed}");
    assert_eq!(server_count(&printed, "connections broken"), 0, "{printed}");
}

/// Starts `openssl s_server` on a free port.
fn s_server(place: &Place, flags: &[&str]) -> Command {
    let fixed = [
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-tls1_3",
        "-cert",
        "certs/server.crt",
        "-key",
        "certs/server.key",
    ];
    openssl(place, &[&fixed, flags].concat())
}

#[test]
fn openssl_server_updates_keys_on_idle_connection() {
    let place = Place::new();
    place.certificates();
    // With -rev the server returns every line reversed, and our payload is a palindrome.
    for (flags, client) in [
        (&["-rev"][..], &CLIENT_TLS[..]),
        (
            &["-rev", "-Verify", "2", "-CAfile", "certs/ca.crt"],
            &CLIENT_MTLS,
        ),
    ] {
        let server = Server::start(s_server(&place, flags).stderr(Stdio::null()));
        let one = [
            "--connections",
            "1",
            "--for",
            "500ms",
            "--keepalive",
            "100ms",
        ];
        let run = run_hold(&place, 0, &tls_url(server.port), &[&one, client].concat());
        assert_eq!(run["total"]["ok"], 5, "{run}");
        assert_eq!(run["tls"]["version"], "TLSv1_3");
    }

    let mut server = InteractiveChild::start(&mut s_server(&place, &[]));
    let heard = server.wait_for_text("127.0.0.1:", 1);
    let port = heard
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .expect("a port");
    let url = tls_url(port);
    let fixed = [
        "hold",
        &url,
        "-q",
        "--json",
        "--out",
        "run",
        "--connections",
        "1",
        "--for",
        "2s",
        "--message",
        "8B",
    ];
    let _ = fs::remove_dir_all(place.path("run"));
    let client = place
        .command(&[&fixed[..], &CLIENT_TLS].concat())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    server.wait_for_text("...............", 1);
    server.send_text("...............\n");
    // Updates the server's keys and requests an update from the client while the connection is
    // idle.
    server.send_text("K\n");
    server.wait_for_text("\n.......\n", 1);
    server.send_text(".......\n");
    let output = client.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 1, "{run}");
    assert_eq!(run["total"]["connections_lost"], 0);
}

/// Typical echo servers with one thread per connection, each on its own port: the name of each and
/// its answer to what it has read.
const ECHO_SERVERS: &str = r#"
import socket, threading
def lines(answer):
    def serve(c):
        for line in c.makefile("rb"):
            c.sendall(answer(line))
    return serve
def buffers(answer):
    def serve(c):
        while data := c.recv(1024):
            c.sendall(answer(data))
    return serve
def listen(serve):
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(64)
    def accept():
        while True:
            c, _ = s.accept()
            threading.Thread(target=serve, args=(c,), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    return s.getsockname()[1]
def until_empty(data):
    # As `if not line.strip(): break` has it.
    if not data.strip():
        raise SystemExit
    return data
ports = [listen(serve) for serve in [
    buffers(lambda data: data),
    buffers(lambda data: data.ljust(1024, b"\0")),
    lines(lambda line: line),
    lines(lambda line: line.rstrip(b"\n")),
    lines(lambda line: line.rstrip(b"\n") + b"\r\n"),
    lines(until_empty),
]]
print(*ports, flush=True)
threading.Event().wait()
"#;

#[test]
fn third_party_echo_servers_work_by_default() {
    let place = Place::new();
    let mut python = Command::new("python3");
    let server = InteractiveChild::start(python.args(["-c", ECHO_SERVERS]));
    let ports = server.wait_for_text("\n", 1);
    assert_eq!(ports.split_whitespace().count(), 6);
    for (nth, port) in ports.split_whitespace().enumerate() {
        let few = [
            "--connections",
            "3",
            "--for",
            "300ms",
            "--keepalive",
            "100ms",
        ];
        let run = run_hold(&place, 0, &format!("tcp://127.0.0.1:{port}"), &few);
        assert_eq!(run["total"]["ok"], 9, "server {nth}: {run}");
        assert_eq!(run["total"]["connections_lost"], 0, "server {nth}: {run}");
    }
}
