//! Common servers of Python services: uvicorn, and hypercorn with both versions of HTTP.

use super::{FORTY_CALLS, event_counts, first_error, run_http, url};
use crate::support::peers::python;
use crate::support::{CLIENT_TLS, Place, Server};

/// A server, its command line, and its URL.
const SERVERS: [(&str, bool, &str); 6] = [
    ("uvicorn", false, "1.1"),
    ("uvicorn", true, "1.1"),
    ("hypercorn", false, "1.1"),
    ("hypercorn", true, "1.1"),
    ("hypercorn", false, "2"),
    ("hypercorn", true, "2"),
];

#[test]
fn python_asgi_servers_are_measured() {
    let place = Place::new();
    place.certificates();
    for (name, secured, version) in SERVERS {
        let mut command = python(&place, "asgi_server.py");
        command.arg(name);
        if secured {
            command.args(["certs/server.crt", "certs/server.key"]);
        }
        let server = Server::start(&mut command);
        let at = |path: &str| {
            if secured {
                format!("https://localhost:{}{path}", server.port)
            } else {
                url(&server, path)
            }
        };
        let tls = if secured { &CLIENT_TLS[..] } else { &[] };
        let chosen = ["--http-version", version];
        let of = |code, path: &str, flags: &[&str]| {
            let run = run_http(
                &place,
                code,
                &at(path),
                &[&FORTY_CALLS[..], tls, &chosen, flags].concat(),
            );
            assert_eq!(run["http_version"], version, "{name} {path}");
            run
        };
        let whole = |path: &str, flags: &[&str], bytes: u64| {
            let spoken = ["--expect-header", &format!("x-version: {version}")];
            let run = of(0, path, &[&spoken, flags].concat());
            assert_eq!(run["total"]["ok"], 40, "{name} {path}: {run}");
            assert_eq!(run["total"]["bytes_received"], 40 * bytes, "{name} {path}");
            run
        };
        whole("/bytes/0", &[], 0);
        whole("/bytes/100000", &[], 100_000);
        whole("/pieces/30", &[], 300);
        let echoed = [
            "-d",
            "{\"n\": 1}",
            "--expect",
            "201",
            "--expect-body",
            "\"n\"",
        ];
        whole("/echo", &echoed, 8);
        let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
        let run = of(0, "/sse/4", &sse);
        assert_eq!(event_counts(&run), (200, 40, 160), "{name}");

        let run = of(1, "/status/503", &[]);
        assert_eq!(first_error(&run), ("HTTP_503_RETRY_AFTER", 40), "{name}");
        let run = of(1, "/breaks", &sse);
        assert_eq!(run["total"]["errors"], 40, "{name}: {run}");
        assert_eq!(event_counts(&run).0, 40, "{name}: {run}");
    }
}
