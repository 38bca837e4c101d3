use super::*;
use crate::http::llm_api::ModelResponseRules;

fn stream(format: EventFormat, until: Option<EventMatch>) -> EventStream {
    EventStream {
        format,
        until,
        error: None,
        tokens: None,
    }
}

/// Returns the events of `body`, fed in pieces of `step` bytes.
fn read(
    stream: &EventStream,
    body: &[u8],
    step: usize,
) -> Result<Vec<(StreamEventKind, String)>, EventStreamError> {
    let mut reader = EventReader::default();
    let mut found = Vec::new();
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    for piece in body.chunks(step) {
        reader.push(stream, piece, |event| {
            found.push((event.kind, text(event.data)));
            true
        })?;
    }
    reader.finish(stream, |event| {
        found.push((event.kind, text(event.data)));
        true
    })?;
    Ok(found)
}

#[test]
fn prefixed_messages_parse_in_any_split() {
    let web = stream(EventFormat::Web, None);
    let body = b"\0\0\0\0\x03one\0\0\0\0\0\x80\0\0\0\x10grpc-status: 0\r\n\0\0\0\0\x01x";
    for step in 1..=body.len() {
        let found = read(&web, body, step).unwrap();
        let end = (StreamEventKind::Last, "grpc-status: 0\r\n".to_owned());
        let empty = (StreamEventKind::Ordinary, String::new());
        assert_eq!(
            found[..3],
            [(StreamEventKind::Ordinary, "one".to_owned()), empty, end]
        );
    }
    let connect = stream(EventFormat::Connect, None);
    let failed = b"\x02\0\0\0\x20{\"error\":{\"code\":\"unavailable\"}}";
    let found = read(&connect, failed, 1).unwrap();
    assert_eq!(found[0].0, StreamEventKind::Error);
    let long = b"\0\0\x20\0\0x";
    assert_eq!(
        read(&connect, long, 2),
        Err(EventStreamError::TooLarge(MAX_EVENT_BYTES))
    );
}

#[test]
fn server_sent_events_parse_in_any_split() {
    let sse = stream(EventFormat::Sse, Some(EventMatch::Data("[DONE]".into())));
    let body = b"\xef\xbb\xbfdata: one\n\n: a comment\r\n\r\ndata:two\r\ndata:  and more\r\r\
        event: only a name\n\nid: 7\nretry: 10\ndata\n\nevent: error\ndata: x\n\n\
        data: {\"error\": 1}\n\ndatum: no\n\ndata: [DONE]\n\ndata: cut off";
    for step in 1..=body.len() {
        let found = read(&sse, body, step).unwrap();
        let expected = [
            (StreamEventKind::Ordinary, "one"),
            (StreamEventKind::Ordinary, "two\n and more"),
            (StreamEventKind::Ordinary, ""),
            (StreamEventKind::Error, "x"),
            (StreamEventKind::Error, "{\"error\": 1}"),
            (StreamEventKind::Last, "[DONE]"),
        ];
        let found: Vec<_> = found.iter().map(|(kind, text)| (*kind, &**text)).collect();
        assert_eq!(found, expected, "in pieces of {step}");
    }
}

#[test]
fn last_event_needs_no_blank_line() {
    let sse = stream(EventFormat::Sse, Some(EventMatch::Data("[DONE]".into())));
    let tokens = EventStream {
        tokens: Some(ModelResponseRules::default()),
        ..stream(EventFormat::Sse, None)
    };
    for (stream, body, expected) in [
        (&sse, "data: [DONE]", Some(StreamEventKind::Last)),
        (&sse, "data: [DONE]\r", Some(StreamEventKind::Last)),
        (&sse, "event: error\ndata: x", Some(StreamEventKind::Error)),
        (&sse, "data: {\"n\":1}", None),
        (&tokens, "data: [DONE]", Some(StreamEventKind::Last)),
        (
            &tokens,
            "data: {\"n\":1}\n",
            Some(StreamEventKind::Ordinary),
        ),
        (&tokens, "data: {\"n\":", None),
        (
            &tokens,
            "error: {\"code\":500}\n\n",
            Some(StreamEventKind::Error),
        ),
        (
            &tokens,
            "error: {\"code\":500}",
            Some(StreamEventKind::Error),
        ),
        (&tokens, "error: null\n\n", None),
        (&sse, "error: {\"code\":500}\n\n", None),
        (&tokens, "data: ", None),
    ] {
        for step in 1..=body.len() {
            let found = read(stream, body.as_bytes(), step).unwrap();
            let kinds: Vec<StreamEventKind> = found.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, Vec::from_iter(expected), "{body} by {step}");
        }
    }
}

#[test]
fn nonempty_leading_error_key_marks_error() {
    for data in [
        r#"{"error":{"code":1}}"#,
        " { \"error\" : \"x\"",
        r#"{"error":1}"#,
    ] {
        assert!(begins_with_error(data.as_bytes()), "{data}");
    }
    for data in [
        r#"{"error":null,"n":1}"#,
        r#"{"error": false}"#,
        r#"{"error":"","n":1}"#,
        r#"{"error":{},"n":1}"#,
        r#"{"errors":1}"#,
        r#"{"n":1,"error":1}"#,
        "",
    ] {
        assert!(!begins_with_error(data.as_bytes()), "{data}");
    }
}

#[test]
fn ndjson_lines_parse_in_any_split() {
    let until = EventMatch::Contains("\"done\":true".into());
    let lines = stream(EventFormat::NdJson, Some(until));
    let body = b"{\"a\":1}\r\n\n [2]\n{ \"error\":\"x\"}\n{\"done\":true,\"n\":3}\n\"last\"";
    for step in 1..=body.len() {
        let found = read(&lines, body, step).unwrap();
        let kinds: Vec<StreamEventKind> = found.iter().map(|(kind, _)| *kind).collect();
        let usual = StreamEventKind::Ordinary;
        assert_eq!(
            kinds,
            [
                usual,
                usual,
                StreamEventKind::Error,
                StreamEventKind::Last,
                usual
            ],
            "{step}"
        );
        assert_eq!(found[4].1, "\"last\"");
    }
    for step in [1, 100] {
        assert_eq!(
            read(&lines, b"<html>\n", step),
            Err(EventStreamError::NotJson)
        );
    }
}

#[test]
fn oversized_partial_event_is_rejected() {
    let sse = stream(EventFormat::Sse, None);
    let long = vec![b'x'; MAX_EVENT_BYTES + 1];
    let lines = b"data: 0123456789\n".repeat(MAX_EVENT_BYTES / 10);
    for body in [&long, &lines] {
        for step in [1_000, body.len()] {
            assert_eq!(
                read(&sse, body, step),
                Err(EventStreamError::TooLarge(MAX_EVENT_BYTES))
            );
        }
    }
}

#[test]
fn restarted_reader_discards_state() {
    let sse = stream(EventFormat::Sse, None);
    let mut reader = EventReader::default();
    let nothing = |_: StreamEvent<'_>| unreachable!();
    reader
        .push(&sse, b"event: error\ndata: a\ndata", nothing)
        .unwrap();
    reader.restart();
    let mut found = Vec::new();
    let take = |event: StreamEvent<'_>| {
        found.push((event.kind, event.data.to_vec()));
        false
    };
    reader.push(&sse, b"data: b\n\ndata: c\n\n", take).unwrap();
    assert_eq!(found, [(StreamEventKind::Ordinary, b"b".to_vec())]);
}

#[test]
fn document_is_one_event_in_any_split() {
    let whole = stream(EventFormat::Document, None);
    let body = b"{\"a\":\n\n[1]}\r\n";
    for step in 1..=body.len() {
        let found = read(&whole, body, step).unwrap();
        let text = String::from_utf8_lossy(body).into_owned();
        assert_eq!(found, [(StreamEventKind::Ordinary, text)], "{step}");
    }
}
