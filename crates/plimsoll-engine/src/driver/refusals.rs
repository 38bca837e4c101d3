//! Calls that a server refuses for now (over HTTP with 429, or 503 and `Retry-After`), and how often they are sent again.

use std::time::Duration;

use super::RefusedCall;

/// The wait before the first retry of a call if the server does not say how long to wait. It doubles with each retry.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

/// How often calls that the server refuses for now are sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalRetries {
    /// The maximum number of times that a call is sent again; 0: never.
    pub max_retries: u32,
    /// The maximum wait before a call is sent again.
    pub max_wait: Duration,
}

impl RefusalRetries {
    /// Returns how long call `number` waits before it is sent again; `None`: it is not. `earlier`: how often it was
    /// sent again before.
    pub(crate) fn wait(self, refused: &RefusedCall, number: u64, earlier: u32) -> Option<Duration> {
        if earlier >= self.max_retries {
            return None;
        }
        let wait = refused
            .retry_after
            .unwrap_or_else(|| backoff(number, earlier));
        Some(wait.min(self.max_wait))
    }
}

/// Returns a wait that doubles with each retry, and is shortened by up to a half, differently for each call: calls that
/// were refused together are not sent together again.
fn backoff(number: u64, earlier: u32) -> Duration {
    let longest = FIRST_BACKOFF.saturating_mul(1 << earlier.min(20));
    // The finaliser of MurmurHash3 distributes consecutive numbers evenly.
    let mut hash = number ^ (u64::from(earlier) << 56);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let share = ((hash ^ (hash >> 33)) >> 32) as u32;
    longest / 2 + (longest / 2).mul_f64(f64::from(share) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{Outcome, Time};

    use super::*;
    use crate::driver::{CallId, CompletedCall};

    fn refused(retry_after: Option<Duration>) -> RefusedCall {
        RefusedCall {
            done: CompletedCall {
                call: CallId(0),
                outcome: Outcome::Unavailable,
                first_byte: Time::NEVER,
                bytes_sent: 0,
                bytes_received: 0,
            },
            retry_after,
        }
    }

    #[test]
    fn server_decides_wait_up_to_limit() {
        let retries = RefusalRetries {
            max_retries: 2,
            max_wait: Duration::from_secs(5),
        };
        let of = |seconds, earlier| {
            let call = refused(Some(Duration::from_secs(seconds)));
            retries.wait(&call, 7, earlier)
        };
        assert_eq!(of(3, 0), Some(Duration::from_secs(3)));
        assert_eq!(of(90, 1), Some(Duration::from_secs(5)));
        assert_eq!(of(3, 2), None);
        assert_eq!(RefusalRetries::default().wait(&refused(None), 7, 0), None);
    }

    #[test]
    fn backoff_doubles_and_differs_between_calls() {
        let retries = RefusalRetries {
            max_retries: 100,
            max_wait: Duration::from_secs(10),
        };
        let of = |number, earlier| retries.wait(&refused(None), number, earlier).unwrap();
        for earlier in 0..4 {
            let longest = FIRST_BACKOFF * (1 << earlier);
            let mut waits: Vec<Duration> = (0..50).map(|number| of(number, earlier)).collect();
            assert!(waits.iter().all(|w| (longest / 2..=longest).contains(w)));
            waits.sort();
            waits.dedup();
            assert!(waits.len() > 40, "{waits:?}");
        }
        assert_eq!(of(1, 90), Duration::from_secs(10));
    }
}
