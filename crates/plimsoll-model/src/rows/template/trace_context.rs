//! Trace ids for each call of a load, according to W3C Trace Context (<https://www.w3.org/TR/trace-context/>).
//!
//! The ids are a function of the call's number, so they are not stored for each call; those of a slow call are computed
//! again. The other inputs are random numbers that are drawn when a load begins ([`TraceIds::new`]), so two loads have
//! no ids in common. Invariant: calls with different numbers have different ids, and no id is zero, which would be
//! invalid (§3.2.2.3 and §3.2.2.4).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::rows::mixing::{GOLDEN_GAMMA, mix};

/// The numbers from which the ids of a load's calls are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIds {
    /// The first half of every trace id; never 0.
    prefix: u64,
    key: u64,
}

/// The trace id of one call; its text is hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(u128);

/// The id of a span within its trace (§3.2.2.4); its text is hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(u64);

impl TraceIds {
    /// Length of [`TraceIds::traceparent`] in bytes.
    pub const TRACEPARENT_LENGTH: usize = 55;

    /// Creates the ids of a load. Both arguments must be random.
    pub fn new(prefix: u64, key: u64) -> TraceIds {
        TraceIds {
            prefix: prefix.max(1),
            key,
        }
    }

    /// Returns the trace id of the call with this number.
    #[inline]
    pub fn trace_id(&self, number: u64) -> TraceId {
        let low = mix(self.key.wrapping_add(number.wrapping_mul(GOLDEN_GAMMA)));
        TraceId(u128::from(self.prefix) << 64 | u128::from(low))
    }

    /// Returns the id of the call's span, which is the parent id in the header field.
    #[inline]
    pub fn span_id(&self, number: u64) -> SpanId {
        let TraceId(trace) = self.trace_id(number);
        // Mixing in the key makes the span id independent of the second half of the trace id.
        SpanId(mix((trace as u64) ^ self.key.rotate_left(32)).max(1))
    }

    /// Returns the value of the header field: version 00, the trace id, the span id, and the `sampled` flag.
    #[inline]
    pub fn traceparent(&self, number: u64) -> [u8; TraceIds::TRACEPARENT_LENGTH] {
        let TraceId(trace) = self.trace_id(number);
        let SpanId(span) = self.span_id(number);
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-01";
        write_hexadecimal(&trace.to_be_bytes(), &mut text[3..35]);
        write_hexadecimal(&span.to_be_bytes(), &mut text[36..52]);
        text
    }
}

impl TraceId {
    /// Returns the id in the form in which binary protocols send it.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    /// Returns the id in the form in which binary protocols send it.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Returns the id of the `nth` child span. It depends only on this id and `nth`, and differs for each `nth`.
    #[must_use]
    pub fn child_id(self, nth: u64) -> SpanId {
        SpanId(mix(self.0 ^ mix(nth.wrapping_add(GOLDEN_GAMMA))).max(1))
    }
}

#[inline]
fn write_hexadecimal(bytes: &[u8], text: &mut [u8]) {
    const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, text) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        text[0] = HEX_DIGITS[usize::from(byte >> 4)];
        text[1] = HEX_DIGITS[usize::from(byte & 15)];
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for SpanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TraceId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = parse_hexadecimal(&text, 32).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not a trace id: write 32 hexadecimal digits"
            ))
        });
        id.map(TraceId)
    }
}

impl<'de> Deserialize<'de> for SpanId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SpanId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let id = parse_hexadecimal(&text, 16).and_then(|id| u64::try_from(id).ok());
        id.map(SpanId).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not a span id: write 16 hexadecimal digits"
            ))
        })
    }
}

/// Parses a number that has exactly `digits` hexadecimal digits.
fn parse_hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_id = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn text(ids: TraceIds, number: u64) -> String {
        String::from_utf8(ids.traceparent(number).into()).unwrap()
    }

    /// Splits a header value (Trace Context §3.2).
    fn ids_of(header: &str) -> (&str, &str) {
        let parts: Vec<&str> = header.split('-').collect();
        let [version, trace, parent, flags] = parts[..] else {
            panic!("{header}");
        };
        assert_eq!((version, flags), ("00", "01"), "{header}");
        for (id, length) in [(trace, 32), (parent, 16)] {
            let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            assert!(id.len() == length && id.bytes().all(is_digit), "{header}");
            assert!(id.bytes().any(|b| b != b'0'), "{header}");
        }
        (trace, parent)
    }

    #[test]
    fn trace_ids_are_unique_across_workers() {
        let ids = TraceIds::new(0x0123_4567_89ab_cdef, 0xfeed_beef_dead_f00d);
        let (mut traces, mut parents) = (HashSet::new(), HashSet::new());
        // Numbers as workers assign them; those at the end of a long run are large.
        for from in [0, u64::MAX - 29_999] {
            for worker in 0..3 {
                for call in 0..10_000 {
                    let header = text(ids, from + call * 3 + worker);
                    let (trace, parent) = ids_of(&header);
                    assert_eq!(&trace[..16], "0123456789abcdef");
                    assert_ne!(&trace[16..], parent);
                    assert!(traces.insert(trace.to_owned()), "{header}");
                    assert!(parents.insert(parent.to_owned()), "{header}");
                }
            }
        }
        assert_eq!(traces.len(), 60_000);
    }

    #[test]
    fn child_spans_differ_from_each_other() {
        let ids = TraceIds::new(1, 2);
        let mut all = HashSet::new();
        for number in 0..1_000 {
            let span = ids.span_id(number);
            let children = (0..10).map(|nth| span.child_id(nth));
            assert!(children.chain([span]).all(|id| all.insert(id)));
        }
    }

    #[test]
    fn trace_ids_are_nonzero_and_load_specific() {
        let ids = |prefix, key| TraceIds::new(prefix, key).trace_id(7);
        assert_ne!(ids(1, 5), ids(2, 5));
        assert_ne!(ids(1, 5), ids(1, 6));
        // The only key for which call 0 mixes to zero.
        let zeros = text(TraceIds::new(0, 0), 0);
        assert_eq!(ids_of(&zeros).0, format!("{:032x}", 1u128 << 64));
    }

    #[test]
    fn trace_id_round_trips_and_matches_header() {
        let ids = TraceIds::new(0xa, 0xb);
        let id = ids.trace_id(3);
        let written = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<TraceId>(&written).unwrap(), id);
        let header = text(ids, 3);
        assert_eq!(id.to_string(), ids_of(&header).0);
        let span = ids.span_id(3);
        assert_eq!(span.to_string(), ids_of(&header).1);
        let written = serde_json::to_string(&span).unwrap();
        assert_eq!(serde_json::from_str::<SpanId>(&written).unwrap(), span);
        for wrong in [
            "",
            "xyz",
            "+0000000000000000000000000000001",
            &"0".repeat(33),
        ] {
            let wrong = format!("{wrong:?}");
            assert!(serde_json::from_str::<TraceId>(&wrong).is_err(), "{wrong}");
            assert!(serde_json::from_str::<SpanId>(&wrong).is_err(), "{wrong}");
        }
    }
}
