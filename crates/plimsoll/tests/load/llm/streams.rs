//! A scripted server: what is sent to it, and how failing answers are judged.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::refusals::expect_refusal;
use super::*;

const TOKEN: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"w "}}]}"#;
const DONE: &str = "data: [DONE]";

/// Answers requests with events, and records their bodies.
struct ScriptedServer {
    url: String,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    /// `events` returns the events of the answer to request number n, from 0.
    fn start(events: impl Fn(u64) -> Vec<String> + Send + Sync + 'static) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let (kept, number, events) = (
            Arc::clone(&bodies),
            Arc::new(AtomicU64::new(0)),
            Arc::new(events),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, number, events) =
                    (Arc::clone(&kept), Arc::clone(&number), Arc::clone(&events));
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Some(body) = request(&mut stream) {
                        kept.lock().expect("no panic").push(body);
                        let events = events(number.fetch_add(1, Ordering::SeqCst));
                        answer(stream.get_mut(), &events);
                    }
                });
            }
        });
        ScriptedServer { url, bodies }
    }
}

/// Returns the body of the next request.
fn request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(String::from_utf8(body).expect("UTF-8"))
}

fn answer(stream: &mut TcpStream, events: &[String]) {
    let body: String = events.iter().map(|event| format!("{event}\n\n")).collect();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {length}\r\n\r\n"
    );
    let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
}

fn events(all: &[&str]) -> Vec<String> {
    all.iter().map(|event| (*event).to_owned()).collect()
}

#[test]
fn times_and_counts_cover_only_successes() {
    let place = Place::new();
    let failure = r#"data: {"object":"error","message":"the engine died","code":500}"#;
    let server = ScriptedServer::start(move |number| match number % 2 {
        0 => events(&[TOKEN, TOKEN, DONE]),
        _ => events(&[TOKEN, TOKEN, TOKEN, failure, DONE]),
    });
    let load = ["--clients", "1", "--calls", "20"];
    let run = run_llm(&place, 0, &server.url, &load, &[]);
    let total = &run["total"];
    assert_eq!((&total["ok"], &total["errors"]), (&10.into(), &10.into()));
    let first = &total["errors_by_code"][0];
    assert_eq!(
        (&first["code"], &first["count"]),
        (&"EVENT_ERROR".into(), &10.into())
    );
    let detail = run["details"][0]["text"].as_str().unwrap();
    assert!(detail.contains("event 4 reports an error"), "{detail}");
    assert!(detail.contains("the engine died"), "{detail}");
    for (name, count) in [
        ("time_to_first_token", 10),
        ("first_token", 10),
        ("token_gap", 10),
    ] {
        assert_eq!(times(&run, name).0, count, "{name}: {run}");
    }
    assert_eq!(count_of(&run, "tokens_received"), 10 * 2 + 10 * 3);
    assert_eq!(count_of(&run, "pieces_answer"), 10 * 2);
    let export = place.expect_json(0, &["report", "run", "--export", "aiperf", "-"]);
    assert_eq!(export["time_to_first_token"]["count"], 10, "{export}");
}

#[test]
fn finish_reasons_are_counted_shown_and_judged() {
    let place = Place::new();
    let ending = |reason: &str| {
        format!(r#"data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
    };
    let server = ScriptedServer::start(move |number| {
        let reason = match number % 5 {
            0 => "length",
            1 => "content_filter",
            _ => "stop",
        };
        let last = ending(reason);
        events(&[TOKEN, &last, DONE])
    });
    let load = ["--clients", "1", "--calls", "20"];
    for (objective, code) in [("finish.length < 50%", 0), ("finish.length < 10%", 99)] {
        let flags = [&load[..], &["--objective", objective]].concat();
        let run = run_llm(&place, code, &server.url, &flags, &[]);
        assert_eq!(count_of(&run, "finish_stop"), 12);
        assert_eq!(count_of(&run, "finish_length"), 4);
        assert_eq!(count_of(&run, "finish_content_filter"), 4);
        assert_eq!(run["total"]["ok"], 16, "{run}");
        assert_eq!(run["total"]["errors_by_code"][0]["code"], "EVENT_ERROR");
        let verdict = &run["objectives"][0];
        let measured = verdict["measured"].as_str().unwrap_or_default();
        assert!(measured.starts_with("20.0000% of 20 answers"), "{verdict}");
    }
    let table = place.expect(0, &["report", "run"]);
    assert!(
        table.contains("12 stop, 4 length, 4 content_filter"),
        "{table}"
    );
}

#[test]
fn lengths_are_drawn_and_prefixes_shared() {
    let place = Place::new();
    let flags = [
        "--prompt-tokens",
        "20..24",
        "--shared-prefix-tokens",
        "8",
        "--max-tokens",
        "5..7",
        "--seed",
        "3",
        "--clients",
        "1",
        "--calls",
        "60",
    ];
    let sent = || -> Vec<(u64, String, usize)> {
        let server = ScriptedServer::start(|_| events(&[TOKEN, DONE]));
        run_llm(&place, 0, &server.url, &flags, &[]);
        let bodies = server.bodies.lock().unwrap();
        let read = |body: &String| {
            let body: Value = serde_json::from_str(body).unwrap();
            let prompt = body["messages"][0]["content"].as_str().unwrap().to_owned();
            let words: Vec<&str> = prompt.split_whitespace().collect();
            let limit = body["max_tokens"].as_u64().unwrap();
            // The time and the number are two words, and count as one of the tokens.
            (limit, words[..8].join(" "), words.len() - 1)
        };
        bodies.iter().map(read).collect()
    };
    let drawn = sent();
    assert_eq!(drawn.len(), 60);
    for (limit, prefix, length) in &drawn {
        assert!((5..=7).contains(limit) && (20..=24).contains(length));
        assert_eq!(prefix, &drawn[0].1);
    }
    for limit in 5..=7 {
        assert!(drawn.iter().any(|(drawn, ..)| *drawn == limit), "{limit}");
    }
    for length in 20..=24 {
        assert!(drawn.iter().any(|(.., drawn)| *drawn == length), "{length}");
    }
    assert_eq!(sent(), drawn, "the seed decides");
    for (flags, printed) in [
        (&["--prompt-tokens", "9..5"][..], "a range such as 200..800"),
        (&["--max-tokens", "0"], "a range such as 200..800"),
        (&["--shared-prefix-tokens", "5"], "--prompt-tokens"),
        (
            &["--prompt-tokens", "5", "--shared-prefix-tokens", "5"],
            "leave no room",
        ),
    ] {
        expect_refusal(&place, flags, printed);
    }
}

#[test]
fn prompt_files_and_templates_fill_request_body() {
    let place = Place::new();
    let server = ScriptedServer::start(|_| events(&[TOKEN, DONE]));
    for (name, content) in [
        ("prompt.txt", "Row {{seq}} \"quoted\"\nof a file."),
        ("system.txt", "Be brief."),
        ("more.json", "{\"max_tokens\": {{row.n}}, \"x\": 1.10}"),
        ("rows.csv", "n\n16\n"),
    ] {
        fs::write(place.path(name), content).unwrap();
    }
    let flags = [
        "--prompt",
        "@prompt.txt",
        "--system",
        "@system.txt",
        "--extra",
        "@more.json",
        "--rows",
        "rows.csv",
        "--clients",
        "1",
        "--calls",
        "1",
    ];
    run_llm(&place, 0, &server.url, &flags, &[]);
    let body = server.bodies.lock().unwrap().remove(0);
    assert!(body.contains("\"max_tokens\": 16, \"x\": 1.10"), "{body}");
    let sent: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(sent["messages"][0]["content"], "Be brief.");
    assert_eq!(
        sent["messages"][1]["content"],
        "Row 0 \"quoted\"\nof a file."
    );
    for (flags, printed) in [
        (["--prompt", "@none.txt"], "--prompt: can't read none.txt"),
        (["--system", "@none.txt"], "--system: can't read none.txt"),
        (["--extra", "@none.txt"], "--extra: can't read none.txt"),
        (["--extra", "@system.txt"], "--extra: not JSON"),
    ] {
        expect_refusal(&place, &flags, printed);
    }
}

#[test]
fn turns_repeat_refusals_and_draw_their_own_limits() {
    let place = Place::new();
    let refusal = r#"data: {"choices":[{"index":0,"delta":{"refusal":"I can"}}]}"#;
    let rest = r#"data: {"choices":[{"index":0,"delta":{"refusal":"not."}}]}"#;
    let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    for follow_up in [&[][..], &["--follow-up", "and {{seq}}?"]] {
        let server = ScriptedServer::start(move |_| events(&[refusal, rest, end, DONE]));
        let extra = r#"{"user": "{{uuid}}"}"#;
        let flags = [
            "--turns",
            "30",
            "--clients",
            "1",
            "--max-tokens",
            "5..9",
            "--extra",
            extra,
        ];
        run_llm(
            &place,
            0,
            &server.url,
            &[&flags[..], follow_up].concat(),
            &[],
        );
        let bodies = server.bodies.lock().unwrap();
        let sent: Vec<Value> = (bodies.iter())
            .map(|body| serde_json::from_str(body).unwrap())
            .collect();
        assert_eq!(sent.len(), 30);
        for limit in 5..=9 {
            let draws = |body: &&Value| body["max_tokens"] == limit;
            assert!(sent.iter().any(|body| draws(&body)), "{limit}");
        }
        for body in &sent[1..] {
            // Everything else that varies is the conversation's.
            assert_eq!(body["user"], sent[0]["user"]);
            let answer = &body["messages"][1];
            assert_eq!(answer["content"], "I cannot.", "{body}");
        }
    }
}

#[test]
fn whole_answers_without_usage_have_unknown_tokens() {
    let place = Place::new();
    let answer =
        r#"{"choices":[{"index":0,"message":{"content":"It is"},"finish_reason":"stop"}]}"#;
    let server = ScriptedServer::start(move |_| events(&[answer]));
    let load = ["--no-stream", "--clients", "1", "--calls", "5"];
    let run = run_llm(&place, 0, &server.url, &load, &[]);
    assert_eq!(count_of(&run, "usage_missing"), 5);
    let table = place.expect(0, &["report", "run"]);
    assert!(
        table.contains("unknown, 5 answers without usage"),
        "{table}"
    );
    assert!(!table.contains("pieces"), "{table}");
}
