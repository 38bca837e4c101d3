//! `fetch` and `serve files` against each other and against openssl and nginx: bodies are checked,
//! resumption is counted on both sides, and failures are reported.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod abroad;
mod failures;

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::nginx::Nginx;
use support::openssl::{openssl, s_server};
use support::{
    CLIENT_MTLS, CLIENT_TLS, MAX_WAIT, Place, SCORE, SERVER_MTLS, SERVER_TLS, Server, output,
    stderr_of, text,
};

/// Runs `fetch` with a trusted CA; it must end with `code`.
#[track_caller]
fn fetch(place: &Place, code: i32, url: &str, flags: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["fetch", url, "-q", "--json", "--out", "run"];
    let tls = if url.starts_with("https:") {
        &CLIENT_TLS[..]
    } else {
        &[]
    };
    place.expect_run(code, &[&fixed, tls, flags].concat())
}

/// Returns the full and resumed connections of a whole run, including the warm-up.
fn handshakes(run: &Value) -> (u64, u64) {
    let sum = |key: &str| {
        run["stages"]
            .as_array()
            .expect("stages")
            .iter()
            .map(|stage| stage[key].as_u64().expect("a count"))
            .sum()
    };
    (sum("connections_full"), sum("connections_resumed"))
}

fn url(server: &Server, path: &str) -> String {
    format!("https://localhost:{}{path}", server.port)
}

fn first_error(run: &Value) -> (&str, u64) {
    let first = &run["total"]["errors_by_code"][0];
    (
        first["code"].as_str().unwrap_or("none"),
        first["count"].as_u64().unwrap_or(0),
    )
}

/// Returns the server's count of `name` from its last line; 0 if it is not mentioned.
fn server_count(printed: &str, name: &str) -> u64 {
    printed
        .split([',', '\n'])
        .find_map(|part| part.trim().strip_prefix(name)?.trim().parse().ok())
        .unwrap_or(0)
}

#[test]
fn client_and_server_count_same_handshakes() {
    let place = Place::new();
    place.certificates();
    for (mode, load, full, resumed) in [
        ("new", &["--clients", "4", "--calls", "40"][..], 40, 0),
        ("reused", &["--clients", "4", "--calls", "40"], 4, 0),
        (
            "reused",
            &["--fleet", "2", "--calls", "40", "--per-connection", "10"],
            0,
            0,
        ),
        (
            "resumed",
            &["--clients", "4", "--calls", "40", "--warmup", "300ms"],
            4,
            0,
        ),
    ] {
        let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
        let url = url(&server, "/bytes/1KiB");
        let run = fetch(&place, 0, &url, &[&["--mode", mode], load].concat());
        assert_eq!(run["total"]["ok"], 40, "{mode}");
        assert_eq!(run["total"]["bytes_received"], 40 * 1024, "{mode}");
        assert_eq!(run["count_check"]["matches"], true, "{mode}");
        assert_eq!(run["health"]["valid"], true, "{mode}: {}", run["health"]);
        let (ours_full, ours_resumed) = handshakes(&run);
        match mode {
            "resumed" => {
                assert_eq!(run["total"]["connections_full"], 0);
                assert_eq!(run["total"]["connections_resumed"], 40);
                assert!((1..=full).contains(&ours_full), "{ours_full}");
            }
            "reused" if full == 0 => {
                assert!(ours_full >= 4, "each connection fetches ten: {ours_full}");
            }
            _ => assert_eq!((ours_full, ours_resumed), (full, resumed), "{mode}"),
        }
        let (code, printed) = server.stop();
        assert_eq!(code, 0);
        assert_eq!(server_count(&printed, "refused"), 0);
        // A connection that was replaced at the very end has carried no call.
        let theirs = server_count(&printed, "full handshakes");
        assert!(theirs.abs_diff(ours_full) <= 2, "{theirs} {ours_full}");
        assert_eq!(
            server_count(&printed, "resumed handshakes"),
            ours_resumed,
            "{mode}"
        );
    }
}

#[test]
fn resumed_run_without_tickets_is_invalid() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["files", "--no-tickets"], &SERVER_TLS[..]].concat());
    let load = [
        "--mode",
        "resumed",
        "--clients",
        "2",
        "--calls",
        "10",
        "--warmup",
        "50ms",
    ];
    let objective = [&load[..], &["--objective", "errors < 1%"]].concat();
    let run = fetch(&place, 90, &url(&server, "/bytes/1"), &objective);
    assert_eq!(run["health"]["valid"], false);
    let problem = &run["health"]["problems"][0];
    assert_eq!(problem["kind"], "not_resumed");
    assert!(
        problem["text"]
            .as_str()
            .is_some_and(|t| t.starts_with("10 of 10 handshakes were full")),
        "{problem}"
    );
}

#[test]
fn resumption_objective_is_judged() {
    let place = Place::new();
    place.certificates();
    let asked = [
        "--mode",
        "resumed",
        "--clients",
        "2",
        "--calls",
        "20",
        "--warmup",
        "200ms",
        "--objective",
        "resumed >= 100%",
    ];
    let judged = |run: &Value| {
        let one = &run["objectives"][0];
        assert_eq!(one["objective"], "resumed >= 100%");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&one["verdict"]), text(&one["measured"]))
    };
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let run = fetch(&place, 0, &url(&server, "/bytes/1"), &asked);
    assert_eq!(run["verdict"], "pass");
    assert_eq!(
        judged(&run),
        ("met".into(), "100.0000% of 20 handshakes".into())
    );
    // Persistent connections are made before the first step, so the second has none to judge.
    let kept = format!(
        "target = \"{}\"\n[call.fetch]\n[tls]\nca = \"certs/ca.crt\"\nresume = true\n\
         [load]\nconnections = 1\nsteps = [{{ rate = \"50/s\", for = \"200ms\" }}, {{ rate = \"60/s\", for = \"200ms\" }}]\n\
         [objective]\n\"resumed at step 2\" = \">= 100%\"",
        url(&server, "/bytes/1")
    );
    fs::write(place.path("kept.toml"), kept).expect("a plan");
    let run = place.expect_run(90, &["run", "kept.toml", "-q", "--json", "--out", "kept"]);
    assert_eq!(run["objectives"][0]["verdict"], "not_supported");
    assert_eq!(run["objectives"][0]["measured"], "no handshake was made");
    let new = [&asked[2..], &["--mode", "new"]].concat();
    let args = ["fetch", &url(&server, "/bytes/1"), "-q", "--out", "none"];
    let wrong = place.run(&[&args[..], &CLIENT_TLS[..], &new].concat());
    assert_eq!(wrong.status.code(), Some(2));
    let why = stderr_of(&wrong);
    assert!(why.contains("no sessions are resumed"), "{why}");

    let silent = place.serve(&[&["files", "--no-tickets"], &SERVER_TLS[..]].concat());
    let run = fetch(&place, 99, &url(&silent, "/bytes/1"), &asked);
    assert_eq!(run["verdict"], "fail");
    assert_eq!(
        judged(&run),
        ("missed".into(), "0.0000% of 20 handshakes".into())
    );
    let junit = place.expect(0, &["report", "run", "--junit", "-"]);
    assert!(
        junit.contains("failures=\"1\"") && junit.contains("measured 0.0000% of 20"),
        "{junit}"
    );
    let shown = place.expect(0, &["report", "run"]);
    assert!(
        shown.contains("verdict: FAIL") && shown.contains("resumed >= 100%: MISSED"),
        "{shown}"
    );
    let page = place.read("run/report.html");
    assert!(page.contains("objective missed"));

    // New and resumed connections alternate; the objective is about the resumed ones.
    for (server, code, verdict) in [(&server, 0, "pass"), (&silent, 99, "fail")] {
        let _ = fs::remove_dir_all(place.path("both"));
        let args = ["fetch", &url(server, "/bytes/1"), "--mode", "both", "-q"];
        let load = ["--duration", "400ms", "--clients", "2", "--warmup", "200ms"];
        let rest = [&load[..], &asked[8..], &["--json", "--out", "both"]].concat();
        let shown = place.expect_json(code, &[&args[..], &CLIENT_TLS[..], &rest].concat());
        let sweep = &shown["sweep"];
        assert_eq!(sweep["verdict"], verdict, "{sweep}");
    }
}

#[test]
fn early_data_is_answered_before_handshake_completes() {
    let place = Place::new();
    place.certificates();
    let early = [&["files", "--max-early-data", "16384"], &SERVER_TLS[..]].concat();
    let server = place.serve(&early);
    let flags = ["--mode", "resumed", "--early-data", "--clients", "2"];
    let load = ["--calls", "40", "--warmup", "300ms"];
    let run = fetch(
        &place,
        0,
        &url(&server, "/bytes/100KiB"),
        &[&flags[..], &load].concat(),
    );
    assert_eq!(run["total"]["bytes_received"], 40 * 102_400);
    // A client that leaves after its answer gets no ticket; a full handshake gives it two.
    let resumed = run["total"]["connections_resumed"].as_u64();
    let counts = &run["total"]["measures"]["counts"];
    let taken = counts["early_data_accepted"].as_u64().expect("counted");
    assert_eq!((resumed, taken >= 20), (Some(taken), true), "{run}");
    assert_eq!(counts["early_data_rejected"], 0, "{counts}");
    // A client without early data is served as before.
    let plain = ["--mode", "resumed", "--calls", "20", "--clients", "2"];
    let run = fetch(&place, 0, &url(&server, "/bytes/1"), &plain);
    assert_eq!(run["total"]["connections_resumed"], 20);
    let (code, told_at_end) = server.stop();
    assert_eq!(code, 0);
    assert!(
        server_count(&told_at_end, "early requests") >= taken,
        "{told_at_end}"
    );
    for (more, why) in [
        (&SERVER_TLS[..0], "needs TLS"),
        (&[&SERVER_TLS[..], &["--no-tickets"]].concat(), "tickets"),
        (
            &[&SERVER_TLS[..], &["--processes", "2"]].concat(),
            "one process",
        ),
    ] {
        let args = [
            "serve",
            "files",
            "--listen",
            "127.0.0.1:0",
            "--max-early-data",
        ];
        let refused = place.run(&[&args[..], &["1"], more].concat());
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr_of(&refused).contains(why), "{}", stderr_of(&refused));
    }
}

#[test]
fn only_get_is_answered_as_early_data() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["files", "--max-early-data", "1000"], &SERVER_TLS[..]].concat());
    let address = server.address();
    let request = "GET /bytes/3 HTTP/1.1\r\nConnection: close\r\n\r\n";
    fs::write(place.path("request"), request).expect("a file");
    let said = |early: &str| {
        fs::write(place.path("early"), early).expect("a file");
        let known = match early {
            "" => "-sess_out session",
            _ => "-sess_in session -early_data early",
        };
        let fixed = format!("openssl s_client -connect {address} -ign_eof -quiet -alpn http/1.1");
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("{fixed} {known} <request")])
            .current_dir(place.path(""));
        text(&output(&mut command, MAX_WAIT).stdout)
    };
    assert!(said("").contains("200 OK"));
    let get = said("GET /bytes/5 HTTP/1.1\r\n\r\n");
    assert!(get.contains("200 OK") && get.contains("xxxxx"), "{get}");
    // A ticket is accepted once: reusing it causes a full handshake without early data.
    let again = said("GET /bytes/5 HTTP/1.1\r\n\r\n");
    assert!(!again.contains("xxxxx"), "{again}");
    assert!(said("").contains("200 OK"));
    let head = said("HEAD /bytes/5 HTTP/1.1\r\n\r\n");
    assert!(head.contains("425 Too Early"), "{head}");
    let (_, printed) = server.stop();
    assert_eq!(server_count(&printed, "early requests"), 2, "{printed}");
}

#[test]
fn server_processes_share_session_tickets() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["files", "--processes", "2"], &SERVER_TLS[..]].concat());
    let asked = [
        "--mode",
        "resumed",
        "--clients",
        "4",
        "--calls",
        "60",
        "--warmup",
        "300ms",
        "--objective",
        "resumed >= 100%",
    ];
    let run = fetch(&place, 0, &url(&server, "/bytes/1KiB"), &asked);
    assert_eq!(run["total"]["connections_resumed"], 60, "{run}");
    let (ours_full, ours_resumed) = handshakes(&run);
    let (code, printed) = server.stop();
    assert_eq!(code, 0);
    assert_eq!(
        server_count(&printed, "full handshakes"),
        ours_full,
        "{printed}"
    );
    assert_eq!(
        server_count(&printed, "resumed handshakes"),
        ours_resumed,
        "{printed}"
    );
}

#[test]
fn same_load_runs_on_both_record_layers() {
    let place = Place::new();
    place.certificates();
    let files = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let score = place.serve(&[&["score", "--delay", "0s"], &SERVER_MTLS[..]].concat());
    for records in ["own", "library"] {
        for suite in [
            "TLS_AES_128_GCM_SHA256",
            "TLS_AES_256_GCM_SHA384",
            "TLS_CHACHA20_POLY1305_SHA256",
        ] {
            let load = [
                "--records",
                records,
                "--suite",
                suite,
                "--fleet",
                "2",
                "--calls",
                "4",
            ];
            let run = fetch(&place, 0, &url(&files, "/bytes/3MiB"), &load);
            assert_eq!(run["total"]["bytes_received"], 4 * (3 << 20), "{records}");
            assert_eq!(run["tls"]["suite"], suite, "{records}");
            assert!(
                place
                    .read("run/plan.toml")
                    .contains(&format!("records = \"{records}\""))
            );
        }
        // A protocol in which the server speaks first, in both directions, with a client
        // certificate.
        let _ = fs::remove_dir_all(place.path("run"));
        let target = score.tls();
        let fixed = [
            "grpc",
            &target,
            "-q",
            "--json",
            "--out",
            "run",
            "--records",
            records,
        ];
        let load = ["--clients", "20", "--connections", "2", "--calls", "400"];
        let run = place.expect_run(
            0,
            &[&fixed, &SCORE[..], &CLIENT_MTLS[..], &load[..]].concat(),
        );
        assert_eq!(run["total"]["ok"], 400, "{records}");
        assert_eq!(run["security"], "mutual-tls", "{records}");
    }
    let wrong = place.run(&[
        "fetch",
        "https://localhost:1/",
        "--calls",
        "1",
        "--records",
        "mine",
    ]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr_of(&wrong).contains("`mine` is unknown"),
        "{}",
        stderr_of(&wrong)
    );
}
