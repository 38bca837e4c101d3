//! Whole commands against the reference servers: files, exit codes, signals, variables.
//!
//! Build machines are busy, so no test depends on how fast a call is.

mod both_ways;
mod dry_runs;
mod exits;
mod foreign_lines;
mod variables;

use crate::built;
use crate::support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{
    MAX_WAIT, Place, SCORE, SERVER_TLS, Server, output, output_with_stdin, signal, stderr_of, text,
    wait,
};

#[test]
fn doctor_judges_settings_and_loads() {
    let place = Place::new();
    let output = place.run(&["doctor", "--json"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = printed["findings"].as_array().expect("findings");
    let distorts = findings.iter().any(|one| one["kind"] == "distortion");
    let expected = if distorts { 90 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{printed}");
    for name in ["cores", "open files", "pacing", "generator"] {
        assert!(findings.iter().any(|one| one["name"] == name), "{printed}");
    }
    let lateness = &printed["calibration"]["lateness_p99_us"];
    assert!(lateness.as_f64().is_some_and(|us| us > 0.0), "{printed}");
    // It leaves nothing behind.
    assert_eq!(fs::read_dir(place.path(".")).expect("a folder").count(), 0);
}

#[test]
fn explanations_end_with_next_step() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let load = |extra: &[&str]| {
        let mut arguments = vec!["grpc", &url];
        arguments.extend(SCORE);
        arguments.extend(["--rate", "500/s", "--duration", "2s", "--progress", "none"]);
        arguments.extend(extra);
        place.run(&arguments);
    };
    load(&["--out", "plain"]);
    load(&["--out", "judged", "--objective", "p99 < 10s"]);
    for (run, next) in [
        ("plain", "--objective 'p99 < "),
        ("judged", "plimsoll find judged"),
    ] {
        let output = place.expect_json(0, &["explain", run, "--json"]);
        let sentences = output["explained"][0]["sentences"]
            .as_array()
            .expect("a list");
        assert!((3..=10).contains(&sentences.len()), "{output}");
        let last = sentences
            .last()
            .and_then(|text| text.as_str())
            .expect("text");
        // A machine that is too busy is to measure again.
        assert!(
            last.contains(next) || last.contains("measure again"),
            "{output}"
        );
    }
    let missing = place.run(&["explain", "nothing"]);
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing.stderr));
}

#[test]
fn mtls_run_accounts_for_every_call() {
    let place = Place::new();
    place.expect(0, &["certs", "certs"]);
    let server = place.serve(&[
        "score",
        "--delay",
        "1ms",
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
        "--tls-client-ca",
        "certs/ca.crt",
    ]);
    let url = server.tls();
    let tls = [
        "--ca",
        "certs/ca.crt",
        "--cert",
        "certs/client.crt",
        "--key",
        "certs/client.key",
    ];
    let mut arguments = vec![
        "grpc",
        &url,
        "--rate",
        "200/s",
        "--warmup",
        "200ms",
        "--duration",
        "1s",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    arguments.extend(SCORE);
    arguments.extend(tls);
    let run = place.expect_run(0, &arguments);
    assert_eq!(run["total"]["due"], 200, "{run}");
    assert_eq!(run["total"]["ok"], 200, "{run}");
    assert_eq!(run["security"], "mutual-tls");
    assert_eq!(run["count_check"]["matches"], true);
    assert_eq!(run["count_check"]["due"], 240);
    assert!(place.read("run/plan.toml").contains("rate = \"200/s\""));
    // The report of the saved run shows the same figures to the last digit.
    let again = place.expect_run(0, &["report", "run", "--json"]);
    assert_eq!(again["total"], run["total"]);
    assert_eq!(again["stages"], run["stages"]);
    // An existing run directory is not overwritten.
    place.expect(1, &arguments);

    // Without a certificate the client reports the error with its code.
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "3",
        "--ca",
        "certs/ca.crt",
        "--out",
        "refused",
        "-q",
    ];
    arguments.extend(SCORE);
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(
        printed.contains("TLS_CLIENT_CERTIFICATE_REQUIRED"),
        "{printed}"
    );
}

const HALF_A_SECOND: [&str; 6] = [
    "--rate",
    "500/s",
    "--warmup",
    "100ms",
    "--duration",
    "500ms",
];

#[test]
fn bundled_plans_run() {
    let place = Place::new();
    place.expect(0, &["certs", "certs"]);
    let score = place.serve(&[
        "score",
        "--delay",
        "1ms",
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
        "--tls-client-ca",
        "certs/ca.crt",
    ]);
    let orders = place.serve(&["orders", "--pool", "10"]);
    let bolt = place.serve(&["bolt"]);
    let http = place.serve(&["http"]);
    let llm = place.serve(&["llm", "--token-delay", "1ms"]);
    let echo = place.serve(&["echo"]);
    let files = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    built::build_c_example(&place.path("."));
    let plugin = place.serve(&["plugin", "x_example.so"]);
    let hold = place.serve(&[&["hold"], &SERVER_TLS[..]].concat());
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut seen = 0;
    // Paths in plans are relative to the parent folder.
    fs::create_dir(place.path("plans")).expect("writable");
    let rows = "instruments.csv";
    fs::copy(plans.join(rows), place.path("plans").join(rows)).expect("writable");
    for entry in fs::read_dir(plans).expect("plans/ is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.expect("a name");
        let (target, shorter, calls): (_, &[&str], u64) = match name.as_str() {
            "score-steady" => (
                score.tls(),
                &[
                    "--rate",
                    "100/s",
                    "--warmup",
                    "100ms",
                    "--duration",
                    "500ms",
                ],
                50,
            ),
            // One rung is enough here; identity/ has a small ladder.
            "identity" | "identity-compressed" => (
                score.tls(),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--cert",
                    "certs/client.crt",
                    "--key",
                    "certs/client.key",
                    "--rate",
                    "20/s",
                    "--calls",
                    "6",
                ],
                6,
            ),
            "identity-openssl" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &["--ca", "certs/ca.crt", "--rate", "20/s", "--calls", "6"],
                6,
            ),
            "score-cold" => (score.tls(), &["--rate", "20/s", "--calls", "6"], 6),
            // These plans are about large loads; here two processes each run them.
            "fleet-20000" | "fleet-100000" => (
                orders.plaintext(),
                &["--fleet", "40", "--calls", "2000", "--processes", "2"],
                2000,
            ),
            "orders-fleet" => (
                orders.plaintext(),
                &["--fleet", "20", "--calls", "2000"],
                2000,
            ),
            "orders-varied" => (
                orders.plaintext(),
                &["--rate", "200/s", "--warmup", "100ms", "--calls", "100"],
                100,
            ),
            "score-ladder" | "score-hops" | "score-find" | "price-list" => (
                score.tls(),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--cert",
                    "certs/client.crt",
                    "--key",
                    "certs/client.key",
                    "--rate",
                    "100/s",
                    "--duration",
                    "500ms",
                ],
                50,
            ),
            "sofa-echo" => (
                bolt.plaintext().replace("grpc://", "sofa://"),
                &HALF_A_SECOND,
                250,
            ),
            "http-search" | "http-ladder" | "http-sidecars" => (
                format!("http://127.0.0.1:{}", http.port),
                &["--rate", "200/s", "--warmup", "100ms", "--calls", "100"],
                100,
            ),
            "http-journey" => (
                format!("http://127.0.0.1:{}", http.port),
                &["--rate", "50/s", "--duration", "500ms"],
                100,
            ),
            "llm-chat" | "llm-proxies" | "llm-sidecars" | "llm-talks" | "ws-sse" => (
                format!("http://127.0.0.1:{}", llm.port),
                &["--rate", "20/s", "--duration", "500ms"],
                if name == "llm-talks" { 40 } else { 10 },
            ),
            "plugin-echo" => (
                plugin.plaintext().replace("grpc://", "plugin://"),
                &HALF_A_SECOND,
                250,
            ),
            "echo-streams" => (echo.plaintext(), &["--rate", "20/s", "--calls", "10"], 10),
            "tls-new" | "tls-resumed" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &["--clients", "4", "--calls", "40", "--warmup", "300ms"],
                40,
            ),
            // One rung of each; tls.rs runs whole sweeps.
            "tls-sweep" | "tls-read-buffer" => (
                format!("https://localhost:{}/bytes/1KiB", files.port),
                &[
                    "--ca",
                    "certs/ca.crt",
                    "--clients",
                    "4",
                    "--calls",
                    "40",
                    "--warmup",
                    "300ms",
                ],
                40,
            ),
            "tls-hold" => (
                format!("tls://localhost:{}", hold.port),
                &["--connections", "50", "--duration", "500ms"],
                50,
            ),
            // Covered by sessions.rs, because they need two addresses.
            sessions if sessions.starts_with("session") => continue,
            other => panic!("plans/{other}.toml is not run by this test"),
        };
        let path = path.display().to_string();
        let mut arguments = vec!["run", &path, "--target", &target, "--out", &name, "-q"];
        arguments.extend(shorter);
        // A plan with objectives may end with 90 or 99 on a busy machine.
        let code = place.run(&arguments).status.code();
        assert!(matches!(code, Some(0 | 90 | 99)), "{name}: {code:?}");
        let run = place.run_json(&name);
        assert_eq!(run["total"]["ok"], calls, "{name}: {run}");
        assert_eq!(run["count_check"]["matches"], true, "{name}");
        seen += 1;
    }
    assert!(seen > 4, "{seen} plans");
}

#[test]
fn bolt_run_prints_sofarpc_summary_lines() {
    let place = Place::new();
    let bolt = place.serve(&["bolt", "--fail", "TIMEOUT=20%", "--fail", "SOFA_ERROR=20%"]);
    let target = bolt.plaintext().replace("grpc://", "sofa://");
    let output = place.run(&["bolt", &target, "--fleet", "4", "-n", "1000", "-q"]);
    assert_eq!(output.status.code(), Some(0));
    let printed = text(&output.stdout);
    let number = |before: &str, after: &str| -> u64 {
        let at = printed
            .find(before)
            .unwrap_or_else(|| panic!("no `{before}` in {printed}"));
        let rest = &printed[at + before.len()..];
        rest[..rest.find(after).expect(after)]
            .parse()
            .expect(before)
    };
    assert_eq!(number("requests: ", " total"), 1000);
    assert_eq!(number(" total, ", " started"), 1000);
    assert_eq!(number("started, ", " done"), 1000);
    let (ok, failed) = (
        number("done, ", " succeeded"),
        number("succeeded, ", " failed"),
    );
    assert_eq!(ok + failed, 1000, "{printed}");
    let (timeouts, sofa) = (number(", TIMEOUT ", ","), number("error header: ", "\n"));
    assert_eq!(timeouts + sofa, failed, "{printed}");
    assert_eq!(number("statuses: SUCCESS ", ","), ok + sofa);
    let traffic = printed.lines().find(|line| line.starts_with("traffic: "));
    let traffic = traffic.unwrap_or_else(|| panic!("no traffic in {printed}"));
    for part in [" total (", " sent, ", " received), ", " headers, "] {
        assert!(traffic.contains(part), "no `{part}` in {traffic}");
    }
    assert!(traffic.ends_with(" data"), "{traffic}");
    for line in [
        "finished in ",
        "+/- sd",
        "time for request:",
        "time for connect:",
        "req/s ",
        "latency distribution",
        "     99% ",
    ] {
        assert!(printed.contains(line), "no `{line}` in {printed}");
    }
}

#[test]
fn cold_calls_survive_export_and_import() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--cold",
        "--rate",
        "50/s",
        "--calls",
        "10",
        "--requests",
        "--out",
        "cold",
        "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(0, &arguments);
    assert!(
        out.contains("t_connect") && out.contains("t_first_rpc") && out.contains("t_total"),
        "{out}"
    );
    place.expect(0, &["report", "cold", "--export", "lines", "cold.txt"]);
    let lines = place.read("cold.txt");
    assert_eq!(lines.lines().next(), Some("#TEST=02_coldconn"));
    assert_eq!(
        lines
            .lines()
            .filter(|l| l.contains("\"ok\":true") && l.contains("t_total_ms"))
            .count(),
        10
    );
    let back = place.expect_run(0, &["import", "cold.txt", "--out", "back", "--json"]);
    assert_eq!(back["total"]["ok"], 10);
    assert_eq!(back["source"], "imported");
    let both = place.expect_json(0, &["compare", "cold", "back", "--json"]);
    assert_eq!(both["enough_runs"], false);
    // The same run given four times does not count as four runs.
    let words = [
        "compare",
        "--baseline",
        "cold",
        "./cold",
        "--candidate",
        "back",
    ];
    let output = place.run(&words);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_of(&output).contains("./cold is given twice"));
    let output = place.run(&["report", "cold.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("plimsoll import"), "{output:?}");
    // A run without recorded calls cannot be exported; the error gives the reason.
    let output = place.run(&["report", "back", "--export", "lines", "x.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("has no log of its calls"));
}

#[test]
fn fleet_progress_is_reported_by_calls() {
    let place = Place::new();
    let server = place.serve(&["orders"]);
    let url = server.plaintext();
    let output = place.run(&[
        "grpc",
        &url,
        "-m",
        "orders.OrderService/Submit",
        "-d",
        r#"{"price": 5}"#,
        "--fleet",
        "50",
        "--calls",
        "5000",
        "--progress-every",
        "1000",
        "--out",
        "run",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stderr);
    assert!(printed.contains("5,000 of 5,000 calls"), "{printed}");
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["connections"], &run["clients"]),
        (&5000.into(), &50.into(), &50.into())
    );
}

#[test]
fn ready_check_accepts_200_or_tcp_connect() {
    let place = Place::new();
    let files = place.serve(&["files"]);
    let address = files.address();
    place.expect(0, &["check", "ready", &format!("tcp://{address}")]);
    let there = format!("http://{address}/bytes/1KiB");
    place.expect(0, &["check", "ready", &there, "--within", "30s"]);
    let output = place.run(&["check", "ready", &format!("http://{address}/not-there")]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("answered with status 404"),
        "{}",
        stderr_of(&output)
    );
}
