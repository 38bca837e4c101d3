//! Error codes of RST_STREAM and GOAWAY (RFC 9113, 7).

use std::fmt;

/// An error code; numbers without a name are kept as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: ErrorCode = ErrorCode($number);)*

            /// The name RFC 9113 gives the code.
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
    /// All is well: a graceful end.
    NO_ERROR = 0x0;
    /// A rule that no other code names.
    PROTOCOL_ERROR = 0x1;
    /// The sender's own fault.
    INTERNAL_ERROR = 0x2;
    /// More was sent than a window allows, or a window grew too large.
    FLOW_CONTROL_ERROR = 0x3;
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 0x4;
    /// A frame came on a stream that its sender had ended.
    STREAM_CLOSED = 0x5;
    /// A frame of the wrong length.
    FRAME_SIZE_ERROR = 0x6;
    /// Nothing was done for the stream: the request may be sent again.
    REFUSED_STREAM = 0x7;
    /// The stream is not needed any more.
    CANCEL = 0x8;
    /// A header block that can't be decoded.
    COMPRESSION_ERROR = 0x9;
    /// The connection behind a CONNECT was lost.
    CONNECT_ERROR = 0xa;
    /// The peer causes too much work.
    ENHANCE_YOUR_CALM = 0xb;
    /// TLS below what RFC 9113, 9.2 demands.
    INADEQUATE_SECURITY = 0xc;
    /// The same over HTTP/1.1 would do.
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
