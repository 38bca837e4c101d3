//! Integers with a prefix of 1 to 8 bits (RFC 7541 §5.1), of at most 32 bits.

use super::HpackError;

/// Reads an integer whose prefix is the low `prefix` bits of `input[*at]`, and advances `at` past it.
#[inline]
pub(super) fn decode(input: &[u8], at: &mut usize, prefix: u8) -> Result<u32, HpackError> {
    let mask = (1u32 << prefix) - 1;
    let first = u32::from(*input.get(*at).ok_or(HpackError::Truncated)?) & mask;
    *at += 1;
    if first < mask {
        return Ok(first);
    }
    let mut value = u64::from(mask);
    // Five continuation bytes contain 35 bits, which is enough for every 32-bit value and limits zero padding.
    for shift in [0, 7, 14, 21, 28] {
        let byte = *input.get(*at).ok_or(HpackError::Truncated)?;
        *at += 1;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).map_err(|_| HpackError::IntegerOverflow);
        }
    }
    Err(HpackError::IntegerOverflow)
}

/// Appends `value` with a prefix of `prefix` bits; `pattern` fills the bits above it.
pub(super) fn encode(value: u32, prefix: u8, pattern: u8, out: &mut Vec<u8>) {
    let mask = (1u32 << prefix) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc7541_c1_examples() {
        let mut out = Vec::new();
        encode(10, 5, 0, &mut out);
        assert_eq!(out, [0x0a]);
        out.clear();
        encode(1337, 5, 0, &mut out);
        assert_eq!(out, [0x1f, 0x9a, 0x0a]);
        out.clear();
        encode(42, 8, 0, &mut out);
        assert_eq!(out, [0x2a]);
        assert_eq!(decode(&[0x1f, 0x9a, 0x0a], &mut 0, 5), Ok(1337));
    }

    #[test]
    fn overlong_and_truncated_integers_are_rejected() {
        let all_ones = [0x1f, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(
            decode(&all_ones, &mut 0, 5),
            Err(HpackError::IntegerOverflow)
        );
        let six_bytes = [0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00];
        assert_eq!(
            decode(&six_bytes, &mut 0, 5),
            Err(HpackError::IntegerOverflow)
        );
        assert_eq!(decode(&[0x1f, 0x80], &mut 0, 5), Err(HpackError::Truncated));
        assert_eq!(decode(&[], &mut 0, 5), Err(HpackError::Truncated));
    }

    proptest! {
        #[test]
        fn integers_round_trip_any_prefix(value: u32, prefix in 1u8..=8) {
            let mut out = Vec::new();
            encode(value, prefix, 0, &mut out);
            let mut at = 0;
            prop_assert_eq!(decode(&out, &mut at, prefix), Ok(value));
            prop_assert_eq!(at, out.len());
        }
    }
}
