//! The Huffman code of HPACK (RFC 7541, 5.2 and Appendix B).
//!
//! The code is canonical (codes of one length ascend with their symbols, and lengths ascend with codes), so only the
//! lengths are stored; codes and the decoder's table are computed from them at compile time. The decoder consumes four
//! bits per step: no code is shorter than five bits, so a step completes at most one symbol.

use super::HpackError;

const EOS_SYMBOL: usize = 256;

/// Code length in bits of each octet, and of EOS (RFC 7541, Appendix B).
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30,
    28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5,
    7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22,
    22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22,
    21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26,
    26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20,
    24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27,
    27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const SYMBOL_CODES: [u32; 257] = canonical_codes();

const fn canonical_codes() -> [u32; 257] {
    let mut codes = [0; 257];
    let mut code = 0u32;
    let mut length = 1;
    while length <= 30 {
        let mut symbol = 0;
        while symbol <= EOS_SYMBOL {
            if CODE_LENGTHS[symbol] == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    codes
}

/// A step of the decoder: the effect of four bits on an incomplete code.
#[derive(Clone, Copy)]
struct DecodeStep {
    /// The tree node after the step.
    next: u8,
    symbol: u8,
    effect: u8,
}

/// Flag of a step that completes the code of `symbol`.
const EMITS_SYMBOL: u8 = 1;
/// Flag of a step after which a string may end: the incomplete code consists of at most 7 ones.
const MAY_END: u8 = 2;
/// Flag of a step that completes EOS, which no string may contain.
const READS_EOS: u8 = 4;

/// Number of inner nodes of the code's tree: one fewer than its 257 leaves.
const INNER_NODE_COUNT: usize = 256;

static DECODE_STEPS: [[DecodeStep; 16]; INNER_NODE_COUNT] = decode_steps();

const fn decode_steps() -> [[DecodeStep; 16]; INNER_NODE_COUNT] {
    // Children below INNER_NODE_COUNT are inner nodes; the others are leaves: INNER_NODE_COUNT + symbol.
    let mut children = [[0u16; 2]; INNER_NODE_COUNT];
    let mut nodes = 1;
    let mut symbol = 0;
    while symbol <= EOS_SYMBOL {
        let mut node = 0;
        let mut bit = CODE_LENGTHS[symbol];
        while bit > 1 {
            bit -= 1;
            let way = (SYMBOL_CODES[symbol] >> bit & 1) as usize;
            if children[node][way] == 0 {
                children[node][way] = nodes;
                nodes += 1;
            }
            node = children[node][way] as usize;
        }
        children[node][(SYMBOL_CODES[symbol] & 1) as usize] = (INNER_NODE_COUNT + symbol) as u16;
        symbol += 1;
    }
    assert!(nodes as usize == INNER_NODE_COUNT);

    // A string may end at the root, and at the nodes that are reached from it by one to seven ones.
    let mut may_end = [false; INNER_NODE_COUNT];
    let mut node = 0;
    let mut depth = 0;
    while depth <= 7 {
        may_end[node] = true;
        node = children[node][1] as usize;
        depth += 1;
    }

    let mut steps = [[DecodeStep {
        next: 0,
        symbol: 0,
        effect: 0,
    }; 16]; INNER_NODE_COUNT];
    let mut from = 0;
    while from < INNER_NODE_COUNT {
        let mut nibble = 0;
        while nibble < 16 {
            let mut node = from;
            let mut step = DecodeStep {
                next: 0,
                symbol: 0,
                effect: 0,
            };
            let mut bit = 4;
            while bit > 0 {
                bit -= 1;
                let child = children[node][nibble >> bit & 1] as usize;
                if child < INNER_NODE_COUNT {
                    node = child;
                } else {
                    if child - INNER_NODE_COUNT == EOS_SYMBOL {
                        step.effect |= READS_EOS;
                    } else {
                        step.effect |= EMITS_SYMBOL;
                        step.symbol = (child - INNER_NODE_COUNT) as u8;
                    }
                    node = 0;
                }
            }
            if may_end[node] {
                step.effect |= MAY_END;
            }
            step.next = node as u8;
            steps[from][nibble] = step;
            nibble += 1;
        }
        from += 1;
    }
    steps
}

/// Decodes `input` and appends the octets.
///
/// # Errors
/// Returns [`HpackError::HuffmanEos`] or [`HpackError::HuffmanPadding`].
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let mut state = 0u8;
    let mut effect = MAY_END;
    for byte in input {
        for nibble in [byte >> 4, byte & 15] {
            let step = DECODE_STEPS[state as usize][nibble as usize];
            effect = step.effect;
            if effect & EMITS_SYMBOL != 0 {
                out.push(step.symbol);
            }
            if effect & READS_EOS != 0 {
                return Err(HpackError::HuffmanEos);
            }
            state = step.next;
        }
    }
    if effect & MAY_END == 0 {
        return Err(HpackError::HuffmanPadding);
    }
    Ok(())
}

/// Encodes `input` and appends the code, padded with ones to a whole octet.
pub fn encode(input: &[u8], out: &mut Vec<u8>) {
    let mut bits = 0u64;
    let mut count = 0;
    for &byte in input {
        let length = u32::from(CODE_LENGTHS[byte as usize]);
        bits = bits << length | u64::from(SYMBOL_CODES[byte as usize]);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

/// Returns the number of octets that [`encode`] appends.
pub(super) fn encoded_len(input: &[u8]) -> usize {
    let bits: usize = input
        .iter()
        .map(|&byte| CODE_LENGTHS[byte as usize] as usize)
        .sum();
    bits.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_match_appendix_b() {
        for (symbol, code, length) in [
            (b'0' as usize, 0x0, 5),
            (b't' as usize, 0x9, 5),
            (b' ' as usize, 0x14, 6),
            (b':' as usize, 0x5c, 7),
            (b'&' as usize, 0xf8, 8),
            (b'!' as usize, 0x3f8, 10),
            (b'\\' as usize, 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (0, 0x1ff8, 13),
            (249, 0xffffffe, 28),
            (255, 0x3ffffee, 26),
            (10, 0x3ffffffc, 30),
            (22, 0x3ffffffe, 30),
            (EOS_SYMBOL, 0x3fffffff, 30),
        ] {
            assert_eq!(
                (SYMBOL_CODES[symbol], CODE_LENGTHS[symbol]),
                (code, length),
                "symbol {symbol}"
            );
        }
    }

    #[test]
    fn invalid_huffman_padding_is_rejected() {
        let decoded = |bytes: &[u8]| {
            let mut out = Vec::new();
            decode(bytes, &mut out).map(|()| out)
        };
        assert_eq!(decoded(&[]), Ok(vec![]));
        // '0' is 00000: three ones follow.
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        assert_eq!(decoded(&[0b0000_0110]), Err(HpackError::HuffmanPadding));
        // A padding of a whole octet is too long.
        assert_eq!(
            decoded(&[0b0000_0111, 0xff]),
            Err(HpackError::HuffmanPadding)
        );
        assert_eq!(decoded(&[0xff]), Err(HpackError::HuffmanPadding));
        assert_eq!(
            decoded(&[0xff, 0xff, 0xff, 0xff]),
            Err(HpackError::HuffmanEos)
        );
    }

    proptest! {
        #[test]
        fn huffman_strings_round_trip(text: Vec<u8>) {
            let mut code = Vec::new();
            encode(&text, &mut code);
            prop_assert_eq!(code.len(), encoded_len(&text));
            let mut back = Vec::new();
            prop_assert_eq!(decode(&code, &mut back), Ok(()));
            prop_assert_eq!(back, text);
        }

        #[test]
        fn decode_then_encode_is_identity(code: Vec<u8>) {
            let mut text = Vec::new();
            if decode(&code, &mut text).is_ok() {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, code);
            }
        }
    }
}
