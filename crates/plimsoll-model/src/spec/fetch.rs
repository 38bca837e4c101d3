//! `[call.fetch]`: a file to fetch over HTTP/1.1, as typed.

use serde::{Deserialize, Serialize};

use super::Limit;
use crate::units::Size;

/// One file, fetched again and again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FetchSpec {
    /// Path and query. Default: the target URL's, or `/`.
    pub path: Option<String>,
    /// `Host`. Default: host:port of the target.
    pub host: Option<String>,
    /// The body's exact size; another one fails with `BODY_LENGTH`. Default: that of a path
    /// `/bytes/SIZE`, otherwise whatever the server promises.
    pub size: Option<Size>,
    /// Files that one connection fetches before it is replaced. Default: no limit.
    pub per_connection: Option<u32>,
    /// The call's deadline, or "none". Default 10s.
    pub deadline: Option<Limit>,
}
