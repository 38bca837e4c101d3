//! Converts bytes to hexadecimal text and back.

/// Encodes bytes as lower-case digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes pairs of digits; `None` if there is anything else.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let is_digits = text.bytes().all(|b| b.is_ascii_hexdigit());
    if !text.len().is_multiple_of(2) || !is_digits {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

/// Decodes percent-encoding such as `%20` (RFC 3986 §2.1); invalid escapes are kept as they are.
pub fn percent_decode(value: &[u8]) -> Vec<u8> {
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
