//! Reads and writes values, names and documents: units, JSON lines, labels, limits on input, and masking of secrets.

pub mod base64_text;
pub mod checksum;
pub(crate) mod document;
pub(crate) mod fingerprint;
pub mod input;
pub(crate) mod json_line;
pub mod labels;
pub mod metrics_text;
pub(crate) mod named_enum;
pub mod output;
pub mod quantity;
pub mod redaction;
pub mod suggest;
pub mod time;
pub mod units;
