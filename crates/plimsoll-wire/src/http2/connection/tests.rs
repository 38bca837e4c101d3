//! Each test covers the section of RFC 9113 that is named above it.

use super::super::{
    ClientRole, EitherRole, MAX_WINDOW_BYTES, ServerRole, StreamPayload, flags, kind, split_frame,
};
use super::*;

/// Send windows by stream id.
#[derive(Default)]
struct WindowTable(Vec<(u32, i32)>);

impl StreamWindows for WindowTable {
    fn send_window(&mut self, id: u32) -> Option<&mut i32> {
        let mut all = self.0.iter_mut();
        all.find(|(of, _)| *of == id).map(|(_, window)| window)
    }
    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32> {
        self.0.iter_mut().map(|(_, window)| window)
    }
}

/// One end of a connection with its streams.
struct End<P> {
    http2: Http2Connection<P>,
    streams: WindowTable,
    out: Vec<u8>,
}

impl<P: EndpointRole> End<P> {
    fn new(peer: P) -> End<P> {
        End {
            http2: Http2Connection::new(peer, MAX_WINDOW_BYTES),
            streams: WindowTable::default(),
            out: Vec::new(),
        }
    }

    /// Makes an end that has received SETTINGS and has streams 1 and 5.
    fn greeted(peer: P) -> End<P> {
        let mut end = End::new(peer);
        end.receive(&frame(kind::SETTINGS, 0, 0, b"")).unwrap();
        end.out.clear();
        end.http2.skip_ids_below(7);
        end.streams.0 = vec![(1, 65_535), (5, 65_535)];
        end
    }

    /// Returns a summary of the frames in `bytes`.
    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<String>, Violation> {
        let (mut input, mut seen) = (bytes, Vec::new());
        while let Some((head, payload)) = split_frame(&mut input, DEFAULT_MAX_FRAME_BYTES)? {
            let http2 = &mut self.http2;
            let what = match head.kind() {
                kind::DATA => format!("{:?}", http2.process_data(head, payload)?),
                kind::HEADERS if head.has_flag(flags::END_HEADERS) => {
                    format!("{:?}", http2.process_headers(head, payload)?)
                }
                _ => match http2.process_control_frame(
                    head,
                    payload,
                    &mut self.streams,
                    &mut self.out,
                )? {
                    ControlEvent::Nothing => continue,
                    ControlEvent::Block(block) => format!("{:?}", block.payload()),
                    other => format!("{other:?}"),
                },
            };
            seen.push(what);
        }
        Ok(seen)
    }

    /// Returns the error that `bytes` cause: its code, and the stream that it ends.
    fn error_of(&mut self, bytes: &[u8]) -> (ErrorCode, u32) {
        match self.receive(bytes) {
            Ok(seen) => panic!("no error: {seen:?}"),
            Err(violation) => match self.http2.check_violation_scope(violation) {
                Ok(violation) => (violation.code, violation.stream),
                Err(violation) => (violation.code, 0),
            },
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::frame_header(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::settings(&mut out, &[(id, value)]);
    out
}

fn goaway(last: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::goaway(&mut out, last, ErrorCode::NO_ERROR, b"");
    out
}

const PROTOCOL: (ErrorCode, u32) = (ErrorCode::PROTOCOL_ERROR, 0);
const FLOW_CONTROL_ERROR: (ErrorCode, u32) = (ErrorCode::FLOW_CONTROL_ERROR, 0);

/// 3.4
#[test]
fn exact_preface_required_in_any_split() {
    for cut in 0..PREFACE.len() {
        let mut http2 = Http2Connection::new(ServerRole, 0);
        for part in [&PREFACE[..cut], &[&PREFACE[cut..], b"rest"].concat()] {
            let mut input = part;
            http2.consume_preface(&mut input).unwrap();
            assert!(input.is_empty() || input == b"rest");
        }
        let mut wrong = PREFACE.to_vec();
        wrong[cut] ^= 1;
        let mut http2 = Http2Connection::new(EitherRole::Server, 0);
        let error = http2.consume_preface(&mut &wrong[..=cut]).unwrap_err();
        assert_eq!(error.code, ErrorCode::PROTOCOL_ERROR);
    }
    let mut input = &b"\0\0\0\x04"[..];
    Http2Connection::new(ClientRole, 0)
        .consume_preface(&mut input)
        .unwrap();
    assert_eq!(input.len(), 4, "a server sends none");
}

/// 3.4
#[test]
fn settings_must_be_first_frame() {
    for first in [
        frame(kind::PING, 0, 0, &[0; 8]),
        frame(kind::DATA, 0, 1, b""),
        frame(kind::HEADERS, flags::END_HEADERS, 1, b""),
        frame(kind::HEADERS, 0, 1, b""),
        frame(0xee, 0, 0, b""),
    ] {
        assert_eq!(End::new(ServerRole).error_of(&first), PROTOCOL);
        assert_eq!(End::new(ClientRole).error_of(&first), PROTOCOL);
        // MOSN's client acknowledges first. SETTINGS must follow all the same.
        let acknowledged = [frame(kind::SETTINGS, flags::ACK, 0, b""), first].concat();
        assert_eq!(End::new(ServerRole).error_of(&acknowledged), PROTOCOL);
    }
    let acknowledgement = frame(kind::SETTINGS, flags::ACK, 0, b"");
    assert_eq!(End::new(ClientRole).error_of(&acknowledgement), PROTOCOL);
}

#[test]
fn split_frame_is_reassembled() {
    let ping = frame(kind::PING, 0, 0, b"pingpong");
    let mut http2 = Http2Connection::new(ClientRole, 0);
    for cut in 1..ping.len() {
        http2.store_partial_frame(&ping[..cut], None);
        assert!(!http2.is_between_frames());
        let mut input = &ping[cut..];
        let whole = http2.take_reassembled_frame(&mut input).unwrap().unwrap();
        assert_eq!((&whole[..], input), (&ping[..], &b""[..]));
        http2.store_partial_frame(b"", Some(whole));
        assert!(http2.is_between_frames());
    }
    http2.store_partial_frame(&frame(kind::DATA, 0, 1, &[0; 16_385])[..5], None);
    let error = http2.take_reassembled_frame(&mut &[0; 4][..]).unwrap_err();
    assert_eq!(error.code, ErrorCode::FRAME_SIZE_ERROR);
}

/// 4.3 and 6.10
#[test]
fn header_block_must_be_contiguous() {
    let open = || {
        let mut end = End::greeted(ServerRole);
        end.receive(&frame(kind::HEADERS, flags::END_STREAM, 9, b"ab"))
            .unwrap();
        end
    };
    let mut end = open();
    let seen = end.receive(
        &[
            frame(kind::CONTINUATION, 0, 9, b"c"),
            frame(kind::CONTINUATION, flags::END_HEADERS, 9, b"d"),
        ]
        .concat(),
    );
    let whole = StreamPayload {
        stream: 9,
        bytes: b"abcd",
        length: 4,
        end_stream: true,
    };
    assert_eq!(seen.unwrap(), [format!("{whole:?}")]);
    for other in [
        frame(kind::CONTINUATION, flags::END_HEADERS, 5, b""),
        frame(kind::HEADERS, flags::END_HEADERS, 9, b""),
        frame(kind::DATA, 0, 9, b""),
        frame(kind::PING, 0, 0, &[0; 8]),
        frame(0xee, 0, 9, b""),
    ] {
        assert_eq!(open().error_of(&other), PROTOCOL);
    }
    let late = frame(kind::CONTINUATION, flags::END_HEADERS, 9, b"");
    assert_eq!(end.error_of(&late), PROTOCOL);
}

/// 5.1
#[test]
fn idle_stream_frame_is_connection_error() {
    // Streams 7 and above were not opened, and even ids belong to the server, which opens none.
    for id in [7, 2, 8] {
        for bytes in [
            window_update(id, 1),
            window_update(id, 0),
            frame(kind::RST_STREAM, 0, id, &[0; 4]),
        ] {
            assert_eq!(End::greeted(ServerRole).error_of(&bytes), PROTOCOL);
            assert_eq!(End::greeted(ClientRole).error_of(&bytes), PROTOCOL);
        }
        for closed in [StreamCloseCause::Forgotten, StreamCloseCause::Reset] {
            let http2 = End::greeted(ServerRole).http2;
            let error = http2.check_closed_stream(id, "DATA", closed).unwrap_err();
            assert_eq!((error.code, error.stream), PROTOCOL);
        }
        // PRIORITY is allowed on any stream; an invalid one on an idle stream cannot be answered with a reset.
        let priority = |length| frame(kind::PRIORITY, 0, id, &vec![0; length]);
        let mut end = End::greeted(ServerRole);
        assert_eq!(end.receive(&priority(5)).unwrap(), [""; 0]);
        assert_eq!(end.error_of(&priority(4)), (ErrorCode::FRAME_SIZE_ERROR, 0));
    }
    let block = frame(kind::HEADERS, 0, 7, b"");
    assert_eq!(End::greeted(ClientRole).error_of(&block), PROTOCOL);
    assert!(End::greeted(ServerRole).receive(&block).is_ok());
    // Late frames on a closed stream are not an error.
    let late = [window_update(3, 1), window_update(5, 1)].concat();
    assert_eq!(
        End::greeted(ServerRole).receive(&late).unwrap(),
        ["WindowGrown"]
    );
    let late = frame(kind::RST_STREAM, 0, 3, &[0; 4]);
    assert_eq!(End::greeted(ServerRole).receive(&late).unwrap().len(), 1);
}

/// 5.1
#[test]
fn closed_stream_error_depends_on_closer() {
    let End {
        mut http2, mut out, ..
    } = End::greeted(ServerRole);
    let code = |http2: &Http2Connection<ServerRole>, stream, closed| {
        let checked = http2.check_closed_stream(stream, "DATA", closed);
        checked.err().map(|error| (error.code, error.stream))
    };
    let closed = |stream| Some((ErrorCode::STREAM_CLOSED, stream));
    assert_eq!(code(&http2, 3, StreamCloseCause::Reset), None);
    assert_eq!(code(&http2, 3, StreamCloseCause::ResetByPeer), closed(3));
    assert_eq!(code(&http2, 3, StreamCloseCause::EndedByPeer), closed(3));
    assert_eq!(code(&http2, 3, StreamCloseCause::Ended), closed(0));
    assert_eq!(code(&http2, 3, StreamCloseCause::Forgotten), closed(0));
    // Unrecorded streams may have been reset by this end.
    http2.reset_stream(3, ErrorCode::CANCEL, &mut out);
    assert_eq!(code(&http2, 1, StreamCloseCause::Forgotten), None);
    assert_eq!(code(&http2, 3, StreamCloseCause::Forgotten), None);
    assert_eq!(code(&http2, 5, StreamCloseCause::Forgotten), closed(0));
    assert_eq!(code(&http2, 3, StreamCloseCause::Ended), closed(0));
}

/// 5.1.1
#[test]
fn stream_ids_only_ascend() {
    let mut server = End::greeted(ServerRole).http2;
    assert!(!server.try_open_stream(5) && !server.try_open_stream(3) && !server.try_open_stream(8));
    assert!(server.try_open_stream(9) && !server.try_open_stream(9) && !server.try_open_stream(7));
    assert!(!End::greeted(ClientRole).http2.try_open_stream(9));
    let mut client = Http2Connection::new(ClientRole, 0);
    assert_eq!(
        (client.allocate_stream_id(), client.allocate_stream_id()),
        (1, 3)
    );
    client.skip_ids_below(MAX_STREAM_ID);
    assert_eq!(
        (client.stream_ids_left(), client.allocate_stream_id()),
        (1, MAX_STREAM_ID)
    );
    assert_eq!(client.stream_ids_left(), 0);
}

/// 6.5 and 6.5.3
#[test]
fn settings_are_applied_and_acknowledged() {
    let mut end = End::greeted(ClientRole);
    assert!(!end.http2.are_settings_acknowledged());
    let several = [(3, 7), (1, 0), (1, 100), (0x99, 1)];
    let mut bytes = Vec::new();
    write::settings(&mut bytes, &several);
    bytes.extend(frame(kind::SETTINGS, flags::ACK, 0, b""));
    assert_eq!(end.receive(&bytes).unwrap()[1], "Acknowledged");
    assert_eq!(end.out, frame(kind::SETTINGS, flags::ACK, 0, b""));
    assert_eq!(end.http2.max_streams(), 7);
    assert!(end.http2.are_settings_acknowledged());
    assert_eq!(end.error_of(&setting(2, 1)), PROTOCOL);
    assert!(End::greeted(ServerRole).receive(&setting(2, 1)).is_ok());
    assert_eq!(End::greeted(ServerRole).error_of(&setting(2, 2)), PROTOCOL);
    assert_eq!(
        End::greeted(ServerRole).error_of(&setting(4, 1 << 31)),
        FLOW_CONTROL_ERROR
    );
    end.out.clear();
    let ping = frame(kind::PING, 0, 0, b"pingpong");
    assert_eq!(end.receive(&ping).unwrap(), [""; 0]);
    assert_eq!(end.out, frame(kind::PING, flags::ACK, 0, b"pingpong"));
}

/// 6.8
#[test]
fn goaway_last_stream_only_decreases() {
    let mut client = End::greeted(ClientRole);
    client.receive(&goaway(MAX_STREAM_ID)).unwrap();
    assert_eq!(client.http2.stage(), ConnectionStage::Draining);
    client.receive(&[goaway(3), goaway(3)].concat()).unwrap();
    assert_eq!(client.error_of(&goaway(5)), PROTOCOL);
    let late = |http2: &Http2Connection<ClientRole>, id| {
        http2.check_closed_stream(id, "DATA", StreamCloseCause::Forgotten)
    };
    assert!(late(&client.http2, 5).is_ok() && late(&client.http2, 3).is_err());

    let mut server = End::greeted(ServerRole);
    server.http2.announce_goaway(&mut server.out);
    assert!(!server.http2.has_sent_goaway());
    server
        .http2
        .send_goaway(ErrorCode::NO_ERROR, b"", &mut server.out);
    assert_eq!(server.out, [goaway(MAX_STREAM_ID), goaway(5)].concat());
    assert!(server.http2.has_sent_goaway() && server.http2.try_open_stream(7));
    server.out.clear();
    server
        .http2
        .send_goaway(ErrorCode::NO_ERROR, b"", &mut server.out);
    assert_eq!(server.out, goaway(5));
    let late = |http2: &Http2Connection<ServerRole>, id| {
        http2.check_closed_stream(id, "DATA", StreamCloseCause::Forgotten)
    };
    assert!(late(&server.http2, 7).is_ok() && late(&server.http2, 5).is_err());
}

/// 6.9.1
#[test]
fn windows_never_overflow() {
    let more = MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES;
    let mut end = End::greeted(ServerRole);
    end.receive(&[window_update(0, more), window_update(5, more)].concat())
        .unwrap();
    assert_eq!(end.http2.send_window(), MAX_WINDOW_BYTES);
    assert_eq!(end.streams.0, [(1, 65_535), (5, 0x7fff_ffff)]);
    end.http2.count_sent_data(1);
    end.receive(&window_update(0, 1)).unwrap();
    assert_eq!(end.error_of(&window_update(0, 1)), FLOW_CONTROL_ERROR);
    let of_stream = (ErrorCode::FLOW_CONTROL_ERROR, 5);
    assert_eq!(end.error_of(&window_update(5, 1)), of_stream);
    assert_eq!(end.error_of(&window_update(5, 0)), (PROTOCOL.0, 5));
    assert_eq!(end.error_of(&window_update(0, 0)), PROTOCOL);
}

/// 6.9.2
#[test]
fn initial_window_change_adjusts_streams() {
    let mut end = End::greeted(ClientRole);
    end.streams.0[0].1 = 1_000;
    end.receive(&setting(4, 5)).unwrap();
    assert_eq!(end.streams.0, [(1, 1_000 - 65_530), (5, 5)]);
    assert_eq!(end.http2.initial_window(), 5);
    end.receive(&setting(4, 70_000)).unwrap();
    assert_eq!(end.streams.0, [(1, 1_000 + 4_465), (5, 70_000)]);
    end.receive(&window_update(5, 1)).unwrap();
    assert_eq!(
        end.error_of(&setting(4, MAX_WINDOW_BYTES)),
        FLOW_CONTROL_ERROR
    );
    assert_eq!(end.http2.send_window(), 65_535, "the connection's stays");
}

/// 6.9
#[test]
fn flow_control_counts_padding() {
    let http2 = Http2Connection::new(ServerRole, DEFAULT_WINDOW_BYTES);
    let mut settings = Vec::new();
    http2.send_preface(&[], &mut settings);
    assert_eq!(settings, frame(kind::SETTINGS, 0, 0, b""));
    let mut end = End {
        http2,
        ..End::greeted(ServerRole)
    };
    end.receive(&settings).unwrap();
    end.http2.skip_ids_below(7);
    end.out.clear();
    let padded = frame(
        kind::DATA,
        flags::PADDED,
        5,
        &[vec![100], vec![0; 16_000]].concat(),
    );
    let seen = end.receive(&padded).unwrap();
    assert!(seen[0].contains("length: 16001"), "{seen:?}");
    end.http2.release_whole_window(&mut end.out);
    assert_eq!(end.out, b"", "in few frames");
    end.receive(&[padded.clone(), padded.clone(), padded.clone()].concat())
        .unwrap();
    assert_eq!(end.error_of(&padded), FLOW_CONTROL_ERROR);
    end.http2.release_whole_window(&mut end.out);
    assert_eq!(end.out, window_update(0, 4 * 16_001));
    assert!(end.receive(&padded).is_ok());
}

/// 8.4
#[test]
fn push_promise_is_rejected() {
    let promise = frame(kind::PUSH_PROMISE, flags::END_HEADERS, 1, &[0, 0, 0, 2]);
    assert_eq!(End::greeted(ClientRole).error_of(&promise), PROTOCOL);
    assert_eq!(End::greeted(ServerRole).error_of(&promise), PROTOCOL);
}
