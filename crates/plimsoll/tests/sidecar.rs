//! gRPC through one sidecar and two, in plaintext and with mutual TLS between them: our own
//! commands, and clients and servers that others wrote.

mod support;

use std::fs;
use std::process::Command;

use support::peers::{peer, python, succeeds};
use support::{ORDER, Place, SCORE, Server};

/// Sidecars on the way to a service; the outermost first.
struct Way(Vec<Server>);

impl Way {
    fn new(place: &Place, name: &str, service: &Server) -> Way {
        let tls = |key: &str, who: &str| {
            format!(
                "{key} = {{ ca = \"certs/ca.crt\", cert = \"certs/{who}.crt\", \
                 key = \"certs/{who}.key\", server_name = \"localhost\" }}"
            )
        };
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
            "one" => return Way(vec![one("", service.port)]),
            "two" => (String::new(), String::new()),
            _ => (tls("listen_tls", "server"), tls("upstream_tls", "client")),
        };
        let inner = one(&listen, service.port);
        Way(vec![one(&upstream, inner.port), inner])
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

const WAYS: [&str; 3] = ["one", "two", "mutual"];

/// Many connections in, every call well.
#[track_caller]
fn carries(place: &Place, url: &str, call: &[&str]) {
    for load in [
        &["--clients", "48", "--connections", "6", "--calls", "1500"][..],
        &["--rate", "200/s", "--calls", "100"],
        &["--cold", "--rate", "40/s", "--calls", "20"],
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let flags = ["grpc", url, "-q", "--json", "--out", "run"];
        let run = place.expect_json(0, &[&flags, call, load].concat());
        assert_eq!(run["total"]["errors"], 0, "{run}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
    }
}

/// A call of each kind with its headers and trailers, and streams as a load.
#[track_caller]
fn streams(place: &Place, url: &str) {
    let told = place.expect(0, &["check", "echo", url]);
    assert_eq!(told.matches(": passed").count(), 4, "{told}");
    let _ = fs::remove_dir_all(place.path("run"));
    let method = "grpc.examples.echo.Echo/BidirectionalStreamingEcho";
    let call = ["-m", method, "-d", r#"{"message": "over and out"}"#];
    let messages = ["--messages", "50", "--expect", "50", "--pace", "1ms"];
    let load = ["--clients", "8", "--connections", "4", "--calls", "32"];
    let flags = ["grpc", url, "-q", "--json", "--out", "run"];
    let run = place.expect_json(0, &[&flags[..], &call, &messages, &load].concat());
    assert_eq!(run["total"]["messages"]["received"], 1600, "{run}");
}

#[test]
fn our_own_client_and_servers() {
    let place = Place::new();
    place.certificates();
    let (echo, orders) = (place.serve(&["echo"]), place.serve(&["orders"]));
    for way in WAYS {
        let to_echo = Way::new(&place, way, &echo);
        streams(&place, &to_echo.url());
        to_echo.stop();
        let to_orders = Way::new(&place, way, &orders);
        carries(&place, &to_orders.url(), &ORDER);
        to_orders.stop();
    }
    // Six connections, and as many more as there were cold calls; one upstream a sidecar.
    let (code, said) = orders.stop();
    assert_eq!(code, 0);
    assert!(said.contains("processed 4860"), "{said}");
}

/// Small records after a pause are what a sidecar has; AVX-512 is slow at them.
#[cfg(target_arch = "x86_64")]
#[test]
fn cryptography_leaves_wide_vectors_alone_unless_told() {
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
    let secured = Way::new(&place, "mutual", &echo);
    let expected =
        std::arch::is_x86_feature_detected!("avx512f").then(|| ":~0xd0230000".to_owned());
    for sidecar in &secured.0 {
        assert_eq!(variable(sidecar), expected);
    }
    secured.stop();
    let plain = Way::new(&place, "one", &echo);
    assert_eq!(variable(&plain.0[0]), None);
    plain.stop();
    let mut command = place.command(&["relay", "sidecar", &format!("mutual-{}.toml", echo.port)]);
    let told = Server::start(command.env("OPENSSL_ia32cap", ""));
    assert_eq!(variable(&told).as_deref(), Some(""));
    assert_eq!(told.stop().0, 0);
}

#[test]
fn grpcio_and_grpc_go() {
    let place = Place::new();
    place.certificates();
    let grpcio = Server::start(&mut python(&place, "grpcio_server.py"));
    let mut go = Command::new(peer("bin/go-score"));
    let go = Server::start(go.current_dir(place.path("")));
    for way in WAYS {
        let to_grpcio = Way::new(&place, way, &grpcio);
        streams(&place, &to_grpcio.url());
        let address = to_grpcio.0[0].address();
        succeeds(python(&place, "grpcio_client.py").args(["score", &address, "--calls", "50"]));
        to_grpcio.stop();
        let to_go = Way::new(&place, way, &go);
        carries(&place, &to_go.url(), &SCORE);
        to_go.stop();
    }
    // A service that is gone, in gRPC's words.
    let way = Way::new(&place, "mutual", &go);
    drop(go);
    let address = way.0[0].address();
    let expected = ["score", &address, "--expect", "UNAVAILABLE"];
    succeeds(python(&place, "grpcio_client.py").args(expected));
    way.stop();
}
