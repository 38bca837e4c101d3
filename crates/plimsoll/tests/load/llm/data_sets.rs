//! Data sets of prompts, given by a flag and by a plan.

use super::*;

const QUESTIONS: &str = r#"{"prompt": "Why is the sky blue?", "output_tokens": 6}
{"prompt": "How \"deep\" does a laden ship lie?", "output_tokens": 9}
"#;

/// Runs a plan, and returns the tokens of all answers.
#[track_caller]
fn answered_tokens(place: &Place, plan: &str, out: &str) -> Value {
    place.expect(0, &["run", plan, "-q", "--out", out]);
    let run = place.run_json(out);
    assert_eq!(run["total"]["ok"], 20, "{run}");
    run["total"]["measures"]["counts"]["tokens_answer"].clone()
}

#[test]
fn saved_data_set_plan_runs_again() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "0s"]);
    fs::write(place.path("questions.jsonl"), QUESTIONS).unwrap();
    let flags = [
        "--dataset",
        "questions.jsonl",
        "--clients",
        "4",
        "--calls",
        "20",
    ];
    let run = run_llm(&place, 0, &url(&server), &flags, &[]);
    // Ten answers of six tokens, and ten of nine.
    let tokens = &run["total"]["measures"]["counts"]["tokens_answer"];
    assert_eq!(*tokens, 150, "{run}");
    assert_eq!(answered_tokens(&place, "run/plan.toml", "again"), 150);
    let saved = place.read("again/plan.toml");
    assert!(saved.contains("file = \"questions.jsonl\""), "{saved}");
    let other = QUESTIONS.replace("6}", "7}");
    fs::write(place.path("questions.jsonl"), other).unwrap();
    let refused = place.run(&["run", "again/plan.toml", "--dry-run"]);
    let said = stderr_of(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("questions.jsonl has changed"), "{said}");
}

/// A plan names a data set as its file of rows.
#[test]
fn plan_key_names_data_set() {
    let place = Place::new();
    let server = place.serve(&["llm", "--token-delay", "0s"]);
    fs::write(place.path("questions.jsonl"), QUESTIONS).unwrap();
    let plan = format!(
        r#"
target = "{}"
[rows]
file = "questions.jsonl"
[call.http]
method = "POST"
path = "/v1/chat/completions"
api = "chat"
body = '''{{"model": "m", "stream": true, "stream_options": {{"include_usage": true}},
"max_tokens": {{{{row.output_tokens}}}}, "messages": [{{"role": "user", "content": "{{{{row.prompt}}}}"}}]}}'''
[load]
clients = 4
calls = 20
"#,
        url(&server)
    );
    fs::write(place.path("plan.toml"), plan).unwrap();
    assert_eq!(answered_tokens(&place, "plan.toml", "first"), 150);
    assert_eq!(answered_tokens(&place, "first/plan.toml", "second"), 150);
}
