//! Each API of `llm`, against the simulator, and the packages of OpenAI and Anthropic as the simulator's clients.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;

use super::refusals::expect_refusal;
use super::{count_of, run_llm, run_nine_calls, times, url};
use crate::support::peers::{python, run_successfully};
use crate::support::{Place, SERVER_TLS, text};

const APIS: [(&str, &str); 4] = [
    ("chat", "POST /v1/chat/completions"),
    ("completions", "POST /v1/completions"),
    ("responses", "POST /v1/responses"),
    ("messages", "POST /v1/messages"),
];

#[test]
fn every_api_measures_the_same_answer() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "5ms"]);
    for (api, call) in APIS {
        let run = run_nine_calls(
            &place,
            &server,
            call,
            &["--api", api, "--goodput", "ttft=1h"],
        );
        for (count, n) in [
            ("tokens_received", 9 * 18),
            ("tokens_answer", 9 * 18),
            ("tokens_prompt", 9 * 6),
            ("usage_missing", 0),
            ("finish_stop", 9),
            ("queries_good", 9),
        ] {
            assert_eq!(count_of(&run, count), n, "{api} {count}");
        }
        // What is sent before the first token, such as `message_start`, is no token.
        let (first, shortest) = times(&run, "time_to_first_token");
        assert!(first == 9 && shortest > 4.0, "{api}: {first} {shortest}");
        assert_eq!(times(&run, "token_gap").0, 9 * 17, "{api}");
        assert_eq!(times(&run, "time_per_token").0, 9, "{api}");
        let run = run_nine_calls(&place, &server, call, &["--api", api, "--max-tokens", "4"]);
        let counts = ["tokens_answer", "finish_length"].map(|name| count_of(&run, name));
        assert_eq!(counts, [9 * 4, 9], "{api}");
    }
}

#[test]
fn whole_answers_have_no_token_times() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "2ms"]);
    for (api, call) in APIS {
        let flags = ["--no-stream", "--api", api, "--goodput", "e2e=1h"];
        let run = run_nine_calls(&place, &server, call, &flags);
        for (count, n) in [
            ("tokens_answer", 9 * 18),
            ("tokens_prompt", 9 * 6),
            ("finish_stop", 9),
            ("queries_good", 9),
            ("tokens_received", 0),
        ] {
            let counted = run["total"]["measures"]["counts"][count].as_u64();
            assert_eq!(counted.unwrap_or(0), n, "{api} {count}");
        }
        for time in [
            "time_to_first_token",
            "first_token",
            "token_gap",
            "time_per_token",
        ] {
            assert_eq!(times(&run, time).0, 0, "{api} {time}");
        }
        // The whole answer of 18 tokens, 2 ms each.
        let response = run["total"]["response"]["min_us"].as_f64();
        assert!(
            response > Some(18.0 * 2_000.0 - 1_000.0),
            "{api}: {response:?}"
        );
    }
    let table = place.expect(0, &["report", "run"]);
    assert!(
        table.contains("162 out") && table.contains("54 in"),
        "{table}"
    );
    assert!(!table.contains("first token"), "{table}");
    let export = place.expect_json(0, &["report", "run", "--export", "aiperf", "-"]);
    assert_eq!(export["output_sequence_length"]["avg"], 18.0, "{export}");
    assert!(export.get("time_to_first_token").is_none(), "{export}");
    for (flags, printed) in [
        (&["--goodput", "ttft=1s"][..], "tokens have no times"),
        (&["--no-usage"], "cannot be used with"),
    ] {
        expect_refusal(&place, &[&["--no-stream"], flags].concat(), printed);
    }
}

#[test]
fn embeddings_and_rankings_count_inputs_and_tokens() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "2ms"]);
    let documents = ["--document", "a b", "--document", "c {{seq}}"];
    for (flags, call, inputs, tokens) in [
        (
            &["--api", "embeddings"][..],
            "POST /v1/embeddings",
            9,
            9 * 6,
        ),
        (
            &[
                "--api",
                "embeddings",
                "--extra",
                r#"{"input": ["a b", "c"]}"#,
            ],
            "POST /v1/embeddings",
            2 * 9,
            9 * 3,
        ),
        (
            &[&["--api", "rerank", "--prompt", "q"], &documents[..]].concat(),
            "POST /v1/rerank",
            2 * 9,
            9 * 5,
        ),
    ] {
        let flags = [&["--goodput", "e2e=1h"], flags].concat();
        let run = run_nine_calls(&place, &server, call, &flags);
        let counts = ["inputs_answered", "tokens_prompt", "queries_good"];
        let counts = counts.map(|name| count_of(&run, name));
        assert_eq!(counts, [inputs, tokens, 9], "{flags:?}");
        assert_eq!(times(&run, "time_to_first_token").0, 0, "{run}");
        assert!(
            run["total"]["measures"]["counts"]["tokens_answer"]
                .as_u64()
                .unwrap_or(0)
                == 0
        );
    }
    let table = place.expect(0, &["report", "run"]);
    assert!(
        table.contains("45 in (") && table.contains("18 ("),
        "{table}"
    );
    assert!(!table.contains("pieces"), "{table}");
    for (flags, printed) in [
        (
            &["--api", "embeddings", "--max-tokens", "4"][..],
            "generates no tokens",
        ),
        (&["--api", "embeddings", "--no-stream"], "streams nothing"),
        (
            &["--api", "embeddings", "--turns", "2"],
            "no messages to continue",
        ),
        (
            &["--api", "embeddings", "--goodput", "ttft=1s"],
            "tokens have no times",
        ),
        (&["--api", "rerank"], "--document: missing"),
        (&["--document", "a"], "has no documents"),
    ] {
        expect_refusal(&place, flags, printed);
    }
}

#[test]
fn conversations_continue_over_each_api() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    for api in ["chat", "responses", "messages"] {
        let talk = [
            "--system",
            "Be brief.",
            "--prompt",
            "one two",
            "--turns",
            "3",
        ];
        let flags = [&talk[..], &["--clients", "2", "--api", api]].concat();
        let run = run_llm(&place, 0, &url(&server), &flags, &[]);
        assert_eq!(count_of(&run, "users_ok"), 2, "{api}");
        // Each turn repeats the prompts before it and their answers of 18 words.
        let prompts = [2 + 2, 2 + 2 + 20, 2 + 2 + 40];
        let sum: u64 = prompts.iter().sum();
        assert_eq!(count_of(&run, "tokens_prompt"), 2 * sum, "{api}");
    }
}

#[test]
fn messages_requests_carry_key_and_version() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let head = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines
            .take_while(|line| !line.is_empty())
            .collect::<Vec<_>>()
    });
    let load = ["--api", "messages", "--clients", "1", "--calls", "1"];
    let flags = [&load[..], &["--no-retry"]].concat();
    let keys = [
        ("ANTHROPIC_API_KEY", "sk-ant-1"),
        ("OPENAI_API_KEY", "sk-2"),
    ];
    run_llm(&place, 1, &url, &flags, &keys);
    let head = head.join().expect("the head");
    for field in ["x-api-key: sk-ant-1", "anthropic-version: 2023-06-01"] {
        assert!(head.iter().any(|line| line == field), "{field}: {head:?}");
    }
    assert!(!head.iter().any(|line| line.contains("sk-2")), "{head:?}");
    let plan = place.read("run/plan.toml");
    assert!(!plan.contains("sk-ant-1"), "{plan}");
    assert!(plan.contains("api = \"messages\""), "{plan}");
}

#[test]
fn plans_name_apis_and_refuse_unknown_ones() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    let plan = |keys: &str| {
        format!(
            "target = \"{}\"\n[call.http]\npath = \"/v1/responses\"\n{keys}\n\
             body = '{{\"model\": \"m\", \"stream\": true, \"input\": \"a b c\"}}'\n\
             [load]\nclients = 1\ncalls = 2\n",
            url(&server)
        )
    };
    fs::write(place.path("plan.toml"), plan("api = \"responses\"")).unwrap();
    place.expect(0, &["run", "plan.toml", "-q", "--out", "run"]);
    let run = place.run_json("run");
    assert_eq!(count_of(&run, "tokens_answer"), 36);
    for (keys, printed) in [
        ("api = \"gemini\"", "`gemini` is unknown: use one of chat"),
        ("api = \"chat\"\nstream = \"sse\"", "can't be combined with"),
        ("goodput = { query = \"1s\" }", "call.http.goodput"),
    ] {
        fs::write(place.path("plan.toml"), plan(keys)).unwrap();
        let refused = place.run(&["run", "plan.toml", "--dry-run"]);
        assert_eq!(refused.status.code(), Some(2), "{keys}");
        let found = text(&refused.stderr);
        assert!(found.contains(printed), "{keys}: {found}");
    }
}

#[test]
fn openai_package_reads_simulator_responses() {
    let place = Place::new();
    place.certificates();
    let authorities = place.path("certs/ca.crt");
    for (tls, scheme, host, authorities) in [
        (&[][..], "http", "127.0.0.1", None),
        (&SERVER_TLS[..], "https", "localhost", Some(authorities)),
    ] {
        let server = place.serve(&[&["llm", "--token-delay", "1ms"], tls].concat());
        let mut client = python(&place, "openai_client.py");
        client.arg(format!("{scheme}://{host}:{}", server.port));
        let printed = run_successfully(client.args(authorities));
        assert_eq!(text(&printed.stdout), "ok\n");
        let (code, _) = server.stop();
        assert_eq!(code, 0);
    }
}

#[test]
fn anthropic_package_reads_simulator_messages() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    let mut client = python(&place, "anthropic_client.py");
    let printed = run_successfully(client.arg(url(&server)));
    assert_eq!(text(&printed.stdout), "ok\n");
}
