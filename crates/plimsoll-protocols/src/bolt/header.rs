//! The header map of a Bolt frame: pairs of strings, each prefixed with a 32-bit length, up to the end of the
//! header. A length of -1 is a null.

/// A SOFARPC response with this key and the value `true` is a failure, whatever its Bolt status.
pub const RESPONSE_ERROR_KEY: &[u8] = b"sofa_head_response_error";
/// The key whose value is `interface:version` of the service; servers read it before they decode the content.
pub const SERVICE_KEY: &str = "service";
/// A second key with the same value, among SOFARPC's own headers, whose keys begin with `sofa_head_`.
pub const TARGET_SERVICE_KEY: &str = "sofa_head_target_service";
/// The key of the method's name.
pub const METHOD_NAME_KEY: &str = "sofa_head_method_name";

/// The error of a malformed header map: a length exceeds the remaining bytes, or is below -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header map: the length at byte {at} is {length}, but only {left} bytes remain")]
pub struct HeaderError {
    /// The offset of the length from the map's beginning, in bytes.
    pub at: usize,
    /// The invalid length.
    pub length: i32,
    /// The remaining bytes.
    pub left: usize,
}

/// An entry: key and value; `None` is a null.
pub type HeaderPair<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// Returns the pairs of a header map in order, without copying. An error is the last item.
#[inline]
pub fn pairs(header: &[u8]) -> impl Iterator<Item = Result<HeaderPair<'_>, HeaderError>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= header.len() {
            return None;
        }
        let pair =
            read_string(header, &mut at).and_then(|key| Ok((key, read_string(header, &mut at)?)));
        if pair.is_err() {
            at = header.len();
        }
        Some(pair)
    })
}

/// Reads the string at offset `at` and advances `at` past it.
#[inline]
fn read_string<'a>(header: &'a [u8], at: &mut usize) -> Result<Option<&'a [u8]>, HeaderError> {
    let start = *at;
    let rest = &header[start..];
    let error = |length| HeaderError {
        at: start,
        length,
        left: rest.len().saturating_sub(4),
    };
    let Some((length, rest)) = rest.split_first_chunk::<4>() else {
        return Err(error(0));
    };
    let length = i32::from_be_bytes(*length);
    if length == -1 {
        *at += 4;
        return Ok(None);
    }
    let text = usize::try_from(length).ok().and_then(|n| rest.get(..n));
    let text = text.ok_or_else(|| error(length))?;
    *at += 4 + text.len();
    Ok(Some(text))
}

/// Returns the value of `key`, the first if there are several.
///
/// # Errors
/// Returns an error if the map is malformed before the key is found.
pub fn find<'a>(header: &'a [u8], key: &[u8]) -> Result<Option<&'a [u8]>, HeaderError> {
    for pair in pairs(header) {
        if let (Some(name), value) = pair?
            && name == key
        {
            return Ok(value);
        }
    }
    Ok(None)
}

/// Appends a pair.
pub fn write(out: &mut Vec<u8>, key: Option<&[u8]>, value: Option<&[u8]>) {
    for text in [key, value] {
        match text {
            None => out.extend_from_slice(&(-1i32).to_be_bytes()),
            Some(text) => {
                let length = text.len().min(i32::MAX as usize);
                out.extend_from_slice(&(length as u32).to_be_bytes());
                out.extend_from_slice(&text[..length]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_strings_are_distinct() {
        let mut header = Vec::new();
        write(&mut header, Some(b"a"), None);
        write(&mut header, Some(b"b"), Some(b""));
        write(&mut header, None, Some(b"c"));
        let read: Vec<_> = pairs(&header).collect::<Result<_, _>>().unwrap();
        assert_eq!(
            read,
            [
                (Some(&b"a"[..]), None),
                (Some(b"b"), Some(&b""[..])),
                (None, Some(b"c")),
            ]
        );
        assert_eq!(find(&header, b"b"), Ok(Some(&b""[..])));
        assert_eq!(find(&header, b"x"), Ok(None));
    }

    #[test]
    fn invalid_header_lengths_are_reported() {
        for header in [
            &[0u8, 0][..],
            &[0, 0, 0, 9, b'a'],
            &[0x80, 0, 0, 0],
            &[0, 0, 0, 1, b'a'],
            &[0, 0, 0, 1, b'a', 0x7f, 0xff, 0xff, 0xff],
        ] {
            assert!(find(header, b"b").is_err(), "{header:?}");
        }
    }
}
