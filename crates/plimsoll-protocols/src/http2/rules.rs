//! What the fields of an answer have to be, whatever it answers (RFC 9113, 8.2 and 8.3).

use std::cmp::Ordering;

use plimsoll_wire::http2::field_problem;

/// Follows one header block.
#[derive(Debug, Default)]
pub(crate) struct AnswerRules {
    /// `:status`; 0 if there is none, as in trailers.
    pub(crate) status: u16,
    regular_began: bool,
}

impl AnswerRules {
    /// Looks at the next field: RFC 9113, 8.2.1 (characters), 8.2.2 (connection's fields) and
    /// 8.3 (pseudo-fields).
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(crate) fn check(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some((b':', _)) = name.split_first() {
            if self.regular_began {
                return Err("a pseudo-field after a regular one (RFC 9113, 8.3)");
            }
            if name != b":status" {
                return Err("a pseudo-field other than :status (RFC 9113, 8.3.2)");
            }
            if self.status != 0 {
                return Err(":status twice (RFC 9113, 8.3)");
            }
            let status = number(value).filter(|status| value.len() == 3 && *status >= 100);
            self.status = status.ok_or(":status is not three digits (RFC 9113, 8.3.2)")? as u16;
            return Ok(());
        }
        self.regular_began = true;
        field_problem(name, value).map_or(Ok(()), Err)
    }
}

/// What is wrong with an answer of so many bytes of DATA, if its head said that there would be `content_length`.
#[inline]
pub(crate) fn length_problem(content_length: u32, received: u32) -> Option<&'static str> {
    match received.cmp(&content_length) {
        Ordering::Less => Some("less DATA than content-length (RFC 9113, 8.1.1)"),
        Ordering::Equal => None,
        Ordering::Greater => Some("more DATA than content-length (RFC 9113, 8.1.1)"),
    }
}

/// `content-length`.
///
/// # Errors
/// It is no number.
pub(crate) fn content_length(value: &[u8]) -> Result<u32, &'static str> {
    number(value).ok_or("content-length is not a number (RFC 9113, 8.1.1)")
}

pub(crate) fn number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
