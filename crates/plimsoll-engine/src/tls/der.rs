//! A minimal reader for DER elements (X.690 §8.1) of certificates and keys. It never reads beyond the end of its input.

pub(super) const SEQUENCE: u8 = 0x30;

/// The tag of a certificate's version, which is absent in version 1 (RFC 5280 §4.1.2.1).
pub(super) const VERSION_TAG: u8 = 0xa0;

/// Returns the bytes after the first `fields` elements of a certificate's body (RFC 5280 §4.1), not counting the
/// optional version.
pub(super) fn skip_fields(certificate: &[u8], fields: usize) -> Option<&[u8]> {
    let (certificate, _) = read_tagged(certificate, SEQUENCE)?;
    let (mut body, _) = read_tagged(certificate, SEQUENCE)?;
    if body.first() == Some(&VERSION_TAG) {
        body = read_element(body)?.2;
    }
    for _ in 0..fields {
        body = read_element(body)?.2;
    }
    Some(body)
}

/// Returns the contents of the first element, which must have the tag `tag`, and the bytes after it.
pub(super) fn read_tagged(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    read_element(input)
        .filter(|(found, ..)| *found == tag)
        .map(|(_, contents, rest)| (contents, rest))
}

/// Returns the tag and contents of the first element (X.690 §8.1), and the bytes after it.
pub(super) fn read_element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
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
