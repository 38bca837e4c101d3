use super::super::{RequestContent, build_frame};
use super::*;
use plimsoll_engine::driver::{CallId, Driver, Event};
use plimsoll_model::Time;
use plimsoll_plugin::guest::{self, FrameOutput, MatchResult, Plugin};
use plimsoll_plugin::{Codec, DEFAULT_MAX_FRAME_BYTES, abi};
use proptest::prelude::*;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

#[path = "../../../../plimsoll-plugin/examples/x_example.rs"]
mod x_example;

const START: Time = Time(1_000_000);

fn codec() -> Codec {
    Codec::built_in::<x_example::XExample>().unwrap()
}

/// Returns a call with this request.
fn call(frame: &[u8]) -> PluginCall {
    PluginCall {
        codec: PathBuf::new(),
        protocol: String::new(),
        frame: frame.to_vec(),
        in_flight: None,
        heartbeat: None,
        max_frame: DEFAULT_MAX_FRAME_BYTES,
        varying: None,
        journey: None,
    }
}

fn driver_with(settings: impl FnOnce(&mut PluginCall)) -> PluginDriver {
    let codec = codec();
    let mut call = call(&build_frame(&codec, RequestContent::Payload(b"hello")).unwrap());
    settings(&mut call);
    let mut driver = PluginProtocol::new(&codec, &call).unwrap().new_driver();
    driver.open(START, &mut Vec::new());
    driver
}

fn driver() -> PluginDriver {
    driver_with(|_| {})
}

fn made(what: NewFrameKind, id: u64, payload: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    assert_eq!(
        codec().make_frame(what, id, 0, payload, &mut wire),
        Ok(true)
    );
    wire
}

/// Returns the kinds and ids of the sent frames.
fn sent(mut out: &[u8]) -> Vec<(FrameKind, u64)> {
    let mut frames = Vec::new();
    while !out.is_empty() {
        match codec().decode(out, SenderRole::Client, DEFAULT_MAX_FRAME_BYTES) {
            Ok(DecodeResult::Frame(frame)) => {
                frames.push((frame.kind, frame.id));
                out = &out[frame.length..];
            }
            other => panic!("{other:?}"),
        }
    }
    frames
}

fn start(driver: &mut PluginDriver, calls: u32) -> Vec<u64> {
    let mut out = Vec::new();
    for call in 0..calls {
        driver.start(CallId(call), u64::from(call), START, &mut out);
    }
    sent(&out).iter().map(|(_, id)| *id).collect()
}

fn receive(driver: &mut PluginDriver, wire: &[u8]) -> (Vec<u8>, Vec<Event>) {
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.receive(wire, START, &mut out, &mut events).unwrap();
    (out, events)
}

/// Returns the ended calls with their outcomes.
fn ended(events: &[Event]) -> Vec<(u32, Outcome)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Done(done) => Some((done.call.0, done.outcome)),
            _ => None,
        })
        .collect()
}

#[test]
fn responses_match_calls_and_error_status_fails() {
    let mut driver = driver();
    let ids = start(&mut driver, 3);
    let mut wire = made(NewFrameKind::Response, ids[2], b"c");
    wire.extend(made(NewFrameKind::Busy, ids[0], b""));
    wire.extend(made(NewFrameKind::Response, ids[0], b"again"));
    wire.extend(made(NewFrameKind::Response, 77, b""));
    let (_, events) = receive(&mut driver, &wire);
    assert_eq!(
        ended(&events),
        [(2, Outcome::Ok), (0, Outcome::AnswerStatus)]
    );
    assert!(events.contains(&Event::Detail {
        outcome: Outcome::AnswerStatus,
        text: "status 2 of x_example".to_owned()
    }));
    let mut events = Vec::new();
    driver.abort(Outcome::Reset, START, &mut events);
    assert_eq!(ended(&events), [(1, Outcome::Reset)]);
}

#[test]
fn cancel_frees_slot_and_late_response_counts() {
    let mut driver = driver_with(|call| call.in_flight = Some(2));
    let ids = start(&mut driver, 2);
    assert_eq!(driver.capacity(), 0);
    driver.cancel(CallId(0), START, &mut Vec::new());
    assert_eq!(driver.capacity(), 1);
    let (_, events) = receive(&mut driver, &made(NewFrameKind::Response, ids[0], b""));
    assert_eq!(events, [Event::Late]);
}

#[test]
fn idle_heartbeats_are_sent_and_answered() {
    let mut driver = driver_with(|call| call.heartbeat = Some(Duration::from_secs(15)));
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let due = driver.next_timer().unwrap();
    assert_eq!(due, START + Duration::from_secs(15));
    driver.on_timer(due, &mut out, &mut events);
    let [(FrameKind::Heartbeat, id)] = sent(&out)[..] else {
        panic!("{out:?}");
    };
    let ack = made(NewFrameKind::HeartbeatAck, id, b"");
    driver.receive(&ack, due, &mut out, &mut events).unwrap();
    assert_eq!(driver.next_timer(), Some(due + Duration::from_secs(15)));
    for _ in 0..4 {
        let now = driver.next_timer().unwrap();
        driver.on_timer(now, &mut out, &mut events);
    }
    assert!(driver.is_draining() && driver.capacity() == 0);

    let (out, _) = receive(&mut self::driver(), &made(NewFrameKind::Heartbeat, 9, b""));
    assert_eq!(sent(&out), [(FrameKind::HeartbeatAck, 9)]);
    let mut driver = self::driver();
    receive(&mut driver, b"x\x02\0\0\0\0\x01\0\0\0\0");
    assert!(driver.is_draining());
}

#[test]
fn foreign_bytes_close_connection_with_reason() {
    for (wire, outcome, needle) in [
        (
            &b"HTTP/1.1 400"[..],
            Outcome::ProtocolError,
            "are not x_example: they begin with \"HTTP/1.1 400\"",
        ),
        (
            b"x\x07\x01",
            Outcome::ProtocolError,
            "the bytes are not a frame",
        ),
        (
            b"x\x01\x01\0\0\0\x01\0\0\xff\xff\xff\xff",
            Outcome::MessageTooLarge,
            "over the limit of 16777216",
        ),
    ] {
        let mut driver = driver();
        start(&mut driver, 1);
        let error = driver
            .receive(wire, START, &mut Vec::new(), &mut Vec::new())
            .unwrap_err();
        assert_eq!(error.outcome, outcome, "{error}");
        assert!(error.detail.contains(needle), "{error}");
        assert_eq!(driver.capacity(), 0);
    }
    let mut driver = driver();
    start(&mut driver, 1);
    receive(&mut driver, b"x\x01\x01");
    let error = driver.receive_end(START, &mut Vec::new()).unwrap_err();
    assert!(error.detail.contains("middle of a frame"), "{error}");
}

#[test]
fn invalid_requests_are_rejected_with_reason() {
    let codec = codec();
    let frame = |content| build_frame(&codec, content).map_err(|e| e.to_string());
    let hello = b"x\x01\0\0\0\0\x01\0\0\0\x05hello";
    assert_eq!(frame(RequestContent::Frame(hello)).unwrap(), hello);
    assert_eq!(
        frame(RequestContent::Hex(
            "78 01 00 00000001\n00000005 68656c6c6f"
        ))
        .unwrap(),
        hello
    );
    assert_eq!(frame(RequestContent::Payload(b"hello")).unwrap(), hello);
    for (content, needle) in [
        (RequestContent::Hex("7"), "two digits per byte"),
        (RequestContent::Hex("+1zz"), "two digits per byte"),
        (RequestContent::Frame(b""), "0 bytes, but more are needed"),
        (
            RequestContent::Frame(&hello[..9]),
            "9 bytes, but 11 are needed",
        ),
        (RequestContent::Frame(b"hello"), "the bytes are not a frame"),
        (
            RequestContent::Frame(b"x\x01\0\0\0\0\x01\0\0\0\0!"),
            "1 bytes follow",
        ),
        (
            RequestContent::Frame(b"x\0\0\0\0\0\x01\0\0\0\0"),
            "a heartbeat of",
        ),
    ] {
        let error = frame(content).unwrap_err();
        assert!(error.contains(needle), "{error}");
    }
    let none = PluginCall {
        in_flight: Some(0),
        ..call(hello)
    };
    let error = PluginProtocol::new(&codec, &none).unwrap_err().to_string();
    assert!(error.contains("0 calls in flight"), "{error}");
}

/// A plugin whose frames are one byte, and which fails to write requests once `WRITES_LEFT` is 0.
struct Fading;

static WRITES_LEFT: AtomicU32 = AtomicU32::new(0);

impl Plugin for Fading {
    const NAME: &'static CStr = c"fading";

    fn matches(_: &[u8], _: u32) -> MatchResult {
        MatchResult::Yes
    }

    fn decode(bytes: &[u8], _: u32) -> guest::Decoded {
        guest::Decoded::Frame(abi::Frame {
            length: 1,
            id: bytes[0].into(),
            kind: guest::parse_frame_kind::REQUEST,
            ..abi::Frame::default()
        })
    }

    fn encode(_: &[u8], _: u64, id: u64, out: &mut FrameOutput<'_>) -> bool {
        let left = WRITES_LEFT.load(Ordering::Relaxed);
        WRITES_LEFT.store(left.saturating_sub(1), Ordering::Relaxed);
        out.put(&[id as u8]);
        left > 0
    }

    fn make_frame(_: u32, _: u64, _: u64, _: &[u8], _: &mut FrameOutput<'_>) -> bool {
        false
    }
}

#[test]
fn plugin_failure_fails_its_calls() {
    let codec = Codec::built_in::<Fading>().unwrap();
    let call = PluginCall {
        in_flight: Some(10),
        heartbeat: Some(Duration::from_secs(1)),
        ..call(&[7])
    };
    WRITES_LEFT.store(0, Ordering::Relaxed);
    let error = PluginProtocol::new(&codec, &call).unwrap_err().to_string();
    assert!(error.contains("not a request of fading"), "{error}");
    WRITES_LEFT.store(2, Ordering::Relaxed);
    let mut driver = PluginProtocol::new(&codec, &call).unwrap().new_driver();
    driver.open(START, &mut Vec::new());
    // No heartbeats are sent if the protocol has none.
    assert_eq!(driver.next_timer(), None);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.start(CallId(0), 0, START, &mut out);
    driver.start(CallId(1), 1, START, &mut out);
    assert_eq!((out.len(), driver.capacity()), (1, 0));
    driver.on_timer(driver.next_timer().unwrap(), &mut out, &mut events);
    assert_eq!(ended(&events), [(1, Outcome::coded("PLUGIN_FAILED"))]);
    driver.abort(Outcome::Reset, START, &mut events);
    assert_eq!(
        ended(&events),
        [(1, Outcome::coded("PLUGIN_FAILED")), (0, Outcome::Reset)]
    );
}

proptest! {
    #[test]
    fn responses_parse_in_any_split(
        payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
        cuts in proptest::collection::vec(1usize..30, 1..60),
    ) {
        let play = |cuts: &[usize]| {
            let mut driver = driver();
            let ids = start(&mut driver, payloads.len() as u32);
            let wire: Vec<u8> = payloads.iter().zip(&ids).flat_map(|(payload, id)| {
                [made(NewFrameKind::Response, *id, payload), made(NewFrameKind::HeartbeatAck, 5, b"")].concat()
            }).collect();
            let (mut rest, mut events) = (&wire[..], Vec::new());
            for cut in cuts {
                let (piece, more) = rest.split_at((*cut).min(rest.len()));
                driver.receive(piece, START, &mut Vec::new(), &mut events).unwrap();
                rest = more;
            }
            driver.receive(rest, START, &mut Vec::new(), &mut events).unwrap();
            ended(&events)
        };
        let whole = play(&[]);
        prop_assert_eq!(whole.len(), payloads.len());
        prop_assert_eq!(whole, play(&cuts));
    }

    #[test]
    fn arbitrary_input_never_loses_calls(
        head in prop_oneof![Just(&b""[..]), Just(&b"x"[..]), Just(&b"x\x01\x01\0\0\0\x01\0\0"[..])],
        bytes in proptest::collection::vec(any::<u8>(), 0..80), step in 1usize..20,
    ) {
        let mut driver = driver();
        start(&mut driver, 3);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        for piece in [head, &bytes].concat().chunks(step) {
            if driver.receive(piece, START, &mut out, &mut events).is_err() {
                prop_assert_eq!(driver.capacity(), 0);
                break;
            }
        }
        driver.abort(Outcome::Reset, START, &mut events);
        let mut calls: Vec<u32> = ended(&events).iter().map(|(call, _)| *call).collect();
        calls.sort_unstable();
        prop_assert_eq!(calls, [0, 1, 2]);
    }
}
