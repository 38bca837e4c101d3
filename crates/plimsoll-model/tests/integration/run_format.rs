//! The run directory as a format: its contract page, and runs that ended normally, were killed, or were damaged.
//!
//! This file is long because each kind of damage has a test of its own.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::traced;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_model::metrics::measure::{CallMeasures, Count, TimeMeasure};
use plimsoll_model::records::record::{RecordedInterval, RequestRecord, StageRecord};
use plimsoll_model::runs::run::header::{ConnectionSecurity, LoopKind, PlannedStage};
use plimsoll_model::runs::run::health::ProblemKind;
use plimsoll_model::runs::run::{
    CertificateAcceptance, IntervalRecord, KernelMemory, MachineFacts, MachineUse, MemoryPhase,
    MemoryReading, NegotiatedHandshakes, NegotiatedTls, OtherProcess, ProcessMemory, ResourceUsage,
    Run, RunEnding, RunHeader, RunOrigin, RunState, RunSummary, RunTotals, RunWriter,
    SCHEMA_VERSION, ShardTotals,
};
use plimsoll_model::{CallSample, ConnectPhases, Outcome, Recorder, Time};
use serde_json::Value;

const MS: u64 = 1_000_000;

fn header() -> RunHeader {
    let stage = |name: &str, warmup| PlannedStage {
        name: name.to_owned(),
        warmup,
        duration_us: Some(2_000_000),
        rate_from_per_s: Some(1_000.0),
        rate_to_per_s: Some(1_000.0),
    };
    RunHeader {
        schema_version: SCHEMA_VERSION,
        source: RunOrigin::Measured,
        name: "score, open loop".to_owned(),
        target: Some("grpcs://localhost:50051".to_owned()),
        protocol: Some("grpc".to_owned()),
        call: Some("score.ScoreService/GetScore".to_owned()),
        security: Some(ConnectionSecurity::MutualTls),
        tls: Some(NegotiatedTls {
            version: "TLSv1_3".to_owned(),
            suite: "TLS_AES_256_GCM_SHA384".to_owned(),
            group: Some("X25519".to_owned()),
            certificate: vec![CertificateAcceptance::CommonName],
            renewed: 2,
            handshakes: vec![NegotiatedHandshakes {
                count: 3,
                version: "TLSv1_3".to_owned(),
                suite: "TLS_AES_256_GCM_SHA384".to_owned(),
                group: Some("X25519".to_owned()),
                signature: Some("mldsa65".to_owned()),
                certificate: Some("ml-dsa-65".to_owned()),
                chain: Some(2),
                chain_bytes: Some(11_062),
                resumed: true,
                retried: true,
                early_data: true,
                chosen: Some("2".into()),
            }],
        }),
        version: Some("2".into()),
        load_loop: Some(LoopKind::Open),
        arrivals: Some("constant".to_owned()),
        schedule_share: Some(0.5),
        connections: Some(1),
        calls_at_once: Some(1),
        calls_per_connection: Some(10),
        connection_lifetime_us: Some(30_000_000),
        tick_us: Some(1_000),
        full_share: Some(0.1),
        links: serde_json::from_str(
            r#"{"insecure": true, "other_targets": [{"target": "b", "security": "tls"}]}"#,
        )
        .unwrap(),
        resume: true,
        span_sample: Some(5),
        seed: Some(1),
        plan_hash: Some("fnv1a64:0".to_owned()),
        tool_version: "0.1.0".to_owned(),
        started_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        machine: Some(MachineFacts::default()),
        processes: Some(2),
        notes: vec!["two processes: one has too few descriptors".to_owned()],
        heap_bytes_per_connection: Some(1_812.5),
        live_view_cpu_us: Some(3_200),
        server_pids: vec![4_711],
        labels: [("commit".to_owned(), "1a2b3c4".to_owned())].into(),
        planned_stages: vec![stage("warm-up", true), stage("steady", false)],
        ..RunHeader::default()
    }
}

/// Returns the records of second `index` of the run: 1,000 calls, every hundredth of which failed.
fn interval_of(index: u64) -> (IntervalRecord, Vec<RequestRecord>) {
    let stage = if index < 2 { 0 } else { 1 };
    let mut recorder = Recorder::new(2).with_request_log(true);
    recorder.enable_tracing(traced::tracing());
    let phases = ConnectPhases {
        resolve_ns: 10_000,
        connect_ns: 90_000,
        handshake_ns: MS,
        ready_ns: 200_000,
        resumed: false,
        retried: true,
        replaced: index == 3,
    };
    for i in 0..1_000 {
        let arrival = index * 1_000 * MS + i * MS;
        let sample = CallSample {
            number: index * 1_000 + i,
            arrival: Time(arrival),
            sent: Time(arrival + 20_000),
            first_byte: Time(arrival + 5 * MS),
            done: Time(arrival + 5 * MS + i * 1_000),
            stage,
            outcome: match i % 100 {
                7 if i == 907 => Outcome::CutOff,
                7 => Outcome::Reset,
                _ => Outcome::Ok,
            },
            bytes_sent: 10,
            bytes_received: 11,
        };
        recorder.stage_mut(stage).due += u64::from(i == 0) + 1;
        recorder.stage_mut(stage).pacing.record(15_000);
        if i == 0 {
            recorder.record_pause(stage, 2 * MS, 3);
            recorder.record_response_lower_bound(stage, 4 * MS);
            let record = recorder.stage_mut(stage);
            (record.expired_unsent, record.connections_unused) = (1, 1);
            (record.waited_for_stream, record.waited_for_connection) = (1, 1);
            recorder.record_cut_off_call(stage, MS);
        }
        let address = recorder.address_number(["127.0.0.1:1", "127.0.0.2:1"][i as usize % 2]);
        recorder.count_call_at_address(address, stage, Outcome::Ok);
        recorder.count_connection_to_address(address, stage);
        recorder.count_connect_failure_to_address(address, stage);
        match i {
            0 => recorder.record_cold_call(&sample, &phases, Some(traced::carrier())),
            _ => recorder.record_sent_call(&sample, Some(traced::carrier())),
        }
        let names = ["log in".to_owned(), "order".to_owned()];
        recorder.count_due_step_call(stage, 0, &names);
        recorder.record_step_call(&sample, 0, &names);
    }
    recorder.add_failure_detail(Outcome::Reset, "connection reset by peer");
    recorder.record_first_message(stage, MS);
    recorder.record_message_gap(stage, 20_000);
    recorder.count_messages_sent(stage, 2);
    let record = recorder.stage_mut(stage);
    (record.longest_journey, record.connections_idle_closed) = (4, 1);
    record.connections_first += 1;
    record.connect_failures.add(Outcome::NoPorts, 1);
    recorder.add_protocol_count(stage, Count::TokensReceived, 3);
    for measure in TimeMeasure::all() {
        recorder.record_protocol_time(stage, measure, MS);
    }
    // A worker's records, as the conductor merges them.
    let mut taken = RecordedInterval::default();
    taken.merge(&recorder.take_interval(None));
    // One call has measures that only its protocol has.
    taken.requests[0].measures = Some(Box::new(CallMeasures::new(
        &[(Count::TokensReceived, 3)],
        &[(TimeMeasure::FirstToken, MS)],
    )));
    let used = ResourceUsage {
        cpu_user_us: 20_000,
        cpu_system_us: Some(10_000),
        rss_bytes: 10 << 20,
        rss_bytes_before: Some(8 << 20),
        descriptors: 12,
        threads: 2,
    };
    let process = ProcessMemory {
        rss_bytes: (10 + index) << 20,
        ..ProcessMemory::default()
    };
    let memory = MemoryReading {
        moment: [MemoryPhase::Held, MemoryPhase::Before][usize::from(index == 0)],
        connections: index,
        client: Some(process),
        server: Some(process),
        kernel: Some(KernelMemory::default()),
    };
    let interval = IntervalRecord {
        index,
        memory: vec![memory],
        start_offset: Duration::from_secs(index),
        length: Duration::from_secs(1),
        stages: taken.recorded_stages().map(|(i, s)| (i, s.clone())).collect(),
        connections_open: 1,
        users: serde_json::from_str(r#"{"in_flight":2,"waiting":0,"in_flight_max":3,"waiting_max":0,"in_flight_us":9,"waiting_us":0}"#).unwrap(),
        busiest_worker_ratio: 0.2,
        client: Some(used),
        server: Some(used),
        machine: Some(MachineUse {
            cores: 2,
            stolen_us: 10,
            waited_us: 20,
            busiest: Some(OtherProcess {
                name: "rustc".to_owned(),
                pid: 7,
                cpu_us: 900_000,
            }),
        }),
        details: taken.details,
        batches: serde_json::from_str(r#"[{"batch":3,"client_ns":5,"server_ns":7,"done":{"ok":1,"bytes_received":2,"began_ns":3,"ended_ns":4}}]"#).unwrap(),
        ..IntervalRecord::default()
    };
    (interval, taken.requests)
}

fn write(parent: &Path, seconds: u64) -> (RunWriter, PathBuf) {
    let dir = parent.join("run");
    let mut header = header();
    header.planned_stages[1].duration_us = Some((seconds.max(4) - 2) * 1_000_000);
    let writer = RunWriter::create(&dir, header, "name = 'x'\n").unwrap();
    let mut writer = writer.with_request_log(true).unwrap();
    for index in 0..seconds {
        let (interval, requests) = interval_of(index);
        writer.add_interval(&interval, &requests).unwrap();
    }
    (writer, dir)
}

#[test]
fn finished_run_round_trips() {
    let parent = tempfile::tempdir().unwrap();
    let (writer, dir) = write(parent.path(), 4);
    let written = writer.finish(RunEnding::complete()).unwrap();
    let run = Run::load(&dir).unwrap();
    assert_eq!(run.summary, written.summary);
    assert_eq!(run.header, header());
    assert_eq!(run.plan, "name = 'x'\n");
    // Ports ran out, which makes the run invalid.
    assert_eq!(run.state, RunState::Invalid);
    assert!(run.reason.unwrap().starts_with("generator-limited: "));
    let total = &run.summary.total;
    assert_eq!((total.due, total.ok), (2_002, 1_980));
    assert_eq!((total.errors, total.cut_off), (18, 2));
    assert_eq!(total.elapsed_us, Some(2_000_000));
    assert_eq!(total.offered_per_s, Some(1_001.0));
    assert_eq!(total.achieved_per_s, Some(1_000.0));
    assert_eq!(total.client.unwrap().cpu_us_per_call, Some(30.0));
    let response = total.response.unwrap();
    assert!((response.p50_us.unwrap() - 5_500.0).abs() < 10.0);
    assert!((response.p99_us.unwrap() - 5_990.0).abs() < 10.0);
    assert_eq!(response.p99_9_us, None, "1,980 calls can't support p99.9");
    assert!(run.summary.count_check.matches);
    assert_eq!(run.summary.stages.len(), 2);
    assert_eq!(run.summary.details.len(), 1);
    let memory = run.summary.memory.unwrap();
    assert_eq!((memory.held.connections, memory.last.connections), (1, 3));
    let client = memory.per_connection.client.unwrap();
    assert_eq!(client.rss_bytes, f64::from(1 << 20));

    let mut requests = Vec::new();
    let loaded = Run::load(&dir).unwrap();
    loaded
        .for_each_request(|r| {
            requests.push(r.clone());
            Ok(())
        })
        .unwrap();
    let expected: Vec<RequestRecord> = (0..4).flat_map(|i| interval_of(i).1).collect();
    assert_eq!(requests, expected);
}

#[test]
fn killed_run_keeps_written_intervals() {
    let parent = tempfile::tempdir().unwrap();
    let (writer, dir) = write(parent.path(), 3);
    // Killed: neither finished nor dropped normally.
    std::mem::forget(writer);
    let intervals = dir.join("intervals.jsonl");
    let text = fs::read_to_string(&intervals).unwrap();
    fs::write(&intervals, &text[..text.len() - 30]).unwrap();
    let run = Run::load(&dir).unwrap();
    assert_eq!(run.state, RunState::Partial);
    assert!(run.reason.as_deref().unwrap().contains("killed"));
    assert_eq!(run.summary.stages[0].due, 2_002);
    assert_eq!(run.summary.stages.len(), 1, "the cut line is left out");
    let mut n = 0;
    run.for_each_request(|_| {
        n += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(n, 2_000, "the calls of the intervals that are counted");
}

#[test]
fn unreadable_run_files_are_named() {
    let parent = tempfile::tempdir().unwrap();
    let problem = |dir: &Path| Run::load(dir).unwrap_err().to_string();
    assert!(problem(parent.path()).contains("not a run directory"));

    let (writer, dir) = write(parent.path(), 2);
    let again = RunWriter::create(&dir, header(), "").err().unwrap();
    assert!(again.to_string().contains("not empty"));
    writer.finish(RunEnding::complete()).unwrap();

    let intervals = dir.join("intervals.jsonl");
    let text = fs::read_to_string(&intervals).unwrap();
    fs::write(&intervals, format!("nonsense\n{text}")).unwrap();
    assert!(
        problem(&dir).contains("intervals.jsonl:1: expected"),
        "{}",
        problem(&dir)
    );
    fs::write(&intervals, text.replace("\"RESET\"", "\"NEW\"")).unwrap();
    assert!(problem(&dir).contains("\"NEW\" is not the code of an outcome"));
    fs::remove_file(&intervals).unwrap();
    assert!(problem(&dir).contains("intervals.jsonl: opening it failed"));

    let run = dir.join("run.json");
    let text = fs::read_to_string(&run).unwrap();
    let newer = text.replace("\"schema_version\": 2", "\"schema_version\": 7");
    fs::write(&run, newer).unwrap();
    assert!(problem(&dir).contains("written by a newer Plimsoll, in version 7"));
    fs::write(&run, &text[..100]).unwrap();
    assert!(problem(&dir).contains("run.json: not valid: EOF"));
}

/// Collects all keys in `value`, except those of maps keyed by codes or names.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                found.insert(key.clone());
                let maps = "outcomes connect_failures counts times times_ns labels";
                let is_map = maps.split(' ').any(|map| map == key);
                // An object by address in an interval, a list in the summary.
                let is_by_address = key == "addresses" && inner.is_object();
                if !is_map && !is_by_address {
                    keys(inner, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

/// Returns the keys in the first column of the tables of the page's section `## name`.
fn documented(page: &str, name: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with(name)).unwrap();
    section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect()
}

#[test]
fn documented_keys_match_written_keys() {
    let parent = tempfile::tempdir().unwrap();
    let (mut writer, dir) = write(parent.path(), 13);
    let mut totals = ShardTotals::default();
    totals.add(writer.header(), &interval_of(2).0);
    let mut figures = totals.figures(writer.header(), 0);
    figures.reason = Some("killed".to_owned());
    figures.limits = vec!["late".to_owned()];
    (figures.clock_offset_us, figures.clock_uncertainty_us) = (Some(-3), Some(5));
    writer.set_shards(vec![figures]);
    writer.finish(RunEnding::complete()).unwrap();
    let page_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/run-format.md");
    let page = fs::read_to_string(page_path).unwrap();
    let run = fs::read_to_string(dir.join("run.json")).unwrap();
    let intervals = fs::read_to_string(dir.join("intervals.jsonl")).unwrap();
    let requests = zstd::decode_all(fs::File::open(dir.join("requests.jsonl.zst")).unwrap());
    let requests = String::from_utf8(requests.unwrap()).unwrap();
    for (name, text) in [
        ("run.json", run),
        ("intervals.jsonl", intervals),
        ("requests.jsonl.zst", requests),
    ] {
        let mut written = BTreeSet::new();
        for value in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            keys(&value.unwrap(), &mut written);
        }
        assert_eq!(documented(&page, name), written, "{name}");
    }
}

#[test]
fn idle_cpu_counts_toward_next_call() {
    let header = header();
    let mut totals = RunTotals::default();
    let quiet = IntervalRecord {
        stages: Vec::new(),
        ..interval_of(0).0
    };
    totals.add(&header, &quiet);
    totals.add(&header, &interval_of(1).0);
    let stages = RunSummary::from_totals(&header, &totals).stages;
    let user: f64 = stages
        .iter()
        .filter_map(|stage| Some(stage.client?.cpu_user_us))
        .sum();
    assert_eq!(user, 40_000.0);
}

/// Connections that a target closes occasionally are made again: the planned number was established, though not all at
/// the time of counting, and one failure to connect is not a problem.
#[test]
fn replaced_connections_are_not_missing() {
    let wanted = 16;
    let header = RunHeader {
        connections: Some(wanted),
        ..header()
    };
    let missing = |made: u64| {
        let mut record = StageRecord {
            connections_full: made,
            ..StageRecord::default()
        };
        record.connect_failures.add(Outcome::ConnectRefused, 1);
        let mut totals = RunTotals::default();
        totals.add(
            &header,
            &IntervalRecord {
                start_offset: Duration::from_secs(2),
                length: Duration::from_secs(1),
                stages: vec![(1, record)],
                connections_open: 15,
                ..IntervalRecord::default()
            },
        );
        let problems = RunSummary::from_totals(&header, &totals).health.problems;
        problems
            .iter()
            .any(|p| p.kind == ProblemKind::ConnectionsMissing)
    };
    assert!(missing(15));
    assert!(!missing(16));
}

/// A run reports that the target closed connections that the plan reuses.
#[test]
fn unreused_connections_are_reported() {
    let problem = |wanted: u32, made: u64, calls: u64| {
        let header = RunHeader {
            connections: Some(wanted),
            calls_per_connection: None,
            connection_lifetime_us: None,
            tick_us: None,
            full_share: None,
            ..header()
        };
        let mut record = StageRecord {
            connections_full: made,
            due: calls,
            ..StageRecord::default()
        };
        record.outcomes.add(Outcome::Ok, calls);
        let mut totals = RunTotals::default();
        totals.add(
            &header,
            &IntervalRecord {
                start_offset: Duration::from_secs(2),
                length: Duration::from_secs(1),
                stages: vec![(1, record)],
                connections_open: u64::from(wanted),
                ..IntervalRecord::default()
            },
        );
        let problems = RunSummary::from_totals(&header, &totals).health.problems;
        let problem = problems
            .into_iter()
            .find(|p| p.kind == ProblemKind::NotReused);
        problem.map(|p| p.invalidates)
    };
    assert_eq!(problem(1, 900, 900), Some(true));
    assert_eq!(problem(4, 14, 1_000), Some(false));
    assert_eq!(problem(4, 15, 1_000), Some(true));
    // Each connection was replaced once, as after a restart of the target.
    assert_eq!(problem(4, 8, 10), None);
    assert_eq!(problem(4, 4, 1_000_000), None);
}

/// Each shard's figures are those of its part, and one at its limit makes the whole run invalid.
#[test]
fn generator_limited_shard_invalidates_run() {
    let parent = tempfile::tempdir().unwrap();
    let (mut writer, _) = write(parent.path(), 4);
    let header = writer.header().clone();
    let figures = |shard, late_ms: u64| {
        let mut totals = ShardTotals::default();
        let mut interval = interval_of(2).0;
        for (_, record) in &mut interval.stages {
            record.connect_failures = Default::default();
            for _ in 0..100 {
                record.pacing.record(late_ms * 1_000_000);
            }
        }
        totals.add(&header, &interval);
        totals.figures(&header, shard)
    };
    let (fine, limited) = (figures(0, 1), figures(1, 60_000));
    assert_eq!((fine.due, fine.ok, fine.errors), (1_001, 990, 9));
    assert!(fine.limits.is_empty(), "{:?}", fine.limits);
    assert_eq!(limited.limits.len(), 1);
    writer.set_shards(vec![fine, limited]);
    let run = writer.finish(RunEnding::complete()).unwrap();
    assert_eq!(run.state, RunState::Invalid);
    let reason = run.reason.unwrap();
    assert!(
        reason.starts_with(
            "generator-limited: shard 1 of 2: the load was not delivered: calls were sent"
        ),
        "{reason}"
    );
}
