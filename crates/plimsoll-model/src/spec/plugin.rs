//! `[call.plugin]`: a call in a protocol that a codec plugin brings, as typed.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Limit;
use crate::units::Size;

/// One kind of call: a frame, or a payload that the plugin makes a frame around.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginSpec {
    /// The shared object that brings the protocol.
    pub codec: Option<PathBuf>,
    /// The request's payload, as text. Default: none.
    pub payload: Option<String>,
    /// A file whose bytes are the payload.
    pub payload_file: Option<PathBuf>,
    /// A whole request in hexadecimal digits; blanks don't count.
    pub frame: Option<String>,
    /// A file whose bytes are a whole request.
    pub frame_file: Option<PathBuf>,
    /// Calls at once on one connection. Default: no limit.
    pub in_flight: Option<u32>,
    /// Silence after which a heartbeat is sent, or "none". Default 15s, where the protocol
    /// has heartbeats.
    pub heartbeat: Option<Limit>,
    /// Larger frames fail with `MESSAGE_TOO_LARGE`. Default 16MiB.
    pub max_frame: Option<Size>,
    /// The call's deadline, or "none". Default 10s.
    pub deadline: Option<Limit>,
}
