//! Validation of the field lists of requests, responses and trailer sections (RFC 9113 §8.1.1, §8.2 and §8.3), field by
//! field during decoding, without a copy.
//!
//! Relays call this. Drivers, which only read responses to their own requests, check less.

use super::field::{
    are_same_authority, field_problem, is_authority, is_method, is_path, is_scheme,
};

/// Flags for the fields that have been seen.
mod seen_bit {
    pub(super) const METHOD: u8 = 1;
    pub(super) const SCHEME: u8 = 2;
    pub(super) const PATH: u8 = 4;
    pub(super) const AUTHORITY: u8 = 8;
    pub(super) const STATUS: u8 = 16;
    pub(super) const PSEUDO_FIELDS: u8 = METHOD | SCHEME | PATH | AUTHORITY | STATUS;
    pub(super) const HOST: u8 = 32;
    pub(super) const CONTENT_LENGTH: u8 = 64;
    pub(super) const REGULAR_FIELD: u8 = 128;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MethodClass {
    #[default]
    Other,
    Connect,
    Head,
    Options,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PathForm {
    #[default]
    Absolute,
    Asterisk,
}

/// The state of the validation of a field list.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageValidator {
    seen: u8,
    problem: Option<&'static str>,
    method: MethodClass,
    path: PathForm,
    /// The default port of `http` or `https`; empty for other schemes.
    default_port: &'static [u8],
    is_authority_empty: bool,
    status: u16,
    content_length: u64,
}

impl MessageValidator {
    /// Checks the next field.
    #[inline]
    pub fn check_field(&mut self, name: &[u8], value: &[u8]) {
        let problem = if name.starts_with(b":") {
            self.check_pseudo_field(name, value)
        } else {
            self.check_regular_field(name, value)
        };
        if self.problem.is_none() {
            self.problem = problem;
        }
    }

    /// Marks the list as invalid because of `problem`, which the caller has found.
    pub fn set_problem(&mut self, problem: &'static str) {
        self.problem = Some(problem);
    }

    fn check_pseudo_field(&mut self, name: &[u8], value: &[u8]) -> Option<&'static str> {
        let (bit, is_fine) = match name {
            b":method" => {
                self.method = match value {
                    b"CONNECT" => MethodClass::Connect,
                    b"HEAD" => MethodClass::Head,
                    b"OPTIONS" => MethodClass::Options,
                    _ => MethodClass::Other,
                };
                (seen_bit::METHOD, is_method(value))
            }
            b":scheme" => {
                self.default_port = match () {
                    () if value.eq_ignore_ascii_case(b"http") => b"80",
                    () if value.eq_ignore_ascii_case(b"https") => b"443",
                    () => b"",
                };
                (seen_bit::SCHEME, is_scheme(value))
            }
            b":path" if value == b"*" => {
                self.path = PathForm::Asterisk;
                (seen_bit::PATH, true)
            }
            b":path" => (seen_bit::PATH, is_path(value)),
            b":authority" => {
                self.is_authority_empty = value.is_empty();
                (seen_bit::AUTHORITY, is_authority(value))
            }
            b":status" => {
                let number = std::str::from_utf8(value).ok();
                let number = number.filter(|_| value.iter().all(u8::is_ascii_digit));
                let status = number.and_then(|number| number.parse().ok()).unwrap_or(0);
                self.status = status;
                let is_fine = value.len() == 3 && status >= 100 && status != 101;
                (seen_bit::STATUS, is_fine)
            }
            _ => return Some("an unknown pseudo-field (RFC 9113, 8.3)"),
        };
        let again = self.seen & bit != 0;
        self.seen |= bit;
        if self.seen & seen_bit::REGULAR_FIELD != 0 {
            return Some("a pseudo-field after a regular one (RFC 9113, 8.3)");
        }
        if again {
            return Some("a repeated pseudo-field (RFC 9113, 8.3)");
        }
        (!is_fine).then_some("a pseudo-field with an invalid value (RFC 9113, 8.3)")
    }

    fn check_regular_field(&mut self, name: &[u8], value: &[u8]) -> Option<&'static str> {
        self.seen |= seen_bit::REGULAR_FIELD;
        match name {
            b"content-length" => {
                let number = std::str::from_utf8(value).ok();
                let number = number.filter(|_| value.iter().all(u8::is_ascii_digit));
                let number = number.and_then(|number| number.parse().ok());
                self.content_length = number.unwrap_or(0);
                let again = self.seen & seen_bit::CONTENT_LENGTH != 0;
                self.seen |= seen_bit::CONTENT_LENGTH;
                if number.is_none() || again {
                    return Some("`content-length` is not a number, or repeated (RFC 9110, 8.6)");
                }
                None
            }
            b"host" => {
                let again = self.seen & seen_bit::HOST != 0;
                self.seen |= seen_bit::HOST;
                if again || !is_authority(value) {
                    return Some("`host` is not an authority, or repeated (RFC 9110, 7.2)");
                }
                None
            }
            _ => field_problem(name, value),
        }
    }

    fn has_seen(&self, bits: u8) -> bool {
        self.seen & bits == bits
    }

    /// Returns the reason why the list cannot begin a request; `None` if it can. `find` returns the value of a field in
    /// the list by its name.
    pub fn request_problem<'a>(
        &self,
        find: impl Fn(&[u8]) -> Option<&'a [u8]>,
    ) -> Option<&'static str> {
        if self.problem.is_some() {
            return self.problem;
        }
        if self.has_seen(seen_bit::STATUS) {
            return Some("a request with :status (RFC 9113, 8.3)");
        }
        let target = seen_bit::METHOD | seen_bit::SCHEME | seen_bit::PATH;
        let is_whole = match self.method {
            MethodClass::Connect => {
                self.has_seen(seen_bit::METHOD | seen_bit::AUTHORITY)
                    && self.seen & (seen_bit::SCHEME | seen_bit::PATH) == 0
                    && !self.is_authority_empty
            }
            _ => self.has_seen(target),
        };
        if !is_whole {
            return Some(
                "a request without :method, :scheme or :path, or a CONNECT with them (RFC 9113, 8.3.1)",
            );
        }
        if self.path == PathForm::Asterisk && self.method != MethodClass::Options {
            return Some(":path `*` with a method other than OPTIONS (RFC 9113, 8.3.1)");
        }
        let is_web = !self.default_port.is_empty();
        if is_web && self.has_seen(seen_bit::AUTHORITY) && self.is_authority_empty {
            return Some("an empty :authority (RFC 9110, 4.2.1)");
        }
        if self.has_seen(seen_bit::HOST | seen_bit::AUTHORITY) {
            let (authority, host) = (find(b":authority"), find(b"host"));
            let (authority, host) = (authority.unwrap_or_default(), host.unwrap_or_default());
            if !are_same_authority(authority, host, self.default_port) {
                return Some("`host` differs from :authority (RFC 9113, 8.3.1)");
            }
        }
        None
    }

    /// Returns the reason why the list cannot begin a final or interim response; `None` if it can.
    pub fn response_problem(&self) -> Option<&'static str> {
        match self.problem {
            None if self.seen & seen_bit::PSEUDO_FIELDS != seen_bit::STATUS => Some(
                "a response without :status, or with pseudo-fields of a request (RFC 9113, 8.3.2)",
            ),
            other => other,
        }
    }

    /// Returns the reason why the list cannot be the trailers of a message; `None` if it can.
    pub fn trailers_problem(&self) -> Option<&'static str> {
        match self.problem {
            None if self.seen & seen_bit::PSEUDO_FIELDS != 0 => {
                Some("a pseudo-field in trailers (RFC 9113, 8.1)")
            }
            None if self.seen & (seen_bit::HOST | seen_bit::CONTENT_LENGTH) != 0 => {
                Some("`host` or `content-length` in trailers (RFC 9110, 6.5.1)")
            }
            other => other,
        }
    }

    /// Returns whether `:status` is 1xx, so that another field list follows.
    pub fn is_informational(&self) -> bool {
        self.has_seen(seen_bit::STATUS) && self.status < 200
    }

    /// Returns the declared length of a request's body in bytes; `None` if it is not declared.
    pub fn request_body_length(&self) -> Option<u64> {
        self.has_seen(seen_bit::CONTENT_LENGTH)
            .then_some(self.content_length)
    }

    /// Returns the declared length of the response to `request`, which was validated by another instance.
    pub fn response_body_length(&self, request: &MessageValidator) -> Option<u64> {
        match self.status {
            _ if request.method == MethodClass::Head => Some(0),
            204 | 304 => Some(0),
            _ => self.request_body_length(),
        }
    }
}

#[cfg(test)]
mod tests;
