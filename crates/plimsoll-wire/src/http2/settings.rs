//! The payload of SETTINGS frames (RFC 9113 §6.5).

use super::{DEFAULT_MAX_FRAME_BYTES, ErrorCode, MAX_WINDOW_BYTES, Violation};

/// Setting identifiers (RFC 9113, 6.5.2).
pub mod setting {
    super::super::named! { u16:
        /// Maximum size in bytes of the sender's decoder table.
        HEADER_TABLE_SIZE = 0x1;
        /// 0 if the sender does not accept PUSH_PROMISE.
        ENABLE_PUSH = 0x2;
        /// Maximum number of streams that the peer may have open at the same time.
        MAX_CONCURRENT_STREAMS = 0x3;
        /// Initial window of every stream in bytes.
        INITIAL_WINDOW_SIZE = 0x4;
        /// Maximum frame payload in bytes that the sender accepts.
        MAX_FRAME_SIZE = 0x5;
        /// Maximum size of a field list that the sender accepts: bytes, plus 32 per field.
        MAX_HEADER_LIST_SIZE = 0x6;
    }
}

/// The settings of one SETTINGS frame, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingsPayload<'a>(&'a [u8]);

impl<'a> SettingsPayload<'a> {
    /// Parses a payload and checks its values.
    ///
    /// # Errors
    /// Returns an error if a value is out of range.
    pub(super) fn parse(payload: &'a [u8]) -> Result<SettingsPayload<'a>, Violation> {
        let settings = SettingsPayload(payload);
        for (id, value) in settings.iter() {
            check_range(id, value)?;
        }
        Ok(settings)
    }

    /// Returns the values of the setting with the identifier `of`, in order.
    pub fn values(&self, of: u16) -> impl Iterator<Item = u32> + '_ {
        let of = self.iter().filter(move |(id, _)| *id == of);
        of.map(|(_, value)| value)
    }

    /// Returns the identifiers and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.0.chunks_exact(6).map(|item| {
            let id = u16::from_be_bytes([item[0], item[1]]);
            (id, u32::from_be_bytes([item[2], item[3], item[4], item[5]]))
        })
    }
}

/// Checks a value against its range in RFC 9113 §6.5.2.
fn check_range(id: u16, value: u32) -> Result<(), Violation> {
    let (code, range) = match id {
        setting::ENABLE_PUSH if value > 1 => (ErrorCode::PROTOCOL_ERROR, "0 or 1"),
        setting::INITIAL_WINDOW_SIZE if value > MAX_WINDOW_BYTES => {
            (ErrorCode::FLOW_CONTROL_ERROR, "at most 2147483647")
        }
        setting::MAX_FRAME_SIZE if !(DEFAULT_MAX_FRAME_BYTES..1 << 24).contains(&value) => {
            (ErrorCode::PROTOCOL_ERROR, "16384 to 16777215")
        }
        _ => return Ok(()),
    };
    let name = setting::name(id).unwrap_or("setting");
    let why = format!("{name} is {value}, not {range} (RFC 9113, 6.5.2)");
    Err(Violation::connection_error(code, why))
}
