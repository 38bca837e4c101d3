//! `plimsoll` alone on a terminal, which asks what to load.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;
use crate::terminal;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use support::Place;
use terminal::TestTerminal;

/// Answers each question when it is asked; the last line of the screen shows it.
fn answer(terminal: &mut TestTerminal, question: &str, text: &str) -> String {
    let is_asked = |screen: &str| {
        let last = screen.trim_end().lines().last().unwrap_or_default();
        last.contains(question)
    };
    let screen = terminal.until(question, is_asked);
    terminal.press(&format!("{text}\r"));
    screen
}

#[test]
fn guide_leads_from_address_to_plan_and_run() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let mut terminal = TestTerminal::start(&place.path(""), &[]);
    answer(&mut terminal, "Address", &server.address());
    // The server's only method needs no choice.
    answer(
        &mut terminal,
        "Message, as JSON [{\"json\":\"\"}]",
        r#"{"json": "[0.1, 0.2]"}"#,
    );
    let screen = answer(&mut terminal, "How much", "nothing");
    assert!(screen.contains("score.ScoreService/GetScore"), "{screen}");
    answer(&mut terminal, "How much", "2");
    answer(&mut terminal, "How long", "1s");
    let screen = answer(&mut terminal, "p: write a plan", "p");
    let line = format!(
        "plimsoll grpc grpc://{} -m score.ScoreService/GetScore -d '{{\"json\": \"[0.1, 0.2]\"}}' --clients 2 --duration 1s",
        server.address()
    );
    let joined = screen.replace('\n', "");
    assert!(joined.contains(&line), "{screen}");
    assert!(screen.contains("`nothing` is none of these"), "{screen}");
    answer(&mut terminal, "File [plan.toml]", "");
    let (code, screen) = terminal.end();
    assert_eq!(code, 0, "{screen}");
    let plan = fs::read_to_string(place.path("plan.toml")).expect("a plan");
    assert!(plan.contains("score.ScoreService/GetScore"), "{plan}");
    assert!(!place.path("runs").exists(), "a load has run");
    place.expect(0, &["run", "plan.toml", "-q", "--out", "run"]);
    assert!(place.run_json("run")["total"]["ok"].as_u64() > Some(0));
}

#[test]
fn guide_runs_a_described_operation() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                loop {
                    let mut lines = Vec::new();
                    let mut line = String::new();
                    while stream.read_line(&mut line).is_ok_and(|n| n > 2) {
                        lines.push(std::mem::take(&mut line));
                    }
                    let Some(first) = lines.first() else { return };
                    let (status, body) = match first.split(' ').nth(1) {
                        Some("/openapi.json") => (
                            "200 OK",
                            r#"{"openapi":"3.0.3","paths":{"/b":{"get":{}},"/a":{"get":{}}}}"#,
                        ),
                        Some("/a" | "/b") => ("200 OK", "ok"),
                        _ => ("404 Not Found", "no"),
                    };
                    let length = body.len();
                    let answer =
                        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                    if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let mut terminal = TestTerminal::start(&place.path(""), &[]);
    answer(&mut terminal, "Address", &address);
    let screen = answer(&mut terminal, "Which one", "2");
    assert!(
        screen.contains("1  GET /a") && screen.contains("2  GET /b"),
        "{screen}"
    );
    answer(&mut terminal, "How much", "20/s");
    answer(&mut terminal, "How long", "500ms");
    answer(&mut terminal, "p: write a plan", "");
    let (code, screen) = terminal.end();
    assert_eq!(code, 0, "{screen}");
    assert!(screen.contains("get-b-open-loop"), "{screen}");
    assert!(place.path("runs").exists(), "{screen}");
}

#[test]
fn guide_prefers_models_to_bare_http() {
    let place = Place::new();
    let server = place.serve(&["llm"]);
    let mut terminal = TestTerminal::start(&place.path(""), &[]);
    let url = format!("http://{}", server.address());
    answer(&mut terminal, "Address", &url);
    let screen = answer(&mut terminal, "How much", "");
    assert!(screen.contains("A language model"), "{screen}");
    assert!(!screen.contains("which answers"), "{screen}");
    answer(&mut terminal, "How long", "");
    let screen = answer(&mut terminal, "p: write a plan", "q");
    let line = screen.replace('\n', "");
    assert!(
        line.contains(&format!("plimsoll llm {url} --model ")),
        "{screen}"
    );
    assert!(line.contains("--clients 10 --duration 10s"), "{screen}");
    let (code, screen) = terminal.end();
    assert_eq!(code, 0, "{screen}");
    assert!(!place.path("runs").exists(), "{screen}");
}

#[test]
fn open_questions_end_in_help_or_nothing() {
    let place = Place::new();
    let mut terminal = TestTerminal::start(&place.path(""), &[]);
    answer(&mut terminal, "Address", "");
    let (code, screen) = terminal.end();
    assert_eq!(code, 2, "{screen}");
    let mut terminal = TestTerminal::start(&place.path(""), &[]);
    // Nobody listens at the discard port.
    answer(&mut terminal, "Address", "127.0.0.1:9");
    let screen = terminal.until("refusal", |screen| screen.contains("Nothing answers there"));
    assert!(screen.contains("asking 127.0.0.1:9"), "{screen}");
    terminal.press("\u{4}");
    let (code, screen) = terminal.end();
    assert_eq!(code, 0, "{screen}");
    // Without a terminal nothing is asked.
    let piped = place.run(&[]);
    assert_eq!(piped.status.code(), Some(2));
    let printed = support::text(&piped.stderr);
    assert!(
        printed.contains("Usage") && !printed.contains("Address"),
        "{printed}"
    );
}
