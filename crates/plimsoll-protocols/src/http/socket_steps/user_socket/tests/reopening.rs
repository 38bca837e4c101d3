//! Tests of sockets that are lost and opened again.

use std::time::Duration;

use plimsoll_model::TimeMeasure;

use super::*;
use crate::http::socket_steps::call::ReopeningRule;
use crate::shared::backoff::Backoff;

/// A step whose socket is opened again after pauses of at most 100 ns, with two attempts in a row.
fn reopened() -> SocketStepCall {
    let pause = Duration::from_nanos(100);
    SocketStepCall {
        opens: true,
        reopening: Some(ReopeningRule {
            max_attempts: 2,
            backoff: Backoff {
                first: pause,
                max: pause,
            },
        }),
        ..call(AwaitedMessages::Count(0))
    }
}

/// Ends the connection of a driver, and returns what it reports.
fn lose(driver: &mut SocketStepDriver, outcome: Outcome, now: Time) -> Vec<Event> {
    let mut events = Vec::new();
    if outcome == Outcome::ConnectionClosed {
        assert_eq!(driver.receive_end(now, &mut events), Ok(()));
    }
    driver.abort(outcome, now, &mut events);
    events
}

/// Waits for the pause before an attempt, and gives the driver a connection. Returns the upgrade request.
fn reconnect(driver: &mut SocketStepDriver, lost_at: Time) -> String {
    assert_eq!(driver.after_connection(), AfterConnection::Keep);
    let at = driver.next_timer().expect("a pause");
    assert!(at >= lost_at && at.since(lost_at) <= 100, "{at:?}");
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.on_timer(at, &mut out, &mut events);
    assert_eq!((out.len(), events.len()), (0, 0));
    assert_eq!(driver.next_timer(), None);
    assert_eq!(driver.after_connection(), AfterConnection::Reconnect);
    driver.open(at, &mut out);
    assert_eq!(driver.after_connection(), AfterConnection::Keep);
    String::from_utf8(out).expect("a request")
}

fn count(count: Count) -> Event {
    Event::Count {
        call: CallId(0),
        count,
        n: 1,
    }
}

#[test]
fn lost_socket_continues_after_last_token() {
    let mut driver = opened_by(&reopened());
    assert_eq!(
        start(&mut driver, &awaiting_tokens(Some("2")), Time(10)),
        []
    );
    receive(&mut driver, Opcode::Text, token(1).as_bytes(), Time(11));
    assert_eq!(
        lose(&mut driver, Outcome::ConnectionClosed, Time(1_000)),
        []
    );
    let request = reconnect(&mut driver, Time(1_000));
    assert!(
        request.starts_with("GET /?after=1 HTTP/1.1\r\n"),
        "{request}"
    );
    let (events, _) = answer_upgrade(&mut driver, &request, Time(1_300));
    let time = Event::Time {
        measure: TimeMeasure::Reconnect,
        ns: 300,
    };
    assert_eq!(events, [count(Count::Reconnects), time]);
    assert_eq!(driver.response_fields().count(), 0);
    receive(&mut driver, Opcode::Text, token(2).as_bytes(), Time(1_400));
    let done = br#"{"type":"done","seq":3,"tokens":2}"#;
    let (events, _) = receive(&mut driver, Opcode::Text, done, Time(1_500));
    assert_eq!(outcomes(&events), [Outcome::Ok]);
}

#[test]
fn close_frame_is_answered_before_reopening() {
    let mut driver = opened_by(&reopened());
    receive(&mut driver, Opcode::Text, token(4).as_bytes(), Time(5));
    let (mut bytes, mut out, mut events) = (Vec::new(), Vec::new(), Vec::new());
    append_frame(
        &mut bytes,
        Opcode::Close,
        &encode_close_payload(1012, "later"),
    );
    let ended = driver.receive(&bytes, Time(1_000), &mut out, &mut events);
    let ended = ended.expect_err("the connection is to be closed");
    assert_eq!((ended.outcome, out[0]), (Outcome::SocketClosed, 0x88));
    driver.abort(ended.outcome, Time(1_000), &mut events);
    assert_eq!(events, []);
    // A step may begin while there is no socket. Its frames are sent on the next one.
    let sending = SocketStepCall {
        frames: vec![crate::http::socket_steps::call::FrameContent {
            constant: b"hi".to_vec(),
            varying: None,
            is_binary: false,
        }],
        ..until("over")
    };
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let selected =
        step(&sending).select_request(&mut driver, MOMENT, &Arc::default(), &CookieJar::default());
    assert_eq!((selected, driver.capacity()), (Ok(()), 1));
    driver.start(CallId(0), 7, Time(900), &mut out);
    driver.on_timer(Time(900), &mut out, &mut events);
    assert_eq!((out.len(), events.len()), (0, 0));
    let request = reconnect(&mut driver, Time(1_000));
    // The token that no step has read counts as received.
    assert!(
        request.starts_with("GET /?after=4 HTTP/1.1\r\n"),
        "{request}"
    );
    let (_, sent) = answer_upgrade(&mut driver, &request, Time(1_300));
    assert_eq!((sent[0], sent.len()), (0x81, 2 + 4 + 2));
    let (events, sent) = receive(&mut driver, Opcode::Text, b"over", Time(1_400));
    assert_eq!((outcomes(&events), sent.len()), (vec![Outcome::Ok], 0));
}

#[test]
fn reopening_is_given_up_after_attempts() {
    let mut driver = opened_by(&reopened());
    assert_eq!(start(&mut driver, &until("x"), Time(10)), []);
    assert_eq!(lose(&mut driver, Outcome::Reset, Time(1_000)), []);
    reconnect(&mut driver, Time(1_000));
    // The socket is opened and lost without a message, which is no progress.
    let failed = [count(Count::ReconnectsFailed)];
    assert_eq!(lose(&mut driver, Outcome::Reset, Time(2_000)), failed);
    let request = reconnect(&mut driver, Time(2_000));
    answer_upgrade(&mut driver, &request, Time(2_500));
    let events = lose(&mut driver, Outcome::ConnectionClosed, Time(3_000));
    assert_eq!(outcomes(&events), [Outcome::SocketClosed]);
    let events = start(&mut driver, &until("x"), Time(4_000));
    assert_eq!(outcomes(&events), [Outcome::SocketClosed]);
}

#[test]
fn denied_socket_is_not_opened_again() {
    let mut driver = opened_by(&reopened());
    assert_eq!(start(&mut driver, &until("x"), Time(10)), []);
    assert_eq!(lose(&mut driver, Outcome::Reset, Time(1_000)), []);
    reconnect(&mut driver, Time(1_000));
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
    let refused = driver.receive(refusal, Time(2_000), &mut out, &mut events);
    let outcome = refused.expect_err("a refusal").outcome;
    driver.abort(outcome, Time(2_000), &mut events);
    assert_eq!(events[0], count(Count::ReconnectsFailed));
    assert_eq!(outcomes(&events), [Outcome::SocketDenied]);
    assert_eq!(driver.next_timer(), None);
}
