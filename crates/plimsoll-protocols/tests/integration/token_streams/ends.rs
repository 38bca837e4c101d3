//! How answers end: errors that come in place of them, and calls of tools.

use super::*;

#[test]
fn error_documents_keep_the_words_of_the_service() {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}"#;
    let spread =
        "\n{\n  \"type\": \"error\",\n  \"error\": {\n    \"message\": \"Overloaded\"\n  }\n}\n";
    let long = format!(
        r#"{{"id":"{}","error":{{"code":"server_error","message":"Overloaded"}}}}"#,
        "x".repeat(4_000)
    );
    let failed = r#"{"object":"response","status":"failed","error":{"code":"server_error","message":"Overloaded"}}"#;
    for (api, body) in [
        ("messages", overloaded),
        ("messages", spread),
        ("responses", overloaded),
        ("responses", failed),
        ("chat", overloaded),
        ("chat", spread),
        ("chat", &long),
        ("responses", &long),
    ] {
        // The answer should have been a stream, or a whole answer.
        for media_type in ["application/json", "text/event-stream", WHOLE] {
            for step in [7, 100_000] {
                let found = parse(api, (body.as_bytes(), media_type), step);
                let outcome = found.outcome;
                assert_eq!(
                    outcome,
                    Some(Outcome::EventError),
                    "{api} {media_type}: {found:?}"
                );
                let text = found.details.join("\n");
                assert!(
                    api == "chat" || text.contains("Overloaded"),
                    "{api} {media_type}: {text}"
                );
            }
        }
    }
}

#[test]
fn answers_that_call_tools_end_as_such() {
    let chat = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"find","arguments":"{}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;
    let legacy = r#"data: {"choices":[{"index":0,"delta":{"function_call":{"name":"find"}}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

"#;
    let response = r#"data: {"type":"response.output_item.added","item":{"type":"function_call","name":"find"}}

data: {"type":"response.completed","response":{"status":"completed"}}

"#;
    let pieces = r#"data: {"type":"response.custom_tool_call_input.delta","delta":"x"}

data: {"type":"response.completed","response":{"output":[]}}

"#;
    let message = r#"data: {"type":"content_block_start","content_block":{"type":"tool_use","name":"find","input":{}}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}

data: {"type":"message_stop"}

"#;
    // The service calls its own tools, and the answer goes on.
    let search = r#"data: {"type":"response.output_item.added","item":{"type":"web_search_call","name":"search"}}

data: {"type":"response.output_text.delta","delta":"It"}

data: {"type":"response.completed","response":{"status":"completed"}}

"#;
    let served = r#"data: {"type":"content_block_start","content_block":{"type":"server_tool_use","name":"search"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}

data: {"type":"message_stop"}

"#;
    for (api, body, reason) in [
        ("chat", chat, Count::FinishToolCalls),
        ("chat", legacy, Count::FinishToolCalls),
        ("responses", response, Count::FinishToolCalls),
        ("responses", pieces, Count::FinishToolCalls),
        ("messages", message, Count::FinishToolCalls),
        ("responses", search, Count::FinishStop),
        ("messages", served, Count::FinishStop),
    ] {
        for step in [3, 10_000] {
            let found = parse(api, (body.as_bytes(), "text/event-stream"), step);
            assert_eq!(found.outcome, Some(OK), "{body}: {found:?}");
            assert_eq!(found.finished, [reason], "{body}");
        }
    }
}
