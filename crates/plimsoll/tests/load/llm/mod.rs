//! `llm` and the routes of `serve llm` against each other, against a server on uvicorn and against
//! the packages of OpenAI and Anthropic.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod apis;
mod conversations;
mod data_sets;
mod ladder;
mod refusals;
mod server_metrics;
mod streams;
mod tokenizer;

use crate::support;

use std::fs;
use std::time::Instant;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::runs::run::Run;
use rustix::process::Signal;
use serde_json::Value;
use support::peers::{python, tool};
use support::{
    CLIENT_TLS, MAX_WAIT, Place, SERVER_TLS, Server, only_run, output, signal, stderr_of, text,
};

/// Runs `llm` in the directory `run`.
#[track_caller]
fn run_llm(
    place: &Place,
    code: i32,
    url: &str,
    flags: &[&str],
    variables: &[(&str, &str)],
) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["llm", url, "--model", "m", "-q", "--json", "--out", "run"];
    let mut command = place.command(&[&fixed, flags].concat());
    command.envs(variables.iter().copied());
    let ended = output(&mut command, MAX_WAIT);
    let (out, printed) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(
        ended.status.code(),
        Some(code),
        "{flags:?}\n{out}\n{printed}"
    );
    only_run(&serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}")))
}

/// Runs `llm` with nine calls of three clients, all of which have to succeed.
#[track_caller]
fn run_nine_calls(place: &Place, server: &Server, call: &str, flags: &[&str]) -> Value {
    let load = ["--clients", "3", "--calls", "9"];
    let run = run_llm(place, 0, &url(server), &[&load[..], flags].concat(), &[]);
    let found = (&run["call"], &run["total"]["ok"]);
    assert_eq!(found, (&call.into(), &9.into()), "{flags:?}");
    run
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

fn count_of(run: &Value, name: &str) -> u64 {
    let counts = &run["total"]["measures"]["counts"];
    counts[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {counts}"))
}

/// Returns how often a time was measured, and its minimum in milliseconds.
fn times(run: &Value, name: &str) -> (u64, f64) {
    let times = &run["total"]["measures"]["times"][name];
    let number = |key: &str| times[key].as_f64().unwrap_or(0.0);
    (number("count") as u64, number("min_us") / 1e3)
}

#[test]
fn client_and_server_count_same_tokens() {
    let place = Place::new();
    place.certificates();
    for (server, client, scheme, host) in [
        (&[][..], &[][..], "http", "127.0.0.1"),
        (&SERVER_TLS[..], &CLIENT_TLS[..], "https", "localhost"),
    ] {
        let server = place.serve(&[&["llm", "--token-delay", "10ms"], server].concat());
        let url = format!("{scheme}://{host}:{}", server.port);
        let load = ["--clients", "5", "--calls", "20", "--requests"];
        let run = run_llm(&place, 0, &url, &[&load[..], client].concat(), &[]);
        assert_eq!(run["call"], "POST /v1/chat/completions");
        assert_eq!(
            (&run["total"]["ok"], &run["connections"]),
            (&20.into(), &5.into())
        );
        assert_eq!(count_of(&run, "tokens_received"), 20 * 18);
        assert_eq!(count_of(&run, "tokens_answer"), 20 * 18);
        // "What does the load line show?"
        assert_eq!(count_of(&run, "tokens_prompt"), 20 * 6);
        assert_eq!(count_of(&run, "usage_missing"), 0);
        assert_eq!(count_of(&run, "queries_good"), 20);
        // The server's pace; a busy machine only slows it down, and its timers have millisecond
        // resolution.
        let (count, shortest) = times(&run, "time_to_first_token");
        assert!(count == 20 && shortest > 9.0, "{count} {shortest}");
        assert_eq!(times(&run, "first_token").0, 20);
        assert_eq!(times(&run, "token_gap").0, 20 * 17);
        assert_eq!(times(&run, "time_per_token").0, 20);
        let (code, printed) = server.stop();
        assert_eq!(code, 0);
        assert!(printed.contains("runs 20, tokens 360"), "{printed}");
        // The run keeps what was measured of each call.
        let kept = Run::load(&place.path("run")).unwrap();
        let mut each = 0;
        kept.for_each_request(|request| {
            let measures = request.measures.as_deref().unwrap();
            assert_eq!(measures.count(Count::TokensAnswer), 18);
            assert!(measures.time_ns(TimeMeasure::TimeToFirstToken) > Some(9_000_000));
            each += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(each, 20);
    }
}

#[test]
fn answers_respect_max_tokens_and_slots() {
    let place = Place::new();
    let server = place.serve(&[
        "llm",
        "--token-delay",
        "20ms",
        "--slots",
        "1",
        "--tokens",
        "500",
    ]);
    let cut = [
        "--max-tokens",
        "4",
        "--api",
        "completions",
        "--clients",
        "3",
        "--calls",
        "6",
    ];
    let made = ["--prompt-tokens", "50"];
    let run = run_llm(&place, 0, &url(&server), &[&cut[..], &made].concat(), &[]);
    assert_eq!(run["call"], "POST /v1/completions");
    assert_eq!(count_of(&run, "tokens_answer"), 24);
    // The time and the number before the colon are two words, and the first of fifty.
    assert_eq!(count_of(&run, "tokens_prompt"), 6 * 51);
    // One at a time, 80 ms each: of three concurrent calls the last begins after two others.
    let waited = run["total"]["measures"]["times"]["time_to_first_token"]["max_us"].as_f64();
    assert!(waited.unwrap() > 2.0 * 75_000.0 + 19_000.0, "{waited:?}");
    // The response head does not count as a token.
    let first_byte = run["total"]["first_byte"]["min_us"].as_f64().unwrap();
    let (_, first_token) = times(&run, "first_token");
    assert!(first_byte / 1e3 < first_token, "{first_byte} {first_token}");
}

#[test]
fn goodput_and_token_objectives_are_judged() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "30ms", "--tokens", "5"]);
    let load = ["--clients", "2", "--calls", "10"];
    for (bound, good) in [
        ("ttft=1h", 10),
        ("ttft=10ms", 0),
        ("tpot=10ms", 0),
        ("e2e=1h,tpot=1h", 10),
    ] {
        let run = run_llm(
            &place,
            0,
            &url(&server),
            &[&load[..], &["--goodput", bound]].concat(),
            &[],
        );
        assert_eq!(count_of(&run, "queries_good"), good, "{bound}");
    }
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("10 of 10 queries"), "{table}");
    assert!(
        table.contains("50 out") && table.contains("for a user (p50)"),
        "{table}"
    );
    // Limits so long that no pause of a busy machine leaves them undecided.
    for (objective, code) in [
        ("ttft.p50 < 1h", 0),
        ("ttft.p50 > 1h", 99),
        ("tpot.p50 > 1h", 99),
        ("itl.mean < 1h", 0),
        ("itl.mean > 1h", 99),
    ] {
        let run = run_llm(
            &place,
            code,
            &url(&server),
            &["--clients", "10", "--calls", "10", "--objective", objective],
            &[],
        );
        assert_eq!(run["total"]["ok"], 10);
    }
}

#[test]
fn run_exports_to_aiperf_metric_names() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    run_llm(
        &place,
        0,
        &url(&server),
        &["--clients", "4", "--calls", "40"],
        &[],
    );
    let export = place.expect_json(0, &["report", "run", "--export", "aiperf", "-"]);
    for (name, unit, figure) in [
        ("time_to_first_token", "ms", "avg"),
        ("inter_token_latency", "ms", "p50"),
        ("inter_chunk_latency", "ms", "std"),
        ("request_latency", "ms", "max"),
        ("output_token_throughput", "tokens/sec", "avg"),
        ("output_token_throughput_per_user", "tokens/sec/user", "p50"),
        ("request_throughput", "requests/sec", "avg"),
    ] {
        let block = &export[name];
        assert_eq!(block["unit"], unit, "{name}: {export}");
        assert!(
            block[figure].as_f64().is_some_and(|value| value > 0.0),
            "{name}: {export}"
        );
    }
    assert_eq!(export["output_sequence_length"]["avg"], 18.0);
    assert_eq!(export["input_sequence_length"]["avg"], 6.0);
    assert_eq!(export["request_count"]["avg"], 40.0);
    assert_eq!(export["request_latency"]["count"], 40);
    let http = place.serve(&["http"]);
    let url = url(&http);
    place.expect(
        0,
        &[
            "http",
            &url,
            "--clients",
            "1",
            "--calls",
            "2",
            "-q",
            "--out",
            "other",
        ],
    );
    let other = place.run(&["report", "other", "--export", "aiperf", "-"]);
    assert!(stderr_of(&other).contains("the run has no tokens"));
}

#[test]
fn uvicorn_streams_parse_and_key_stays_secret() {
    let place = Place::new();
    fs::write(
        place.path("prompts.csv"),
        "prompt\none two three four\n\"five \"\"six\"\" seven\"\n",
    )
    .unwrap();
    let server = Server::start(&mut python(&place, "llm_server.py"));
    let url = url(&server);
    let rows = [
        "--rows",
        "prompts.csv",
        "--prompt",
        "{{row.prompt}}",
        "--clients",
        "2",
        "--calls",
        "10",
    ];
    let key = [("OPENAI_API_KEY", "sk-7f3a9c")];
    for api in ["chat", "completions"] {
        let run = run_llm(
            &place,
            0,
            &url,
            &[&rows[..], &["--api", api]].concat(),
            &key,
        );
        // The rows are used in turn, with four words and three; the service counts two tokens per word.
        assert_eq!(count_of(&run, "tokens_received"), 35, "{run}");
        assert_eq!(
            (
                count_of(&run, "tokens_prompt"),
                count_of(&run, "tokens_answer")
            ),
            (35, 70)
        );
        // The role, which arrives 50 ms earlier, does not count as a token.
        assert!(times(&run, "time_to_first_token").1 > 49.0, "{run}");
    }
    for entry in fs::read_dir(place.path("run")).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(9).any(|part| part == b"sk-7f3a9c"));
    }
    let again = ["run", "run/plan.toml", "--json", "-q", "--out", "again"];
    let mut command = place.command(&again);
    let plan = place.read("run/plan.toml");
    let variable = plan
        .split("env = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .unwrap();
    let again = output(command.env(variable, "Bearer sk-7f3a9c"), MAX_WAIT);
    let run = only_run(&serde_json::from_slice(&again.stdout).unwrap());
    assert_eq!(count_of(&run, "tokens_answer"), 70);

    let run = run_llm(
        &place,
        0,
        &url,
        &[&rows[..], &["--no-usage", "--max-tokens", "3"]].concat(),
        &key,
    );
    assert_eq!(
        (
            count_of(&run, "tokens_received"),
            count_of(&run, "tokens_answer")
        ),
        (30, 0)
    );
    assert_eq!(count_of(&run, "usage_missing"), 10);
    for (flags, variables, code, detail) in [
        (&[][..], &[][..], "HTTP_401", "Incorrect API key provided"),
        (
            &["--api-key-env", "OTHER_KEY"],
            &[("OTHER_KEY", "wrong")],
            "HTTP_401",
            "Incorrect API key provided",
        ),
        (
            &["--extra", r#"{"model": "fails"}"#],
            &key,
            "EVENT_ERROR",
            "CUDA out of memory",
        ),
        (
            &["--extra", r#"{"model": "short"}"#],
            &key,
            "STREAM_SHORT",
            "without the event that marks success",
        ),
        (
            &["--prompt", " "],
            &key,
            "STREAM_SHORT",
            "contained no token",
        ),
        (
            &["--api", "chat", "-H", "authorization: $MINE"],
            &[("MINE", "no")],
            "HTTP_401",
            "Incorrect",
        ),
    ] {
        let load = ["--clients", "1", "--calls", "2"];
        let run = run_llm(&place, 1, &url, &[&load[..], flags].concat(), variables);
        let first = &run["total"]["errors_by_code"][0];
        assert_eq!(first["code"], code, "{flags:?}: {run}");
        let printed = run["details"][0]["text"].as_str().unwrap_or_default();
        assert!(printed.contains(detail), "{flags:?}: {printed}");
    }
}

#[test]
fn responses_stream_over_http2() {
    let place = Place::new();
    place.certificates();
    let pace = ["llm", "--token-delay", "1ms"];
    let plain = place.serve(&pace);
    let secured = place.serve(&[&pace, &SERVER_TLS[..]].concat());
    let (plain, secured) = (url(&plain), format!("https://localhost:{}", secured.port));
    // More concurrent calls than servers accept on one connection by default.
    let load = ["--connections", "1", "--clients", "250", "--calls", "500"];
    for (url, version, tls) in [
        (&plain, "2", &[][..]),
        (&secured, "2", &CLIENT_TLS[..]),
        (&secured, "auto", &CLIENT_TLS[..]),
    ] {
        let flags = [&load[..], &["--http-version", version], tls].concat();
        let run = run_llm(&place, 0, url, &flags, &[]);
        assert_eq!(run["total"]["ok"], 500, "{run}");
        assert_eq!(run["connections"], 1, "{run}");
        assert_eq!(count_of(&run, "tokens_answer"), 500 * 18);
    }
    for (base, flags) in [
        (&plain, &["--http2-prior-knowledge"][..]),
        (&secured, &["--http2", "--cacert", "certs/ca.crt"]),
    ] {
        let asked = r#"{"model": "m", "stream": true, "prompt": "x", "max_tokens": 2}"#;
        let mut curl = tool("curl");
        curl.args([
            "-sSN",
            "-w",
            "%{http_version}",
            "--noproxy",
            "*",
            "-d",
            asked,
        ])
        .args(flags)
        .arg(format!("{base}/v1/completions"))
        .current_dir(place.path(""));
        let read = output(&mut curl, MAX_WAIT);
        let (events, problem) = (text(&read.stdout), text(&read.stderr));
        assert!(events.contains(r#""text":"is""#), "{events}{problem}");
        assert!(events.ends_with("data: [DONE]\n\n2"), "{events}{problem}");
    }
}

#[test]
fn lame_duck_server_closes_http2_connections() {
    let place = Place::new();
    let lame = ["llm", "--token-delay", "1ms", "--lame-duck", "600s"];
    let server = place.serve(&lame);
    let load = ["--connections", "1", "--clients", "1", "--calls", "5"];
    let version = ["--http-version", "2"];
    let flags = [&load[..], &version].concat();
    let made = || {
        let run = run_llm(&place, 0, &url(&server), &flags, &[]);
        assert_eq!(run["total"]["ok"], 5, "{run}");
        run["total"]["connections_full"].as_u64().unwrap()
    };
    let before = made();
    signal(&server.child, Signal::TERM);
    let end = Instant::now() + MAX_WAIT;
    while made() <= before {
        assert!(Instant::now() < end, "the connection is kept");
    }
}
