//! The envelope file of the server `known`: the commitment to its delays before the load, and the delays that it then
//! produced.
//!
//! The file consists of JSON lines. The first line holds the commitment: the SHA-256 of seed, nonce and law (the
//! distribution of delays), which the server also prints before its first connection. A line for each request follows,
//! and the last line opens the commitment by revealing all three. [`Envelope::read`] recomputes every delay and accepts
//! only delays that seed and law yield.

mod reading;
mod writing;

use serde::{Deserialize, Serialize};

pub use self::reading::{Envelope, EnvelopeError};
pub use self::writing::{EnvelopeLog, EnvelopeWriter};
use plimsoll_wire::hex;

use aws_lc_rs::digest::{SHA256, digest};

/// The version of the format.
const ENVELOPE_VERSION: u32 = 1;
/// The maximum length of a line in bytes, sufficient for the line with the law.
const MAX_LINE_BYTES: usize = 1 << 20;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EnvelopeLine {
    Sealed(EnvelopeCommitment),
    Request(ServedRequest),
    Opened(CommitmentOpening),
}

/// The first line, written before any request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeCommitment {
    envelope: u32,
    commitment: String,
}

/// One request and how it was answered. Times are nanoseconds on the machine's monotonic clock (CLOCK_MONOTONIC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedRequest {
    /// The request's number in the order in which requests were read, from 0.
    pub number: u64,
    /// When the request's last bytes reached this host, by the kernel's timestamp.
    pub arrived_ns: u64,
    /// The earliest time at which the last bytes can have arrived, if several requests were read at once and only the
    /// last of them has a timestamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived_after_ns: Option<u64>,
    /// When the response is due according to the law.
    pub due_ns: u64,
    /// The times immediately before and after the whole response was passed to the kernel; `None` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_ns: Option<[u64; 2]>,
}

/// The last line, which opens the commitment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitmentOpening {
    /// The seed of all random numbers.
    pub seed: u64,
    /// A random text without which the seed could be guessed from the commitment.
    pub nonce: String,
    /// The text of the law.
    pub law: String,
    /// The number of requests.
    pub requests: u64,
    /// The SHA-256 of the requests' lines in the file.
    pub requests_sha256: String,
}

/// Returns the commitment to a seed, a nonce and a law.
fn compute_commitment(seed: u64, nonce: &str, law: &str) -> String {
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
            compute_commitment(7, "abcd", "law"),
            "84a0aad0f17638677160e864a42a01713874796445e6f1048ff1702af2b36e7a"
        );
    }
}
