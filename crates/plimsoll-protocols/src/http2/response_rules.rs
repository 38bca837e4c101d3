//! The rules for the header fields of any response (RFC 9113, 8.2 and 8.3).

use std::cmp::Ordering;

use plimsoll_wire::http2::field_problem;

/// The checks of the fields in one header block.
#[derive(Debug, Default)]
pub(crate) struct ResponseFieldChecks {
    /// The value of `:status`; 0 if it is missing, as in trailers.
    pub(crate) status: u16,
    regular_seen: bool,
}

impl ResponseFieldChecks {
    /// Checks the next field: RFC 9113, 8.2.1 (characters), 8.2.2 (connection-specific fields) and 8.3
    /// (pseudo-header fields).
    ///
    /// # Errors
    /// Returns the rule that the field violates.
    pub(crate) fn check(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some((b':', _)) = name.split_first() {
            if self.regular_seen {
                return Err("a pseudo-field after a regular one (RFC 9113, 8.3)");
            }
            if name != b":status" {
                return Err("a pseudo-field other than :status (RFC 9113, 8.3.2)");
            }
            if self.status != 0 {
                return Err(":status twice (RFC 9113, 8.3)");
            }
            let status = parse_number(value).filter(|status| value.len() == 3 && *status >= 100);
            self.status = status.ok_or(":status is not three digits (RFC 9113, 8.3.2)")? as u16;
            return Ok(());
        }
        self.regular_seen = true;
        field_problem(name, value).map_or(Ok(()), Err)
    }
}

/// Returns the rule that a response with `received` bytes of DATA violates, if its header said
/// `content_length`.
#[inline]
pub(crate) fn find_length_violation(content_length: u32, received: u32) -> Option<&'static str> {
    match received.cmp(&content_length) {
        Ordering::Less => Some("less DATA than content-length (RFC 9113, 8.1.1)"),
        Ordering::Equal => None,
        Ordering::Greater => Some("more DATA than content-length (RFC 9113, 8.1.1)"),
    }
}

/// Parses `content-length`.
///
/// # Errors
/// Returns an error if the value is not a number.
pub(crate) fn parse_content_length(value: &[u8]) -> Result<u32, &'static str> {
    parse_number(value).ok_or("content-length is not a number (RFC 9113, 8.1.1)")
}

pub(crate) fn parse_number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
