//! The record layer against a peer that seals valid and invalid records as the input says: inner
//! types, padding, lengths, flipped bits, key updates. Nothing panics, nothing is opened after an
//! error, and the split of the bytes makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::tls::record::{
    Cipher, KeySchedule, ReceiveError, RecordError, TlsRecords, TrafficKey,
};

const CIPHER: Cipher = Cipher::Chacha20Poly1305;

struct Schedule {
    sending: u8,
    receiving: u8,
}

fn key(number: u8) -> TrafficKey {
    TrafficKey::new(CIPHER, &[number; 32], [number; 12], 0).expect("the key fits the cipher")
}

impl KeySchedule for Schedule {
    fn next_sending_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.sending = self.sending.wrapping_add(1);
        Ok(key(self.sending))
    }
    fn next_receiving_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.receiving = self.receiving.wrapping_add(1);
        Ok(key(self.receiving))
    }
    fn process_ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        if payload.len() > 1000 {
            return Err(RecordError::Library("too long".to_owned()));
        }
        Ok(())
    }
}

fn new_records(sending: u8, receiving: u8) -> TlsRecords<Schedule> {
    let schedule = Schedule { sending, receiving };
    TlsRecords::new(schedule, key(receiving), key(sending))
}

fn open_all(bytes: &[u8], step: usize) -> (Vec<u8>, Result<bool, RecordError>) {
    let mut records = new_records(101, 1);
    let mut got = Vec::new();
    let mut closed = false;
    for piece in bytes.chunks(step) {
        let result = records.receive::<()>(&mut piece.to_vec(), &mut |plain| {
            got.extend_from_slice(plain);
            Ok(())
        });
        match result {
            Ok(end) => closed = end,
            Err(ReceiveError::Record(e)) => {
                let before = got.len();
                let again = records.receive::<()>(&mut piece.to_vec(), &mut |_| Err(()));
                assert_eq!(again, Err(ReceiveError::Record(e.clone())));
                assert_eq!(before, got.len());
                return (got, Err(e));
            }
            Err(ReceiveError::Consumer(())) => unreachable!("the consumer does not fail"),
        }
    }
    (got, Ok(closed))
}

// Each step of the input: an action, and how many of the following bytes it uses.
fuzz_target!(|input: &[u8]| {
    let mut peer = new_records(1, 101);
    let mut bytes = Vec::new();
    let mut rest = input;
    let mut step = 1;
    while let [what, length, after @ ..] = rest {
        let (content, next) = after.split_at(usize::from(*length).min(after.len()));
        rest = next;
        let from = bytes.len();
        match what % 5 {
            0 => bytes.extend_from_slice(content),
            1 => drop(peer.seal(content)),
            // Any inner plaintext, including its type and padding.
            2 => drop(peer.seal_inner_plaintext(content)),
            3 => drop(peer.queue_close_notify()),
            _ => step = usize::from(*length).max(1),
        }
        bytes.extend_from_slice(peer.pending_output());
        peer.mark_sent(peer.pending_output().len());
        if what & 0x80 != 0 && bytes.len() > from {
            let at = from + usize::from(*length) % (bytes.len() - from);
            bytes[at] ^= 1 << (what >> 4 & 7);
        }
    }
    let whole = open_all(&bytes, bytes.len().max(1));
    assert_eq!(whole, open_all(&bytes, step));
});
