//! The metrics that a model's server publishes itself, read beside the load.

use super::*;

/// Returns the figure of a metric in a run's document.
#[track_caller]
fn metric(run: &Value, name: &str, figure: &str) -> f64 {
    let metrics = &run["server_metrics"]["metrics"];
    metrics[name][figure]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} {figure}: {}", run["server_metrics"]))
}

#[test]
fn simulator_reports_its_queue_and_tokens() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "20ms", "--slots", "1"]);
    // Twelve answers of 18 tokens, one after another, take more than four seconds.
    let load = [
        "--clients",
        "4",
        "--calls",
        "12",
        "--server-metrics",
        "auto",
    ];
    let run = run_llm(&place, 0, &url(&server), &load, &[]);
    let read = &run["server_metrics"];
    assert_eq!(read["url"], format!("{}/metrics", url(&server)), "{read}");
    assert!(read["readings"].as_u64().unwrap() >= 3, "{read}");
    assert_eq!(read["problem"], Value::Null, "{read}");
    // The first reading is before the load, and the last one behind it.
    assert_eq!(metric(&run, "generated_tokens", "total"), 12.0 * 18.0);
    assert_eq!(metric(&run, "requests_running", "peak"), 1.0);
    let waiting = metric(&run, "requests_waiting", "peak");
    assert!((1.0..=3.0).contains(&waiting), "{read}");
    let samples = read["samples"].as_array().unwrap();
    let offsets: Vec<f64> = samples
        .iter()
        .map(|sample| sample["offset_s"].as_f64().unwrap())
        .collect();
    assert!(offsets[0] < 0.0 && offsets.is_sorted(), "{offsets:?}");

    let table = place.expect(0, &["report", "run"]);
    for text in [
        "server's own metrics",
        "requests waiting",
        "generated tokens",
    ] {
        assert!(table.contains(text), "{text}: {table}");
    }
    let page = place.read("run/report.html");
    assert!(page.contains("The server's own metrics"), "{page}");
    assert!(page.contains("requests running and requests waiting over"));
    assert!(
        place
            .read("run/plan.toml")
            .contains("server_metrics = \"auto\"")
    );
    assert!(
        place
            .read("run/server-metrics.json")
            .contains("requests_waiting")
    );
}

#[test]
fn metrics_of_vllm_are_read_from_uvicorn() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "llm_server.py"));
    let metrics = format!("{}/metrics", url(&server));
    let load = [
        "--prompt",
        "one two three four",
        "--clients",
        "2",
        "--calls",
        "10",
        "--server-metrics",
        &metrics,
    ];
    let key = [("OPENAI_API_KEY", "sk-7f3a9c")];
    let run = run_llm(&place, 0, &url(&server), &load, &key);
    assert_eq!(metric(&run, "prompt_tokens", "total"), 40.0);
    assert_eq!(metric(&run, "generated_tokens", "total"), 40.0);
    assert_eq!(metric(&run, "prefix_cache_hits", "total"), 20.0);
    assert_eq!(metric(&run, "preemptions", "total"), 0.0);
    assert_eq!(metric(&run, "kv_cache_usage_share", "peak"), 0.25);
    let table = place.expect(0, &["report", "run"]);
    for text in ["KV cache in use", "25.0 %", "prefix cache hits", "50 %"] {
        assert!(table.contains(text), "{text}: {table}");
    }
}

#[test]
fn missing_metrics_are_reported_once() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    let (base, health) = (url(&server), format!("{}/health", url(&server)));
    // Nothing listens on port 1.
    for (metrics, problem) in [
        (health.as_str(), "has none of the metrics that vLLM"),
        ("http://127.0.0.1:1/metrics", "no answer"),
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let ended = place.run(&[
            "llm",
            &base,
            "--model",
            "m",
            "--rate",
            "10/s",
            "--duration",
            "3s",
            "--out",
            "run",
            "--server-metrics",
            metrics,
        ]);
        let printed = stderr_of(&ended);
        assert_eq!(ended.status.code(), Some(0), "{printed}");
        assert_eq!(printed.matches(problem).count(), 1, "{printed}");
        let report = place.expect(0, &["report", "run"]);
        assert!(report.contains("failed; the first:"), "{report}");
        let run = place.expect_json(0, &["report", "run", "--json"]);
        let read = &only_run(&run)["server_metrics"];
        assert_eq!(read["readings"], 0, "{read}");
        assert!(read["failed_readings"].as_u64().unwrap() >= 2, "{read}");
    }
}

#[test]
fn invalid_metrics_urls_are_rejected() {
    let place = Place::new();
    for (typed, printed) in [
        ("nowhere", "`--server-metrics`: `nowhere` is not a URL"),
        ("http://me:hush@127.0.0.1:1/", "has a password"),
        ("ftp://127.0.0.1/", "metrics are read over HTTP"),
    ] {
        let flags = ["--calls", "1", "--server-metrics", typed];
        refusals::expect_refusal(&place, &flags, printed);
    }
}
