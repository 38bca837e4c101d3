//! The elements that certificates and keys are made of (DER, X.690 §8.1), one after another.
//!
//! Nothing is read beyond the end of what is given.

pub(super) const SEQUENCE: u8 = 0x30;

/// The contents of an element that must be of kind `tag`, and what follows.
pub(super) fn take(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(input)
        .filter(|(found, ..)| *found == tag)
        .map(|(_, contents, rest)| (contents, rest))
}

/// The first element (X.690 §8.1): its tag, its contents, and what follows.
pub(super) fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = input.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes.iter().fold(0, |all, b| all << 8 | usize::from(*b));
            (length, rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((*tag, contents, rest))
}
