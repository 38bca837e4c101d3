//! Error codes of RST_STREAM and GOAWAY (RFC 9113, 7).

use std::fmt;

/// An error code; unknown numbers are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($number);)*

            /// Returns the code's name in RFC 9113.
            pub fn name(self) -> Option<&'static str> {
                Some(match self {
                    $(ErrorCode::$name => stringify!($name),)*
                    _ => return None,
                })
            }
        }
    };
}

codes! {
    /// No error: a graceful end.
    NO_ERROR = 0x0;
    /// A violation that no other code describes.
    PROTOCOL_ERROR = 0x1;
    /// An internal error of the sender.
    INTERNAL_ERROR = 0x2;
    /// More data was sent than a window allows, or a window grew too large.
    FLOW_CONTROL_ERROR = 0x3;
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame arrived on a stream that its sender had ended.
    STREAM_CLOSED = 0x5;
    /// A frame of the wrong length.
    FRAME_SIZE_ERROR = 0x6;
    /// The stream was not processed, so the request may be retried.
    REFUSED_STREAM = 0x7;
    /// The stream is no longer needed.
    CANCEL = 0x8;
    /// A header block cannot be decoded.
    COMPRESSION_ERROR = 0x9;
    /// The connection that a CONNECT request had opened was lost.
    CONNECT_ERROR = 0xa;
    /// The peer causes excessive load.
    ENHANCE_YOUR_CALM = 0xb;
    /// TLS does not meet the requirements of RFC 9113 §9.2.
    INADEQUATE_SECURITY = 0xc;
    /// The request requires HTTP/1.1.
    HTTP_1_1_REQUIRED = 0xd;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}
