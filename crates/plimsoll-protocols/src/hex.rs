//! Bytes as text, two digits a byte.

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
