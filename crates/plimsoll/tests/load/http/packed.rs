//! Compressed answers from an aiohttp server.

use serde_json::Value;

use super::{event_counts, first_error, run_http, url};
use crate::support::peers::python;
use crate::support::{Place, Server};

#[test]
fn compressed_responses_are_decoded_counted_and_bounded() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "http_server.py"));
    let load = ["--clients", "2", "--calls", "10"];
    let counted = |run: &Value, name: &str| {
        let counts = &run["total"]["measures"]["counts"];
        counts[name].as_u64().unwrap_or(0)
    };
    let looked = ["--expect-body", "needle"];
    let line = br#"{"n": 1, "found": "needle"}"#.len() as u64 + 1;
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let path = format!("/packed/{coding}/1000");
        // The body is checked whether or not compression was requested.
        for flags in [&looked[..], &["--compressed"]] {
            let run = run_http(
                &place,
                0,
                &url(&server, &path),
                &[&load[..], flags].concat(),
            );
            assert_eq!(run["total"]["ok"], 10, "{run}");
            let received = run["total"]["bytes_received"].as_u64().unwrap();
            assert_eq!(counted(&run, "bytes_packed"), received);
            assert!(received < 10 * line * 100, "{coding}: {received}");
            assert_eq!(
                counted(&run, "bytes_unpacked"),
                10 * 1000 * line,
                "{coding}"
            );
        }
        let asked = format!("/packed/{coding}/10?asked=1");
        run_http(
            &place,
            0,
            &url(&server, &asked),
            &[&load[..], &["--compressed"]].concat(),
        );
        let run = run_http(&place, 1, &url(&server, &asked), &load);
        assert_eq!(first_error(&run), ("HTTP_4XX", 10));
        let stream = format!("/packed/{coding}/20?sse=1");
        let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
        let run = run_http(
            &place,
            0,
            &url(&server, &stream),
            &[&load[..], &sse].concat(),
        );
        assert_eq!(event_counts(&run), (210, 10, 200), "{coding}");
        let over = format!("/packed/{coding}/100000");
        let limit = ["--compressed", "--max-body", "1MiB"];
        for (path, flags, code, detail) in [
            (
                &*over,
                &limit[..],
                "MESSAGE_TOO_LARGE",
                "a body that decompresses to more than 1048576 bytes",
            ),
            (
                &*format!("{path}?cut=1"),
                &looked,
                "BAD_ANSWER",
                "the body can't be decompressed",
            ),
            (
                &*format!("{path}?status=503"),
                &[],
                "HTTP_503",
                "503 Service Unavailable, content-encoding: ",
            ),
            (
                "/packed/rot13/10",
                &looked,
                "COMPRESSION_UNSUPPORTED",
                "content-encoding: rot13",
            ),
        ] {
            let run = run_http(&place, 1, &url(&server, path), &[&load[..], flags].concat());
            assert_eq!(first_error(&run), (code, 10), "{path}");
            let printed = run["details"][0]["text"].as_str().unwrap_or_default();
            assert!(printed.contains(detail), "{path}: {printed}");
            // A failure shows the beginning of the decompressed text.
            assert!(
                code != "HTTP_503" || printed.contains("needle"),
                "{path}: {printed}"
            );
        }
    }
    // Without a check of the body nothing is decompressed.
    let run = run_http(&place, 0, &url(&server, "/packed/rot13/10"), &load);
    assert_eq!(counted(&run, "bytes_unpacked"), 0);
    let table = place.expect(
        0,
        &[
            "http",
            &url(&server, "/packed/br/100"),
            "--compressed",
            "--clients",
            "1",
            "--calls",
            "5",
            "--out",
            "table",
        ],
    );
    assert!(table.contains("\npacked "), "{table}");
}
