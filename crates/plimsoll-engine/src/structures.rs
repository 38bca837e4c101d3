//! Data structures of the hot path.

pub(crate) mod heap;
pub mod memory_layout;
pub mod prefetch;
pub mod slab;
