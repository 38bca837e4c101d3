//! Tests of the fast path for complete responses: it must give the same result as the frame-by-frame path.

use super::*;

/// Returns a client with `calls` calls in flight on a connection whose header blocks are cached, and the
/// responses to all of them in order.
fn client_with_answers(calls: u32) -> (Client, Vec<u8>) {
    answers_for(Client::new(20), calls)
}

fn answers_for(mut client: Client, calls: u32) -> (Client, Vec<u8>) {
    client.greet(&[]);
    for _ in 0..3 {
        client.start();
    }
    let mut encoder = Encoder::default();
    let mut answer = |out: &mut Vec<u8>, stream: u32| {
        let head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")]);
        let trailers = encoder.encode([("grpc-status", "0")]);
        write::header_block(out, stream, &head, write::EndStream(false));
        write::data(
            out,
            stream,
            &[0, 0, 0, 0, 3, b'a', b'b', b'c'],
            write::EndStream(false),
        );
        write::header_block(out, stream, &trailers, write::EndStream(true));
    };
    let mut warm = Vec::new();
    (0..3).for_each(|call| answer(&mut warm, call * 2 + 1));
    client.receive(&warm).unwrap();
    assert_eq!(client.ended().len(), 3);
    client.events.clear();
    let mut answers = Vec::new();
    for call in 3..3 + calls {
        client.start();
        answer(&mut answers, call * 2 + 1);
    }
    client.out.clear();
    (client, answers)
}

/// Returns the client's result for `bytes` that arrive in pieces of `size`.
fn receive_in_pieces(size: usize, bytes: &[u8]) -> (Option<String>, String, Vec<u8>) {
    let (mut client, _) = client_with_answers(3);
    let error = bytes
        .chunks(size)
        .find_map(|piece| client.receive(piece).err());
    (
        error.map(|error| error.to_string()),
        format!("{:?}", client.events),
        client.out,
    )
}

#[test]
fn complete_responses_end_calls_in_order() {
    let (mut client, answers) = client_with_answers(3);
    client.receive(&answers).unwrap();
    assert_eq!(client.ended(), [3, 4, 5].map(|call| (call, Outcome::Ok)));
    for event in &client.events {
        let Event::Done(done) = event else {
            panic!("{event:?}");
        };
        assert_eq!((done.first_byte, done.bytes_received), (Time(2), 8));
        assert_eq!(done.bytes_sent, 25);
    }
}

#[test]
fn bit_flips_match_bytewise_parsing() {
    let (_, answers) = client_with_answers(3);
    assert_eq!(
        receive_in_pieces(answers.len(), &answers),
        receive_in_pieces(1, &answers)
    );
    let (mut errors, mut failed) = (0, 0);
    for place in 0..answers.len() {
        for flip in [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0xff] {
            let mut bytes = answers.clone();
            bytes[place] ^= flip;
            let whole = receive_in_pieces(bytes.len(), &bytes);
            assert_eq!(
                whole,
                receive_in_pieces(1, &bytes),
                "byte {place} changed by {flip:#x}"
            );
            errors += u32::from(whole.0.is_some());
            failed += u32::from(!whole.1.contains("Ok"));
        }
    }
    assert!(errors > 50 && failed > 20, "{errors} {failed}");
}

#[test]
fn truncated_responses_complete_no_call() {
    let (_, answers) = client_with_answers(1);
    for length in 0..answers.len() {
        let (mut client, _) = client_with_answers(1);
        client.receive(&answers[..length]).unwrap();
        assert_eq!(client.ended(), [], "{length} bytes");
        client.receive(&answers[length..]).unwrap();
        assert_eq!(client.ended(), [(3, Outcome::Ok)], "{length} bytes");
    }
}

#[test]
fn oversized_messages_and_frames_fail() {
    for (size, outcome) in [(1001, Outcome::MessageTooLarge), (1000, Outcome::Ok)] {
        let (mut client, answers) = client_with_answers(1);
        let (head_end, trailers) = part_bounds(&answers);
        let mut bytes = answers[..head_end].to_vec();
        let mut message = vec![0, 0, 0, (size >> 8) as u8, size as u8];
        message.resize(size + 5, 7);
        write::data(&mut bytes, 7, &message, write::EndStream(false));
        bytes.extend_from_slice(&answers[trailers..]);
        client.receive(&bytes).unwrap();
        assert_eq!(client.ended(), [(3, outcome)], "{size}");
    }
    let large = prepare(&GrpcCall {
        method: "a.S/M".to_owned(),
        max_message: 20_000,
        ..GrpcCall::default()
    });
    for (size, taken) in [(16_384, true), (16_385, false)] {
        let (mut client, answers) = answers_for(Client::of(&large), 1);
        let (head_end, trailers) = part_bounds(&answers);
        let mut message = [0, 0, 0, ((size - 5) >> 8) as u8, (size - 5) as u8].to_vec();
        message.resize(size, 7);
        let data = frame(0, 0, 7, &message);
        let bytes = [&answers[..head_end], &data, &answers[trailers..]].concat();
        assert_eq!(client.receive(&bytes).is_ok(), taken, "{size}");
        assert_eq!(client.ended().len(), usize::from(taken), "{size}");
    }
}

/// Returns the end of the first response's header, and the start of the last response's trailers.
fn part_bounds(answers: &[u8]) -> (usize, usize) {
    let head_end = FrameHeader::LEN + usize::from(answers[2]);
    (head_end, answers.len() - FrameHeader::LEN - 1)
}
