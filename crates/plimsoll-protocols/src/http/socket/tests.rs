//! Tests of the WebSocket driver, which is given bytes and times as from a server.

use plimsoll_wire::websocket::{append_frame, derive_accept_key};

use super::*;
use crate::http::HttpCall;

const SECOND: u64 = 1_000_000_000;

fn protocol(socket: WebSocketCall, stream_duration: Option<Duration>) -> SocketProtocol {
    let call = HttpCall {
        method: "GET".into(),
        path: "/".into(),
        body: b"hello".to_vec(),
        stream_duration,
        max_body: u32::MAX,
        socket: Some(Box::new(socket.clone())),
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    };
    SocketProtocol::new(&request, &socket)
}

/// Makes a socket that is open, with `more` received right behind the response to the upgrade.
fn opened(protocol: &SocketProtocol, now: Time, more: &[u8]) -> (SocketDriver, Vec<Event>) {
    let (mut driver, mut out, mut events) = (protocol.new_driver(), Vec::new(), Vec::new());
    driver.open(now, &mut out);
    let request = String::from_utf8(out).unwrap();
    let key = request.split("sec-websocket-key: ").nth(1).unwrap();
    let key = key.split("\r\n").next().unwrap();
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    let answer = [head.as_bytes(), more].concat();
    driver
        .receive(&answer, now, &mut Vec::new(), &mut events)
        .unwrap();
    (driver, events)
}

fn message(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    append_frame(&mut bytes, Opcode::Text, text.as_bytes());
    bytes
}

fn receive(driver: &mut SocketDriver, text: &str, now: Time) -> Vec<Event> {
    let mut events = Vec::new();
    driver
        .receive(&message(text), now, &mut Vec::new(), &mut events)
        .unwrap();
    events
}

#[test]
fn configured_welcome_message_is_awaited() {
    for (welcome, first_is_it) in [
        (WelcomeMessage::Any, true),
        (
            WelcomeMessage::Message(EventMatch::Contains("ready".into())),
            false,
        ),
    ] {
        let protocol = protocol(
            WebSocketCall {
                welcome: Some(welcome),
                ..WebSocketCall::default()
            },
            None,
        );
        let (mut driver, events) = opened(&protocol, Time(1), b"");
        assert_eq!(
            (driver.is_ready(), driver.capacity(), events.len()),
            (false, 0, 0)
        );
        assert_eq!(driver.next_timer(), None, "it is not a guess");
        let events = receive(&mut driver, "hello", Time(2));
        assert_eq!(events.is_empty(), first_is_it, "{events:?}");
        assert_eq!(driver.is_ready(), first_is_it);
        if !first_is_it {
            assert_eq!(events, [Event::Unsolicited]);
            assert_eq!(receive(&mut driver, "ready now", Time(3)), []);
        }
        assert_eq!(driver.capacity(), 1);
        driver.start(CallId(0), 0, Time(4), &mut Vec::new());
        let events = receive(&mut driver, "answer", Time(5));
        assert!(matches!(&events[..], [Event::Done(done)] if done.outcome.is_ok()));
        assert_eq!(receive(&mut driver, "more", Time(6)), [Event::Unsolicited]);
    }
}

#[test]
fn observed_welcome_is_awaited_later() {
    let protocol = protocol(WebSocketCall::default(), None);
    let (mut first, _) = opened(&protocol, Time(1), b"");
    assert!(first.is_ready());
    assert_eq!(
        receive(&mut first, "welcome", Time(2)),
        [Event::Unsolicited]
    );
    first.start(CallId(0), 0, Time(3), &mut Vec::new());

    // The welcome arrives with the response to the upgrade, later, or never.
    let (second, events) = opened(&protocol, Time(SECOND), &message("welcome"));
    assert!(second.is_ready() && events.is_empty());
    let (mut third, _) = opened(&protocol, Time(SECOND), b"");
    assert!(!third.is_ready());
    assert_eq!(receive(&mut third, "welcome", Time(SECOND + 1)), []);
    assert!(third.is_ready());
    let (mut fourth, _) = opened(&protocol, Time(SECOND), b"");
    assert_eq!(fourth.next_timer(), Some(Time(2 * SECOND)));
    fourth.on_timer(Time(2 * SECOND), &mut Vec::new(), &mut Vec::new());
    assert!(fourth.is_ready());
}

#[test]
fn messages_during_load_are_not_welcomes() {
    let protocol = protocol(WebSocketCall::default(), None);
    let (mut first, _) = opened(&protocol, Time(1), b"");
    first.start(CallId(0), 0, Time(2), &mut Vec::new());
    receive(&mut first, "answer", Time(3));
    assert_eq!(receive(&mut first, "news", Time(4)), [Event::Unsolicited]);
    let (second, _) = opened(&protocol, Time(5), b"");
    assert!(second.is_ready());
}

#[test]
fn subscription_succeeds_at_duration() {
    let protocol = protocol(WebSocketCall::default(), Some(Duration::from_secs(3)));
    let (mut driver, _) = opened(&protocol, Time(1), b"");
    driver.start(CallId(0), 0, Time(1), &mut Vec::new());
    assert_eq!(driver.next_timer(), Some(Time(1 + 3 * SECOND)));
    for nth in 0..5 {
        let events = receive(&mut driver, "tick", Time(2 + nth));
        assert_eq!(events, [Event::Message(CallId(0))]);
    }
    let mut events = Vec::new();
    driver.on_timer(Time(1 + 3 * SECOND), &mut Vec::new(), &mut events);
    assert!(matches!(&events[..], [Event::Done(done)] if done.outcome.is_ok()));
    assert_eq!((driver.capacity(), driver.next_timer()), (1, None));
    assert_eq!(
        receive(&mut driver, "tick", Time(4 * SECOND)),
        [Event::Unsolicited]
    );
}
