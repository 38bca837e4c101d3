//! Answers by which a server refuses a request for now: 429, and 503 with `Retry-After` (RFC 9110 §10.2.3, RFC 6585 §4).

use std::time::Duration;

pub(super) use plimsoll_engine::driver::RefusalRetries;
use plimsoll_engine::driver::{CompletedCall, Event, RefusedCall};
use plimsoll_model::Outcome;

/// The outcomes of requests that are refused for now. A 503 without `Retry-After` may last.
const REFUSALS: [Outcome; 3] = [
    Outcome::coded("HTTP_429"),
    Outcome::coded("HTTP_429_RETRY_AFTER"),
    Outcome::coded("HTTP_503_RETRY_AFTER"),
];

/// The moment from which a request that was refused for now may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The server does not say, or in no known format.
    Unspecified,
    /// A time from the answer on.
    After(Duration),
    /// A time of day, in seconds since 1970.
    At(u64),
}

impl Refusal {
    /// Returns the refusal of an answer with this outcome; `None` if the answer is none. `retry_after`: the value of its
    /// field.
    pub(super) fn from_head(outcome: Outcome, retry_after: Option<&[u8]>) -> Option<Refusal> {
        if !REFUSALS.contains(&outcome) {
            return None;
        }
        let text = retry_after.and_then(|value| std::str::from_utf8(value).ok());
        Some(text.map_or(Refusal::Unspecified, |text| parse(text.trim())))
    }

    /// Returns the refusal with a time from the answer on in place of a time of day. `unix_ns`: the time of the answer in
    /// nanoseconds since 1970.
    pub(super) fn relative_to(self, unix_ns: u64) -> Refusal {
        self.wait(unix_ns).map_or(self, Refusal::After)
    }

    /// Returns the wait from `unix_ns`, the time of the answer in nanoseconds since 1970.
    fn wait(self, unix_ns: u64) -> Option<Duration> {
        match self {
            Refusal::Unspecified => None,
            Refusal::After(wait) => Some(wait),
            Refusal::At(unix_s) => {
                let at_ns = unix_s.saturating_mul(1_000_000_000);
                Some(Duration::from_nanos(at_ns.saturating_sub(unix_ns)))
            }
        }
    }
}

/// Parses the value of `Retry-After`: seconds, or a date of HTTP.
fn parse(text: &str) -> Refusal {
    if let Ok(seconds) = text.parse::<f64>() {
        // Some services send fractions of a second.
        return match Duration::try_from_secs_f64(seconds) {
            Ok(wait) => Refusal::After(wait),
            Err(_) => Refusal::Unspecified,
        };
    }
    match parse_date(text) {
        Some(unix_s) => Refusal::At(unix_s),
        None => Refusal::Unspecified,
    }
}

/// Parses a date of HTTP (RFC 9110 §5.6.7) in the form that senders must use: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_date(text: &str) -> Option<u64> {
    let moment = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(moment.timestamp().as_second()).ok()
}

/// Returns the event that ends a call: it may be sent again if its answer is a refusal, and the plan allows retries.
/// `unix_ns` returns the current time in nanoseconds since 1970.
#[inline]
pub(super) fn end_event(
    done: CompletedCall,
    refusal: Option<Refusal>,
    retries: RefusalRetries,
    unix_ns: impl FnOnce() -> u64,
) -> Event {
    match refusal.filter(|_| retries.max_retries > 0 && REFUSALS.contains(&done.outcome)) {
        None => Event::Done(done),
        Some(refusal) => Event::Refused(Box::new(RefusedCall {
            done,
            retry_after: refusal.wait(unix_ns()),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: &str, retry_after: Option<&str>) -> Option<Refusal> {
        let outcome = Outcome::from_code(code).expect(code);
        Refusal::from_head(outcome, retry_after.map(str::as_bytes))
    }

    #[test]
    fn retry_after_is_seconds_or_date() {
        let of = |text: &str| refusal("HTTP_429_RETRY_AFTER", Some(text)).unwrap();
        assert_eq!(of("3"), Refusal::After(Duration::from_secs(3)));
        assert_eq!(of(" 0.25 "), Refusal::After(Duration::from_millis(250)));
        let date = of("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date, Refusal::At(784_111_777));
        assert_eq!(
            date.wait(784_111_775 * 1_000_000_000),
            Some(Duration::from_secs(2))
        );
        assert_eq!(date.wait(u64::MAX), Some(Duration::ZERO));
        let relative = date.relative_to(784_111_775 * 1_000_000_000);
        assert_eq!(relative, Refusal::After(Duration::from_secs(2)));
        let unspecified = Refusal::Unspecified;
        assert_eq!(unspecified.relative_to(1), unspecified);
        for text in ["", "soon", "-1", "NaN", "1e999", "Sun, 06 Nov 1994"] {
            assert_eq!(of(text), Refusal::Unspecified, "{text}");
            assert_eq!(of(text).wait(0), None);
        }
    }

    #[test]
    fn only_some_statuses_are_refusals() {
        assert_eq!(refusal("HTTP_429", None), Some(Refusal::Unspecified));
        for code in ["OK", "HTTP_503", "HTTP_500", "HTTP_404"] {
            assert_eq!(refusal(code, None), None, "{code}");
        }
    }
}
