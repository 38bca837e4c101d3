//! Ladders whose rungs are up together and take turns.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use plimsoll_model::ladder::{LadderRecord, Metric};
use plimsoll_model::run::Run;
use support::{Place, SCORE, told};

const PLAN: &str = r#"
name = "score"
[call.grpc]
method = "score.ScoreService/GetScore"
message = { json = "[0.1, 0.2]" }
"#;

fn plan(place: &Place, load: &str, ladder: &str) {
    let text = format!("{PLAN}[load]\n{load}\n[ladder]\n{ladder}\n");
    std::fs::write(place.path("plan.toml"), text).unwrap();
}

fn climb(place: &Place) -> (String, LadderRecord) {
    let out = place.expect(0, &["ladder", "plan.toml", "--out", "ladder"]);
    (out, LadderRecord::load(&place.path("ladder")).unwrap())
}

/// Each arrival of one evenly spaced schedule is one rung's, ten at a time, and each rung has one
/// turn a round.
#[test]
fn rungs_share_one_schedule_and_none_of_its_calls_is_lost() {
    let place = Place::new();
    plan(
        &place,
        "rate = \"300/s\"\nwarmup = \"200ms\"\nduration = \"3s\"",
        "turn = 10\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"off\", \"server\", \"mutual\"]",
    );
    let (out, record) = climb(&place);
    let mut arrivals = Vec::new();
    for (index, rung) in record.rungs.iter().enumerate() {
        assert_eq!(rung.slices.len(), 1);
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
        let run = Run::load(&place.path("ladder").join(&rung.slices[0].run)).unwrap();
        let count = &run.summary.count_check;
        assert_eq!(count.ok, 320, "a third of 960: {count:?}");
        run.each_request(|request| {
            arrivals.push((request.sample.arrival.0, index));
            Ok(())
        })
        .unwrap();
    }
    arrivals.sort_unstable();
    assert_eq!(arrivals.len(), 960);
    // The run format counts in whole microseconds.
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
    let turns = record.turns.unwrap();
    assert_eq!((turns.calls, turns.left_out), (10, 2));
    // 900 calls that are no warm-up, 30 a round.
    assert_eq!(turns.rounds, 30);
    assert!(turns.difference(2, 0, Metric::P50).is_some(), "{turns:?}");
    for words in [
        "30 rounds of turns of 10 calls",
        "tls mutual adds to tls off",
        "resolved to ±",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let page = place.read("ladder/report.html");
    assert!(page.contains("took turns of tens of calls"));
}

#[test]
fn what_a_server_works_more_is_found() {
    let place = Place::new();
    plan(
        &place,
        "rate = \"400/s\"\nduration = \"4s\"",
        "turn = 10\nserve = [\"score\", \"--delay\", \"0s\"]\n\
         rungs = [{ name = \"as it was\" }, { name = \"slower\", serve = [\"score\", \"--delay\", \"0s\", \"--busy\", \"400us\"] }]",
    );
    let (out, record) = climb(&place);
    let turns = record.turns.unwrap();
    let d = turns.difference(1, 0, Metric::P50).unwrap();
    // On a machine that is busy with other things the interval is wide, and holds it all the same.
    assert!(d.shift > 100.0 && d.high >= 350.0, "{d:?}\n{out}");
    assert!(out.contains("slower adds to as it was"), "{out}");
    for rung in &record.rungs {
        assert!(rung.median(Metric::ServerCpu).is_some(), "{rung:?}");
    }
}

#[test]
fn services_are_measured_beside_each_other_in_one_command() {
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
        &["ladder", &urls[0], &urls[1], "--out", "ladder"],
        &SCORE[..],
        &load,
    ]
    .concat();
    let out = place.expect(0, &arguments);
    let record = LadderRecord::load(&place.path("ladder")).unwrap();
    let names: Vec<&str> = record.rungs.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["plain", "with TLS"]);
    for (rung, security) in record.rungs.iter().zip(["Plaintext", "Tls"]) {
        assert_eq!(rung.slices[0].errors, 0, "{rung:?}");
        let run = Run::load(&place.path("ladder").join(&rung.slices[0].run)).unwrap();
        assert_eq!(format!("{:?}", run.header.security.unwrap()), security);
        // Whose servers these are is not known here.
        assert_eq!(rung.median(Metric::ServerCpu), None);
    }
    assert!(out.contains("with TLS adds to plain"), "{out}");

    for (arguments, words) in [
        (vec!["ladder", urls[0].as_str()], "two or more services"),
        (
            vec!["ladder", urls[0].as_str(), "plan.toml"],
            "two or more services",
        ),
        (
            vec!["ladder", "plan.toml", "-m", "a.B/C"],
            "--method with a plan",
        ),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(told(&output).contains(words), "{}", told(&output));
    }
}

#[test]
fn one_rung_without_a_target_ends_them_all_and_is_named() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(
        &place,
        "rate = \"100/s\"\nduration = \"60s\"",
        &format!(
            "rungs = [{{ name = \"up\", target = \"{}\" }}, {{ name = \"down\", target = \"grpc://127.0.0.1:1\" }}]",
            server.plaintext()
        ),
    );
    let output = place.run(&["ladder", "plan.toml", "--out", "ladder"]);
    let told = told(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("127.0.0.1:1") && told.contains("CONNECT_REFUSED"),
        "{told}"
    );
}

#[test]
fn turns_that_cannot_be_taken_are_refused_with_the_reason() {
    let place = Place::new();
    for (load, ladder, flags, words) in [
        (
            "clients = 2",
            "",
            &["--turn", "20"][..],
            "a closed loop has none",
        ),
        ("rate = \"9/s\"", "turn = 0", &[], "turns of 0 calls"),
        (
            "rate = \"9/s\"",
            "turn = 4\nleft_out = 4",
            &[],
            "leave none",
        ),
        (
            "rate = \"9/s\"",
            "turn = 4\nslice = \"1s\"",
            &[],
            "with ladder.slice or ladder.rounds",
        ),
        (
            "rate = \"9/s\"",
            "\"load.arrivals\" = [\"constant\", \"poisson\"]\nturn = 4",
            &[],
            "the rungs have several",
        ),
    ] {
        let axis = match ladder.contains("load.arrivals") {
            true => "",
            false => "tls = [\"off\", \"server\"]\n",
        };
        plan(
            &place,
            load,
            &format!("serve = [\"score\"]\n{axis}{ladder}"),
        );
        let output = place.run(&[&["ladder", "plan.toml"], flags].concat());
        let text: String = told(&output)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
}
