//! Ladders whose rungs run concurrently and are measured in interleaved batches, and sweeps.
//!
//! This file is long because all tests share the runs of a few ladders.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod links;
mod replicates;
mod vias;

use crate::support;

use std::net::TcpListener;
use std::process::Command;

use plimsoll_model::comparisons::ladder::{LadderMetric, LadderRecord};
use plimsoll_model::runs::run::Run;
use support::nginx::Nginx;
use support::peers::peer;
use support::{Place, SCORE, SERVER_TLS, Server, stderr_of};

const PLAN: &str = r#"
name = "score"
[call.grpc]
method = "score.ScoreService/GetScore"
message = { json = "[0.1, 0.2]" }
"#;

fn write_plan(place: &Place, load: &str, ladder: &str) {
    let text = format!("{PLAN}[load]\n{load}\n[ladder]\n{ladder}\n");
    std::fs::write(place.path("plan.toml"), text).unwrap();
}

fn run_ladder(place: &Place) -> (String, LadderRecord) {
    let out = place.expect(0, &["ladder", "plan.toml", "--out", "ladder"]);
    (out, LadderRecord::load(&place.path("ladder")).unwrap())
}

/// Each arrival of one evenly spaced schedule belongs to one rung, in batches of ten, and each rung
/// has one batch per round.
#[test]
fn interleaved_rungs_share_schedule_without_loss() {
    let place = Place::new();
    write_plan(
        &place,
        "rate = \"300/s\"\nwarmup = \"200ms\"\nduration = \"3s\"",
        "batch = 10\nparts = [\"none\"]\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"off\", \"server\", \"mutual\"]",
    );
    let (out, record) = run_ladder(&place);
    let mut arrivals = Vec::new();
    for (index, rung) in record.rungs.iter().enumerate() {
        assert_eq!(rung.slices.len(), 1);
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
        let run = Run::load(&place.path("ladder").join(&rung.slices[0].run)).unwrap();
        let count = &run.summary.count_check;
        assert_eq!(count.ok, 320, "a third of 960: {count:?}");
        run.for_each_request(|request| {
            arrivals.push((request.sample.arrival.0, index));
            Ok(())
        })
        .unwrap();
    }
    arrivals.sort_unstable();
    assert_eq!(arrivals.len(), 960);
    // The run format has microsecond resolution.
    let start = arrivals[0].0;
    for (n, (at, _)) in arrivals.iter().enumerate() {
        let at = at - start;
        assert!(
            (at as f64 - n as f64 / 300.0 * 1e9).abs() <= 2_000.0,
            "{n}: {at}"
        );
    }
    for round in arrivals.chunks(30) {
        let mut turns: Vec<usize> = Vec::new();
        for turn in round.chunks(10) {
            assert!(turn.iter().all(|(_, rung)| *rung == turn[0].1), "{turn:?}");
            turns.push(turn[0].1);
        }
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2]);
    }
    let turns = record.batches.unwrap();
    assert_eq!((turns.calls, turns.warmup_calls), (10, 2));
    // 900 calls after the warm-up, 30 per round.
    assert_eq!(turns.rounds, 30);
    assert!(
        turns.difference(2, 0, LadderMetric::P50).is_some(),
        "{turns:?}"
    );
    for words in [
        "30 rounds of batches of 10 calls",
        "tls mutual adds to tls off",
        "detects p50 differences over ±",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let page = place.read("ladder/report.html");
    assert!(page.contains("had batches of tens of calls"));
}

#[test]
fn added_server_work_is_detected() {
    let place = Place::new();
    write_plan(
        &place,
        "rate = \"400/s\"\nduration = \"4s\"",
        "batch = 10\nparts = [\"none\"]\nserve = [\"score\", \"--delay\", \"0s\"]\n\
         rungs = [{ name = \"as it was\" }, { name = \"slower\", serve = [\"score\", \"--delay\", \"0s\", \"--busy\", \"400us\"] }]",
    );
    let (out, record) = run_ladder(&place);
    let turns = record.batches.unwrap();
    let d = turns.difference(1, 0, LadderMetric::P50).unwrap();
    // On a busy machine the interval is wide, and still covers the difference.
    assert!(d.shift > 100.0 && d.high >= 350.0, "{d:?}\n{out}");
    assert!(out.contains("slower adds to as it was"), "{out}");
    for rung in &record.rungs {
        assert!(rung.median(LadderMetric::ServerCpu).is_some(), "{rung:?}");
    }
}

#[test]
fn one_command_measures_multiple_services() {
    let place = Place::new();
    place.certificates();
    let plain = place.serve(&["score", "--delay", "0s"]);
    let tls = [
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
    ];
    let secured = place.serve(&[&["score", "--delay", "0s"][..], &tls].concat());
    let urls = [
        format!("plain={}", plain.plaintext()),
        format!("with TLS={}", secured.tls()),
        format!("plain again={}", plain.plaintext()),
    ];
    let load = [
        "--rate",
        "200/s",
        "--duration",
        "2s",
        "--ca",
        "certs/ca.crt",
    ];
    let arguments = [
        &["ladder", &urls[0], &urls[1], &urls[2], "--out", "ladder"],
        &SCORE[..],
        &load,
    ]
    .concat();
    let out = place.expect(0, &arguments);
    let record = LadderRecord::load(&place.path("ladder")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["plain", "with TLS", "plain again"]);
    let securities = ["Plaintext", "Tls", "Plaintext"];
    for (rung, security) in record.rungs.iter().zip(securities) {
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
        let run = Run::load(&place.path("ladder").join(&rung.slices[0].run)).unwrap();
        assert_eq!(format!("{:?}", run.header.security.unwrap()), security);
        // These servers were not started by the ladder.
        assert_eq!(rung.median(LadderMetric::ServerCpu), None);
    }
    assert!(out.contains("with TLS adds to plain"), "{out}");
    // They cannot be restarted.
    assert_eq!(record.batches.unwrap().replicates, 1);
    assert!(out.contains("1 replicate: these intervals hold for the processes that were measured"));

    for (arguments, words) in [
        (vec!["ladder", urls[0].as_str()], "two or more services"),
        (
            vec!["ladder", urls[0].as_str(), "plan.toml"],
            "two or more services",
        ),
        (
            vec!["ladder", "plan.toml", "-m", "a.B/C"],
            "--method can't be combined with a plan",
        ),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr_of(&output).contains(words), "{}", stderr_of(&output));
    }
}

#[test]
fn ladder_fails_naming_unreachable_rung() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    write_plan(
        &place,
        "rate = \"100/s\"\nduration = \"60s\"",
        &format!(
            "rungs = [{{ name = \"up\", target = \"{}\" }}, {{ name = \"down\", target = \"grpc://127.0.0.1:1\" }}]",
            server.plaintext()
        ),
    );
    let output = place.run(&["ladder", "plan.toml", "--out", "ladder"]);
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("127.0.0.1:1") && printed.contains("CONNECT_REFUSED"),
        "{printed}"
    );
}

/// Interim results appear every five seconds, before the final table.
#[test]
fn interleaved_ladder_prints_interim_results() {
    let place = Place::new();
    write_plan(
        &place,
        "rate = \"200/s\"\nwarmup = \"200ms\"\nduration = \"11s\"",
        "parts = [\"none\"]\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"off\", \"server\"]",
    );
    let output = place.run(&["ladder", "plan.toml", "--progress", "lines"]);
    let printed = stderr_of(&output);
    assert!(output.status.success(), "{printed}");
    let last = "10 s of 11 s, about 1 s left: 2 rungs, in batches; p50 so far: tls off ";
    assert!(printed.contains(last), "{printed}");
    assert!(printed.contains(", tls server "), "{printed}");
}

#[test]
fn invalid_turn_settings_are_rejected() {
    let place = Place::new();
    for (load, ladder, flags, words) in [
        (
            "clients = 2",
            "",
            &["--batch", "20"][..],
            "a closed loop has none",
        ),
        ("rate = \"9/s\"", "batch = 0", &[], "must be at least 1"),
        (
            "rate = \"9/s\"",
            "batch = 4\nwarmup_calls = 4",
            &[],
            "leaves none",
        ),
        (
            "rate = \"9/s\"",
            "batch = 4\nslice = \"1s\"",
            &[],
            "with ladder.slice or ladder.rounds",
        ),
        (
            "rate = \"9/s\"",
            "\"load.arrivals\" = [\"constant\", \"poisson\"]\nbatch = 4",
            &[],
            "the rungs have several",
        ),
    ] {
        let axis = if ladder.contains("load.arrivals") {
            ""
        } else {
            "tls = [\"off\", \"server\"]\n"
        };
        write_plan(
            &place,
            load,
            &format!("serve = [\"score\"]\n{axis}{ladder}"),
        );
        let output = place.run(&[&["ladder", "plan.toml"], flags].concat());
        let text: String = stderr_of(&output)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Further metrics of rungs: bytes are exact, so a handshake and TLS records show up.
#[test]
fn ladder_reports_connection_and_memory_costs() {
    const MEASURED: [LadderMetric; 13] = [
        LadderMetric::ToolCallLength,
        LadderMetric::ConnectionBytes,
        LadderMetric::ResumedBytes,
        LadderMetric::BusyClientCpu,
        LadderMetric::BusyServerCpu,
        LadderMetric::ConnectionTime,
        LadderMetric::ConnectionClientCpu,
        LadderMetric::ConnectionServerCpu,
        LadderMetric::ResumedTime,
        LadderMetric::ResumedClientCpu,
        LadderMetric::ResumedServerCpu,
        LadderMetric::ClientMemory,
        LadderMetric::ServerMemory,
    ];
    const WORDS: [&str; 6] = [
        "new connection (p50)",
        "bytes a new connection",
        "to each new connection",
        "to one that resumes a session",
        "bytes a resumed connection",
        "at full load",
    ];
    // Each part lasts some seconds, in which a late machine may not complete the rounds that a
    // figure or a clause of the sentence needs.
    let mut ladders = (0..3).map(|_| {
        let place = Place::new();
        write_plan(
            &place,
            "rate = \"400/s\"\nduration = \"4s\"",
            "batch = 10\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"off\", \"mutual\"]",
        );
        let (out, record) = run_ladder(&place);
        (place, out, record)
    });
    let is_whole = |out: &str, record: &LadderRecord| {
        let mut figures = (record.rungs.iter()).flat_map(|rung| MEASURED.map(|m| rung.median(m)));
        figures.all(|figure| figure.is_some_and(|figure| figure > 0.0))
            && WORDS.iter().all(|words| out.contains(words))
    };
    let mut seen = Vec::new();
    let (place, out, record) = ladders
        .find(|(_, out, record)| {
            seen.push(out.clone());
            is_whole(out, record)
        })
        .unwrap_or_else(|| panic!("no ladder of three has every part:\n{}", seen.join("\n")));
    let of = |rung: usize, metric| record.rungs[rung].median(metric).unwrap();
    let plain = of(0, LadderMetric::ToolCallLength);
    // An answer of a few bytes, HPACK indices, two frame headers and a trailer.
    assert!((60.0..400.0).contains(&plain), "{plain}: {out}");
    // A TLS 1.3 record adds 22 bytes; calls that a late machine sends together share one.
    let secured = of(1, LadderMetric::ToolCallLength);
    assert!(secured > plain, "{secured} {plain}: {out}");
    let mutual = of(1, LadderMetric::ConnectionBytes) - of(0, LadderMetric::ConnectionBytes);
    // Two certificates with their signatures, two hello messages.
    assert!((900.0..6_000.0).contains(&mutual), "{mutual}: {out}");
    // A resumed session sends no certificate.
    let resumed = of(1, LadderMetric::ResumedBytes) - of(0, LadderMetric::ResumedBytes);
    assert!((200.0..mutual).contains(&resumed), "{resumed}: {out}");
    // Bytes are counted, and TLS has buffers and keys of its own.
    let heap = of(1, LadderMetric::ClientMemory) - of(0, LadderMetric::ClientMemory);
    assert!((1_000.0..50_000.0).contains(&heap), "{heap}: {out}");
    let page = place.read("ladder/report.html");
    assert!(page.contains("What each adds: a new connection"), "{page}");
}

/// One command measures only third-party programs: a service of grpc-go, its TLS, and nginx before
/// it.
#[test]
fn foreign_services_and_proxies_are_rungs() {
    let place = Place::new();
    place.certificates();
    let go = |flags: &[&str]| {
        let mut command = Command::new(peer("bin/go-score"));
        Server::start(command.args(flags).current_dir(place.path("")))
    };
    let (plain, tls) = (go(&[]), go(&SERVER_TLS));
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let more = format!(
        "listen 127.0.0.1:{port} ssl http2; location / {{ grpc_pass grpc://{}; }}",
        plain.address()
    );
    let _nginx = Nginx::start(&place, &more);
    let rungs = [
        format!("plain={}", plain.plaintext()),
        format!("tls={}", tls.tls()),
        format!("proxied=grpcs://localhost:{port}"),
    ];
    let mut arguments = vec!["ladder"];
    arguments.extend(rungs.iter().map(String::as_str));
    arguments.extend(SCORE);
    arguments.extend([
        "--ca",
        "certs/ca.crt",
        "--rate",
        "300/s",
        "--duration",
        "3s",
    ]);
    arguments.extend(["--out", "ladder"]);
    let out = place.expect(0, &arguments);
    let record = LadderRecord::load(&place.path("ladder")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["plain", "tls", "proxied"]);
    for rung in &record.rungs {
        assert!(
            rung.slices.iter().all(|slice| slice.errors == 0),
            "{rung:?}"
        );
        // The processes are not ours.
        assert_eq!(rung.median(LadderMetric::ServerCpu), None, "{rung:?}");
    }
    // Bytes are exact: an answer through nginx includes its header fields.
    let bytes = |rung: usize| {
        record.rungs[rung]
            .median(LadderMetric::ToolCallLength)
            .unwrap()
    };
    assert!(bytes(1) > bytes(0) && bytes(2) > bytes(0), "{out}");
    for words in ["tls, compared with plain", "proxied, compared with plain"] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

#[test]
fn gate_exits_99_only_when_exceeded() {
    let place = Place::new();
    let slow = "rate = \"400/s\"\nduration = \"3s\"\nwarmup = \"200ms\"";
    let ladder = |gates: &str| {
        format!(
            "batch = 10\nparts = [\"none\"]\nbudget = \"9s\"\nfail_if = [{gates}]\nserve = [\"score\", \"--delay\", \"0s\"]\n\
             rungs = [{{ name = \"old\" }}, {{ name = \"new\", serve = [\"score\", \"--delay\", \"20ms\"] }}]"
        )
    };
    write_plan(&place, slow, &ladder("\"p50 +5ms\""));
    let out = place.expect(99, &["ladder", "plan.toml", "--out", "beyond"]);
    assert!(out.contains("new: p50 +5000us BEYOND"), "{out}");
    // The decision is immediate, so nothing more was measured.
    let record = LadderRecord::load(&place.path("beyond")).unwrap();
    assert_eq!(record.rungs[0].slices.len(), 1);
    write_plan(&place, slow, &ladder("\"p50 +10s\""));
    let out = place.expect(0, &["ladder", "plan.toml", "--out", "within"]);
    assert!(out.contains("new: p50 +10000000us within"), "{out}");
    // Without data of the metric the whole budget is used, and the exit code says so.
    write_plan(&place, slow, &ladder("\"sidecar_cpu +1%\", \"p50 +10s\""));
    let out = place.expect(90, &["ladder", "plan.toml", "--out", "undecided"]);
    assert!(out.contains("sidecar_cpu +1% not decided"), "{out}");
}

#[test]
fn ladder_stops_at_resolution_or_budget() {
    let place = Place::new();
    let load = "rate = \"400/s\"\nduration = \"2s\"\nwarmup = \"100ms\"";
    let ladder = |resolution: &str| {
        format!(
            "batch = 10\nparts = [\"none\"]\nbudget = \"4s\"\nresolution = \"{resolution}\"\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"off\", \"server\"]"
        )
    };
    write_plan(&place, load, &ladder("10s"));
    let out = place.expect(0, &["ladder", "plan.toml", "--out", "coarse"]);
    let record = LadderRecord::load(&place.path("coarse")).unwrap();
    assert_eq!(record.rungs[0].slices.len(), 1, "{out}");
    write_plan(&place, load, &ladder("1ns"));
    let out = place.expect(90, &["ladder", "plan.toml", "--out", "fine"]);
    assert!(out.contains("RESOLUTION NOT REACHED: "), "{out}");
    let record = LadderRecord::load(&place.path("fine")).unwrap();
    assert_eq!(record.rungs[1].slices.len(), 2, "{out}");
    assert!(place.path("fine/rung-2-02/run.json").is_file());
    // Each slice has 40 rounds of 20 calls.
    assert_eq!(record.batches.unwrap().rounds, 80);
}

#[test]
fn two_services_are_compared_live() {
    let place = Place::new();
    let old = place.serve(&["score", "--delay", "0s"]);
    let new = place.serve(&["score", "--delay", "20ms"]);
    let urls = [
        format!("old={}", old.plaintext()),
        format!("new={}", new.plaintext()),
    ];
    let load = [
        "--rate",
        "200/s",
        "--duration",
        "2s",
        "--fail-if",
        "p50 +1ms",
        "--parts",
        "none",
    ];
    let arguments = [
        &["compare", "--live", &urls[0], &urls[1]],
        &SCORE[..],
        &load,
    ]
    .concat();
    let out = place.expect(99, &arguments);
    assert!(out.contains("new: p50 +1000us BEYOND"), "{out}");
    let refused = place.run(&["ladder", &urls[0], &urls[1], "--fail-if", "p98 +3%"]);
    assert!(stderr_of(&refused).contains("p99 +3%"), "{refused:?}");
    let arguments = [
        &["ladder", &urls[0], &urls[1], "--resolve", "10s"],
        &SCORE[..],
        &load[..4],
    ]
    .concat();
    let out = place.expect(0, &arguments);
    assert!(out.contains("detects p50 differences over ±"), "{out}");
    // A budget shortens the default duration of the batches.
    let short = [
        "--resolve",
        "1ns",
        "--budget",
        "2s",
        "--rate",
        "200/s",
        "--parts",
        "none",
        "--out",
        "short",
    ];
    let arguments = [&["ladder", &urls[0], &urls[1]], &SCORE[..], &short].concat();
    place.expect(90, &arguments);
    // 2 rungs with 20 calls per round.
    let record = LadderRecord::load(&place.path("short")).unwrap();
    assert!(record.batches.unwrap().rounds <= 10);
}
