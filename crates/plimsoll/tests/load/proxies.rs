//! `--proxy` through tinyproxy (CONNECT) and microsocks (SOCKS5): every protocol, plaintext and
//! TLS, with and without a login, and refusals.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::peers::{peer, python, tool};
use support::ports::free_port;
use support::{
    CLIENT_TLS, MAX_WAIT, Place, SCORE, SERVER_TLS, Server, only_run, output, stderr_of, text,
};

const LOGIN: (&str, &str) = ("PROXY_LOGIN", "ann:secret-7f3a9c");

/// A third-party proxy, killed when dropped.
struct Proxy {
    child: Child,
    url: String,
}

impl Proxy {
    fn start(command: &mut Command, scheme: &str, port: u16) -> Proxy {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the proxy is installed");
        let end = Instant::now() + MAX_WAIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "{scheme}: the proxy does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Proxy {
            child,
            url: format!("{scheme}://127.0.0.1:{port}"),
        }
    }

    fn tinyproxy(place: &Place, more: &str) -> Proxy {
        let port = free_port();
        let config = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 200\nAllow 127.0.0.1\n{more}\n"
        );
        fs::write(place.path("tinyproxy.conf"), config).expect("a file");
        let mut command = tool("tinyproxy");
        command
            .arg("-d")
            .arg("-c")
            .arg(place.path("tinyproxy.conf"));
        Proxy::start(&mut command, "http", port)
    }

    fn microsocks(flags: &[&str]) -> Proxy {
        let port = free_port();
        let mut command = tool("microsocks");
        command.args(["-i", "127.0.0.1", "-p", &port.to_string()]);
        Proxy::start(command.args(flags), "socks5", port)
    }

    fn with_login(&self) -> String {
        self.url.replace("://", "://$PROXY_LOGIN@")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn run_measured(place: &Place, code: i32, arguments: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["-q", "--json", "--out", "run"];
    let mut command = place.command(&[arguments, &fixed].concat());
    let ended = output(command.env(LOGIN.0, LOGIN.1), MAX_WAIT);
    let (out, printed) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(
        ended.status.code(),
        Some(code),
        "{arguments:?}\n{out}\n{printed}"
    );
    serde_json::from_str(&out).map_or(Value::Null, |document| only_run(&document))
}

#[test]
fn every_protocol_works_through_both_proxy_kinds() {
    let place = Place::new();
    place.certificates();
    let plain = |arguments: &[&str]| place.serve(arguments);
    let (http, score) = (plain(&["http"]), plain(&["score"]));
    let secured = place.serve(&[&["http"][..], &SERVER_TLS].concat());
    let (bolt, llm) = (plain(&["bolt"]), plain(&["llm", "--token-delay", "1ms"]));
    let sockets = Server::start(&mut python(&place, "ws_server.py"));
    let tiny = Proxy::tinyproxy(&place, "");
    let socks = Proxy::microsocks(&[]);
    let load = ["--clients", "3", "--calls", "30"];
    for proxy in [&tiny, &socks] {
        let proxied = ["--proxy", &proxy.url];
        let of = |server: &Server, scheme: &str, path: &str| {
            format!("{scheme}://127.0.0.1:{}{path}", server.port)
        };
        let url = of(&http, "http", "/bytes/100KiB");
        let run = run_measured(&place, 0, &[&["http", &url], &load[..], &proxied].concat());
        assert_eq!(
            (&run["total"]["ok"], &run["target"]),
            (&30.into(), &url.as_str().into())
        );
        assert_eq!(run["total"]["bytes_received"], 30 * 100 * 1024);
        // One connection per call, and two versions over TLS.
        let rate = ["--rate", "50/s", "--duration", "400ms", "--cold"];
        run_measured(&place, 0, &[&["http", &url], &rate[..], &proxied].concat());
        // Proxies resolve names; one that uses only the first address is given the right one.
        let url = format!("https://localhost:{}/bytes/10", secured.port);
        let address = format!("localhost:{}:127.0.0.1", secured.port);
        let named = ["--resolve", &address];
        for version in ["1.1", "2"] {
            let flags = ["--http-version", version];
            run_measured(
                &place,
                0,
                &[
                    &["http", &url],
                    &load[..],
                    &flags,
                    &named,
                    &CLIENT_TLS,
                    &proxied,
                ]
                .concat(),
            );
        }
        let url = of(&score, "grpc", "");
        let run = run_measured(
            &place,
            0,
            &[&["grpc", &url], &SCORE[..], &load, &proxied].concat(),
        );
        assert_eq!(run["total"]["ok"], 30, "{run}");
        let url = of(&bolt, "sofa", "");
        run_measured(&place, 0, &[&["bolt", &url], &load[..], &proxied].concat());
        let url = of(&llm, "http", "");
        let turns = ["--model", "m", "--clients", "2", "--turns", "2"];
        run_measured(&place, 0, &[&["llm", &url], &turns[..], &proxied].concat());
        let url = of(&sockets, "ws", "/echo");
        run_measured(
            &place,
            0,
            &[&["ws", &url, "-d", "x"], &load[..], &proxied].concat(),
        );
    }
}

/// grpc-go's reflection is queried through the proxy that its calls use.
#[test]
fn reflection_goes_through_proxies() {
    let place = Place::new();
    let mut command = Command::new(peer("bin/go-health"));
    let command = command.arg("-reflection=true").stderr(Stdio::null());
    let server = Server::start(command);
    let url = server.plaintext();
    let tiny = Proxy::tinyproxy(&place, "BasicAuth ann secret-7f3a9c");
    let socks = Proxy::microsocks(&["-u", "ann", "-P", "secret-7f3a9c"]);
    let call = ["-m", "grpc.health.v1.Health/Check", "--reflection"];
    let load = ["--clients", "2", "--calls", "10"];
    for proxy in [&tiny, &socks] {
        let to = ["grpc", &url, "--proxy", &proxy.with_login()];
        let run = run_measured(&place, 0, &[&to, &call[..], &load].concat());
        assert_eq!(run["total"]["ok"], 10, "{run}");
        let to = ["grpc", &url, "--proxy", &proxy.url];
        let refused = place.run(&[&to, &call[..], &load].concat());
        let printed = stderr_of(&refused);
        assert!(printed.contains("the proxy: it"), "{printed}");
    }
}

#[test]
fn proxy_login_stays_secret_and_refusals_reported() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let url = format!("http://{}/", server.address());
    let tiny = Proxy::tinyproxy(&place, "BasicAuth ann secret-7f3a9c");
    let socks = Proxy::microsocks(&["-u", "ann", "-P", "secret-7f3a9c"]);
    let load = ["--clients", "2", "--calls", "10"];
    for proxy in [&tiny, &socks] {
        let with_login = proxy.with_login();
        let run = run_measured(
            &place,
            0,
            &[&["http", &url, "--proxy", &with_login], &load[..]].concat(),
        );
        assert_eq!(run["total"]["ok"], 10);
        for file in ["run/plan.toml", "run/run.json"] {
            assert!(!place.read(file).contains("secret-7f3a9c"), "{file}");
        }
        let again = ["run", "run/plan.toml", "-q", "--out", "again"];
        let _ = fs::remove_dir_all(place.path("again"));
        let again = output(place.command(&again).env(LOGIN.0, LOGIN.1), MAX_WAIT);
        assert_eq!(again.status.code(), Some(0), "{}", stderr_of(&again));
        let refused = place.run(&[&["http", &url, "--proxy", &proxy.url], &load[..]].concat());
        let printed = stderr_of(&refused);
        assert!(printed.contains("the proxy: it"), "{printed}");
    }
    let nobody = free_port().to_string();
    let open = Proxy::microsocks(&[]);
    let gone = format!("http://127.0.0.1:{nobody}/");
    let refused = place.run(&[&["http", &gone, "--proxy", &open.url], &load[..]].concat());
    let printed = stderr_of(&refused);
    assert!(printed.contains("SOCKS5 reply 5"), "{printed}");
    // The server is not a proxy.
    let other = format!("socks5://{}", server.address());
    let refused = place.run(&[&["http", &url, "--proxy", &other], &load[..]].concat());
    assert!(
        stderr_of(&refused).contains("the proxy: it"),
        "{}",
        stderr_of(&refused)
    );
    for (proxy, printed) in [
        ("ftp://h:1", "`ftp` is not a supported kind of proxy"),
        ("https://h:1", "TLS to the proxy itself is not supported"),
        ("http://h", "`h` is not HOST:PORT"),
        ("http://ann:secret@h:1", "a user and a password are secret"),
        (
            "http://$NOT_THERE@h:1",
            "the environment variable NOT_THERE is not set",
        ),
    ] {
        let refused = place.run(&[
            "http",
            &url,
            "--clients",
            "1",
            "--calls",
            "1",
            "--proxy",
            proxy,
        ]);
        assert_eq!(refused.status.code(), Some(2), "{proxy}");
        let lines = stderr_of(&refused);
        let found = lines.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            found.contains(printed) && !found.contains("ann:secret"),
            "{proxy}: {found}"
        );
    }
}

#[test]
fn proxy_that_refuses_connections_is_named() {
    let place = Place::new();
    let address = format!("127.0.0.1:{}", free_port());
    for scheme in ["http", "socks5"] {
        let proxy = format!("{scheme}://{address}");
        for call in [
            &[
                "http",
                "http://localhost:2/",
                "--clients",
                "1",
                "--calls",
                "1",
            ][..],
            &[
                "http",
                "http://localhost:2/",
                "-L",
                "--clients",
                "1",
                "--calls",
                "1",
            ],
            &["grpc", "list", "grpc://localhost:2"],
        ] {
            let out = place.run(&[call, &["--proxy", &proxy]].concat());
            assert!(!out.status.success(), "{call:?}");
            // Long messages are wrapped.
            let said = stderr_of(&out).replace(['│', '╰', '─', '▶'], " ");
            let said: Vec<&str> = said.split_whitespace().collect();
            let said = said.join(" ");
            for part in [
                &format!("the proxy (load.proxy): connect to {address}"),
                "is the proxy running, and is its address right",
            ] {
                assert!(said.contains(part), "{call:?} {proxy}: {said}");
            }
        }
    }
}

#[test]
fn proxy_is_named_in_failures_during_load() {
    let place = Place::new();
    let address = format!("127.0.0.1:{}", free_port());
    let proxy = format!("http://{address}");
    let call = ["http", "http://localhost:2/", "--cold", "--proxy", &proxy];
    let load = ["--clients", "1", "--calls", "2", "--out", "failed"];
    let out = place.run(&[&call[..], &load].concat());
    let run = place.run_json("failed");
    assert_eq!(run["total"]["ok"], 0, "{}", stderr_of(&out));
    let details = run["details"].to_string();
    assert!(
        details.contains(&format!("the proxy (load.proxy): connect to {address}")),
        "{details}"
    );
}

#[test]
fn unknown_host_of_proxy_is_named() {
    let place = Place::new();
    let out = place.run(&[
        "http",
        "http://localhost:2/",
        "--clients",
        "1",
        "--calls",
        "1",
        "--proxy",
        "http://proxy.invalid:1",
    ]);
    assert!(!out.status.success());
    let said = stderr_of(&out).replace(['│', '╰', '─', '▶'], " ");
    let said: Vec<&str> = said.split_whitespace().collect();
    let said = said.join(" ");
    for part in [
        "\"proxy.invalid\" of the proxy",
        "check the host name of the proxy",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
