//! Protocol violations of a peer.

use std::fmt;

use super::ErrorCode;

/// A violation of RFC 9113 by the peer.
///
/// A violation is one pointer wide, because the result of handling every frame contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(Box<ViolationDetail>);

/// The details of a [`Violation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViolationDetail {
    /// 0 for a connection error (§5.4.1), otherwise the stream of a stream error (§5.4.2).
    pub stream: u32,
    /// The error code for RST_STREAM or GOAWAY.
    pub code: ErrorCode,
    /// A description of what was received and of the violated rule.
    pub why: String,
}

impl Violation {
    /// Creates a connection error.
    #[cold]
    pub fn connection_error(code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation::stream_error(0, code, why)
    }

    /// Creates a stream error.
    #[cold]
    pub fn stream_error(stream: u32, code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation(Box::new(ViolationDetail {
            stream,
            code,
            why: why.into(),
        }))
    }
}

impl std::ops::Deref for Violation {
    type Target = ViolationDetail;
    fn deref(&self) -> &ViolationDetail {
        &self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.why)
    }
}

impl std::error::Error for Violation {}
