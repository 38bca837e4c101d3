//! Tests of responses with more than 64 KiB of metadata, in headers and in trailers: accepted if the plan
//! allows it.

use plimsoll_wire::http2::setting;

use super::*;

fn client(max_head: u32) -> Client {
    let mut client = Client::of(&prepare(&GrpcCall {
        method: "a.S/M".to_owned(),
        max_message: 1000,
        max_head,
        ..GrpcCall::default()
    }));
    client.greet(&[]);
    client
}

/// Returns a response with this many bytes of metadata in its headers and trailers.
fn answer(stream: u32, in_head: usize, in_trailers: usize) -> Vec<u8> {
    let [head, trailers] = [in_head, in_trailers].map(|length| "m".repeat(length));
    [
        headers(
            stream,
            &[
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("x-more", &head),
            ],
            false,
        ),
        data(stream, MESSAGE, false),
        headers(stream, &[("grpc-status", "0"), ("x-more", &trailers)], true),
    ]
    .concat()
}

#[test]
fn metadata_limit_follows_max_head() {
    const LARGE: usize = 300_000;
    for (in_head, in_trailers) in [(LARGE, 0), (0, LARGE)] {
        for (max_head, outcome) in [
            (0, Outcome::HeadTooLarge),
            (256 << 10, Outcome::HeadTooLarge),
            (1 << 20, Outcome::Ok),
        ] {
            let mut client = client(max_head);
            client.start();
            // The driver may close a connection whose server exceeds the advertised limit.
            let taken = client.receive(&answer(1, in_head, in_trailers));
            let closed = taken.map_err(|error| (error.outcome, error.detail));
            let details = client.details().join("\n");
            match (client.ended().as_slice(), closed) {
                ([(0, ended)], Ok(())) => assert_eq!(*ended, outcome, "{max_head}: {details}"),
                (_, Err((ended, _))) => assert_eq!(ended, outcome, "{max_head}"),
                (ended, closed) => panic!("{max_head}: {ended:?} {closed:?}"),
            }
        }
    }
}

#[test]
fn metadata_limit_is_advertised_and_reported() {
    for (max_head, told) in [(0, 64 << 10), (1 << 20, 1 << 20)] {
        let mut client = client(max_head);
        let settings = client.sent().into_iter().find_map(|(head, payload)| {
            let list = payload.as_chunks::<6>().0.iter();
            let mut list = list.map(|s| {
                let value = u32::from_be_bytes([s[2], s[3], s[4], s[5]]);
                (u16::from_be_bytes([s[0], s[1]]), value)
            });
            (head.kind() == http2::kind::SETTINGS)
                .then(|| list.find(|(name, _)| *name == setting::MAX_HEADER_LIST_SIZE))?
        });
        assert_eq!(settings, Some((setting::MAX_HEADER_LIST_SIZE, told)));
    }
    let mut client = client(0);
    client.start();
    // Each field counts 32 bytes more than its length (RFC 9113, 6.5.2).
    let many = vec![("x", "y"); 2_000];
    let all = [
        &[(":status", "200"), ("content-type", "application/grpc")][..],
        &many,
    ]
    .concat();
    client.receive(&headers(1, &all, false)).unwrap();
    assert_eq!(client.ended(), [(0, Outcome::HeadTooLarge)]);
    let details = client.details().join("\n");
    assert!(details.contains("of 65536 bytes: --max-head"), "{details}");
}
