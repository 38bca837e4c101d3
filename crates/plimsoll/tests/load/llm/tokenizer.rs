//! Tokens counted with a tokenizer file, in builds that support it, like that of `make test`.

use std::fs;

use super::*;

#[test]
fn tokenizer_requires_token_stream() {
    let place = Place::new();
    let plan = "target = \"http://127.0.0.1:1\"\n[call.http]\nstream = \"sse\"\ntokenizer = \"a.json\"\n\
        [load]\nclients = 1\ncalls = 1\n";
    fs::write(place.path("plan.toml"), plan).unwrap();
    let refused = place.run(&["run", "plan.toml", "--dry-run"]);
    let printed = stderr_of(&refused);
    assert!(printed.contains("call.http.tokenizer"), "{printed}");
    assert!(printed.contains("stream = \"openai\""), "{printed}");
}

/// Writes a tokenizer of words and punctuation with this vocabulary.
#[cfg(feature = "tokenizers")]
fn write_tokenizer(place: &Place, vocabulary: &str) {
    let file = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
            "model": {{"type": "WordLevel", "vocab": {{{vocabulary}}}, "unk_token": "[UNK]"}}}}"#
    );
    fs::write(place.path("tokenizer.json"), file).expect("written");
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokenizer_counts_alongside_or_instead_of_service() {
    let place = Place::new();
    place.certificates();
    write_tokenizer(&place, r#""[UNK]": 0"#);
    let server = place.serve(&["llm", "--token-delay", "1ms"]);
    let flags = [
        "--clients",
        "4",
        "--calls",
        "20",
        "--tokenizer",
        "tokenizer.json",
    ];
    // The service counts 18 words; the tokenizer adds a comma and a full stop.
    for more in [
        &[][..],
        &["--http-version", "2"],
        &["--api", "completions"],
        &["--turns", "5"],
        &["--processes", "2"],
    ] {
        let run = run_llm(&place, 0, &url(&server), &[&flags[..], more].concat(), &[]);
        assert_eq!(count_of(&run, "tokens_answer"), 20 * 18, "{more:?}");
        assert_eq!(count_of(&run, "tokens_counted"), 20 * 20, "{more:?}");
    }
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("360 out"), "{table}");
    assert!(table.contains("400 by the tokenizer"), "{table}");
    let flags = [&flags[..], &["--no-usage"]].concat();
    let run = run_llm(&place, 0, &url(&server), &flags, &[]);
    assert_eq!(count_of(&run, "usage_missing"), 20);
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("400 out by the tokenizer"), "{table}");
    let export = place.expect_json(0, &["report", "run", "--export", "aiperf", "-"]);
    assert_eq!(export["output_sequence_length"]["avg"], 20.0);
    // The vocabulary has no token for unknown words.
    write_tokenizer(&place, r#""Load": 0"#);
    let run = run_llm(&place, 0, &url(&server), &flags, &[]);
    assert_eq!(count_of(&run, "answers_uncounted"), 20);
    assert_eq!(count_of(&run, "tokens_counted"), 0);
    let table = place.expect(0, &["report", "run"]);
    assert!(table.contains("20 answers that it can't count"), "{table}");
}
