//! Tests that use several parts of the module together.

#[cfg(feature = "schema")]
mod conformance;
