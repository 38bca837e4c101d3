//! Lifetimes of connections, and which of their handshakes are full.

use super::*;

/// Returns the full and resumed handshakes that our server counted.
#[track_caller]
fn stop_and_count(server: Server) -> (u64, u64) {
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    let number = |name: &str| {
        let rest = said.split(name).nth(1);
        let word = rest.and_then(|rest| rest.split([',', '\n', ' ']).find(|word| !word.is_empty()));
        word.map_or(0, |word| {
            word.parse()
                .unwrap_or_else(|e| panic!("{word}: {e}: {said}"))
        })
    };
    (number("full handshakes"), number("resumed handshakes"))
}

#[test]
fn full_handshake_share_matches_server_count() {
    for (share, clients, version) in [
        ("10%", "1", "1.3"),
        ("25%", "4", "1.3"),
        ("50%", "1", "1.2"),
    ] {
        let place = place();
        let versions = ["--tls-version", version];
        let server = place.serve(&[&["files"], &versions[..], &SERVER_TLS].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        let load = [
            "fetch",
            &url,
            "-q",
            "--json",
            "--out",
            "run",
            "--cold",
            "--workers",
            "1",
        ];
        let more = ["--clients", clients, "--calls", "400", "--full", share];
        let run = place.expect_run(0, &[&load[..], &more, &versions, &CLIENT_TLS].concat());
        let (full, resumed) = stop_and_count(server);
        assert_eq!(full + resumed, 400, "{run}");
        let part: f64 = share.trim_end_matches('%').parse().expect("a number");
        let asked = part / 100.0 * 400.0;
        assert!((full as f64 - asked).abs() <= 1.0, "{share}: {full} of 400");
        assert_eq!(run["total"]["connections_full"], full, "{run}");
        assert_eq!(run["full_share"], part / 100.0, "{run}");
    }
}

#[test]
fn connections_close_after_configured_calls() {
    let place = place();
    let server = place.serve(&[&["score", "--delay", "0s"], &SERVER_TLS[..]].concat());
    let url = format!("grpcs://localhost:{}", server.port);
    let call = [
        "--method",
        "score.ScoreService/GetScore",
        "--data",
        "{\"json\":\"[1]\"}",
    ];
    let load = [
        "--clients",
        "4",
        "--connections",
        "2",
        "--calls",
        "1000",
        "--workers",
        "1",
    ];
    let life = [
        "--calls-per-connection",
        "100",
        "--json",
        "-q",
        "--out",
        "run",
    ];
    let run = place.expect_run(
        0,
        &[&["grpc", &url], &call[..], &load, &life, &CLIENT_TLS].concat(),
    );
    assert_eq!(run["total"]["ok"], 1000, "{run}");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["calls_per_connection"], 100, "{run}");
    // The first of the two ends after half of its calls; the last ones carry the remaining calls or
    // none.
    let made = run["total"]["connections_full"].as_u64().expect("a number");
    assert!((10..=13).contains(&made), "{run}");
    assert_eq!(run["total"]["connections_lost"], 0, "{run}");
    assert_eq!(run["total"]["connections_unused"], Value::Null, "{run}");
}

#[test]
fn idle_and_used_connections_expire_after_lifetime() {
    let place = place();
    let server = place.serve(&[&["score", "--delay", "0s"], &SERVER_TLS[..]].concat());
    let url = format!("grpcs://localhost:{}", server.port);
    let call = [
        "--method",
        "score.ScoreService/GetScore",
        "--data",
        "{\"json\":\"[1]\"}",
    ];
    let load = [
        "--rate",
        "20/s",
        "--connections",
        "4",
        "--duration",
        "2s",
        "--workers",
        "1",
    ];
    let life = [
        "--connection-lifetime",
        "250ms",
        "--json",
        "-q",
        "--out",
        "run",
    ];
    let run = place.expect_run(
        0,
        &[&["grpc", &url], &call[..], &load, &life, &CLIENT_TLS].concat(),
    );
    assert_eq!(run["total"]["errors"], 0, "{run}");
    let made = run["total"]["connections_full"].as_u64().expect("a number");
    // Four connections, each replaced about eight times, or fewer on a busy machine.
    assert!((12..=44).contains(&made), "{run}");
    assert_eq!(run["connection_lifetime_us"], 250_000, "{run}");
}
