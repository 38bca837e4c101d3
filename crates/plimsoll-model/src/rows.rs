//! Templates, and the rows of values that fill them.

pub(crate) mod mixing;
pub mod recording;
pub mod template;
