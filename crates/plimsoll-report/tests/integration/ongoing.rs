//! A run in progress, as scraped or pushed.

use plimsoll_model::Outcome;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::{IntervalRecord, UserLevels};
use plimsoll_report::exports::live_runs::otlp::MetricsRequest;
use plimsoll_report::exports::live_runs::{RunningTotals, render_openmetrics};
use plimsoll_report::exports::otlp::{ExportRequest, PartialSuccess};
use serde_json::Value;

/// Two intervals of calls of 1 to 1,000 ms.
fn run() -> RunningTotals {
    let mut record = StageRecord {
        due: 1_000,
        ..StageRecord::default()
    };
    for call in 1..=1_000_u64 {
        record.response.record(call * 1_000_000);
    }
    record.outcomes.add(Outcome::Ok, 990);
    record.outcomes.add(Outcome::Reset, 10);
    record.measures.add(Count::TokensAnswer, 700);
    record.measures.record(TimeMeasure::FirstToken, 90_000_000);
    let mut run = RunningTotals::new("a \"run\"", "grpc://h:1", 1_700_000_000_000_000_000);
    for _ in 0..2 {
        run.add(&IntervalRecord {
            stages: vec![(0, record.clone())],
            in_flight: 3,
            users: Some(UserLevels {
                in_flight: 12,
                waiting: 5,
                ..UserLevels::default()
            }),
            ..IntervalRecord::default()
        });
    }
    run
}

#[test]
fn scrape_contains_counters_and_buckets() {
    let run = run();
    let text = render_openmetrics(std::iter::once(&run));
    for line in [
        "plimsoll_live_due_total{run=\"a \\\"run\\\"\"} 2000",
        "plimsoll_live_in_flight{run=\"a \\\"run\\\"\"} 3",
        "plimsoll_live_users_in_flight{run=\"a \\\"run\\\"\"} 12",
        "plimsoll_live_users_waiting{run=\"a \\\"run\\\"\"} 5",
        "outcome=\"RESET\"} 20",
        "plimsoll_live_response_seconds_bucket{le=\"0.1\",run=\"a \\\"run\\\"\"} 200",
        "plimsoll_live_response_seconds_bucket{le=\"+Inf\",run=\"a \\\"run\\\"\"} 2000",
        "plimsoll_live_tokens_answer_total{run=\"a \\\"run\\\"\"} 1400",
        "plimsoll_live_first_token_seconds_count{run=\"a \\\"run\\\"\"} 2",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

/// Every bucket contains the values between its bounds, and all buckets together contain all values.
#[test]
fn exponential_buckets_match_opentelemetry_bounds() {
    let run = run();
    let request = MetricsRequest::new(std::iter::once(&run), 1_700_000_001_000_000_000, "0");
    let request: Value = serde_json::from_slice(&request.to_json()).expect("JSON");
    let metrics = request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array();
    let metrics = metrics.expect("metrics");
    let response = metrics.iter().find(|m| m["name"] == "plimsoll.response");
    let point = &response.expect("response times")["exponentialHistogram"]["dataPoints"][0];
    let scale = point["scale"].as_i64().expect("a scale");
    let offset = point["positive"]["offset"].as_i64().expect("an offset");
    let counts = point["positive"]["bucketCounts"]
        .as_array()
        .expect("counts");
    assert!(counts.len() <= 160);
    let base = 2_f64.powf(2_f64.powi(-scale as i32));
    let mut all = 0;
    for (i, count) in counts.iter().enumerate() {
        let n: u64 = count.as_str().expect("a text").parse().expect("a number");
        all += n;
        let low = base.powf((offset + i as i64) as f64) * 1e3;
        let high = base.powf((offset + i as i64 + 1) as f64) * 1e3;
        // Each millisecond occurs twice; the model's histograms have three digits.
        let expected = 2.0 * (high.min(1_000.0) - low.max(0.0));
        assert!(
            (n as f64 - expected).abs() <= 4.0 + expected * 0.02,
            "{low} {high}: {n}"
        );
    }
    assert_eq!(all, 2_000);
    assert_eq!(point["count"], "2000");
}

#[test]
fn otlp_request_contains_token_counts() {
    let run = run();
    let request = MetricsRequest::new(std::iter::once(&run), 1_700_000_001_000_000_000, "0");
    let request: Value = serde_json::from_slice(&request.to_json()).expect("JSON");
    let metrics = request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array();
    let named = |name: &str| {
        let mut metrics = metrics.expect("metrics").iter();
        metrics.find(|m| m["name"] == name).expect("a metric")
    };
    let tokens = &named("plimsoll.tokens_answer")["sum"]["dataPoints"][0];
    assert_eq!(tokens["asInt"], "1400");
    let first = &named("plimsoll.first_token")["exponentialHistogram"]["dataPoints"][0];
    assert_eq!(first["count"], "2");
}

#[test]
fn partial_rejections_parse_from_responses() {
    assert_eq!(PartialSuccess::from_protobuf(b""), Ok(None));
    assert!(PartialSuccess::from_protobuf(b"\xff").is_err());
    let answer = b"\x0a\x09\x08\x03\x12\x05stale";
    let said = PartialSuccess::from_protobuf(answer)
        .expect("protobuf")
        .expect("a refusal");
    assert_eq!((said.rejected, said.error_message.as_str()), (3, "stale"));
}
