//! Spans of calls: ids, times and attributes, from a run directory that the real writer wrote.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use plimsoll_model::records::record::CallSampler;
use plimsoll_model::records::recorder::{CallTracing, RequestContext};
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::runs::run::header::PlannedStage;
use plimsoll_model::runs::run::{IntervalRecord, Run, RunEnding, RunHeader, RunOrigin, RunWriter};
use plimsoll_model::{CallSample, ConnectPhases, Outcome, Recorder, Time};
use plimsoll_report::exports::otlp::ExportRequest;
use plimsoll_report::exports::spans::{SpansRequest, to_json_lines};
use serde_json::Value;

const MS: u64 = 1_000_000;
const UNIX_ZERO: u64 = 1_767_323_045_000_000_000;
const IDS: TraceIdsOfRun = TraceIdsOfRun;

/// The ids of every run here.
struct TraceIdsOfRun;

impl TraceIdsOfRun {
    fn get(&self) -> TraceIds {
        TraceIds::new(0xabc, 0xdef)
    }

    /// Returns trace id and parent id as the request `number` carried them.
    fn sent(&self, number: u64) -> (String, String) {
        let header = String::from_utf8(self.get().traceparent(number).into()).unwrap();
        let parts: Vec<&str> = header.split('-').collect();
        (parts[1].to_owned(), parts[2].to_owned())
    }
}

/// Writes a run of 2,000 calls, 500 of which are warm-up, one in a hundred of which fails; a sample has `sample`.
/// `shared`: calls that share the ids of one request.
fn run(dir: &Path, call: &str, sample: u32, shared: u64) -> Run {
    let stage = |name: &str, warmup| PlannedStage {
        name: name.to_owned(),
        warmup,
        ..PlannedStage::default()
    };
    let header = RunHeader {
        target: Some("https://me:hush@host.test:8443/x".to_owned()),
        protocol: Some(if call.contains(' ') { "http" } else { "grpc" }.to_owned()),
        call: Some(call.to_owned()),
        span_sample: Some(sample),
        planned_stages: vec![stage("warm-up", true), stage("steady", false)],
        ..RunHeader::new(
            RunOrigin::Measured,
            "traced",
            "0.1.0",
            "2026-01-02T03:04:05Z".parse().unwrap(),
        )
    };
    let mut writer = RunWriter::create(dir, header, "name = \"traced\"\n").unwrap();
    let mut recorder = Recorder::new(2);
    recorder.enable_tracing(CallTracing {
        ids: IDS.get(),
        worker: 3,
        start: Time(1_000),
        unix_zero_ns: UNIX_ZERO,
        sampler: Some(CallSampler::new(7, sample, vec![true, false])),
    });
    let phases = ConnectPhases {
        resolve_ns: MS,
        connect_ns: 2 * MS,
        handshake_ns: 3 * MS,
        ready_ns: 0,
        ..ConnectPhases::default()
    };
    for index in 0..4 {
        for number in index * 500..(index + 1) * 500 {
            let arrival = Time(1_000 + number * MS);
            let sample = CallSample {
                number,
                stage: u8::from(index > 0),
                outcome: match number % 100 {
                    99 => Outcome::Unavailable,
                    _ => Outcome::Ok,
                },
                arrival,
                sent: arrival.plus_nanos(10 * MS),
                first_byte: arrival.plus_nanos(15 * MS),
                done: arrival.plus_nanos(16 * MS + number),
                bytes_sent: 5,
                bytes_received: 6,
            };
            recorder.stage_mut(sample.stage).due += 1;
            let carried = Some(RequestContext {
                connection: Some(1),
                shared_trace_number: (shared > 1).then_some(number / shared * shared),
                step: None,
            });
            recorder.record_cold_call(&sample, &phases, carried);
        }
        let (record, _) = IntervalRecord::from_worker(&recorder.take_interval(None));
        let interval = IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            ..record
        };
        writer.add_interval(&interval, &[]).unwrap();
    }
    writer.finish(RunEnding::complete()).unwrap();
    Run::load(dir).unwrap()
}

/// Returns all spans in the JSON of requests.
fn spans(run: &Run) -> Vec<Value> {
    let requests = SpansRequest::from_run(run);
    let all: Vec<Value> = requests
        .iter()
        .flat_map(|request| {
            let request: Value = serde_json::from_slice(&request.to_json()).unwrap();
            let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].clone();
            spans.as_array().unwrap().clone()
        })
        .collect();
    let count: u64 = requests.iter().map(SpansRequest::span_count).sum();
    assert_eq!(all.len() as u64, count);
    all
}

fn attribute(span: &Value, key: &str) -> Option<String> {
    let all = span["attributes"].as_array()?;
    let value = &all.iter().find(|attribute| attribute["key"] == key)?["value"];
    let text = value["stringValue"].as_str().or(value["intValue"].as_str());
    text.map(str::to_owned)
}

fn times(span: &Value) -> (u64, u64) {
    let time = |key: &str| span[key].as_str().unwrap().parse().unwrap();
    (time("startTimeUnixNano"), time("endTimeUnixNano"))
}

#[test]
fn client_span_has_ids_of_request() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent.path().join("run"), "score.Service/Get", 20, 1);
    let spans = spans(&run);
    let calls: Vec<&Value> = spans.iter().filter(|span| span["kind"] == 3).collect();
    let by_kind = |kind: &str| {
        let all = calls.iter();
        all.filter(|call| attribute(call, "plimsoll.kept_as").as_deref() == Some(kind))
            .count()
    };
    assert_eq!(by_kind("slowest"), 10);
    assert!(
        (15..=20).contains(&by_kind("sample")),
        "some are among the slowest"
    );
    for call in &calls {
        let number: u64 = attribute(call, "plimsoll.call").unwrap().parse().unwrap();
        assert!(number >= 500, "a call of the warm-up");
        let (trace, span) = IDS.sent(number);
        assert_eq!(
            (&call["traceId"], &call["spanId"]),
            (&trace.into(), &span.into())
        );
        assert_eq!(call["parentSpanId"], Value::Null);
        let due = UNIX_ZERO + 1_000 + number * MS;
        assert_eq!(times(call), (due, due + 16 * MS + number));
        assert_eq!(call["name"], "score.Service/Get");
        let failed = number % 100 == 99;
        assert_eq!(call["status"]["code"] == 2, failed);
        let status = if failed { "14" } else { "0" };
        for (key, value) in [
            ("rpc.system", "grpc"),
            ("rpc.service", "score.Service"),
            ("rpc.method", "Get"),
            ("rpc.grpc.status_code", status),
            ("server.address", "host.test"),
            ("server.port", "8443"),
            ("plimsoll.worker", "3"),
        ] {
            assert_eq!(attribute(call, key).as_deref(), Some(value), "{key}");
        }
        let error = attribute(call, "error.type");
        assert_eq!(error.as_deref(), failed.then_some("UNAVAILABLE"));
    }
    assert!(!to_json_lines(&[run]).contains("hush"));
}

#[test]
fn phases_fill_their_call_without_gap() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent.path().join("run"), "GET /a?b=${KEY}", 5, 1);
    let spans = spans(&run);
    let mut phases: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for span in &spans {
        let parent = span["parentSpanId"].as_str().unwrap_or_default();
        phases.entry(parent).or_default().push(span);
    }
    for call in &phases[""] {
        let start = times(call).0;
        let shown = |parent: &Value| -> Vec<(String, u64, u64)> {
            let of = &phases[parent["spanId"].as_str().unwrap()];
            let one = |span: &&Value| {
                let (from, to) = times(span);
                let name = span["name"].as_str().unwrap().to_owned();
                (name, (from - start) / MS, (to - start) / MS)
            };
            of.iter().map(one).collect()
        };
        let expected = [
            ("wait", 0, 4),
            ("connect", 4, 10),
            ("request", 10, 15),
            ("receive", 15, 16),
        ];
        assert_eq!(
            shown(call),
            expected.map(|(name, from, to)| (name.to_owned(), from, to))
        );
        let of_call = &phases[call["spanId"].as_str().unwrap()];
        let connect = of_call
            .iter()
            .find(|span| span["name"] == "connect")
            .unwrap();
        let expected = [("dns", 4, 5), ("tcp", 5, 7), ("tls", 7, 10)];
        assert_eq!(
            shown(connect),
            expected.map(|(name, from, to)| (name.to_owned(), from, to))
        );
        // A secret of the query, which is only a variable here, is left out with it.
        assert_eq!(
            attribute(call, "url.full").unwrap(),
            "https://host.test:8443/a"
        );
        assert_eq!(attribute(call, "http.request.method").unwrap(), "GET");
    }
}

#[test]
fn calls_of_one_request_have_own_spans() {
    let parent = tempfile::tempdir().unwrap();
    let run = run(&parent.path().join("run"), "GET /socket", 100, 50);
    let spans = spans(&run);
    let mut ids: Vec<(&str, &str)> = spans
        .iter()
        .map(|span| {
            (
                span["traceId"].as_str().unwrap(),
                span["spanId"].as_str().unwrap(),
            )
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), spans.len(), "a span id twice");
    let mut children = 0;
    for call in spans.iter().filter(|span| span["kind"] == 3) {
        let number: u64 = attribute(call, "plimsoll.call").unwrap().parse().unwrap();
        let (trace, sent) = IDS.sent(number / 50 * 50);
        assert_eq!(call["traceId"], trace);
        // The call with the request's own number is its child, too.
        assert_eq!(call["parentSpanId"], sent);
        children += usize::from(number.is_multiple_of(50));
    }
    assert!(children > 0);
}

/// A directory from elsewhere may claim anything.
#[test]
fn hostile_directory_gives_bounded_spans_within_calls() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    run(&dir, "score.Service/Get", 1_000, 1);
    let intervals = dir.join("intervals.jsonl");
    let text = std::fs::read_to_string(&intervals).unwrap();
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let stage = &mut lines[2]["stages"][0];
    let mut call = stage["sampled"][0].clone();
    for key in [
        "due_unix_ns",
        "response_ns",
        "service_ns",
        "first_byte_ns",
        "connect_ns",
        "handshake_ns",
    ] {
        call[key] = u64::MAX.into();
    }
    call["rank"] = 0.into();
    let many: Vec<Value> = (0_u32..5_000)
        .map(|i| {
            let mut call = call.clone();
            (call["number"], call["span_id"]) = (i.into(), format!("{i:016x}").into());
            call["trace_id"] = format!("{i:032x}").into();
            call
        })
        .collect();
    stage["slowest"] = many.clone().into();
    stage["sampled"] = many.into();
    let text: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&intervals, text.concat()).unwrap();
    let header = dir.join("run.json");
    let text = std::fs::read_to_string(&header).unwrap();
    std::fs::write(
        &header,
        text.replace("\"span_sample\": 1000", "\"span_sample\": 4000000000"),
    )
    .unwrap();
    let run = Run::load(&dir).unwrap();
    assert_eq!(run.header.span_sample, Some(4_000_000_000));
    let spans = spans(&run);
    let calls = spans.iter().filter(|span| span["kind"] == 3).count();
    assert!((1_000..=1_010).contains(&calls), "{calls}");
    assert!(spans.iter().map(times).all(|(start, end)| start <= end));
}
