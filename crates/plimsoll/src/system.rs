//! The process and its operating system: signals, threads, child processes and the limits of descriptors and CPU
//! features.

pub(crate) mod child;
pub(crate) mod descriptors;
pub(crate) mod processor;
pub(crate) mod stopping;
pub(crate) mod threads;
pub(crate) mod version;
