//! This file is long because each way of violating the record protocol has a test.

use super::*;

/// A key schedule whose keys are numbered consecutively.
struct Schedule {
    cipher: Cipher,
    sending: u8,
    receiving: u8,
    tickets: Vec<Vec<u8>>,
}

fn key(cipher: Cipher, number: u8, sequence: u64) -> TrafficKey {
    let length = match cipher {
        Cipher::Aes128Gcm => 16,
        _ => 32,
    };
    TrafficKey::new(cipher, &vec![number; length], [number; 12], sequence).unwrap()
}

impl KeySchedule for Schedule {
    fn next_sending_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.sending += 1;
        Ok(key(self.cipher, self.sending, 0))
    }
    fn next_receiving_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.receiving += 1;
        Ok(key(self.cipher, self.receiving, 0))
    }
    fn process_ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        self.tickets.push(payload.to_vec());
        Ok(())
    }
}

impl KeyRebuilder for Schedule {
    fn sending_key(&self, sequence: u64) -> Result<TrafficKey, RecordError> {
        Ok(key(self.cipher, self.sending, sequence))
    }
    fn receiving_key(&self, sequence: u64) -> Result<TrafficKey, RecordError> {
        Ok(key(self.cipher, self.receiving, sequence))
    }
}

/// Makes an end that sends with the keys from `sending` on.
fn end(cipher: Cipher, sending: u8, receiving: u8) -> TlsRecords<Schedule> {
    let schedule = Schedule {
        cipher,
        sending,
        receiving,
        tickets: Vec::new(),
    };
    TlsRecords::new(schedule, key(cipher, receiving, 0), key(cipher, sending, 0))
}

fn pair(cipher: Cipher) -> (TlsRecords<Schedule>, TlsRecords<Schedule>) {
    (end(cipher, 1, 101), end(cipher, 101, 1))
}

fn drain(from: &mut TlsRecords<Schedule>) -> Vec<u8> {
    let bytes = from.pending_output().to_vec();
    from.mark_sent(bytes.len());
    bytes
}

/// Passes `bytes` to `to` in pieces of `step`; returns the content and the result.
fn deliver(
    to: &mut TlsRecords<Schedule>,
    bytes: &[u8],
    step: usize,
) -> (Vec<u8>, Result<bool, RecordError>) {
    let mut got = Vec::new();
    let mut closed = false;
    for piece in bytes.chunks(step) {
        let mut piece = piece.to_vec();
        let taken = to.receive::<()>(&mut piece, &mut |plain| {
            got.extend_from_slice(plain);
            Ok(())
        });
        match taken {
            Ok(end) => closed = end,
            Err(ReceiveError::Record(e)) => return (got, Err(e)),
            Err(ReceiveError::Consumer(())) => unreachable!("the taker does not fail"),
        }
    }
    (got, Ok(closed))
}

/// Makes a record with the given inner content, type and padding.
fn record_of(from: &mut TlsRecords<Schedule>, inner: &[u8]) -> Vec<u8> {
    from.seal_inner_plaintext(inner).unwrap();
    drain(from)
}

#[test]
fn sealed_records_open_however_split() {
    for cipher in [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305,
    ] {
        let text: Vec<u8> = (0..40_000u32).map(|n| (n % 251) as u8).collect();
        for step in [1, 4, 5, 6, 1000, 16_406, usize::MAX] {
            let (mut a, mut b) = pair(cipher);
            a.seal(&text).unwrap();
            a.queue_close_notify().unwrap();
            let bytes = drain(&mut a);
            assert_eq!(deliver(&mut b, &bytes, step), (text.clone(), Ok(true)));
            assert!(b.partial.is_empty() && b.partial.capacity() == 0);
            assert_eq!(a.out.capacity(), 0, "an idle end keeps no buffer");
        }
    }
}

#[test]
fn flipped_bit_fails_connection_permanently() {
    let (mut a, _) = pair(Cipher::Aes128Gcm);
    a.seal(b"attack at dawn").unwrap();
    let good = drain(&mut a);
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (_, mut b) = pair(Cipher::Aes128Gcm);
        let (got, end) = deliver(&mut b, &bytes, usize::MAX);
        assert_eq!(got, b"", "bit {bit}");
        // A changed length may also leave the record incomplete.
        let length_grew = (24..40).contains(&bit) && end == Ok(false);
        assert!(end.is_err() || length_grew, "bit {bit}: {end:?}");
        if end == Err(RecordError::BadTag) {
            assert_eq!(
                deliver(&mut b, &good, usize::MAX).1,
                Err(RecordError::BadTag)
            );
            // The alert bad_record_mac is pending.
            let (mut peer, _) = pair(Cipher::Aes128Gcm);
            let alert = drain(&mut b);
            assert_eq!(
                deliver(&mut peer, &alert, usize::MAX).1,
                Err(RecordError::AlertReceived(20))
            );
        }
    }
}

#[test]
fn reordered_repeated_or_missing_records_fail() {
    let (mut a, _) = pair(Cipher::Chacha20Poly1305);
    let records: Vec<Vec<u8>> = [b"one", b"two"]
        .iter()
        .map(|text| {
            a.seal(*text).unwrap();
            drain(&mut a)
        })
        .collect();
    for (order, got) in [
        (vec![1, 0], "".as_bytes()),
        (vec![0, 0], b"one"),
        (vec![1], b""),
    ] {
        let (_, mut b) = pair(Cipher::Chacha20Poly1305);
        let bytes: Vec<u8> = order.iter().flat_map(|n| records[*n].clone()).collect();
        assert_eq!(
            deliver(&mut b, &bytes, 7),
            (got.to_vec(), Err(RecordError::BadTag)),
            "{order:?}"
        );
    }
}

#[test]
fn padded_and_empty_data_is_accepted() {
    let (mut a, mut b) = pair(Cipher::Aes256Gcm);
    let padded = record_of(&mut a, b"data\x17\0\0\0\0");
    let empty = record_of(&mut a, b"\x17");
    let empty_padded = record_of(&mut a, &[&[23u8][..], &[0; 1000]].concat());
    let bytes = [padded, empty, empty_padded].concat();
    assert_eq!(deliver(&mut b, &bytes, 3), (b"data".to_vec(), Ok(false)));
    for (inner, error) in [
        (&b"\0\0\0"[..], RecordError::OnlyPadding),
        (b"\x16", RecordError::Handshake),
        (b"\x15", RecordError::Alert),
        (b"\x01\x15", RecordError::Alert),
        (b"\x01\x14", RecordError::Unexpected(20)),
        (b"abc\x63", RecordError::Unexpected(99)),
        (b"\x02\x28\x15", RecordError::AlertReceived(40)),
    ] {
        let (mut a, mut b) = pair(Cipher::Aes256Gcm);
        let bytes = record_of(&mut a, inner);
        assert_eq!(deliver(&mut b, &bytes, 100).1, Err(error), "{inner:?}");
    }
}

#[test]
fn record_size_limits_are_enforced() {
    let full = |extra: usize| {
        let (mut a, mut b) = pair(Cipher::Aes128Gcm);
        let inner = [&vec![b'x'; MAX_PLAINTEXT_BYTES + extra][..], &[23]].concat();
        let bytes = record_of(&mut a, &inner);
        deliver(&mut b, &bytes, 999)
    };
    assert_eq!(full(0), (vec![b'x'; MAX_PLAINTEXT_BYTES], Ok(false)));
    assert_eq!(
        full(1).1,
        Err(RecordError::TooLong(MAX_PLAINTEXT_BYTES + 2)),
        "fits the ciphertext's limit and not the plaintext's"
    );
    for (header, error) in [
        ([23, 3, 3, 0xff, 0xff], RecordError::TooLong(0xffff)),
        ([23, 3, 3, 0, 0], RecordError::TooShort),
        ([20, 3, 3, 0, 1], RecordError::Unprotected(20)),
        ([22, 3, 3, 0, 100], RecordError::Unprotected(22)),
        ([21, 3, 3, 0, 2], RecordError::Unprotected(21)),
        (*b"HTTP/", RecordError::Unprotected(b'H')),
    ] {
        for step in [1, 5] {
            let (_, mut b) = pair(Cipher::Aes128Gcm);
            // The record is rejected by its header alone, before memory is allocated for the rest.
            assert_eq!(deliver(&mut b, &header, step).1, Err(error.clone()));
            assert!(b.partial.capacity() == 0);
        }
    }
}

#[test]
fn key_updates_rotate_and_are_answered() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    a.seal(b"old ").unwrap();
    let mut bytes = drain(&mut a);
    bytes.extend(record_of(&mut a, &[KEY_UPDATE, 0, 0, 1, 1, HANDSHAKE]));
    a.sending = a.schedule.next_sending_key().unwrap();
    a.seal(b"new").unwrap();
    bytes.extend(drain(&mut a));
    assert_eq!(
        deliver(&mut b, &bytes, 11),
        (b"old new".to_vec(), Ok(false))
    );
    assert_eq!((b.schedule.receiving, b.schedule.sending), (2, 101));
    // The answer precedes the next data, under the old key.
    b.seal(b"answer").unwrap();
    assert_eq!(b.schedule.sending, 102);
    let bytes = drain(&mut b);
    assert_eq!(deliver(&mut a, &bytes, 11), (b"answer".to_vec(), Ok(false)));
    assert_eq!(a.schedule.receiving, 102);
    b.seal(b"!").unwrap();
    assert_eq!(b.schedule.sending, 102, "one answer for one question");

    for (message, error, alert) in [
        // RFC 8446 §4.6.3: illegal_parameter.
        (
            &[KEY_UPDATE, 0, 0, 1, 2, HANDSHAKE][..],
            RecordError::KeyUpdateValue(2),
            47,
        ),
        (
            &[KEY_UPDATE, 0, 0, 0, HANDSHAKE],
            RecordError::KeyUpdate(0),
            50,
        ),
        // Such a message is rejected without waiting for its rest.
        (
            &[KEY_UPDATE, 0, 0, 2, HANDSHAKE],
            RecordError::KeyUpdate(2),
            50,
        ),
        // §5.1: unexpected_message.
        (
            &[KEY_UPDATE, 0, 0, 1, 0, 9, HANDSHAKE],
            RecordError::KeyUpdateNotLast,
            10,
        ),
    ] {
        let (mut a, mut b) = pair(Cipher::Aes128Gcm);
        let bytes = record_of(&mut a, message);
        assert_eq!(deliver(&mut b, &bytes, 50).1, Err(error));
        assert_eq!(alert_sent(&mut b), alert);
    }
}

/// Returns the alert that the second end of a [`pair`] has sent.
fn alert_sent(by: &mut TlsRecords<Schedule>) -> u8 {
    let bytes = drain(by);
    let (mut peer, _) = pair(by.schedule.cipher);
    match deliver(&mut peer, &bytes, usize::MAX) {
        (text, Err(RecordError::AlertReceived(alert))) if text.is_empty() => alert,
        other => panic!("{other:?}"),
    }
}

/// Passes `times` records that `make` makes at one end to the other; returns both ends and the last result.
fn repeated(
    times: usize,
    mut make: impl FnMut(&mut TlsRecords<Schedule>) -> Vec<u8>,
) -> (
    TlsRecords<Schedule>,
    TlsRecords<Schedule>,
    Result<bool, RecordError>,
) {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    let mut end = Ok(false);
    for _ in 0..times {
        let bytes = make(&mut a);
        end = deliver(&mut b, &bytes, usize::MAX).1;
    }
    (a, b, end)
}

#[test]
fn unproductive_record_limits_match_library() {
    let empty = |a: &mut TlsRecords<Schedule>| record_of(a, &[APPLICATION_DATA, 0, 0]);
    let (mut a, mut b, end) = repeated(32, empty);
    assert_eq!(end, Ok(false));
    // Data resets the count.
    let bytes = [
        record_of(&mut a, b"x\x17"),
        (0..32).flat_map(|_| empty(&mut a)).collect(),
    ]
    .concat();
    assert_eq!(deliver(&mut b, &bytes, 7), (b"x".to_vec(), Ok(false)));
    let bytes = empty(&mut a);
    assert_eq!(deliver(&mut b, &bytes, 7).1, Err(RecordError::Empty));
    assert_eq!(alert_sent(&mut b), 10);

    let update = |a: &mut TlsRecords<Schedule>| {
        let bytes = record_of(a, &[KEY_UPDATE, 0, 0, 1, 0, HANDSHAKE]);
        a.sending = a.schedule.next_sending_key().unwrap();
        bytes
    };
    let (mut a, mut b, end) = repeated(32, update);
    assert_eq!(end, Ok(false));
    let bytes = [
        empty(&mut a),
        (0..32).flat_map(|_| update(&mut a)).collect(),
    ]
    .concat();
    assert_eq!(deliver(&mut b, &bytes, 7).1, Ok(false), "data, if none");
    let bytes = update(&mut a);
    assert_eq!(deliver(&mut b, &bytes, 7).1, Err(RecordError::KeyUpdates));
    assert_eq!(alert_sent(&mut b), 10);

    let canceled = |a: &mut TlsRecords<Schedule>| record_of(a, &[1, USER_CANCELED, ALERT]);
    let (mut a, mut b, end) = repeated(4, canceled);
    assert_eq!(end, Ok(false));
    let bytes = [record_of(&mut a, b"x\x17"), canceled(&mut a)].concat();
    assert_eq!(
        deliver(&mut b, &bytes, 7),
        (b"x".to_vec(), Err(RecordError::Warnings))
    );
    assert_eq!(alert_sent(&mut b), 10);
}

#[test]
fn message_length_limits_are_inclusive() {
    for (header, end) in [
        ([23, 3, 3, 0x41, 0x00], Ok(false)),
        ([23, 3, 3, 0x41, 0x01], Err(RecordError::TooLong(0x4101))),
        ([23, 3, 3, 0, 17], Ok(false)),
        ([23, 3, 3, 0, 16], Err(RecordError::TooShort)),
    ] {
        let (_, mut b) = pair(Cipher::Aes128Gcm);
        assert_eq!(deliver(&mut b, &header, 3).1, end);
    }
    let ticket = |length: usize| {
        let [_, high, middle, low] = u32::try_from(length).unwrap().to_be_bytes();
        let mut message = vec![NEW_SESSION_TICKET, high, middle, low];
        message.resize(4 + length, 7);
        message
    };
    let give_all = |message: &[u8]| {
        let (mut a, mut b) = pair(Cipher::Aes128Gcm);
        let bytes: Vec<u8> = message
            .chunks(1_000)
            .flat_map(|piece| record_of(&mut a, &[piece, &[HANDSHAKE]].concat()))
            .collect();
        let end = deliver(&mut b, &bytes, 4_096).1;
        (b, end)
    };
    let most = (1 << 16) - 1;
    let (b, end) = give_all(&ticket(most));
    assert_eq!((end, b.schedule.tickets.len()), (Ok(false), 1));
    assert_eq!(b.schedule.tickets[0].len(), most);
    assert_eq!(b.handshake.capacity(), 0, "an idle end keeps no buffer");
    let (b, end) = give_all(&ticket(most + 1));
    assert_eq!(
        (end, b.schedule.tickets.len()),
        (Err(RecordError::Handshake), 0)
    );
    // Two messages together may exceed the maximum length of one.
    let (b, end) = give_all(&[ticket(most - 500), ticket(40_000)].concat());
    assert_eq!((end, b.schedule.tickets.len()), (Ok(false), 2));
    assert!(b.handshake.is_empty());
}

#[test]
fn tickets_pass_and_other_messages_fail() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    let two = [4, 0, 0, 2, 7, 8, 4, 0, 0, 1, 9];
    let (first, second) = two.split_at(5);
    let mut bytes = record_of(&mut a, &[first, &[22]].concat());
    bytes.extend(record_of(&mut a, &[second, &[22, 0, 0]].concat()));
    assert_eq!(deliver(&mut b, &bytes, 9), (Vec::new(), Ok(false)));
    assert_eq!(b.schedule.tickets, [vec![7, 8], vec![9]]);

    let mut cut = record_of(&mut a, &[4, 0, 0, 2, 7, 22]);
    cut.extend(record_of(&mut a, b"data\x17"));
    assert_eq!(deliver(&mut b, &cut, 100).1, Err(RecordError::Interleaved));

    for (message, error) in [
        (&[13, 0, 0, 0, 22][..], RecordError::Unexpected(13)),
        (&[1, 0, 1, 0, 22], RecordError::Unexpected(1)),
        (&[4, 1, 0, 0, 22], RecordError::Handshake),
    ] {
        let (mut a, mut b) = pair(Cipher::Aes128Gcm);
        let bytes = record_of(&mut a, message);
        assert_eq!(deliver(&mut b, &bytes, 100).1, Err(error));
    }
}

#[test]
fn keys_rotate_before_sequence_wraps() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    a.sending.sequence = MAX_AES_RECORDS - 1;
    b.receiving.sequence = MAX_AES_RECORDS - 1;
    for text in [b"last", b"next"] {
        a.seal(text).unwrap();
        let bytes = drain(&mut a);
        assert_eq!(deliver(&mut b, &bytes, 100).0, text);
    }
    // The key update itself is one more record under the old key.
    assert_eq!((a.schedule.sending, b.schedule.receiving), (2, 2));
    assert_eq!(a.sending.sequence, 1);

    let (mut a, mut b) = pair(Cipher::Chacha20Poly1305);
    a.sending.sequence = u64::MAX;
    assert_eq!(a.seal(b"x"), Err(RecordError::Sequence));
    let bytes = {
        let (mut other, _) = pair(Cipher::Chacha20Poly1305);
        other.seal(b"x").unwrap();
        drain(&mut other)
    };
    b.receiving.sequence = u64::MAX;
    assert_eq!(deliver(&mut b, &bytes, 100).1, Err(RecordError::Sequence));
}

#[test]
fn truncated_stream_yields_only_whole_records() {
    let (mut a, _) = pair(Cipher::Aes256Gcm);
    a.seal(b"first").unwrap();
    let whole = a.pending_output().len();
    a.seal(b"second").unwrap();
    let bytes = drain(&mut a);
    for end in 0..bytes.len() {
        let (_, mut b) = pair(Cipher::Aes256Gcm);
        let (got, closed) = deliver(&mut b, &bytes[..end], usize::MAX);
        assert_eq!(got, if end >= whole { &b"first"[..] } else { b"" });
        assert_eq!(closed, Ok(false), "no close_notify was seen");
    }
}

#[test]
fn data_after_close_is_ignored() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    a.queue_close_notify().unwrap();
    a.seal(b"late").unwrap();
    let mut bytes = drain(&mut a);
    bytes.extend_from_slice(b"garbage");
    assert_eq!(deliver(&mut b, &bytes, usize::MAX), (Vec::new(), Ok(true)));

    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    a.seal(b"x").unwrap();
    let mut bytes = drain(&mut a);
    assert_eq!(
        b.receive(&mut bytes, &mut |_| Err("no")),
        Err(ReceiveError::Consumer("no"))
    );
}

#[test]
fn only_idle_session_can_rest() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    assert!(a.can_rest() && b.can_rest());
    a.seal(b"text").unwrap();
    assert!(!a.can_rest(), "not written");
    let bytes = drain(&mut a);
    assert!(a.can_rest());
    let (half, rest) = bytes.split_at(7);
    assert_eq!(deliver(&mut b, half, 7).1, Ok(false));
    assert!(!b.can_rest(), "half a record");
    assert_eq!(deliver(&mut b, rest, 99), (b"text".to_vec(), Ok(false)));
    assert!(b.can_rest());
    let half = record_of(&mut a, &[NEW_SESSION_TICKET, 0, 0, 2, 7, HANDSHAKE]);
    assert_eq!(deliver(&mut b, &half, 99).1, Ok(false));
    assert!(!b.can_rest(), "half a message");

    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    a.queue_close_notify().unwrap();
    let bytes = drain(&mut a);
    assert_eq!(deliver(&mut b, &bytes, 99).1, Ok(true));
    assert!(!b.can_rest(), "the peer is gone");

    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    let bytes = record_of(&mut a, b"\0");
    assert_eq!(deliver(&mut b, &bytes, 99).1, Err(RecordError::OnlyPadding));
    drain(&mut b);
    assert!(!b.can_rest(), "failed");
}

#[test]
fn counters_persist_across_rest() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    let mut bytes = Vec::new();
    for _ in 0..MAX_USER_CANCELED_ALERTS {
        bytes.extend(record_of(&mut a, &[1, USER_CANCELED, ALERT]));
    }
    bytes.extend(record_of(&mut a, &[KEY_UPDATE, 0, 0, 1, 1, HANDSHAKE]));
    a.sending = a.schedule.next_sending_key().unwrap();
    for _ in 0..MAX_EMPTY_RECORDS {
        bytes.extend(record_of(&mut a, &[APPLICATION_DATA]));
    }
    assert_eq!(deliver(&mut b, &bytes, 99).1, Ok(false));
    let mut b = b.into_resting(Some).unwrap().wake(|kept| kept).unwrap();
    b.seal(b"answer").unwrap();
    assert_eq!(b.schedule.sending, 102, "the update that was asked for");
    let bytes = drain(&mut b);
    assert_eq!(deliver(&mut a, &bytes, 99).0, b"answer");
    let one_more = record_of(&mut a, &[APPLICATION_DATA]);
    let mut c = b.into_resting(Some).unwrap().wake(|kept| kept).unwrap();
    assert_eq!(deliver(&mut c, &one_more, 99).1, Err(RecordError::Empty));

    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    for _ in 0..MAX_USER_CANCELED_ALERTS {
        let bytes = record_of(&mut a, &[1, USER_CANCELED, ALERT]);
        assert_eq!(deliver(&mut b, &bytes, 99).1, Ok(false));
        b = b.into_resting(Some).unwrap().wake(|kept| kept).unwrap();
    }
    let one_more = record_of(&mut a, &[1, USER_CANCELED, ALERT]);
    assert_eq!(deliver(&mut b, &one_more, 99).1, Err(RecordError::Warnings));
}

/// Header, type and tag take 22 bytes per record of up to 16,384 bytes.
#[test]
fn minimum_bytes_remaining_assume_full_records() {
    let (mut a, mut b) = pair(Cipher::Aes128Gcm);
    for (plaintext, wire) in [
        (0, 0),
        (1, 23),
        (16_384, 16_406),
        (16_385, 16_429),
        (100_000, 100_154),
    ] {
        assert_eq!(b.min_incoming_bytes(plaintext), wire);
    }
    a.seal(&[7; 100]).unwrap();
    let bytes = drain(&mut a);
    assert_eq!(deliver(&mut b, &bytes[..22], 99).1, Ok(false));
    assert_eq!(b.min_incoming_bytes(100), 100);
    assert_eq!(b.min_incoming_bytes(0), 0);
}
