//! What a peer must not do.

use std::fmt;

use super::ErrorCode;

/// The peer broke RFC 9113.
///
/// One pointer wide, because every frame's handling returns one or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(Box<Fault>);

/// What a [`Violation`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 0: the whole connection is lost (5.4.1). Else the stream that is (5.4.2).
    pub stream: u32,
    /// What to send in RST_STREAM or GOAWAY.
    pub code: ErrorCode,
    /// What was seen, and the rule.
    pub why: String,
}

impl Violation {
    /// A connection error.
    #[cold]
    pub fn connection(code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation::stream(0, code, why)
    }

    /// A stream error.
    #[cold]
    pub fn stream(stream: u32, code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation(Box::new(Fault {
            stream,
            code,
            why: why.into(),
        }))
    }
}

impl std::ops::Deref for Violation {
    type Target = Fault;
    fn deref(&self) -> &Fault {
        &self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.why)
    }
}

impl std::error::Error for Violation {}
