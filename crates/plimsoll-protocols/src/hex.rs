//! Bytes as text, two digits a byte.

/// Writes bytes as digits.
#[cfg(feature = "targets")]
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None`: there is something else than pairs of digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let is_digits = text.bytes().all(|b| b.is_ascii_hexdigit());
    if !text.len().is_multiple_of(2) || !is_digits {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

/// `%20` and the like (RFC 3986 §2.1); what is no valid escape is kept as it is.
pub(crate) fn unescaped(value: &[u8]) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, after @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            decoded.push(high << 4 | low);
            rest = after;
        } else {
            decoded.push(byte);
        }
    }
    decoded
}
