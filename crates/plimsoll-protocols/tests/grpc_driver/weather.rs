//! Property tests with random conforming servers, random splits, and random bytes.

use plimsoll_protocols::grpc::canned::{CannedOptions, CannedServer};
use plimsoll_wire::http2::setting;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Action {
    Start,
    Cancel(u32),
    /// Move this many bytes to the server, or to the client.
    ToServer(usize),
    ToClient(usize),
    /// Answer the held request with this index.
    Complete(usize),
    Ping,
    TableSize(u32),
    Goaway,
}

fn deed() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Start),
        1 => any::<u32>().prop_map(Action::Cancel),
        6 => (1usize..400).prop_map(Action::ToServer),
        6 => (1usize..400).prop_map(Action::ToClient),
        4 => any::<usize>().prop_map(Action::Complete),
        1 => Just(Action::Ping),
        1 => prop_oneof![Just(0), Just(4096), 0u32..600].prop_map(Action::TableSize),
    ]
}

fn options() -> impl Strategy<Value = CannedOptions> {
    (
        (
            0usize..300,
            prop_oneof![3 => Just(0u8), 1 => 1u8..17],
            any::<bool>(),
        ),
        (
            prop::option::of(1u32..8),
            prop_oneof![Just(0x7fff_ffff), 1u32..2_000],
            prop_oneof![Just(65_535), Just(0x7fff_ffff), 65_535u32..100_000],
        ),
        (
            prop_oneof![Just(4096), 0u32..600],
            prop::option::of(2u64..9),
            any::<bool>(),
        ),
    )
        .prop_map(
            |((size, status, hold), (limit, stream_window, connection_window), rest)| {
                let (header_table_size, reset_every, ignore_resets) = rest;
                CannedOptions {
                    message: vec![7; size],
                    status,
                    status_message: if status == 0 {
                        String::new()
                    } else {
                        "no%20".to_owned()
                    },
                    max_concurrent_streams: limit,
                    stream_window,
                    connection_window,
                    header_table_size,
                    goaway_after: None,
                    reset_every: reset_every.map(|n| (n, ErrorCode::REFUSED_STREAM)),
                    answered_by_caller: hold,
                    ignore_resets,
                    check_requests: true,
                    ..CannedOptions::default()
                }
            },
        )
}

/// A client and a server, with bytes in transit.
struct ConnectedPair {
    client: Client,
    server: plimsoll_protocols::grpc::canned::CannedConnection,
    to_client: Vec<u8>,
    held: Vec<u32>,
    running: Vec<bool>,
    cancelled: usize,
}

impl ConnectedPair {
    fn move_to_server(&mut self, count: usize) {
        let bytes: Vec<u8> = self
            .client
            .out
            .drain(..count.min(self.client.out.len()))
            .collect();
        self.server
            .receive(&bytes, &mut self.to_client, &mut self.held)
            .expect("the client keeps the rules");
    }

    fn move_to_client(&mut self, count: usize) {
        let bytes: Vec<u8> = self
            .to_client
            .drain(..count.min(self.to_client.len()))
            .collect();
        self.client
            .receive(&bytes)
            .expect("the server keeps the rules");
        for (call, _) in self.client.ended() {
            self.running[call as usize] = false;
        }
    }

    /// Answers all requests and moves bytes until none are left.
    fn finish_all(&mut self) {
        // With a window of one byte, the largest request takes a round for each of its bytes.
        for _ in 0..200_000 {
            for stream in std::mem::take(&mut self.held) {
                self.server.answer_held_request(stream, &mut self.to_client);
            }
            // The worker does the same once all output is sent.
            if self.client.out.is_empty() && self.client.driver.has_held_back_messages() {
                self.client
                    .driver
                    .resume_sending(Time(3), &mut self.client.out);
            }
            if self.client.out.is_empty() && self.to_client.is_empty() {
                return;
            }
            self.move_to_server(usize::MAX);
            self.move_to_client(usize::MAX);
        }
        panic!("bytes go to and fro without end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn calls_end_with_any_conforming_server(
        options in options(),
        request_size in prop_oneof![3 => 0usize..200, 1 => 0usize..150_000],
        deeds in prop::collection::vec(deed(), 1..150),
        goaway in any::<bool>(),
    ) {
        let server = CannedServer::new(options.clone()).new_connection();
        let mut pair = ConnectedPair {
            client: Client::new(request_size),
            server,
            to_client: Vec::new(),
            held: Vec::new(),
            running: Vec::new(),
            cancelled: 0,
        };
        pair.server.send_preface(&mut pair.to_client);
        let deeds = deeds.into_iter().chain(goaway.then_some(Action::Goaway));
        for deed in deeds {
            match deed {
                Action::Start if pair.client.driver.capacity() > 0 => {
                    pair.client.start();
                    pair.running.push(true);
                }
                Action::Cancel(call) => {
                    if let Some(running) = pair.running.get_mut(call as usize % 64)
                        && std::mem::take(running)
                    {
                        let call = CallId(call % 64);
                        pair.cancelled += 1;
                        pair.client.driver.cancel(call, Time(3), &mut pair.client.out);
                    }
                }
                Action::ToServer(count) => pair.move_to_server(count),
                Action::ToClient(count) => pair.move_to_client(count),
                Action::Complete(at) if !pair.held.is_empty() => {
                    let stream = pair.held.remove(at % pair.held.len());
                    pair.server.answer_held_request(stream, &mut pair.to_client);
                }
                Action::Ping => pair.to_client.extend(frame(http2::kind::PING, 0, 0, &[1; 8])),
                Action::TableSize(size) if size <= options.header_table_size => {
                    let settings = [(setting::HEADER_TABLE_SIZE, size)];
                    pair.server.send_settings(&settings, &mut pair.to_client);
                }
                Action::Goaway => pair.server.send_goaway(ErrorCode::NO_ERROR, &mut pair.to_client),
                _ => {}
            }
        }
        pair.finish_all();
        let ended = pair.client.ended();
        let mut calls: Vec<u32> = ended.iter().map(|(call, _)| *call).collect();
        calls.sort_unstable();
        calls.dedup();
        prop_assert_eq!(calls.len(), ended.len(), "no call ends twice");
        prop_assert_eq!(ended.len() + pair.cancelled, pair.client.calls as usize);
        prop_assert!(pair.client.late_answers() <= pair.cancelled);
        for (_, outcome) in ended {
            let expected = Outcome::from_grpc_status(u32::from(options.status));
            prop_assert!(
                outcome == expected
                    || outcome == Outcome::StreamRefused && options.reset_every.is_some()
                    || outcome == Outcome::Goaway && goaway,
                "{}", outcome.code()
            );
        }
        if !goaway {
            prop_assert!(pair.client.driver.capacity() > 0, "the connection is as good as new");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, calls in 0u32..5) {
        let mut client = Client::with_calls(4, &[], calls);
        let _ = client.receive(&bytes);
        let _ = client.driver.receive_end(Time(4), &mut client.events);
    }

    #[test]
    fn arbitrary_frames_never_panic(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..8, prop::collection::vec(any::<u8>(), 0..40)), 0..40),
        calls in 0u32..5,
        step in 1usize..50,
    ) {
        let mut bytes = Vec::new();
        for (kind, flags, stream, payload) in frames {
            bytes.extend(frame(kind, flags, stream, &payload));
        }
        let mut client = Client::with_calls(4, &[], calls);
        for chunk in bytes.chunks(step) {
            if client.receive(chunk).is_err() {
                break;
            }
        }
        let before = client.ended().len();
        client.driver.abort(Outcome::Reset, Time(4), &mut client.events);
        prop_assert!(client.ended().len() >= before);
        prop_assert_eq!(client.ended().len(), calls as usize, "each call ends once");
    }
}
