//! Measurements of TLS: sweeps and their metrics, both modes of handshake alternately, a closed
//! loop until the rate is precise, imports from openssl, 0-RTT, and impossible settings.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::nginx::Nginx;
use support::{
    CLIENT_TLS, MAX_WAIT, Place, SERVER_TLS, Server, output, signal, stderr_of, text, wait,
};

fn url(server: &Server, path: &str) -> String {
    format!("https://localhost:{}{path}", server.port)
}

fn file_server(place: &Place) -> Server {
    place.certificates();
    place.serve(&[&["files"], &SERVER_TLS[..]].concat())
}

/// Returns a metric from the document of a sweep.
fn metric(document: &Value, scenario: &str, name: &str) -> f64 {
    document["sweep"]["metrics"]
        .as_array()
        .expect("metrics")
        .iter()
        .find(|m| m["ScenarioName"] == scenario && m["MetricName"] == name)
        .and_then(|m| m["MetricValue"].as_f64())
        .unwrap_or_else(|| panic!("no {name} of {scenario}: {document}"))
}

/// Two suites, a small and a large file, new and resumed: eight configurations.
const SWEEP: &str = r#"
name = "links"
[tls]
groups = ["X25519"]
[call.fetch]
[load]
clients = 4
reuse = "never"
warmup = "300ms"
[ladder]
slice = "400ms"
rounds = 1
serve = ["files"]
suite = ["TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"]
size = ["1KiB", "2MiB"]
connection = ["new", "resumed"]
"#;

#[test]
fn sweep_reports_all_metrics_near_limit() {
    let place = Place::new();
    fs::write(place.path("sweep.toml"), SWEEP).expect("a file");
    let document = place.expect_json(0, &["sweep", "sweep.toml", "--out", "sweep", "--json"]);
    assert_eq!(document["runs"], Value::Array(Vec::new()));
    let links = document["sweep"]["links"].as_array().expect("links");
    assert_eq!(links.len(), 8);
    for link in links {
        let resumed = link["connections"] == "resumed";
        let (full, again) = (&link["connections_full"], &link["connections_resumed"]);
        assert_eq!(full == 0, resumed, "{link}");
        assert_eq!(again == 0, !resumed, "{link}");
        for end in ["client", "server"] {
            // A slice this short has only a few CPU ticks, so the bound is wide.
            let share = link[format!("{end}_share_of_limit")]
                .as_f64()
                .expect("known");
            assert!((0.005..4.0).contains(&share), "{end}: {link}");
        }
    }
    let metrics = document["sweep"]["metrics"].as_array();
    assert_eq!(metrics.expect("metrics").len(), 4 * 12);
    for (suite, size, bytes) in [
        ("aes-128-gcm-sha256", "1k", 1024.0),
        ("chacha20-poly1305-sha256", "2m", 2_097_152.0),
    ] {
        let scenario = format!("tls_client_{suite}-{size}");
        let of = |name: &str| metric(&document, &scenario, name);
        for (prefix, new) in [("", "New"), ("Reuse", "Reuse")] {
            let connections = of(&format!("{prefix}NumberOfConnections"));
            let total = of(&format!("{prefix}TotalBytesRead"));
            let seconds = of(&format!("{prefix}Duration"));
            assert_eq!(of(&format!("{prefix}BytesReadPerConnection")), bytes);
            assert_eq!(total, connections * bytes, "{scenario}");
            assert!(connections > 0.0 && seconds >= 0.4, "{scenario}");
            let rate = of(&format!("{new}ConnectionsPerSec"));
            assert!((rate - connections / seconds).abs() < 1e-6 * rate);
            let throughput = of(&format!("{new}ConnectionThroughput"));
            assert!((throughput - total / seconds).abs() < 1e-6 * throughput);
        }
    }
    let csv = place.read("sweep/metrics.csv");
    assert!(csv.starts_with("ScenarioName,MetricName,MetricUnit,MetricValue\r\n"));
    assert_eq!(csv.lines().count(), 1 + 4 * 12);
    assert!(csv.contains(
        "tls_client_aes-128-gcm-sha256-1k,ReuseBytesReadPerConnection,bytes/connection,1024\r\n"
    ));
    // Showing it again gives the same output.
    let again = place.expect_json(0, &["report", "sweep", "--json"]);
    assert_eq!(again, document);
    let shown = place.expect(0, &["report", "sweep"]);
    assert!(
        shown.contains("of crypto-only limit") && shown.contains("tls_client_"),
        "{shown}"
    );
    assert!(place.read("sweep/report.html").contains("links"));
}

#[test]
fn sliced_sweep_has_confidence_intervals() {
    let place = Place::new();
    let plan = SWEEP.replace(", \"TLS_CHACHA20_POLY1305_SHA256\"", "");
    let plan = plan.replace("2MiB", "256MiB").replace("400ms", "1400ms");
    fs::write(place.path("sweep.toml"), plan).expect("a file");
    let outline = place.expect(0, &["sweep", "sweep.toml", "--dry-run"]);
    for words in ["14 rounds of slices of 100 ms, ", "one slice of 1.4 s, "] {
        assert!(outline.contains(words), "{outline}");
    }
    let document = place.expect_json(0, &["sweep", "sweep.toml", "--out", "sweep", "--json"]);
    for link in document["sweep"]["links"].as_array().expect("links") {
        let small = link["size_bytes"] == 1024;
        assert_eq!(link["slices"], if small { 14 } else { 1 }, "{link}");
        let [low, high] = [0, 1].map(|end| link["fetched_per_s_interval"][end].as_f64());
        let value = link["fetched_per_s"].as_f64();
        assert_eq!((low.is_some(), high.is_some()), (small, small), "{link}");
        assert!(low <= value && (!small || value <= high), "{link}");
    }
    let report = |rest: &[&str]| place.expect(0, &[&["report", "sweep"], rest].concat());
    let page = place.read("sweep/report.html");
    for shown in [report(&[]), report(&["--markdown", "-"]), page] {
        assert!(shown.contains(" ±") && shown.contains("not enough slices for an interval"));
    }
}

#[test]
fn interrupted_sweep_keeps_measurements() {
    let place = Place::new();
    fs::write(place.path("sweep.toml"), SWEEP).expect("a file");
    let mut command = place.command(&["sweep", "sweep.toml", "--out", "sweep", "--rounds", "99"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let end = Instant::now() + MAX_WAIT;
    let measured = || {
        let record = fs::read_to_string(place.path("sweep/ladder.json")).unwrap_or_default();
        record.matches("\"bytes_received\"").count()
    };
    while measured() < 2 {
        assert!(Instant::now() < end, "no slice was kept");
        std::thread::sleep(Duration::from_millis(50));
    }
    signal(&child, rustix::process::Signal::INT);
    assert_eq!(wait(&mut child), 130);
    let document = place.expect_json(0, &["report", "sweep", "--json"]);
    assert_eq!(document["sweep"]["interrupted"], true);
    let links = document["sweep"]["links"].as_array().expect("links").len();
    assert!((2..8).contains(&links), "{links}");
    assert!(place.read("sweep/metrics.csv").contains("tls_client_"));
}

#[test]
fn invalid_sweep_plans_are_rejected() {
    let place = Place::new();
    for (from, to, told_of) in [
        (
            "[call.fetch]",
            "[call.grpc]\nmethod = \"a.B/C\"",
            "the plan has no [call.fetch]",
        ),
        (
            "size = [\"1KiB\", \"2MiB\"]",
            "size = [\"1KiB\", \"2\"]",
            "has no unit",
        ),
        ("\"resumed\"]", "\"resume\"]", "`resume` is unknown"),
        (
            "[tls]\ngroups = [\"X25519\"]",
            "",
            "the target is plaintext",
        ),
    ] {
        let plan = SWEEP.replace(from, to);
        // This plan has neither a suite nor a connection mode, so nothing asks for TLS.
        let plan = match to {
            "" => plan.replace("suite = ", "\"load.workers\" = [1, 2]\n#"),
            _ => plan,
        };
        let plan = match to {
            "" => plan.replace("connection = ", "#"),
            _ => plan,
        };
        fs::write(place.path("sweep.toml"), plan).expect("a file");
        let refused = place.run(&["sweep", "sweep.toml"]);
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{to}: {}",
            stderr_of(&refused)
        );
        assert!(
            stderr_of(&refused).contains(told_of),
            "{}",
            stderr_of(&refused)
        );
    }
}

#[test]
fn mode_both_measures_new_and_resumed() {
    let place = Place::new();
    let server = file_server(&place);
    let url = url(&server, "/bytes/1KiB");
    let fixed = ["fetch", &url, "--mode", "both", "--json", "-q"];
    let flags = ["--duration", "600ms", "--clients", "4", "--out", "both"];
    let document = place.expect_json(0, &[&fixed, &flags[..], &CLIENT_TLS].concat());
    let modes: Vec<&Value> = document["sweep"]["links"]
        .as_array()
        .expect("links")
        .iter()
        .map(|link| &link["connections"])
        .collect();
    assert_eq!(modes, ["new", "resumed"]);
    let refused = place.run(&[&fixed[..], &["--calls", "5"], &CLIENT_TLS].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("set --duration"),
        "{}",
        stderr_of(&refused)
    );
}

#[test]
fn closed_loop_stops_at_rate_precision() {
    let place = Place::new();
    let server = file_server(&place);
    let url = url(&server, "/bytes/10");
    let fixed = [
        "fetch", &url, "--mode", "reused", "--fleet", "2", "--json", "--out", "run",
    ];
    // Half the interval's width: ten seconds on any machine are this even.
    let flags = ["--duration", "80s", "--rate-precision", "50%"];
    let run = place.expect_run(0, &[&fixed, &flags[..], &CLIENT_TLS].concat());
    assert_eq!(run["state"], "complete");
    assert_eq!(run["total"]["errors"], 0);
    let elapsed = run["total"]["elapsed_us"].as_u64().expect("known");
    assert!((10_000_000..79_000_000).contains(&elapsed), "{elapsed}");
    assert!(place.read("run/log.txt").contains("the rate is known to ±"));

    for (flags, told_of) in [
        (
            &[
                "--rate",
                "5/s",
                "--duration",
                "1s",
                "--rate-precision",
                "1%",
            ][..],
            "for a closed loop",
        ),
        (
            &["--clients", "1", "--calls", "9", "--rate-precision", "1%"],
            "needs --duration",
        ),
        (
            &[
                "--clients",
                "1",
                "--duration",
                "9s",
                "--rate-precision",
                "1",
            ],
            "use 0.01% to 50%",
        ),
    ] {
        let refused = place.run(&[&["fetch", &url], flags, &CLIENT_TLS].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            stderr_of(&refused).contains(told_of),
            "{}",
            stderr_of(&refused)
        );
    }
}

#[test]
fn openssl_s_time_import_is_comparable() {
    let place = Place::new();
    let server = file_server(&place);
    let address = server.address();
    let mut openssl = Command::new("openssl");
    openssl.current_dir(place.path(""));
    openssl.args([
        "s_time",
        "-connect",
        &address,
        "-www",
        "/bytes/1024",
        "-time",
        "1",
    ]);
    let timed = output(&mut openssl, MAX_WAIT);
    assert!(timed.status.success(), "{}", text(&timed.stderr));
    fs::write(place.path("both.txt"), &timed.stdout).expect("a file");
    let runs = place.expect_json(0, &["import", "both.txt", "--out", "theirs", "--json"]);
    for (run, kind) in runs["runs"]
        .as_array()
        .expect("two runs")
        .iter()
        .zip(["new", "resumed"])
    {
        let total = &run["total"];
        assert_eq!(run["name"], format!("both.txt, {kind}"));
        assert_eq!(run["source"], "imported");
        assert!(total["ok"].as_u64() > Some(2), "{run}");
        assert_eq!(
            total[format!("connections_{}", if kind == "new" { "full" } else { kind })],
            total["ok"]
        );
        assert!(total["bytes_received"].as_u64() >= total["ok"].as_u64().map(|n| n * 1024));
        assert_eq!(total["client"]["cpu_system_us"], Value::Null);
        assert_eq!(total["client"]["cpu_us_per_call"], Value::Null);
    }
    let link = url(&server, "/bytes/1024");
    let ours = [
        "fetch",
        &link,
        "--mode",
        "new",
        "--duration",
        "1s",
        "--out",
        "ours",
        "-q",
    ];
    place.expect(0, &[&ours, &CLIENT_TLS[..]].concat());
    let compared = place.expect_json(0, &["compare", "theirs/new", "ours", "--json"]);
    let metrics: Vec<&str> = compared["metrics"]
        .as_array()
        .expect("metrics")
        .iter()
        .filter_map(|m| m["metric"].as_str())
        .collect();
    assert_eq!(
        metrics,
        ["client user CPU a call", "rate achieved", "success"]
    );

    // Truncated or foreign output is reported.
    let whole = text(&timed.stdout);
    let cut = &whole[..whole.find(" connections in").expect("figures")];
    fs::write(place.path("cut.txt"), cut).expect("a file");
    let refused = place.run(&["import", "cut.txt"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr_of(&refused).contains("no figures of s_time"),
        "{}",
        stderr_of(&refused)
    );
}

#[test]
fn nginx_early_data_is_never_lost() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).expect("a folder");
    place.expect(0, &["payload", "500B", "site/file.bin"]);
    let flags = [
        "--mode",
        "resumed",
        "--early-data",
        "--size",
        "500B",
        "--clients",
        "2",
        "--calls",
        "20",
        "--warmup",
        "300ms",
        "-q",
        "--json",
        "--out",
        "run",
    ];
    for (setting, accepted) in [("ssl_early_data on;", true), ("", false)] {
        let nginx = Nginx::start(&place, setting);
        let _ = fs::remove_dir_all(place.path("run"));
        let url = format!("https://localhost:{}/file.bin", nginx.port);
        let run = place.expect_run(0, &[&["fetch", &url], &flags[..], &CLIENT_TLS].concat());
        assert_eq!(run["total"]["ok"], 20, "{run}");
        let counts = &run["total"]["measures"]["counts"];
        if accepted {
            // nginx may answer and close before the handshake is complete, and then sends no
            // ticket, so the next connection has a full handshake.
            let resumed = run["total"]["connections_resumed"].as_u64();
            let taken = counts["early_data_accepted"].as_u64().expect("counted");
            assert_eq!((resumed, taken > 5), (Some(taken), true), "{run}");
            assert_eq!(counts["early_data_rejected"], 0, "{run}");
            let end = Instant::now() + Duration::from_secs(30);
            let seen = || place.read("access.log").matches(" 500 early").count();
            while seen() < 6 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(seen() >= 6, "{}", place.read("access.log"));
        } else {
            // Its tickets do not allow early data, so none is sent.
            assert_eq!(run["total"]["connections_resumed"], 20, "{run}");
            assert_eq!(*counts, Value::Null, "{run}");
        }
        drop(nginx);
        fs::write(place.path("access.log"), "").expect("a file");
    }
    for (flags, told_of) in [
        (
            &["--mode", "new", "--early-data"][..],
            "set --resume as well",
        ),
        (
            &["--mode", "resumed", "--early-data", "--records", "own"],
            "0-RTT is encrypted by the library",
        ),
        (
            &["--resume", "--early-data", "--fleet", "1"],
            "ask for new ones with --cold",
        ),
    ] {
        let load = ["--duration", "1s"];
        let refused = place.run(&[&["fetch", "https://localhost:1/"], flags, &load].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            stderr_of(&refused).contains(told_of),
            "{}",
            stderr_of(&refused)
        );
    }
}

#[test]
fn unattainable_connection_count_fails_before_load() {
    let place = Place::new();
    let mut command = Command::new("sh");
    let script = format!(
        "ulimit -n 70; exec {} fetch https://localhost:1/ --mode new --clients 9000 --duration 1s",
        env!("CARGO_BIN_EXE_plimsoll")
    );
    command.args(["-c", &script]).current_dir(place.path(""));
    let refused = output(&mut command, MAX_WAIT);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr_of(&refused));
    assert!(
        stderr_of(&refused).contains("9,000 connections need 1,500 processes, as each may have 6"),
        "{}",
        stderr_of(&refused)
    );
}

#[test]
fn chain_once_rejects_untrusted_certificates() {
    let place = Place::new();
    let server = file_server(&place);
    place.expect(0, &["certs", "other"]);
    let url = url(&server, "/bytes/10");
    let fixed = [
        "fetch",
        &url,
        "--mode",
        "new",
        "--calls",
        "20",
        "--clients",
        "2",
        "--json",
        "-q",
    ];
    let once = ["--chain", "once", "--out"];
    let good = place.expect_run(0, &[&fixed, &once[..], &["good"], &CLIENT_TLS].concat());
    assert_eq!(good["total"]["ok"], 20);
    assert!(place.read("good/plan.toml").contains("chain = \"once\""));
    let untrusted = ["bad", "--ca", "other/ca.crt"];
    let bad = place.expect_run(1, &[&fixed, &once[..], &untrusted].concat());
    assert_eq!(bad["total"]["errors_by_code"][0]["code"], "TLS_UNKNOWN_CA");
    assert_eq!(bad["total"]["errors_by_code"][0]["count"], 20);
    let refused = place.run(&[&fixed[..], &["--chain", "twice"], &CLIENT_TLS].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("use \"each\" or \"once\""),
        "{}",
        stderr_of(&refused)
    );
}
