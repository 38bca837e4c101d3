//! The elements that certificates and keys are made of (DER, X.690 §8.1), one after another.
//!
//! Nothing is read beyond the end of what is given.

pub(super) const SEQUENCE: u8 = 0x30;

/// Where a certificate says its version: those of version 1 don't (RFC 5280 §4.1.2.1).
pub(super) const VERSION_TAG: u8 = 0xa0;

/// What follows the first `fields` of a certificate's body (RFC 5280 §4.1), the version not counted, which may not be there.
pub(super) fn behind(certificate: &[u8], fields: usize) -> Option<&[u8]> {
    let (certificate, _) = take(certificate, SEQUENCE)?;
    let (mut body, _) = take(certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION_TAG) {
        body = element(body)?.2;
    }
    for _ in 0..fields {
        body = element(body)?.2;
    }
    Some(body)
}

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
