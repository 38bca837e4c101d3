//! `llm --turns`, against a server on uvicorn that remembers its answers, and against ours.

use super::{count_of, run_llm, times, url};
use crate::support::nginx::Nginx;
use crate::support::peers::python;
use crate::support::ports::free_port;
use crate::support::{CLIENT_TLS, Place, SERVER_TLS, Server};

#[test]
fn conversations_repeat_history_and_pause_between_turns() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "llm_server.py"));
    let url = url(&server);
    let key = [("OPENAI_API_KEY", "sk-7f3a9c")];
    let fixed = ["--system", "x", "--extra", r#"{"model": "recalls"}"#];
    let of =
        |code, flags: &[&str]| run_llm(&place, code, &url, &[&fixed[..], flags].concat(), &key);
    let run = of(
        0,
        &[
            "--prompt",
            "one \"two\" {{seq}}",
            "--turns",
            "3",
            "--clients",
            "2",
        ],
    );
    assert_eq!(run["total"]["ok"], 6);
    assert_eq!(
        (count_of(&run, "users_ok"), run["connections"].as_u64()),
        (2, Some(2))
    );
    assert_eq!(times(&run, "time_to_first_token").0, 6);
    // Each question and each answer has three words, which the next turn's prompt repeats.
    let prompts = [1 + 3, 1 + 3 + 3 + 3, 1 + 3 + 3 + 3 + 3 + 3];
    assert_eq!(
        count_of(&run, "tokens_prompt"),
        2 * prompts.iter().sum::<u64>()
    );
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("2 ok, 0 failed"), "{table}");

    // The first turn is refused twice, and each time sent again after a wait.
    let busy = [
        "--extra",
        r#"{"model": "busy"}"#,
        "--prompt",
        "a b",
        "--turns",
        "2",
        "--clients",
        "1",
        "--retry-refused",
        "3",
    ];
    let run = run_llm(&place, 0, &url, &busy, &key);
    assert_eq!(run["total"]["ok"], 2, "{run}");
    assert_eq!(count_of(&run, "calls_refused"), 1, "{run}");
    assert_eq!(count_of(&run, "refusals_retried"), 2, "{run}");
    // What was asked and answered so far is in the second turn's request.
    assert_eq!(count_of(&run, "tokens_prompt"), 2 + (2 + 2 + 2), "{run}");
    let longest = run["total"]["response"]["max_us"].as_f64().unwrap();
    assert!(longest > 0.39e6, "{run}");

    // The server closes connections after a second of idling: another one carries the next turn.
    let run = of(
        0,
        &[
            "--prompt",
            "a",
            "--follow-up",
            "b c",
            "--follow-up",
            "d",
            "--turns",
            "4",
            "--think",
            "1500ms",
            "--clients",
            "1",
            "--http-version",
            "1.1",
            "--save-plan",
            "plan.toml",
        ],
    );
    assert_eq!(
        (&run["total"]["ok"], count_of(&run, "users_ok")),
        (&4.into(), 1)
    );
    assert_eq!(count_of(&run, "tokens_received"), 1 + 2 + 1 + 2);
    let made = run["stages"][0]["connections_full"].as_u64();
    assert!(made.is_none_or(|made| made <= 4), "{run}");
    let plan = place.read("run/plan.toml");
    assert!(
        plan.contains("turns = 4") && plan.contains("think = "),
        "{plan}"
    );

    // Conversations are the arrivals of an open loop.
    let run = of(
        0,
        &["--rate", "10/s", "--duration", "500ms", "--turns", "2"],
    );
    assert_eq!(
        (&run["total"]["due"], count_of(&run, "users_ok")),
        (&10.into(), 5)
    );
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("target for users"), "{table}");

    // A conversation stops after a failed answer.
    let fails = ["--extra", r#"{"model": "fails"}"#, "--prompt", "a b c d"];
    let run = run_llm(
        &place,
        1,
        &url,
        &[&fails[..], &["--turns", "3", "--clients", "1"]].concat(),
        &key,
    );
    let codes: Vec<(&str, u64)> = run["total"]["errors_by_code"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| {
            (
                error["code"].as_str().unwrap(),
                error["count"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        codes.iter().find(|(code, _)| *code == "EVENT_ERROR"),
        Some(&("EVENT_ERROR", 1))
    );
    assert_eq!(
        codes.iter().find(|(code, _)| *code == "SESSION_BROKEN"),
        Some(&("SESSION_BROKEN", 2))
    );
    assert_eq!(count_of(&run, "users_failed"), 1);
}

/// nginx closes an HTTP/2 connection after some requests, in the middle of a conversation.
#[test]
fn conversations_outlive_connections_of_nginx() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&["llm", "--token-delay", "0s"]);
    let port = free_port();
    let more = format!(
        "}} server {{ listen 127.0.0.1:{port} ssl http2; ssl_protocols TLSv1.3; keepalive_requests 3;\n\
         ssl_certificate {0}/server.crt; ssl_certificate_key {0}/server.key;\n\
         location / {{ proxy_pass http://{1}; proxy_buffering off; }}",
        place.path("certs").display(),
        server.address()
    );
    let _nginx = Nginx::start(&place, &more);
    let url = format!("https://localhost:{port}");
    let talk = ["--turns", "7", "--clients", "4", "--http-version", "2"];
    let run = run_llm(&place, 0, &url, &[&talk[..], &CLIENT_TLS].concat(), &[]);
    assert_eq!(
        (&run["total"]["ok"], count_of(&run, "users_ok")),
        (&28.into(), 4),
        "{run}"
    );
}

#[test]
fn conversations_work_over_tls() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["llm", "--token-delay", "1ms"][..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}", server.port);
    let load = ["--turns", "3", "--clients", "4"];
    let run = run_llm(&place, 0, &url, &[&load[..], &CLIENT_TLS].concat(), &[]);
    assert_eq!(
        (&run["total"]["ok"], count_of(&run, "users_ok")),
        (&12.into(), 4)
    );
    // Six words are asked and 18 answered; later turns repeat both.
    assert_eq!(count_of(&run, "tokens_prompt"), 4 * (6 + 30 + 54));
}

/// hypercorn speaks HTTP/2 by ALPN and by prior knowledge, and closes connections after a second of
/// idling.
#[test]
fn conversations_work_over_http2() {
    let place = Place::new();
    place.certificates();
    let key = [("OPENAI_API_KEY", "sk-7f3a9c")];
    let recalls = ["--system", "x", "--extra", r#"{"model": "recalls"}"#];
    let asked = ["--prompt", "one \"two\" {{seq}}", "--http-version", "2"];
    for secured in [false, true] {
        let mut command = python(&place, "llm_server.py");
        command.arg("hypercorn");
        if secured {
            command.args(["certs/server.crt", "certs/server.key"]);
        }
        let server = Server::start(&mut command);
        let (url, tls) = if secured {
            (
                format!("https://localhost:{}", server.port),
                &CLIENT_TLS[..],
            )
        } else {
            (url(&server), &[][..])
        };
        for (think, clients) in [("0s", 8), ("1500ms", 1)] {
            let users = clients.to_string();
            let load = ["--turns", "3", "--think", think, "--clients", &users];
            let flags = [&recalls[..], &asked, &load, tls].concat();
            let run = run_llm(&place, 0, &url, &flags, &key);
            assert_eq!(
                (&run["total"]["ok"], count_of(&run, "users_ok")),
                (&(3 * clients).into(), clients)
            );
            assert_eq!(run["http_version"], "2");
            assert_eq!(count_of(&run, "tokens_prompt"), clients * (4 + 10 + 16));
        }
    }
}
