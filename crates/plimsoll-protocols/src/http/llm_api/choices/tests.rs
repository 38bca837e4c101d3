use super::*;
use crate::http::tokens::MAX_CHOICES;

fn read(json: &str) -> AnswerChunk<'_> {
    super::read(json.as_bytes()).unwrap_or_else(|e| panic!("{e}: {json}"))
}

fn usage(json: &str, streams_thoughts: bool) -> Option<(u64, u64, u64)> {
    let usage = read(json).usage()?.usage(streams_thoughts);
    Some((usage.prompt, usage.answer, usage.streamed))
}

#[test]
fn tokens_parse_in_every_format() {
    for (json, bytes) in [
        (
            r#"{"id":"a","choices":[{"index":0,"delta":{"content":" it"},"finish_reason":null}]}"#,
            3,
        ),
        (
            r#"{"choices":[{"delta":{"role":"assistant","content":"a\n\"b"}}],"usage":null}"#,
            4,
        ),
        (
            r#"{"choices":[{"delta":{"content":null,"reasoning_content":"so"}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"reasoning":"so","content":""}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"reasoning":"so","reasoning_content":"so"}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"reasoning":"","reasoning_text":"so"}}]}"#,
            2,
        ),
        (r#"{"choices":[{"delta":{"thinking":"so"}}]}"#, 2),
        (r#"{"choices":[{"delta":{"thoughts":["so"]}}]}"#, 2),
        (r#"{"choices":[{"delta":{"refusal":"no"}}]}"#, 2),
        (
            r#"{"choices":[{"delta":{"content":{"type":"text","text":"so"}}}]}"#,
            2,
        ),
        (
            r#"{"choices":[{"delta":{"content":[{"text":"a"},{"text":"b"},7]}}]}"#,
            2,
        ),
        (r#"{"choices":[{"delta":"so"}]}"#, 2),
        (
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            1,
        ),
        (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, 1),
        (
            r#"{"choices":[{"delta":{"function_call":{"name":"f","arguments":""}}}]}"#,
            1,
        ),
        (
            r#"{"object":"text_completion","choices":[{"text":"x","logprobs":null}]}"#,
            1,
        ),
        (r#"{"choices":[{"text":""},{"text":"second"}]}"#, 6),
        (r#"{"choices":[{"message":{"content":"whole"}}]}"#, 5),
        (
            r#"{"choices":[{"delta":{"content":"le"},"message":{"content":"whole"}}]}"#,
            2,
        ),
    ] {
        assert_eq!(read(json).text_length(), bytes, "{json}");
    }
    for json in [
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"delta":{"finish_reason":"stop","reasoning_signature":"Eq"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":null,"content":0.5}}]}"#,
        r#"{"choices":[{"delta":7,"text":false},null,"x",[1]]}"#,
        r#"{"choices":[]}"#,
        r#"{"choices":null}"#,
        "{}",
        "[1]",
        "null",
        "\"x\"",
    ] {
        let chunk = read(json);
        assert_eq!(chunk.text_length(), 0, "{json}");
        assert!(!chunk.is_error(), "{json}");
    }
    let said = r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"It"}]}}]}"#;
    assert_eq!(read(said).first_reply(), ["It", ""]);
    let refused = r#"{"choices":[{"index":1,"delta":{"content":"x"}},{"delta":{"content":null,"refusal":"No."}}]}"#;
    assert_eq!(read(refused).first_reply(), ["", "No."]);
    assert!(read(said).has_reasoning());
    assert!(!read(r#"{"choices":[{"delta":{"content":"so"}}]}"#).has_reasoning());
}

#[test]
fn generated_text_is_kept_per_choice() {
    let mut texts = Vec::new();
    for json in [
        r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"reasoning_content":"so: "}}]}"#,
        r#"{"choices":[{"index":1,"text":"b\"c"},{"index":0,"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":null,"refusal":"no"}}]}"#,
        r#"{"choices":null}"#,
    ] {
        read(json).append_texts(&mut texts);
    }
    assert_eq!(texts, ["so: ano", "b\"c"]);
    let far = r#"{"choices":[{"index":4294967295,"text":"x"}]}"#;
    read(far).append_texts(&mut texts);
    assert_eq!(texts.len() as u64, MAX_CHOICES);
}

#[test]
fn usage_parses_in_every_format() {
    for (json, counts) in [
        (
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":0}}}"#,
            (7, 20, 20),
        ),
        (
            r#"{"usage":{"prompt_tokens":7.0,"completion_tokens":"20"}}"#,
            (7, 20, 20),
        ),
        (
            r#"{"usage":{"input_tokens":7,"output_tokens":20}}"#,
            (7, 20, 20),
        ),
        (r#"{"usage":{"prompt_tokens":7}}"#, (7, 0, 0)),
        (
            r#"{"x_groq":{"usage":{"prompt_tokens":7,"completion_tokens":20}}}"#,
            (7, 20, 20),
        ),
        (
            r#"{"choices":[{"usage":{"completion_tokens":20}}],"usage":null}"#,
            (0, 20, 20),
        ),
        (
            r#"{"usage":{"completion_tokens":20,"completion_tokens_details":{"reasoning_tokens":15}}}"#,
            (0, 20, 5),
        ),
        (
            r#"{"usage":{"completion_tokens":20,"reasoning_tokens":15}}"#,
            (0, 20, 5),
        ),
    ] {
        assert_eq!(usage(json, false), Some(counts), "{json}");
        let (prompt, answer, _) = counts;
        assert_eq!(usage(json, true), Some((prompt, answer, answer)), "{json}");
    }
    for json in [
        "{}",
        r#"{"usage":null}"#,
        r#"{"usage":{}}"#,
        r#"{"usage":7}"#,
        r#"{"usage":{"completion_tokens":18446744073709551616}}"#,
    ] {
        assert_eq!(usage(json, false), None, "{json}");
    }
}

#[test]
fn errors_are_recognised_by_key() {
    for json in [
        r#"{"error":{"message":"no"}}"#,
        r#"{"error":"no","choices":[]}"#,
        r#"{"object":"error","message":"no"}"#,
        r#"{"type":"error","message":"no"}"#,
        r#"{"text":"no","error_code":50002}"#,
        r#"{"code":500,"message":"no"}"#,
        r#"{"code":"rate_limit","detail":"no"}"#,
        r#"{"detail":"internal"}"#,
        r#"{"detail":[{"msg":"field required"}]}"#,
        r#"{"errors":[{"message":"no"}]}"#,
        r#"{"status":"error","message":"no"}"#,
        r#"{"status":"FAILED"}"#,
        r#"{"choices":[{"index":0,"error":{"code":502}}]}"#,
        r#"{"choices":[{"delta":{"error":"no"}}]}"#,
    ] {
        assert!(read(json).is_error(), "{json}");
    }
    for json in [
        r#"{"error":null,"choices":[]}"#,
        r#"{"error":"","error_code":0}"#,
        r#"{"code":0,"message":"ok"}"#,
        r#"{"code":200,"message":"success"}"#,
        r#"{"code":500,"message":"x","choices":[]}"#,
        r#"{"message":"queued"}"#,
        r#"{"code":200,"detail":"ok"}"#,
        r#"{"detail":"x","choices":[]}"#,
        r#"{"detail":"","errors":[],"status":"ok"}"#,
        r#"{"choices":[{"error":null,"delta":{"error":false}}]}"#,
    ] {
        assert!(!read(json).is_error(), "{json}");
    }
}

#[test]
fn invalid_json_is_rejected_with_position() {
    for (data, place) in [
        ("", "line 1 column 0"),
        ("[]x", "line 1 column 3"),
        ("{", "line 1 column 1"),
        (
            "{\"choices\":{}}",
            "`choices` is not a list at line 1 column 14",
        ),
        ("{\"choices\":\"x\"}", "`choices` is not a list"),
    ] {
        let error = super::read(data.as_bytes()).err().map(|e| e.to_string());
        let error = error.unwrap_or_else(|| panic!("{data} is read"));
        assert!(error.contains(place), "{data}: {error}");
    }
}
