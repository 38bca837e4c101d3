//! Protocols against captured bytes, other implementations and reference servers, and their sections of plans.

mod bolt_target;
mod bolt_vectors;
#[path = "../../../plimsoll-plugin/tests/built/mod.rs"]
mod built;
mod editions;
mod grpc_interop;
mod grpc_targets;
#[path = "../ports/mod.rs"]
mod ports;
mod reflection;
mod sections;
mod session_section;
mod token_streams;
