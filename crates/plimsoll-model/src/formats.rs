//! How values, names and documents are read and written: units, JSON lines, labels, limits on input, and secrets that
//! are masked.

pub(crate) mod document;
pub(crate) mod fingerprint;
pub mod input;
pub(crate) mod json_line;
pub mod labels;
pub(crate) mod named_enum;
pub mod output;
pub mod quantity;
pub mod redaction;
pub mod suggest;
pub mod time;
pub mod units;
