//! `[call.bolt]`: a SOFARPC or SOFABolt call as typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Limit;
use crate::units::{Period, Size};

/// One kind of call over Bolt: a method of a service, or raw class and content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BoltSpec {
    /// `interface:version`, as in `com.alipay.test.TestService:1.0`.
    pub service: Option<String>,
    /// The method of the service.
    pub method: Option<String>,
    /// Its arguments: a JSON array as a string. Default none.
    pub arguments: Option<String>,
    /// Java types of its parameters. Default: as the arguments show.
    pub signature: Option<Vec<String>>,
    /// Raw calls: the class of the content, as in `java.lang.String`.
    pub class: Option<String>,
    /// Raw calls: a JSON value, sent as its Hessian encoding.
    pub content: Option<String>,
    /// Raw calls: a file whose bytes are the content.
    pub content_file: Option<PathBuf>,
    /// Entries of the header map, beside those that a service and method need.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, String>,
    /// `"v1"` (the default), `"v2"`, or `"v2-crc"`: with a checksum.
    pub version: Option<String>,
    /// The codec byte of raw calls. Default 1 (Hessian 2).
    pub codec: Option<u8>,
    /// The timeout that is sent to the server, or "none". Default: the deadline.
    pub timeout: Option<Limit>,
    /// No answer is wanted: a call ends when it is sent. Default false.
    pub oneway: Option<bool>,
    /// Calls at once on one connection. Default: no limit.
    pub in_flight: Option<u32>,
    /// Silence after which a heartbeat is sent, or "none". Default 15s.
    pub heartbeat: Option<Limit>,
    /// Larger answers fail with `MESSAGE_TOO_LARGE`. Default 16MiB.
    pub max_content: Option<Size>,
    /// The call's deadline, or "none". Default 10s.
    pub deadline: Option<Limit>,
}

impl BoltSpec {
    /// Whether class and content are given as they are.
    pub fn is_raw(&self) -> bool {
        self.class.is_some() || self.content.is_some() || self.content_file.is_some()
    }
}

/// A limit that is off, or after so long.
pub(super) fn limit(period: Option<std::time::Duration>) -> Limit {
    period.map_or(Limit::None, |d| Limit::After(Period(d)))
}
