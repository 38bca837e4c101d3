//! A request encoded once, of which only the id changes from call to call.
//!
//! With a checksum the bytes behind the id change too. CRC-32 is linear over GF(2), so
//! the checksum of a frame with a given id is that of the frame with id 0, combined by
//! exclusive or with what each byte of the id adds: four table look-ups instead of a pass
//! over the frame.

use std::time::Duration;

use plimsoll_model::Time;

use super::frame::{Command, Form, Frame, Kind, codec};
use crate::numbered::Settings;

/// What every call of a run sends, and how the connections behave.
#[derive(Clone, Copy, Debug)]
pub struct BoltRequest<'a> {
    pub form: Form,
    pub codec: u8,
    pub class: &'a [u8],
    pub header: &'a [u8],
    pub content: &'a [u8],
    /// What the server gets as the call's timeout; `None`: none. It counts in milliseconds.
    pub timeout: Option<Duration>,
    /// Calls end when they are sent: no answer exists.
    pub oneway: bool,
    /// Calls at once on one connection.
    pub in_flight: u32,
    /// Silence after which the connection is tried; `None`: never.
    pub heartbeat: Option<Duration>,
    /// Answers with a content over so many bytes end the connection.
    pub max_content: usize,
}

impl Default for BoltRequest<'_> {
    fn default() -> Self {
        BoltRequest {
            form: Form::V1,
            codec: codec::HESSIAN2,
            class: &[],
            header: &[],
            content: &[],
            timeout: None,
            oneway: false,
            in_flight: u32::MAX,
            heartbeat: None,
            max_content: super::frame::MAX_CONTENT,
        }
    }
}

/// What of a request can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("class of {0} bytes: at most 32767 fit a frame")]
    Class(usize),
    #[error("header map of {0} bytes: at most 32767 fit a frame")]
    Header(usize),
    #[error("content of {0} bytes: at most 2147483647 fit a frame")]
    Content(usize),
    #[error("0 calls in flight carry nothing: use 1 or more")]
    InFlight,
}

/// The bytes of a request and the settings of its connections.
#[derive(Debug)]
pub(super) struct Prepared {
    /// With id 0.
    frame: Vec<u8>,
    id_at: usize,
    /// What each value of each byte of the id adds to the checksum.
    crc: Option<Box<[[u32; 256]; 4]>>,
    pub(super) form: Form,
    pub(super) oneway: bool,
    timeout: Option<Duration>,
    in_flight: u32,
    /// Nanoseconds; 0: never.
    heartbeat: u64,
    pub(super) max_content: usize,
}

impl Prepared {
    pub(super) fn new(request: &BoltRequest<'_>) -> Result<Prepared, RequestError> {
        let most = i16::MAX as usize;
        if request.class.len() > most {
            return Err(RequestError::Class(request.class.len()));
        }
        if request.header.len() > most {
            return Err(RequestError::Header(request.header.len()));
        }
        if request.content.len() > i32::MAX as usize {
            return Err(RequestError::Content(request.content.len()));
        }
        if request.in_flight == 0 {
            return Err(RequestError::InFlight);
        }
        let timeout = request.timeout.map_or(-1, millis);
        let mut frame = Vec::new();
        Frame {
            form: request.form,
            kind: if request.oneway {
                Kind::Oneway { timeout }
            } else {
                Kind::Request { timeout }
            },
            command: Command::RpcRequest,
            command_version: 1,
            id: 0,
            codec: request.codec,
            class: request.class,
            header: request.header,
            content: request.content,
        }
        .write(&mut frame);
        let id_at = request.form.id_at();
        let crc = request
            .form
            .has_crc()
            .then(|| crc_of_ids(frame.len() - 4, id_at));
        Ok(Prepared {
            frame,
            id_at,
            crc,
            form: request.form,
            oneway: request.oneway,
            timeout: request.timeout,
            in_flight: request.in_flight,
            heartbeat: request.heartbeat.map_or(0, |d| (Time::ZERO + d).0),
            max_content: request.max_content,
        })
    }

    /// What the connections have alike.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            in_flight: self.in_flight,
            heartbeat: self.heartbeat,
            request_bytes: u32::try_from(self.frame.len()).unwrap_or(u32::MAX),
        }
    }

    /// Appends the request with `id` of a call that was due `waited` ago: its timeout is what is
    /// left.
    pub(super) fn write_waited(&self, id: u32, waited: Duration, out: &mut Vec<u8>) {
        let start = out.len();
        self.write(id, out);
        let Some(timeout) = self.timeout else {
            return;
        };
        let left = millis(timeout.saturating_sub(waited)).to_be_bytes();
        let written = &mut out[start..];
        written[self.form.timeout_at()..][..4].copy_from_slice(&left);
        if self.form.has_crc() {
            let at = written.len() - 4;
            let crc = crc32fast::hash(&written[..at]).to_be_bytes();
            written[at..].copy_from_slice(&crc);
        }
    }

    /// Appends the request with `id`.
    #[inline]
    pub(super) fn write(&self, id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.frame);
        let written = &mut out[start..];
        let id = id.to_be_bytes();
        written[self.id_at..][..4].copy_from_slice(&id);
        if let Some(tables) = &self.crc {
            let at = written.len() - 4;
            for (table, byte) in tables.iter().zip(id) {
                let adds = table[usize::from(byte)].to_be_bytes();
                for i in 0..4 {
                    written[at + i] ^= adds[i];
                }
            }
        }
    }
}

/// A timeout as a frame has it: one below a millisecond must not become "none".
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis().max(1)).unwrap_or(i32::MAX)
}

/// For each byte of an id at `id_at` of `length` bytes, what its values add to the CRC.
fn crc_of_ids(length: usize, id_at: usize) -> Box<[[u32; 256]; 4]> {
    let mut zeros = vec![0u8; length];
    let nothing = crc32fast::hash(&zeros);
    let mut tables = Box::new([[0u32; 256]; 4]);
    for (place, table) in tables.iter_mut().enumerate() {
        // One bit at a time: the other values are their sums.
        for bit in 0..8 {
            zeros[id_at + place] = 1 << bit;
            table[1 << bit] = crc32fast::hash(&zeros) ^ nothing;
        }
        zeros[id_at + place] = 0;
        for value in 1..256usize {
            let lowest = value & value.wrapping_neg();
            table[value] = table[value ^ lowest] ^ table[lowest];
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_id_gets_the_checksum_of_its_own_frame(
            id in any::<u32>(), content in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            for form in [Form::V1, Form::V2, Form::V2_CRC] {
                let request = BoltRequest { form, content: &content, ..BoltRequest::default() };
                let prepared = Prepared::new(&request).unwrap();
                let timeout = Some(Duration::from_millis(3_000));
                let late = Prepared::new(&BoltRequest { timeout, ..request }).unwrap();
                let mut wire = b"before".to_vec();
                late.write_waited(id, Duration::from_millis(1_200), &mut wire);
                let (frame, _) = Frame::parse(&wire[6..], 1000).unwrap().unwrap();
                let left = Kind::Request { timeout: 1_800 };
                prop_assert_eq!((frame.id, frame.kind, frame.content), (id, left, &content[..]));
                let mut wire = b"before".to_vec();
                prepared.write(id, &mut wire);
                let (frame, length) = Frame::parse(&wire[6..], 1000).unwrap().unwrap();
                prop_assert_eq!((frame.id, frame.content), (id, &content[..]));
                prop_assert_eq!(length, prepared.settings().request_bytes as usize);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let long = vec![b'a'; 40_000];
        let refuse = |request: BoltRequest<'_>| Prepared::new(&request).unwrap_err().to_string();
        let request = BoltRequest::default();
        assert!(
            refuse(BoltRequest {
                class: &long,
                ..request
            })
            .contains("class of 40000")
        );
        assert!(
            refuse(BoltRequest {
                header: &long,
                ..request
            })
            .contains("header map of 40000")
        );
        assert!(
            refuse(BoltRequest {
                in_flight: 0,
                ..request
            })
            .contains("0 calls in flight")
        );
    }
}
