//! gRPC through one sidecar and two, in plaintext and with mutual TLS between them: our commands,
//! and third-party clients and servers.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod costs;
mod operating;

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::peers::{peer, python, run_successfully, tool};
use support::{MAX_WAIT, ORDER, Place, SCORE, Server, text};

/// Sidecars in front of a service, the outermost first.
struct SidecarChain(Vec<Server>);

impl SidecarChain {
    fn new(place: &Place, name: &str, service: &Server) -> SidecarChain {
        let one = |more: &str, upstream: u16| {
            let file = format!("{name}-{upstream}.toml");
            let text = format!(
                "[[route]]\nname = \"{name}\"\nprotocol = \"grpc\"\nlisten = \"127.0.0.1:0\"\n\
                 upstream = [\"127.0.0.1:{upstream}\"]\nheartbeat = \"300ms\"\n{more}\n"
            );
            fs::write(place.path(&file), text).expect("writable");
            Server::start(&mut place.command(&["relay", "sidecar", &file]))
        };
        let (listen, upstream) = match name {
            "one" => return SidecarChain(vec![one("", service.port)]),
            "two" => (String::new(), String::new()),
            _ => (
                tls_files("listen_tls", "server"),
                tls_files("upstream_tls", "client"),
            ),
        };
        let inner = one(&listen, service.port);
        SidecarChain(vec![one(&upstream, inner.port), inner])
    }

    fn url(&self) -> String {
        self.0[0].plaintext()
    }

    fn stop(self) {
        for sidecar in self.0 {
            assert_eq!(sidecar.stop().0, 0);
        }
    }
}

/// Returns a sidecar's key for a TLS side.
fn tls_files(key: &str, who: &str) -> String {
    let name = match key {
        "upstream_tls" => ", server_name = \"localhost\"",
        _ => "",
    };
    format!(
        "{key} = {{ ca = \"certs/ca.crt\", cert = \"certs/{who}.crt\", \
         key = \"certs/{who}.key\"{name} }}"
    )
}

const CHAIN_KINDS: [&str; 3] = ["one", "two", "mutual"];

/// Runs a load over many client connections, in which every call must succeed.
#[track_caller]
fn assert_calls_pass(place: &Place, url: &str, call: &[&str]) {
    for load in [
        &["--clients", "48", "--connections", "6", "--calls", "1500"][..],
        &["--rate", "200/s", "--calls", "100"],
        &["--cold", "--rate", "40/s", "--calls", "20"],
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let flags = ["grpc", url, "-q", "--json", "--out", "run"];
        let run = place.expect_run(0, &[&flags, call, load].concat());
        assert_eq!(run["total"]["errors"], 0, "{run}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
    }
}

/// Makes a call of each kind with headers and trailers, and a load of streams.
#[track_caller]
fn assert_streams_pass(place: &Place, url: &str) {
    let printed = place.expect(0, &["check", "echo", url]);
    assert_eq!(printed.matches(": passed").count(), 4, "{printed}");
    let _ = fs::remove_dir_all(place.path("run"));
    let method = "grpc.examples.echo.Echo/BidirectionalStreamingEcho";
    let call = ["-m", method, "-d", r#"{"message": "over and out"}"#];
    let messages = ["--messages", "50", "--expect", "50", "--pace", "1ms"];
    let load = ["--clients", "8", "--connections", "4", "--calls", "32"];
    let flags = ["grpc", url, "-q", "--json", "--out", "run"];
    let run = place.expect_run(0, &[&flags[..], &call, &messages, &load].concat());
    assert_eq!(run["total"]["messages"]["received"], 1600, "{run}");
}

#[test]
fn sidecars_relay_our_client_and_servers() {
    let place = Place::new();
    place.certificates();
    let (echo, orders) = (place.serve(&["echo"]), place.serve(&["orders"]));
    for way in CHAIN_KINDS {
        let to_echo = SidecarChain::new(&place, way, &echo);
        assert_streams_pass(&place, &to_echo.url());
        to_echo.stop();
        let to_orders = SidecarChain::new(&place, way, &orders);
        assert_calls_pass(&place, &to_orders.url(), &ORDER);
        to_orders.stop();
    }
    // Six connections, and as many more as there were cold calls; one upstream per sidecar.
    let (code, said) = orders.stop();
    assert_eq!(code, 0);
    assert!(said.contains("processed 4860"), "{said}");
}

/// Sidecars send small records after pauses, for which AVX-512 is slow.
#[cfg(target_arch = "x86_64")]
#[test]
fn sidecar_avoids_avx512_by_default() {
    let place = Place::new();
    place.certificates();
    let variable = |server: &Server| {
        let path = format!("/proc/{}/environ", server.child.id());
        let environment = fs::read(path).expect("a process of ours");
        let mut entries = environment.split(|byte| *byte == 0);
        let entry = entries.find_map(|entry| entry.strip_prefix(b"OPENSSL_ia32cap="));
        entry.map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let echo = place.serve(&["echo"]);
    let secured = SidecarChain::new(&place, "mutual", &echo);
    let expected =
        std::arch::is_x86_feature_detected!("avx512f").then(|| ":~0xd0230000".to_owned());
    for sidecar in &secured.0 {
        assert_eq!(variable(sidecar), expected);
    }
    secured.stop();
    let plain = SidecarChain::new(&place, "one", &echo);
    assert_eq!(variable(&plain.0[0]), None);
    plain.stop();
    let mut command = place.command(&["relay", "sidecar", &format!("mutual-{}.toml", echo.port)]);
    let printed = Server::start(command.env("OPENSSL_ia32cap", ""));
    assert_eq!(variable(&printed).as_deref(), Some(""));
    assert_eq!(printed.stop().0, 0);
}

/// The certificates of both sidecars expire: open connections continue, new ones are refused and
/// reported, and new files repair it.
#[test]
fn certificate_expiry_in_use_is_reported() {
    let place = Place::new();
    place.certificates_for(Duration::from_secs(6));
    let service = place.serve(&["score"]);
    let sidecar = |name: &str, upstream: u16, tls: &str| {
        let file = format!("{name}.toml");
        let text = format!(
            "admin = \"127.0.0.1:0\"\n[[route]]\nname = \"{name}\"\nprotocol = \"tcp\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{upstream}\"]\n{tls}\n"
        );
        fs::write(place.path(&file), text).expect("writable");
        let log = fs::File::create(place.path(&format!("{name}.log"))).expect("writable");
        let mut sidecar = Server::start(place.command(&["relay", "sidecar", &file]).stderr(log));
        let admin = sidecar.next_address();
        (sidecar, admin)
    };
    let (inner, inner_admin) = sidecar("inner", service.port, &tls_files("listen_tls", "server"));
    let (outer, outer_admin) = sidecar("outer", inner.port, &tls_files("upstream_tls", "client"));
    let url = outer.plaintext();
    let run = |out: &str, load: &[&str]| {
        let flags = ["grpc", &url, "-q", "--json", "--out", out];
        place.command(&[&flags, &SCORE[..], load].concat())
    };
    // Opens new connections until all or none succeed.
    let until = |errors: u64| {
        for _ in 0..60 {
            let _ = fs::remove_dir_all(place.path("cold"));
            let load = ["--cold", "--rate", "50/s", "--calls", "10"];
            support::output(&mut run("cold", &load), Duration::from_secs(20));
            let run = place.run_json("cold");
            assert_eq!(run["count_check"]["matches"], true, "{run}");
            if run["total"]["errors"] == errors {
                return;
            }
        }
        panic!("not {errors} errors");
    };
    let mut kept = run("kept", &["--rate", "50/s", "--duration", "11s"]);
    let mut kept = kept.stdout(Stdio::null()).spawn().expect("plimsoll runs");
    until(0);
    until(10);
    // Each sidecar checks its own files every two seconds.
    let own = |name: &str, file: &str| {
        let words = format!("route {name}: the certificate certs/{file}.crt expired at 20");
        place.read(&format!("{name}.log")).matches(&words).count()
    };
    while own("outer", "client") + own("inner", "server") < 2 {
        until(10);
    }
    // Not each call is an attempt, because an upstream that has refused is ejected for a while.
    for admin in [inner_admin, outer_admin] {
        assert!(metric(&admin, "handshakes_failed_total") >= 1);
    }
    place.certificates_for(Duration::from_secs(3600));
    until(0);
    assert_eq!(support::wait(&mut kept), 0);
    let run = place.run_json("kept");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["total"]["ok"], 550, "{run}");
    for (sidecar, name, file, other) in [
        (outer, "outer", "client", "upstream"),
        (inner, "inner", "server", "client"),
    ] {
        assert_eq!(sidecar.stop().0, 0);
        let log = place.read(&format!("{name}.log"));
        assert_eq!(own(name, file), 1, "{log}");
        // With a resumed session it is random which side refuses first.
        let printed = format!("route {name}: TLS handshake with the {other} 127.0.0.1:");
        assert!(log.contains(&printed), "{log}");
        assert!(log.lines().count() < 20, "{log}");
    }
}

fn fetch_metrics(admin: &str) -> String {
    let mut page = TcpStream::connect(admin).expect("an admin page");
    page.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("asked");
    let mut said = String::new();
    page.read_to_string(&mut said).expect("text");
    said.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// Returns a value of a sidecar's admin page for its only route.
fn metric(admin: &str, name: &str) -> u64 {
    let said = fetch_metrics(admin);
    let line = said
        .lines()
        .find(|line| line.contains(name) && !line.starts_with('#'));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {said}"))
}

/// Starts a sidecar to a TLS upstream; its messages go to `relay.log`, its admin page is the second
/// address.
fn sidecar_to(place: &Place, upstream: u16, tls: &str) -> (Server, String) {
    let text = format!(
        "admin = \"127.0.0.1:0\"\n[[route]]\nname = \"r\"\nprotocol = \"grpc\"\n\
         listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{upstream}\"]\nupstream_tls = {{ {tls} }}\n"
    );
    fs::write(place.path("relay.toml"), text).expect("writable");
    let log = fs::File::create(place.path("relay.log")).expect("a log");
    let mut command = place.command(&["relay", "sidecar", "relay.toml"]);
    let mut relay = Server::start(command.stderr(log));
    let admin = relay.next_address();
    (relay, admin)
}

/// Returns the output of a peer.
#[track_caller]
fn output_text(command: &mut Command) -> String {
    text(&run_successfully(command).stdout)
}

#[test]
fn upstream_certificate_is_verified_as_configured() {
    let place = Place::new();
    // Its issuer is in no file here, and it has another name.
    let mut make = tool("openssl");
    make.current_dir(place.path(""));
    run_successfully(make.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=elsewhere.test",
        "-days",
        "30",
        "-keyout",
        "s.key",
        "-out",
        "s.crt",
    ]));
    let mut show = tool("openssl");
    show.current_dir(place.path(""));
    let shown =
        run_successfully(show.args(["x509", "-in", "s.crt", "-noout", "-fingerprint", "-sha256"]));
    let shown = text(&shown.stdout);
    let pin = shown.split('=').nth(1).expect("a fingerprint").trim();
    // A third-party server.
    let mut theirs = python(&place, "grpcio_server.py");
    let theirs = Server::start(theirs.args(["--tls-cert", "s.crt", "--tls-key", "s.key"]));
    let zeros = "0".repeat(64);
    let pinned = format!("pin = [\"sha256:{pin}\"]");
    let other = format!("pin = [\"sha256:{zeros}\"]");
    for (tls, passes) in [
        (pinned.as_str(), true),
        ("insecure = true", true),
        ("ca = \"s.crt\"", true),
        (other.as_str(), false),
    ] {
        let (relay, admin) = sidecar_to(&place, theirs.port, tls);
        let _ = fs::remove_dir_all(place.path("run"));
        let url = relay.plaintext();
        let load = [
            "grpc",
            &url,
            "-q",
            "--out",
            "run",
            "--clients",
            "2",
            "--calls",
            "20",
        ];
        let output = place.run(&[&load[..], &SCORE].concat());
        assert_eq!(
            output.status.success(),
            passes,
            "{tls}: {}",
            place.read("relay.log")
        );
        let insecure = tls.starts_with("insecure");
        assert_eq!(metric(&admin, "upstream_insecure"), u64::from(insecure));
        assert_eq!(relay.stop().0, 0);
        let log = place.read("relay.log");
        let warned = "INSECURE: route r: the upstream's certificate is not checked";
        assert_eq!(log.contains(warned), insecure, "{log}");
        assert_eq!(log.contains("which is not pinned"), !passes, "{log}");
    }
}

#[test]
fn sidecars_relay_grpcio_and_grpc_go() {
    let place = Place::new();
    place.certificates();
    let grpcio = Server::start(&mut python(&place, "grpcio_server.py"));
    let mut go = Command::new(peer("bin/go-score"));
    let go = Server::start(go.current_dir(place.path("")));
    for way in CHAIN_KINDS {
        let to_grpcio = SidecarChain::new(&place, way, &grpcio);
        assert_streams_pass(&place, &to_grpcio.url());
        let address = to_grpcio.0[0].address();
        run_successfully(
            python(&place, "grpcio_client.py").args(["score", &address, "--calls", "50"]),
        );
        to_grpcio.stop();
        let to_go = SidecarChain::new(&place, way, &go);
        assert_calls_pass(&place, &to_go.url(), &SCORE);
        to_go.stop();
    }
    // A service that is gone gives gRPC's status for that.
    let way = SidecarChain::new(&place, "mutual", &go);
    drop(go);
    let address = way.0[0].address();
    let expected = ["score", &address, "--expect", "UNAVAILABLE"];
    run_successfully(python(&place, "grpcio_client.py").args(expected));
    way.stop();
}
