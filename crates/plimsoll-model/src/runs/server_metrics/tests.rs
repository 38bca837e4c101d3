use super::*;

const VLLM: &str = r#"
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 200.0
"#;

const SGLANG: &str = r#"
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.5
sglang:cache_hit_rate{dp_rank="0"} 0.25
sglang:cache_hit_rate{dp_rank="1"} 0.75
sglang:num_retracted_requests_total{model_name="m"} 5.0
sglang:prompt_tokens_total{model_name="m"} 10.0
sglang:generation_tokens_total{model_name="m"} 20.0
"#;

const TGI: &str = r#"
tgi_batch_current_size 4
tgi_queue_size 7
tgi_request_input_length_sum 512
tgi_request_input_length_count 9
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 8123
"#;

const LLAMA_CPP: &str = "
llamacpp:requests_processing 1
llamacpp:requests_deferred 6
llamacpp:prompt_tokens_total 30
llamacpp:tokens_predicted_total 40
llamacpp:predicted_tokens_seconds nan
llamacpp:kv_cache_usage_ratio nan
";

#[test]
fn known_metrics_are_found_by_server_names() {
    use ServerMetric::{
        GeneratedTokens, KvCacheUsage, Preemptions, PrefixCacheHitShare, PrefixCacheHits,
        PrefixCacheQueries, PromptTokens, RequestsRunning, RequestsWaiting,
    };
    for (text, expected) in [
        (
            VLLM,
            &[
                (RequestsRunning, 5.0),
                (RequestsWaiting, 4.0),
                (KvCacheUsage, 0.75),
                (PrefixCacheQueries, 100.0),
                (PrefixCacheHits, 40.0),
                (Preemptions, 1.0),
                (PromptTokens, 1000.0),
                (GeneratedTokens, 200.0),
            ][..],
        ),
        (
            SGLANG,
            &[
                (RequestsRunning, 3.0),
                (RequestsWaiting, 2.0),
                (KvCacheUsage, 0.5),
                (PrefixCacheHitShare, 0.5),
                (Preemptions, 5.0),
                (PromptTokens, 10.0),
                (GeneratedTokens, 20.0),
            ],
        ),
        (
            TGI,
            &[
                (RequestsRunning, 4.0),
                (RequestsWaiting, 7.0),
                (PromptTokens, 512.0),
                (GeneratedTokens, 8123.0),
            ],
        ),
        (
            LLAMA_CPP,
            &[
                (RequestsRunning, 1.0),
                (RequestsWaiting, 6.0),
                (PromptTokens, 30.0),
                (GeneratedTokens, 40.0),
            ],
        ),
        ("node_cpu_seconds_total 1\ntgi_queue_size -1\n", &[]),
        ("tgi_queue_size +Inf\ntgi_batch_current_size 1e300\n", &[]),
    ] {
        let expected: MetricValues = expected.iter().copied().collect();
        assert_eq!(parse_known_metrics(text), expected, "{text}");
    }
}

#[test]
fn every_metric_has_series_names() {
    for metric in ServerMetric::ALL {
        let is_named = |(of, names): &(ServerMetric, &[&str])| *of == metric && !names.is_empty();
        assert!(
            series_names::SERIES_NAMES.iter().any(is_named),
            "{metric:?}"
        );
    }
}

fn values(running: f64, generated: f64) -> MetricValues {
    [
        (ServerMetric::RequestsRunning, running),
        (ServerMetric::GeneratedTokens, generated),
    ]
    .into()
}

#[test]
fn figures_exclude_warmup_and_follow_restarts() {
    let mut collector = MetricsCollector::new("u", 2.0);
    for (at, running, generated) in [
        (-2.0, 9.0, 10.0),
        (-1.0, 9.0, 20.0),
        (1.0, 9.0, 50.0),
        (2.0, 1.0, 100.0),
        (4.0, 3.0, 200.0),
        // The server was restarted.
        (5.0, 2.0, 30.0),
    ] {
        collector.add(at, values(running, generated));
    }
    assert!(collector.add_failure("refused"));
    assert!(!collector.add_failure("again"));
    let record = collector.finish();
    assert_eq!((record.readings, record.failed_readings), (5, 2));
    assert_eq!(record.problem.as_deref(), Some("refused"));
    let running = record.summary(ServerMetric::RequestsRunning).unwrap();
    assert_eq!((running.mean, running.peak), (Some(2.0), Some(3.0)));
    assert_eq!(running.total, None);
    let generated = record.summary(ServerMetric::GeneratedTokens).unwrap();
    // 100 in two seconds, and 30 since the restart.
    assert_eq!(generated.total, Some(130.0));
    assert_eq!(
        (generated.mean, generated.peak),
        (Some(130.0 / 3.0), Some(50.0))
    );
    let offsets: Vec<f64> = record.samples.iter().map(|s| s.offset_s).collect();
    assert_eq!(offsets, [-1.0, 1.0, 2.0, 4.0, 5.0]);
    assert_eq!(
        record.samples[4].value(ServerMetric::GeneratedTokens),
        Some(30.0)
    );
}

#[test]
fn first_increase_counts_from_load_start() {
    let mut collector = MetricsCollector::new("u", 0.0);
    collector.add(-0.5, values(0.0, 10.0));
    collector.add(0.5, values(1.0, 40.0));
    let generated = collector.finish().summary(ServerMetric::GeneratedTokens);
    let generated = generated.unwrap();
    assert_eq!((generated.total, generated.mean), (Some(30.0), Some(60.0)));
}

#[test]
fn long_runs_store_fewer_readings() {
    let mut collector = MetricsCollector::new("u", 0.0);
    let readings = MAX_STORED_READINGS * 5;
    for second in 0..readings {
        let running = if second == 1 { 99.0 } else { 1.0 };
        collector.add(second as f64, values(running, second as f64));
    }
    let record = collector.finish();
    assert_eq!(record.readings, readings as u64);
    assert!(record.samples.len() <= MAX_STORED_READINGS);
    let pairs = record.samples.windows(2);
    let steps: Vec<f64> = pairs.map(|w| w[1].offset_s - w[0].offset_s).collect();
    assert!(steps.iter().all(|step| *step == 8.0), "{:?}", &steps[..9]);
    let running = record.summary(ServerMetric::RequestsRunning).unwrap();
    assert_eq!(running.peak, Some(99.0));
    let generated = record.summary(ServerMetric::GeneratedTokens).unwrap();
    assert_eq!(generated.total, Some((readings - 1) as f64));
}

#[test]
fn record_survives_writing_without_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(ServerMetricsRecord::read(dir.path()).unwrap(), None);
    let mut collector = MetricsCollector::new("http://h/\u{1b}[2J", 0.0);
    collector.add(0.5, values(1.0, 2.0));
    collector.add_failure("a\u{7}b");
    let written = collector.finish();
    written.write(dir.path()).unwrap();
    let read = ServerMetricsRecord::read(dir.path()).unwrap().unwrap();
    assert_eq!(read.samples, written.samples);
    assert_eq!(read.url, "http://h/\u{fffd}[2J");
    assert_eq!(read.problem.as_deref(), Some("a\u{fffd}b"));
}

#[test]
fn impossible_numbers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = MetricsCollector::new("u", 0.0);
    collector.add(0.0, values(1.0, 2.0));
    collector.add(1.0, values(1.0, 3.0));
    let record = collector.finish();
    type Change = fn(&mut ServerMetricsRecord);
    let changes: [(Change, &str); 5] = [
        (
            |record| record.metrics.get_mut("requests_running").unwrap().peak = Some(1e300),
            "`peak` of `requests_running` is 1e300",
        ),
        (
            |record| record.metrics.get_mut("generated_tokens").unwrap().total = Some(-1.0),
            "`total` of `generated_tokens` is -1e0",
        ),
        (
            |record| record.samples[1].offset_s = 1e300,
            "sample 2: `offset_s` is 1e300",
        ),
        (
            |record| record.samples[1].offset_s = -1.0,
            "sample 2: `offset_s` is -1e0: a number from 0e0",
        ),
        (
            |record| {
                let values = &mut record.samples[0].values;
                values.insert("a\u{1b}b".to_owned(), 1e300);
            },
            "sample 1: `a\u{fffd}b` is 1e300",
        ),
    ];
    for (change, expected) in changes {
        let mut changed = record.clone();
        change(&mut changed);
        changed.write(dir.path()).unwrap();
        let problem = ServerMetricsRecord::read(dir.path()).unwrap_err();
        let problem = problem.to_string();
        assert!(problem.contains(expected), "{expected}: {problem}");
    }
    record.write(dir.path()).unwrap();
    assert_eq!(ServerMetricsRecord::read(dir.path()).unwrap(), Some(record));
}
