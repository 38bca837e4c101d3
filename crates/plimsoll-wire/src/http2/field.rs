//! The fields of messages (RFC 9113, 8.2).

/// The rule that a field breaks which is no pseudo-field: RFC 9113, 8.2.1 (characters)
/// and 8.2.2 (fields of a connection).
pub fn field_problem(name: &[u8], value: &[u8]) -> Option<&'static str> {
    let is_name_byte = |b: &u8| matches!(b, 0x21..=0x7e) && !b.is_ascii_uppercase() && *b != b':';
    if name.is_empty() || !name.iter().all(is_name_byte) {
        return Some("a field name with upper case or other forbidden bytes (RFC 9113, 8.2.1)");
    }
    if value.iter().any(|b| matches!(b, 0 | b'\r' | b'\n')) {
        return Some("a field value with NUL, CR or LF (RFC 9113, 8.2.1)");
    }
    let is_blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Some("a field value with blanks around it (RFC 9113, 8.2.1)");
    }
    if matches!(
        name,
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade"
    ) {
        return Some("a field of HTTP/1.1 connections (RFC 9113, 8.2.2)");
    }
    None
}
