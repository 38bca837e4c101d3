//! Validation of the fields of messages (RFC 9113 §8.2).

/// Flags for the elements in which a byte may occur.
mod byte_class {
    /// A lower-case field name.
    pub(super) const NAME: u8 = 1;
    /// A field value.
    pub(super) const VALUE: u8 = 2;
    /// A token, such as a method (RFC 9110 §5.6.2).
    pub(super) const TOKEN: u8 = 4;
    /// A path with a query.
    pub(super) const PATH: u8 = 8;
    /// A host with a port.
    pub(super) const AUTHORITY: u8 = 16;
}

static BYTE_CLASSES: [u8; 256] = byte_classes();

const fn byte_classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        let is_token = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
            )
            || matches!(b, b'`' | b'|' | b'~');
        if is_token {
            classes[byte] |= byte_class::TOKEN;
        }
        if is_token && !b.is_ascii_uppercase() {
            classes[byte] |= byte_class::NAME;
        }
        if (b >= b' ' && b != 0x7f) || b == b'\t' {
            classes[byte] |= byte_class::VALUE;
        }
        // Some bytes that RFC 3986 requires to be percent-encoded are common on the web and are accepted. The bytes
        // excluded here end the path, or the request line of HTTP/1.1.
        if b.is_ascii_graphic() && !matches!(b, b'#' | b'<' | b'>' | b'`') {
            classes[byte] |= byte_class::PATH;
        }
        let is_host = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')'
            )
            || matches!(b, b'*' | b'+' | b',' | b';' | b'=' | b':' | b'[' | b']');
        if is_host {
            classes[byte] |= byte_class::AUTHORITY;
        }
        byte += 1;
    }
    classes
}

#[inline]
fn are_all_in_class(bytes: &[u8], class: u8) -> bool {
    bytes
        .iter()
        .all(|b| BYTE_CLASSES[usize::from(*b)] & class != 0)
}

/// Returns the rule that a regular field violates: RFC 9113 §8.2.1 (characters, as in RFC 9110 §5.1 and §5.5)
/// and §8.2.2 (connection-specific fields).
pub fn field_problem(name: &[u8], value: &[u8]) -> Option<&'static str> {
    if name.is_empty() || !are_all_in_class(name, byte_class::NAME) {
        return Some("a field name with upper case or other forbidden bytes (RFC 9113, 8.2.1)");
    }
    if !are_all_in_class(value, byte_class::VALUE) {
        return Some("a field value with CR, LF or other control bytes (RFC 9113, 8.2.1)");
    }
    let is_blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Some("a field value with blanks around it (RFC 9113, 8.2.1)");
    }
    match name {
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
            Some("a field of HTTP/1.1 connections (RFC 9113, 8.2.2)")
        }
        b"te" if !value.eq_ignore_ascii_case(b"trailers") => {
            Some("`te` other than `trailers` (RFC 9113, 8.2.2)")
        }
        _ => None,
    }
}

/// Returns whether the value is a method (RFC 9110 §9.1).
pub(super) fn is_method(value: &[u8]) -> bool {
    !value.is_empty() && are_all_in_class(value, byte_class::TOKEN)
}

/// Returns whether the value is a scheme (RFC 3986 §3.1).
pub(super) fn is_scheme(value: &[u8]) -> bool {
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    value.first().is_some_and(u8::is_ascii_alphabetic) && value.iter().all(is_part)
}

/// Returns whether the value is an absolute path, with or without a query (RFC 9113 §8.3.1).
pub(super) fn is_path(value: &[u8]) -> bool {
    value.starts_with(b"/") && are_all_in_class(value, byte_class::PATH)
}

/// Returns whether the value is a host with an optional port and no user information (RFC 9113 §8.3.1). An empty
/// authority is allowed.
pub(super) fn is_authority(value: &[u8]) -> bool {
    if !are_all_in_class(value, byte_class::AUTHORITY) {
        return false;
    }
    let (host, port) = split_port(value);
    let is_host = match host.strip_prefix(b"[") {
        Some(rest) => rest
            .strip_suffix(b"]")
            .is_some_and(|ip| !ip.is_empty() && !ip.iter().any(|b| matches!(b, b'[' | b']'))),
        None => !host.iter().any(|b| matches!(b, b'[' | b']' | b':')),
    };
    let is_port = port.is_none_or(|port| port.len() <= 5 && port.iter().all(u8::is_ascii_digit));
    is_host && is_port && !(host.is_empty() && port.is_some())
}

/// Splits off the port: the bytes after the last colon outside brackets.
fn split_port(value: &[u8]) -> (&[u8], Option<&[u8]>) {
    match value.iter().rposition(|b| matches!(b, b':' | b']')) {
        Some(at) if value[at] == b':' => (&value[..at], Some(&value[at + 1..])),
        _ => (value, None),
    }
}

/// Returns whether two authorities are equal: hosts are case-insensitive, and the scheme's default port is equivalent
/// to no port.
pub(super) fn are_same_authority(one: &[u8], other: &[u8], default_port: &[u8]) -> bool {
    let without = |value| match split_port(value) {
        (host, Some(port)) if port.is_empty() || port == default_port => (host, None),
        parts => parts,
    };
    let ((one, one_port), (other, other_port)) = (without(one), without(other));
    one.eq_ignore_ascii_case(other) && one_port == other_port
}
