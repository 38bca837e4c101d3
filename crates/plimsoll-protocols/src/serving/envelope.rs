//! The envelope of a server whose delays are known: what it was bound to beforehand, and what it then did.
//!
//! It is a file of JSON lines. The first has the commitment: the SHA-256 of seed, nonce and law, which the server also
//! prints before its first connection. Then comes a line for each request, and the last opens the commitment. Whoever
//! reads it draws every delay again, so [`Envelope::read`] returns only what seed and law give.

mod reading;
mod writing;

use serde::{Deserialize, Serialize};

pub use self::reading::{Envelope, EnvelopeError};
pub(crate) use self::writing::{Log, Writer};
use crate::hex;

use aws_lc_rs::digest::{SHA256, digest};

/// The version of the format.
const ENVELOPE_VERSION: u32 = 1;
/// The longest line, which is the one that holds the law.
const MAX_LINE_BYTES: usize = 1 << 20;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Sealed(Sealed),
    Request(ServedRequest),
    Opened(Opened),
}

/// What is written before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    envelope: u32,
    commitment: String,
}

/// A request with what became of it. Times are nanoseconds on the machine's monotonic clock (CLOCK_MONOTONIC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedRequest {
    /// Its place among all, in the order in which they were read, from 0.
    pub number: u64,
    /// When its last bytes reached this host, by the kernel's stamp.
    pub arrived_ns: u64,
    /// When they did at the earliest, where several requests were read at once and only the last has a stamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived_after_ns: Option<u64>,
    /// When the law has its answer leave.
    pub due_ns: u64,
    /// Between which moments the kernel was given the whole answer; `None`: it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_ns: Option<[u64; 2]>,
}

/// What opens the commitment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// What everything was drawn from.
    pub seed: u64,
    /// Keeps the seed from being guessed from the commitment.
    pub nonce: String,
    /// The law's text.
    pub law: String,
    /// How many requests there were.
    pub requests: u64,
    /// The SHA-256 of the requests' lines, as they stand in the file.
    pub requests_sha256: String,
}

/// Returns the commitment to a seed, a nonce and a law.
fn commitment(seed: u64, nonce: &str, law: &str) -> String {
    let text = format!("plimsoll known {ENVELOPE_VERSION}\n{seed}\n{nonce}\n{law}");
    hex::encode(digest(&SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commitment_is_hash_of_documented_text() {
        // printf 'plimsoll known 1\n7\nabcd\nlaw' | sha256sum
        assert_eq!(
            commitment(7, "abcd", "law"),
            "84a0aad0f17638677160e864a42a01713874796445e6f1048ff1702af2b36e7a"
        );
    }
}
