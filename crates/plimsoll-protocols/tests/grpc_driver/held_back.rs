//! Tests with a server that grants large windows but reads nothing: messages are held back, and replies are
//! told from payload.

use plimsoll_engine::driver::MAX_UNSENT_BYTES;
use plimsoll_wire::http2::{MAX_WINDOW_BYTES, flags, kind, setting};

use super::*;

/// The size of one message; about twenty exceed the output buffer's limit. Bytes.
const MESSAGE_SIZE: usize = 700_000;

fn open_windows() -> Vec<u8> {
    let mut bytes = Vec::new();
    write::settings(
        &mut bytes,
        &[(setting::INITIAL_WINDOW_SIZE, MAX_WINDOW_BYTES)],
    );
    write::window_update(&mut bytes, 0, MAX_WINDOW_BYTES - 65_535);
    bytes
}

/// Returns the bytes of messages among `frames`, and the number of ended streams.
fn count_data(frames: &[SentFrame]) -> (usize, usize) {
    let data = frames.iter().filter(|(head, _)| head.kind() == kind::DATA);
    data.fold((0, 0), |(bytes, ended), (head, payload)| {
        let ends = usize::from(head.has_flag(flags::END_STREAM));
        (bytes + payload.len(), ended + ends)
    })
}

fn assert_output_bounded(mut client: Client, calls: usize, each: usize) {
    let started = client.out.len();
    let (mut bytes, mut ended) = count_data(&client.sent());
    assert!(started < MAX_UNSENT_BYTES + 20_000, "{started}");
    assert_eq!(ended, 0);
    client.receive(&open_windows()).unwrap();
    let mut turns = 0;
    loop {
        assert!(
            client.out.len() < MAX_UNSENT_BYTES + 20_000,
            "{}",
            client.out.len()
        );
        let (more, ends) = count_data(&client.sent());
        (bytes, ended) = (bytes + more, ended + ends);
        if !client.driver.has_held_back_messages() {
            break;
        }
        // Frames that arrive meanwhile change nothing.
        client.receive(&frame(kind::PING, 0, 0, &[7; 8])).unwrap();
        client.driver.resume_sending(Time(3), &mut client.out);
        turns += 1;
    }
    assert_eq!((bytes, ended), (calls * each, calls));
    assert!(
        turns >= calls * each / (MAX_UNSENT_BYTES + 20_000),
        "{turns}"
    );
}

#[test]
fn messages_wait_while_outbox_is_full() {
    let client = Client::with_calls(MESSAGE_SIZE, &[(setting::INITIAL_WINDOW_SIZE, 0)], 20);
    assert_output_bounded(client, 20, MESSAGE_SIZE + 5);
}

#[test]
fn ping_replies_are_not_payload() {
    let mut client = Client::with_calls(5_000, &[(setting::INITIAL_WINDOW_SIZE, 0)], 3);
    client.sent();
    let carried = client.driver.appended_payload_bytes();
    client.receive(&frame(kind::PING, 0, 0, &[7; 8])).unwrap();
    assert_eq!(
        (client.out.len(), client.driver.appended_payload_bytes()),
        (17, carried)
    );
    client.receive(&open_windows()).unwrap();
    let asked = (client.driver.appended_payload_bytes() - carried) as usize;
    // The output also contains a SETTINGS acknowledgement.
    assert_eq!(client.out.len(), 17 + 9 + asked);
    assert!(asked > 15_000);
}
