use super::super::frame::{DEFAULT_MAX_CONTENT_BYTES, FrameLayout};
use super::super::hessian::HessianValue;
use super::*;
use plimsoll_engine::driver::{CallId, Driver, Event};
use plimsoll_model::Time;
use proptest::prelude::*;

const START: Time = Time(1_000_000);

fn driver(request: &BoltCall) -> BoltDriver {
    let mut driver = BoltProtocol::new(request).unwrap().new_driver();
    driver.open(START, &mut Vec::new());
    driver
}

fn sent(out: &[u8]) -> Vec<BoltFrame<'_>> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some((frame, length)) =
        BoltFrame::parse(&out[at..], DEFAULT_MAX_CONTENT_BYTES).unwrap()
    {
        frames.push(frame);
        at += length;
    }
    assert_eq!(at, out.len());
    frames
}

fn answer(id: u32, status: u16, header: &[u8], content: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    BoltFrame {
        kind: BoltFrameKind::Response { status },
        command: BoltCommand::RpcResponse,
        header,
        content,
        ..BoltFrame::heartbeat(FrameLayout::V1, id)
    }
    .write(&mut wire);
    wire
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

fn receive(driver: &mut BoltDriver, wire: &[u8]) -> (Vec<u8>, Vec<Event>) {
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.receive(wire, START, &mut out, &mut events).unwrap();
    (out, events)
}

fn start(driver: &mut BoltDriver, calls: u32) -> Vec<u32> {
    let mut out = Vec::new();
    for call in 0..calls {
        driver.start(CallId(call), u64::from(call), START, &mut out);
    }
    sent(&out).iter().map(|frame| frame.id).collect()
}

#[test]
fn responses_may_arrive_out_of_order() {
    let mut driver = driver(&BoltCall::default());
    let ids = start(&mut driver, 3);
    let mut wire = answer(ids[2], 0, b"", b"");
    wire.extend(answer(ids[0], 4, b"", b""));
    wire.extend(answer(ids[0], 0, b"", b""));
    wire.extend(answer(77, 0, b"", b""));
    let (_, events) = receive(&mut driver, &wire);
    assert_eq!(
        ended(&events),
        [
            (2, Outcome::Ok),
            (0, Outcome::coded("BOLT_SERVER_THREADPOOL_BUSY"))
        ]
    );
    let mut events = Vec::new();
    driver.abort(Outcome::Reset, START, &mut events);
    assert_eq!(ended(&events), [(1, Outcome::Reset)]);
}

#[test]
fn sofa_error_overrides_success_status() {
    let mut driver = driver(&BoltCall::default());
    let ids = start(&mut driver, 3);
    let (mut failed, mut fine) = (Vec::new(), Vec::new());
    header::write(&mut failed, Some(header::RESPONSE_ERROR_KEY), Some(b"true"));
    header::write(&mut fine, Some(header::RESPONSE_ERROR_KEY), Some(b"false"));
    let text = sofa::encode_failure("RPC cannot find service: [x]");
    let (_, events) = receive(&mut driver, &answer(ids[0], 0, &failed, &text));
    assert_eq!(
        events[0],
        Event::Detail {
            outcome: Outcome::coded("SOFA_ERROR"),
            text: "RPC cannot find service: [x]".to_owned()
        }
    );
    assert_eq!(ended(&events), [(0, Outcome::coded("SOFA_ERROR"))]);
    let content = sofa::encode_success(HessianValue::Null);
    let (_, events) = receive(&mut driver, &answer(ids[1], 0, &fine, &content));
    assert_eq!(ended(&events), [(1, Outcome::Ok)]);
    let (_, events) = receive(&mut driver, &answer(ids[2], 0, b"\0\0\0\x09x", &content));
    assert_eq!(ended(&events), [(2, Outcome::BadAnswer)]);
}

/// Returns the counted content bytes, and the bytes of all messages.
fn traffic(events: &[Event]) -> (u64, u64) {
    let mut sums = (0, 0);
    for event in events {
        match event {
            Event::Count { count, n, .. } => {
                assert_eq!(*count, plimsoll_model::Count::ContentBytes);
                sums.0 += n;
            }
            Event::Done(done) => sums.1 += u64::from(done.bytes_sent + done.bytes_received),
            _ => {}
        }
    }
    sums
}

#[test]
fn content_bytes_counted_once_per_read() {
    let call = BoltCall {
        class: b"java.lang.String".to_vec(),
        content: vec![7; 100],
        ..BoltCall::default()
    };
    let mut driver = driver(&call);
    let ids = start(&mut driver, 4);
    let mut wire = answer(ids[1], 0, b"", b"12345");
    wire.extend(answer(ids[0], 0, b"\0\0\0\x01k\0\0\0\x01v", b"123"));
    let (_, events) = receive(&mut driver, &wire);
    let counts = events.iter().filter(|e| matches!(e, Event::Count { .. }));
    assert_eq!(counts.count(), 1, "{events:?}");
    // The fixed headers of requests and answers, the class of requests, and the header map.
    let headers = 2 * (22 + 16) + 2 * 20 + 10;
    assert_eq!(traffic(&events), (208, 208 + headers), "{events:?}");
    assert!(matches!(
        events[0],
        Event::Count {
            call: CallId(1),
            ..
        }
    ));
    // Requests count even if their calls are not answered.
    let mut events = Vec::new();
    driver.abort(Outcome::Reset, START, &mut events);
    assert_eq!(traffic(&events), (200, 200 + 2 * (22 + 16)), "{events:?}");
    let oneway = BoltCall {
        oneway: true,
        ..call
    };
    let mut driver = self::driver(&oneway);
    driver.start(CallId(0), 0, START, &mut Vec::new());
    driver.on_timer(START, &mut Vec::new(), &mut events);
    assert_eq!(traffic(&events[3..]), (100, 100 + 22 + 16), "{events:?}");
}

#[test]
fn status_codes_map_to_named_outcomes() {
    for status in 0..0x20u16 {
        let mut driver = driver(&BoltCall::default());
        let ids = start(&mut driver, 1);
        let (_, events) = receive(&mut driver, &answer(ids[0], status, b"", b""));
        let expected =
            Status::from_number(status).map_or(Outcome::coded("BOLT_UNKNOWN"), Status::outcome);
        assert_eq!(ended(&events), [(0, expected)], "{status:#x}");
    }
}

#[test]
fn cancel_frees_slot_and_late_response_counts() {
    let mut driver = driver(&BoltCall {
        in_flight: Some(2),
        ..BoltCall::default()
    });
    assert_eq!(driver.capacity(), 2);
    let ids = start(&mut driver, 2);
    assert_eq!(driver.capacity(), 0);
    driver.cancel(CallId(0), START, &mut Vec::new());
    assert_eq!(driver.capacity(), 1);
    let (_, events) = receive(&mut driver, &answer(ids[0], 0, b"", b""));
    assert_eq!(events, [Event::Late]);
}

#[test]
fn oneway_calls_complete_when_sent() {
    let mut driver = driver(&BoltCall {
        oneway: true,
        ..BoltCall::default()
    });
    start(&mut driver, 2);
    assert!(driver.next_timer().unwrap() <= START);
    let mut events = Vec::new();
    driver.on_timer(START, &mut Vec::new(), &mut events);
    assert_eq!(ended(&events), [(0, Outcome::Ok), (1, Outcome::Ok)]);
    assert_eq!(driver.next_timer(), None);
}

#[test]
fn unanswered_heartbeats_drain_idle_connection() {
    let mut driver = driver(&BoltCall {
        layout: FrameLayout::V2_CRC,
        heartbeat: Some(Duration::from_secs(15)),
        ..BoltCall::default()
    });
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let due = driver.next_timer().unwrap();
    assert_eq!(due, START + Duration::from_secs(15));
    driver.on_timer(START + Duration::from_secs(14), &mut out, &mut events);
    assert!(out.is_empty());
    driver.on_timer(due, &mut out, &mut events);
    let beat = sent(&out)[0];
    assert_eq!(beat, BoltFrame::heartbeat(FrameLayout::V2_CRC, beat.id));
    // After the acknowledgement, the next heartbeat is a whole interval away.
    let mut ack = Vec::new();
    BoltFrame::heartbeat_ack(beat.layout, beat.id).write(&mut ack);
    driver.receive(&ack, due, &mut out, &mut events).unwrap();
    assert_eq!(driver.next_timer(), Some(due + Duration::from_secs(15)));
    for n in 0..4 {
        assert!(!driver.is_draining(), "after {n} expiries");
        let now = driver.next_timer().unwrap();
        driver.on_timer(now, &mut out, &mut events);
    }
    assert!(driver.is_draining());
    assert_eq!(driver.capacity(), 0);
    assert_eq!(sent(&out).len(), 4);
}

#[test]
fn server_initiated_requests_are_answered() {
    let mut driver = driver(&BoltCall::default());
    let mut wire = Vec::new();
    BoltFrame::heartbeat(FrameLayout::V1, 9).write(&mut wire);
    let request = BoltFrame {
        command: BoltCommand::RpcRequest,
        ..BoltFrame::heartbeat(FrameLayout::V1, 10)
    };
    request.write(&mut wire);
    let (out, _) = receive(&mut driver, &wire);
    let expected = [
        BoltFrame::heartbeat_ack(FrameLayout::V1, 9),
        BoltFrame::status_response(FrameLayout::V1, 10, 1, Status::NoProcessor),
    ];
    assert_eq!(sent(&out), expected);
    let mut wire = Vec::new();
    BoltFrame {
        command: BoltCommand::GoAway,
        ..BoltFrame::heartbeat(FrameLayout::V1, 11)
    }
    .write(&mut wire);
    receive(&mut driver, &wire);
    assert!(driver.is_draining());
}

#[test]
fn non_bolt_bytes_close_connection() {
    for (wire, outcome, needle) in [
        (
            &b"HTTP/1.1 400"[..],
            Outcome::ProtocolError,
            "an HTTP server?",
        ),
        (b"\x15\x03\x03", Outcome::ProtocolError, "sofas://"),
        (b"\x02\x07", Outcome::ProtocolError, "revision 7"),
        (
            b"\x01\0\0\x02\x01\0\0\0\x01\x01\0\0\0\0\0\0\x7f\xff\xff\xff",
            Outcome::MessageTooLarge,
            "2147483647 bytes",
        ),
        (
            b"\x01\0\0\x02\x01\0\0\0\x01\x01\0\0\0\0\0\0\xff\xff\xff\xff",
            Outcome::ProtocolError,
            "negative",
        ),
    ] {
        let mut driver = driver(&BoltCall::default());
        start(&mut driver, 1);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let error = driver
            .receive(wire, START, &mut out, &mut events)
            .unwrap_err();
        assert_eq!(error.outcome, outcome);
        assert!(error.detail.contains(needle), "{}", error.detail);
    }
}

#[test]
fn close_is_classified_by_position() {
    let mut driver = driver(&BoltCall::default());
    assert_eq!(driver.receive_end(START, &mut Vec::new()), Ok(()));
    let ids = start(&mut driver, 1);
    let error = driver.receive_end(START, &mut Vec::new()).unwrap_err();
    assert!(
        error.detail.contains("with calls in flight (1)"),
        "{}",
        error.detail
    );
    receive(&mut driver, &answer(ids[0], 0, b"", b"content")[..9]);
    let error = driver.receive_end(START, &mut Vec::new()).unwrap_err();
    assert!(
        error.detail.contains("middle of a frame"),
        "{}",
        error.detail
    );
}

proptest! {
    #[test]
    fn responses_parse_in_any_split(
        sizes in proptest::collection::vec((0usize..300, 0u16..6), 1..12),
        cuts in proptest::collection::vec(1usize..50, 1..200),
    ) {
        let request = BoltCall::default();
        let (mut whole, mut split) = (driver(&request), driver(&request));
        let ids = start(&mut whole, sizes.len() as u32);
        start(&mut split, sizes.len() as u32);
        let mut wire = Vec::new();
        for (id, (size, status)) in ids.iter().zip(&sizes) {
            wire.extend(answer(*id, *status, b"", &vec![b'N'; *size]));
        }
        let (_, expected) = receive(&mut whole, &wire);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let (mut rest, mut cut) = (&wire[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
            split.receive(piece, START, &mut out, &mut events).unwrap();
            rest = after;
        }
        prop_assert_eq!(traffic(&events), traffic(&expected));
        let calls = |events: Vec<Event>| -> Vec<Event> {
            let of_calls = |event: &Event| !matches!(event, Event::Count { .. });
            events.into_iter().filter(of_calls).collect()
        };
        prop_assert_eq!(calls(events), calls(expected));
    }

    #[test]
    fn garbage_loses_no_calls(wire in proptest::collection::vec(any::<u8>(), 0..300), first in 0u8..4) {
        let mut driver = driver(&BoltCall::default());
        start(&mut driver, 4);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let _ = driver.receive(&[first], START, &mut out, &mut events);
        let _ = driver.receive(&wire, START, &mut out, &mut events);
        driver.abort(Outcome::Reset, START, &mut events);
        prop_assert_eq!(ended(&events).len(), 4);
    }
}
