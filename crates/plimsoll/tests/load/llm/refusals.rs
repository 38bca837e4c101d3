//! Flags that `llm` refuses before anything is sent.

use super::*;

/// Checks that `llm` refuses these flags with a text that contains `printed`.
#[track_caller]
pub(crate) fn expect_refusal(place: &Place, flags: &[&str], printed: &str) {
    let fixed = [
        "llm",
        "http://127.0.0.1:1",
        "--model",
        "m",
        "--clients",
        "1",
    ];
    let refused = place.run(&[&fixed[..], flags].concat());
    assert_eq!(refused.status.code(), Some(2), "{flags:?}");
    let found = stderr_of(&refused);
    assert!(found.contains(printed), "{flags:?}: {found}");
}

#[test]
fn conflicting_flags_are_rejected() {
    let place = Place::new();
    for (flags, printed) in [
        (
            &["--prompt", "a", "--prompt-tokens", "5"][..],
            "cannot be used with",
        ),
        (
            &["--api", "completions", "--system", "a"],
            "--system: the completions API has no system",
        ),
        (&["--extra", "[1]"], "--extra: not a JSON object"),
        (&["--extra", "{"], "--extra: not JSON"),
        (&["--prompt", "{{row.x}}"], "`--prompt`"),
        (&["--goodput", "ttft=0s"], "a bound of 0"),
        (
            &["--turns", "2", "--api", "completions"],
            "--turns: the completions API has no messages",
        ),
        (
            &["--no-usage", "--api", "messages"],
            "--no-usage: the messages API counts tokens without being asked",
        ),
        (
            &["--api", "images"],
            "chat, completions, responses, messages, embeddings, rerank",
        ),
        (
            &["--turns", "2", "--calls", "3"],
            "`--calls`: 3 calls are not a multiple of the 2 calls of each user",
        ),
        (
            &["--turns", "2", "--cold"],
            "`--cold`: not used where each user makes several calls",
        ),
        (
            &["--turns", "2", "--http-version", "auto"],
            "`--turns`: continues from a model's answers",
        ),
        (&["--follow-up", "a"], "--turns"),
        (&["--goodput", "speed=1s"], "`speed` is not one of"),
        (
            &["--no-stream", "--objective", "ttft.p99 < 1s"],
            "`--objective ttft.p99`: answers come as a whole (--no-stream",
        ),
        (
            &["--api", "embeddings", "--objective", "itl.p99 < 1s"],
            "`--objective itl.p99`: embeddings and rankings are numbers",
        ),
        (
            &["--api", "embeddings", "--tokenizer", "words.json"],
            "`--tokenizer`: counts the tokens of answers, but those of embeddings are numbers",
        ),
    ] {
        expect_refusal(&place, flags, printed);
    }
    // Without a gateway there are no sessions; a request for one is answered with the reason.
    let server = place.serve(&["llm"]);
    let url = format!("session://{}", server.address());
    let refused = place.run(&["session", &url, "--clients", "1", "--out", "run"]);
    assert_eq!(refused.status.code(), Some(1));
    let run = place.run_json("run");
    let printed = run["details"][0]["text"].as_str().unwrap_or_default();
    assert!(printed.contains("--with-gateway or --redis"), "{run}");
}
