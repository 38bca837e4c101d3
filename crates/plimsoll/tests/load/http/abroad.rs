//! nginx, HAProxy and the servers of Go, Python and Node as targets; curl as a client.

use std::collections::BTreeSet;

use super::*;

#[test]
fn curl_works_with_http_server() {
    let place = Place::new();
    place.certificates();
    let plain = place.serve(&["http"]);
    let secured = place.serve(&[&["http"], &SERVER_TLS[..]].concat());
    let (plain, secured) = (
        format!("http://127.0.0.1:{}", plain.port),
        format!("https://localhost:{}", secured.port),
    );
    for (base, flags, version) in [
        (&plain, &["--http1.1"][..], "1.1"),
        (&plain, &["--http2-prior-knowledge"], "2"),
        (&secured, &["--http1.1", "--cacert", "certs/ca.crt"], "1.1"),
        (&secured, &["--http2", "--cacert", "certs/ca.crt"], "2"),
    ] {
        let curl = |path: &str, more: &[&str]| {
            let mut curl = tool("curl");
            curl.args([
                "-sS",
                "-w",
                " %{http_version} %{http_code}",
                "--noproxy",
                "*",
            ])
            .args(flags)
            .args(more)
            .arg(format!("{base}{path}"))
            .current_dir(place.path(""));
            let said = output(&mut curl, MAX_WAIT);
            assert!(said.status.success(), "{}", text(&said.stderr));
            text(&said.stdout)
        };
        assert_eq!(curl("/bytes/5", &[]), format!("xxxxx {version} 200"));
        assert_eq!(
            curl("/echo", &["-d", "hello"]),
            format!("hello {version} 200")
        );
        let busy = curl("/status/429", &["-i"]);
        assert!(busy.ends_with(&format!("{version} 429")), "{busy}");
        assert!(busy.to_lowercase().contains("retry-after: 1"), "{busy}");
        let events = curl("/sse/2", &["-N"]);
        let expected =
            format!("data: {{\"n\":0}}\n\ndata: {{\"n\":1}}\n\ndata: [DONE]\n\n {version} 200");
        assert_eq!(events, expected);
    }
}

#[test]
fn nginx_transfers_and_404s_are_counted() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/a"), vec![b'a'; 70_000]).unwrap();
    let port = free_port();
    let nginx = Nginx::start(&place, &format!("listen 127.0.0.1:{port} ssl http2;"));
    let half = ["--clients", "4", "--calls", "20"];
    for (port, version) in [(nginx.port, "1.1"), (port, "2")] {
        let url = |path: &str| format!("https://localhost:{port}{path}");
        let flags = [&half, &CLIENT_TLS[..], &["--http-version", version]].concat();
        let run = run_http(&place, 0, &url("/a"), &flags);
        assert_eq!(run["total"]["bytes_received"], 20 * 70_000, "{run}");
        let run = run_http(&place, 1, &url("/b"), &flags);
        assert_eq!(first_error(&run), ("HTTP_404", 20));
    }
    let log = place.read("access.log");
    assert_eq!(
        log.lines()
            .filter(|line| line.contains(" 200 70000"))
            .count(),
        40
    );
    assert_eq!(
        log.lines().filter(|line| line.contains(" 404 ")).count(),
        40
    );
}

/// Trace Context: nginx logs the received headers, over both HTTP versions, for files and for
/// WebSockets that it proxies.
#[test]
fn nginx_sees_reported_call_and_socket_traces() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/a"), "a").unwrap();
    let behind = Server::start(&mut python(&place, "ws_server.py"));
    let port_2 = free_port();
    let nginx = Nginx::start(
        &place,
        &format!(
            "listen 127.0.0.1:{port_2} ssl http2; access_log traces.log traces;\n\
             location /echo {{ proxy_pass http://{}; proxy_http_version 1.1;\n\
             proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}\n",
            behind.address()
        ),
    );
    let url = |scheme: &str, port: u16, path: &str| format!("{scheme}://localhost:{port}{path}");
    let (one, two) = (nginx.port, port_2);
    let mut listed = BTreeSet::new();
    for (protocol, url, flags, calls) in [
        (
            "http",
            url("https", one, "/a"),
            &["--http-version", "1.1"][..],
            10,
        ),
        (
            "http",
            url("https", two, "/a?{{seq}}"),
            &["--http-version", "2"],
            10,
        ),
        (
            "http",
            url("https", two, "/a"),
            &["--http-version", "auto"],
            10,
        ),
        ("fetch", url("https", one, "/a"), &["--cold"], 10),
        // All calls of a socket share its trace.
        ("ws", url("wss", one, "/echo"), &["-d", "{{seq}}"], 4),
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let fixed = [
            protocol,
            &url,
            "-q",
            "--json",
            "--out",
            "run",
            "--traceparent",
        ];
        let run = run_measured(
            &place,
            0,
            &[&fixed, flags, &CLIENT_TLS, &FORTY_CALLS].concat(),
        );
        assert_eq!(run["total"]["ok"], 40, "{run}");
        let slowest = traces::slowest(&run);
        assert!((1..=calls).contains(&slowest.len()), "{run}");
        listed.extend(slowest);
    }
    // nginx logs a socket when it is closed.
    let end = Instant::now() + MAX_WAIT;
    let log = loop {
        let log = place.read("traces.log");
        if log.lines().count() >= 4 * 40 + 4 {
            break log;
        }
        assert!(Instant::now() < end, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let seen = traces::traces(&place, log.lines());
    assert_eq!(seen.len(), 4 * 40 + 4);
    assert!(listed.is_subset(&seen), "{listed:?} {seen:?}");
}

#[test]
fn haproxy_forwards_responses_and_reports_missing_backend() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let port = free_port();
    let config = format!(
        "frontend f\n bind 127.0.0.1:{port}\n bind unix@h2.sock proto h2\n use_backend nobody if {{ path /nobody }}\n default_backend b\n\
         backend b\n server s {}\nbackend nobody\n",
        server.address()
    );
    let haproxy = Haproxy::start(&place, "http", &config, port);
    let base = format!("http://127.0.0.1:{port}");
    let whole = run_http(&place, 0, &format!("{base}/bytes/3000"), &FORTY_CALLS);
    let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
    let streamed = run_http(
        &place,
        0,
        &format!("{base}/sse/4"),
        &[&FORTY_CALLS[..], &sse].concat(),
    );
    let nobody = run_http(&place, 1, &format!("{base}/nobody"), &FORTY_CALLS);
    let two = [&FORTY_CALLS[..], &["--http-version", "2"]].concat();
    let whole_2 = run_http(&place, 0, "unix:h2.sock:/bytes/3000", &two);
    let streamed_2 = run_http(&place, 0, "unix:h2.sock:/sse/4", &[&two[..], &sse].concat());
    let nobody_2 = run_http(&place, 1, "unix:h2.sock:/nobody", &two);
    drop(haproxy);
    for whole in [whole, whole_2] {
        assert_eq!(whole["total"]["bytes_received"], 40 * 3_000);
    }
    for streamed in [streamed, streamed_2] {
        assert_eq!(event_counts(&streamed), (200, 40, 160));
    }
    for nobody in [nobody, nobody_2] {
        assert_eq!(first_error(&nobody), ("HTTP_503", 40));
    }
}

#[test]
fn chunked_go_responses_with_trailers_are_read() {
    let place = Place::new();
    place.certificates();
    for (secured, version) in [(false, "1.1"), (false, "2"), (true, "1.1"), (true, "2")] {
        let mut command = Command::new(peer("bin/go-http"));
        command.args(["-pace", "1ms"]).current_dir(place.path(""));
        if secured {
            command.args(["-cert", "certs/server.crt", "-key", "certs/server.key"]);
        }
        let server = Server::start(&mut command);
        let tls: &[&str] = if secured { &CLIENT_TLS } else { &[] };
        let tls = [tls, &["--http-version", version]].concat();
        let tls: &[&str] = &tls;
        let url = |path: &str| {
            if secured {
                format!("https://localhost:{}{path}", server.port)
            } else {
                format!("http://127.0.0.1:{}{path}", server.port)
            }
        };
        let run = run_http(
            &place,
            0,
            &url("/bytes/100000"),
            &[&FORTY_CALLS, tls].concat(),
        );
        assert_eq!(run["total"]["bytes_received"], 40 * 100_000);
        let put = [
            "-X",
            "PUT",
            "-d",
            "{\"a\": {{seq}}}",
            "--expect-header",
            "X-Method: PUT",
            "--expect-body",
            "\"a\": ",
        ];
        let run = run_http(
            &place,
            0,
            &url("/echo"),
            &[&FORTY_CALLS, &put[..], tls].concat(),
        );
        assert_eq!(run["total"]["ok"], 40, "{run}");
        let sse = ["--stream", "sse", "--stream-until", "event:done"];
        let run = run_http(
            &place,
            0,
            &url("/sse/5"),
            &[&FORTY_CALLS, &sse[..], tls].concat(),
        );
        assert_eq!(event_counts(&run), (240, 40, 200));
        let run = run_http(
            &place,
            1,
            &url("/status/502"),
            &[&FORTY_CALLS, tls].concat(),
        );
        assert_eq!(first_error(&run), ("HTTP_502", 40));
    }
}

#[test]
fn python_bodies_and_stream_endings_are_judged() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "http_server.py"));
    let run = run_http(&place, 0, &url(&server, "/close"), &FORTY_CALLS);
    assert_eq!(run["total"]["ok"], 40, "{run}");
    assert_eq!(run["total"]["bytes_received"], 40 * 23);
    let load = ["--clients", "2", "--calls", "6"];
    for (path, flags, code, count) in [
        (
            "/sse/whole/4",
            &["--stream", "sse", "--stream-until", "[DONE]"][..],
            None,
            30,
        ),
        (
            "/sse/fails/4",
            &["--stream", "sse", "--stream-until", "[DONE]"],
            Some("EVENT_ERROR"),
            30,
        ),
        (
            "/sse/short/4",
            &["--stream", "sse", "--stream-until", "[DONE]"],
            Some("STREAM_SHORT"),
            24,
        ),
        (
            "/ndjson/whole/4",
            &[
                "--stream",
                "ndjson",
                "--stream-until",
                "contains:\"done\": true",
            ],
            None,
            30,
        ),
        (
            "/ndjson/fails/4",
            &["--stream", "ndjson"],
            Some("EVENT_ERROR"),
            30,
        ),
        ("/ndjson/short/4", &["--stream", "ndjson"], None, 24),
    ] {
        let exit = i32::from(code.is_some());
        let run = run_http(
            &place,
            exit,
            &url(&server, path),
            &[&load[..], flags].concat(),
        );
        assert_eq!(event_counts(&run).0, count, "{path}");
        if let Some(code) = code {
            assert_eq!(first_error(&run), (code, 6), "{path}");
        }
    }
}

#[test]
fn node_server_is_measured() {
    let place = Place::new();
    let script = "const s = require(process.argv[2]).createServer((q, r) => {\n\
        let n = 0; q.on('data', d => n += d.length); q.on('end', () => {\n\
        r.setHeader('X-Got', n); r.write('{\"n\": ' + n); r.end(', \"ok\": true}'); }); });\n\
        s.listen(0, '127.0.0.1', () => console.log('listening on 127.0.0.1:' + s.address().port));\n";
    fs::write(place.path("server.js"), script).unwrap();
    let post = [
        "-d",
        "0123456789",
        "--expect-header",
        "x-got: 10",
        "--expect-body",
        "\"ok\": true",
    ];
    for (module, version) in [("http", "1.1"), ("http2", "2")] {
        let mut node = tool("node");
        let server = Server::start(node.arg(place.path("server.js")).arg(module));
        let flags = [&FORTY_CALLS[..], &post, &["--http-version", version]].concat();
        let run = run_http(&place, 0, &url(&server, "/any"), &flags);
        assert_eq!(run["total"]["ok"], 40, "{run}");
        assert_eq!(
            run["total"]["bytes_received"],
            40 * "{\"n\": 10, \"ok\": true}".len()
        );
    }
}
