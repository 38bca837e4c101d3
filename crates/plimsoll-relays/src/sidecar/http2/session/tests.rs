use plimsoll_model::Outcome;
use plimsoll_wire::hpack::Encoder;

use super::super::LocalResponse;
use super::*;

fn fields(list: &[(&str, &str)]) -> Arc<HeaderFields> {
    let block = Encoder::encode_plain(list.iter().copied());
    FieldReader::new().read(&block).unwrap()
}

fn request() -> Arc<HeaderFields> {
    fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.B/C"),
        ("content-type", "application/grpc"),
    ])
}

/// Describes the events of `bytes` in short.
fn events_of(session: &mut Http2Session, bytes: &[u8], out: &mut Vec<u8>) -> Vec<String> {
    let mut input = bytes;
    let mut events = Vec::new();
    loop {
        match session.next_event(&mut input, out) {
            Ok(Some(event)) => events.push(match event {
                Http2SessionEvent::Opened {
                    stream,
                    fields,
                    end_stream,
                } => {
                    session.add_stream(stream, u64::from(stream) + 100, EndStream(end_stream));
                    let path = fields.find(b":path").unwrap_or_default();
                    format!("opened {stream} {} {end_stream}", path.escape_ascii())
                }
                Http2SessionEvent::Headers {
                    key, end_stream, ..
                } => format!("headers {key} {end_stream}"),
                Http2SessionEvent::Data {
                    key,
                    data,
                    end_stream,
                } => format!("data {key} {} {end_stream}", data.len()),
                Http2SessionEvent::Reset { key, code } => format!("reset {key} {code}"),
                Http2SessionEvent::WindowOpened => "room".to_owned(),
                Http2SessionEvent::GoAway { last_stream, .. } => format!("goaway {last_stream}"),
            }),
            Ok(None) => break,
            Err(violation) => {
                events.push(format!("broken: {violation}"));
                return events;
            }
        }
    }
    assert!(input.len() < 16 << 10, "whole frames were left");
    events
}

/// Returns a client and a server that have exchanged SETTINGS.
fn greeted() -> (Http2Session, Http2Session) {
    let (mut client, mut server) = (
        Http2Session::new(EitherRole::Client),
        Http2Session::new(EitherRole::Server),
    );
    let (mut up, mut down) = (Vec::new(), Vec::new());
    client.send_preface(0, &mut up);
    server.send_preface(100, &mut down);
    assert!(!client.can_open_stream());
    assert_eq!(events_of(&mut client, &down, &mut up), ["room", "room"]);
    let mut answer = Vec::new();
    assert_eq!(events_of(&mut server, &up, &mut answer), ["room", "room"]);
    assert!(client.can_open_stream());
    (client, server)
}

#[test]
fn call_passes_both_ways() {
    let (mut client, mut server) = greeted();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    assert_eq!(
        client.open_stream(7, &request(), EndStream(false), &mut up),
        1
    );
    assert_eq!(
        client.open_stream(8, &request(), EndStream(true), &mut up),
        3
    );
    client.send_data(1, b"hello", EndStream(true), &mut up);
    assert_eq!(
        events_of(&mut server, &up, &mut down),
        [
            "opened 1 /a.B/C false",
            "opened 3 /a.B/C true",
            "data 101 5 true"
        ]
    );
    let verdict = LocalResponse {
        outcome: Outcome::Unavailable,
        http_status: "503",
        why: "no".into(),
    };
    server.send_headers(
        3,
        &request().local_response_fields(&verdict),
        EndStream(true),
        &mut down,
    );
    server.send_headers(
        1,
        &fields(&[(":status", "200")]),
        EndStream(false),
        &mut down,
    );
    server.send_data(1, b"answer", EndStream(false), &mut down);
    server.send_headers(
        1,
        &HeaderFields::local_trailers(&verdict),
        EndStream(true),
        &mut down,
    );
    up.clear();
    assert_eq!(
        events_of(&mut client, &down, &mut up),
        [
            "headers 8 true",
            "headers 7 false",
            "data 7 6 false",
            "headers 7 true"
        ]
    );
    for stream in [1, 3] {
        assert!(client.is_ended_by_peer(stream));
        client.remove_stream(stream);
    }
    assert_eq!(client.open_stream_count(), 0);
}

#[test]
fn any_split_yields_same_events() {
    let mut bytes = Vec::new();
    let mut client = Http2Session::new(EitherRole::Client);
    client.send_preface(0, &mut bytes);
    client.open_stream(1, &request(), EndStream(false), &mut bytes);
    write::data(&mut bytes, 1, b"hello", EndStream(true));
    for split in 0..bytes.len() {
        let (mut server, mut out) = (Http2Session::new(EitherRole::Server), Vec::new());
        // As in a transport, an incomplete frame stays in front of the following bytes.
        let mut kept = bytes[..split].to_vec();
        let mut input = &kept[..];
        let mut n = 0;
        while let Some(event) = server.next_event(&mut input, &mut out).unwrap() {
            if let Http2SessionEvent::Opened { stream, .. } = event {
                server.add_stream(stream, 101, EndStream(false));
            }
            n += 1;
        }
        let left = input.len();
        kept.drain(..kept.len() - left);
        kept.extend_from_slice(&bytes[split..]);
        n += events_of(&mut server, &kept, &mut out).len();
        assert_eq!(n, 4, "split at {split}");
    }
}

#[test]
fn windows_limit_and_replenish() {
    let (mut client, mut server) = greeted();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    client.open_stream(7, &request(), EndStream(false), &mut up);
    let chunk = [0; 16 << 10];
    let mut sent = 0;
    while client.sendable_bytes(1) >= chunk.len() {
        client.send_data(1, &chunk, EndStream(false), &mut up);
        sent += chunk.len();
    }
    assert_eq!(sent, STREAM_WINDOW_BYTES as usize);
    events_of(&mut server, &up, &mut down);
    assert!(down.is_empty(), "nothing was passed on");
    server.replenish_window(1, sent / 2, &mut down);
    assert_eq!(events_of(&mut client, &down, &mut up), ["room"]);
    assert_eq!(client.sendable_bytes(1), sent / 2);
    // Exceeding the window resets the stream but not the connection.
    up.clear();
    for _ in 0..=sent / 2 / chunk.len() {
        write::data(&mut up, 1, &chunk, EndStream(false));
    }
    let events = events_of(&mut server, &up, &mut down);
    assert_eq!(
        events.last().map(String::as_str),
        Some("reset 101 FLOW_CONTROL_ERROR")
    );
}

#[test]
fn streaming_call_gets_wider_window() {
    let (mut client, mut server) = greeted();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    client.open_stream(7, &request(), EndStream(false), &mut up);
    let half = vec![0; STREAM_WINDOW_BYTES as usize / 2];
    for piece in half.chunks(16 << 10) {
        client.send_data(1, piece, EndStream(false), &mut up);
    }
    events_of(&mut server, &up, &mut down);
    server.widen_window(1);
    server.replenish_window(1, half.len(), &mut down);
    events_of(&mut client, &down, &mut up);
    // The connection's window is not exhausted yet.
    assert_eq!(
        client.streams.0[&1].send_window,
        FAST_STREAM_WINDOW_BYTES as i32
    );
}

#[test]
fn peer_protocol_violations_end_connection() {
    type Say = fn(&mut Vec<u8>);
    let frames: [(&str, Say); 8] = [
        ("never opened", |out| {
            write::data(out, 5, b"x", EndStream(false))
        }),
        ("never opened", |out| write::window_update(out, 7, 1)),
        ("WINDOW_UPDATE of 0", |out| write::window_update(out, 7, 0)),
        ("COMPRESSION_ERROR", |out| {
            write::header_block(out, 1, b"\x80", EndStream(true))
        }),
        ("inside a header block", |out| {
            write::frame_header(out, 1, kind::HEADERS, 0, 1);
            out.push(0x82);
            write::settings(out, &[]);
        }),
        ("push is disabled", |out| {
            write::frame_header(out, 4, kind::PUSH_PROMISE, flags::END_HEADERS, 1);
            out.extend_from_slice(&[0, 0, 0, 2]);
        }),
        ("over the limit", |out| {
            write::frame_header(out, 1 << 20, kind::DATA, 0, 1)
        }),
        ("after no HEADERS", |out| {
            write::frame_header(out, 0, kind::CONTINUATION, flags::END_HEADERS, 1)
        }),
    ];
    for (needle, frame) in frames {
        let (_, mut server) = greeted();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        frame(&mut up);
        let events = events_of(&mut server, &up, &mut down);
        assert!(
            events.len() == 1 && events[0].contains(needle),
            "{needle}: {events:?}"
        );
    }
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0, 0]] {
        let mut server = Http2Session::new(EitherRole::Server);
        let events = events_of(&mut server, garbage, &mut Vec::new());
        assert!(events[0].contains("preface"), "{events:?}");
    }
}

#[test]
fn reset_stream_frames_are_ignored() {
    let (_, mut server) = greeted();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let block = Encoder::encode_plain([(":method", "POST"), (":path", "/x")]);
    write::header_block(&mut up, 1, &block, EndStream(false));
    events_of(&mut server, &up, &mut down);
    server.reset(1, ErrorCode::CANCEL, &mut down);
    up.clear();
    write::data(&mut up, 1, b"late", EndStream(false));
    write::header_block(&mut up, 1, &block, EndStream(true));
    write::reset_stream(&mut up, 1, ErrorCode::CANCEL);
    assert_eq!(events_of(&mut server, &up, &mut down), [""; 0]);
}

/// Covers RFC 9113, section 5.1.
#[test]
fn ended_stream_rejects_further_frames() {
    let block = Encoder::encode_plain([(":method", "POST"), (":path", "/x")]);
    let begun = || {
        let (_, mut server) = greeted();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        write::header_block(&mut up, 1, &block, EndStream(true));
        write::header_block(&mut up, 3, &block, EndStream(false));
        events_of(&mut server, &up, &mut down);
        let answer = fields(&[(":status", "200")]);
        server.send_headers(1, &answer, EndStream(true), &mut down);
        assert!(server.is_ended_by_peer(1));
        server.remove_stream(1);
        server
    };
    type Say = fn(&mut Vec<u8>);
    let frames: [Say; 2] = [
        |out| write::data(out, 1, b"late", EndStream(false)),
        |out| write::header_block(out, 1, b"\x88", EndStream(true)),
    ];
    for frame in frames {
        let mut late = Vec::new();
        frame(&mut late);
        let events = events_of(&mut begun(), &late, &mut Vec::new());
        assert!(events[0].starts_with("broken: STREAM_CLOSED"), "{events:?}");
    }
    // Frames that may have been in flight are no error, nor is any frame if the stream may have
    // been reset.
    let mut server = begun();
    let mut late = Vec::new();
    write::window_update(&mut late, 1, 5);
    write::reset_stream(&mut late, 1, ErrorCode::CANCEL);
    assert_eq!(events_of(&mut server, &late, &mut Vec::new()), [""; 0]);
    server.reset(3, ErrorCode::CANCEL, &mut Vec::new());
    write::data(&mut late, 1, b"late", EndStream(false));
    assert_eq!(events_of(&mut server, &late, &mut Vec::new()), [""; 0]);
}

/// Covers RFC 9113, section 6.8.
#[test]
fn goaway_last_stream_never_increases() {
    let (mut client, _) = greeted();
    let mut down = Vec::new();
    for last in [3, 3, 1] {
        write::goaway(&mut down, last, ErrorCode::NO_ERROR, b"");
    }
    let events = events_of(&mut client, &down, &mut Vec::new());
    assert_eq!(events, ["goaway 3", "goaway 3", "goaway 1"]);
    down.clear();
    write::goaway(&mut down, 3, ErrorCode::NO_ERROR, b"");
    let events = events_of(&mut client, &down, &mut Vec::new());
    assert!(
        events[0].starts_with("broken: PROTOCOL_ERROR"),
        "{events:?}"
    );
}
