//! What a protocol offers to the program: its flags and plan sections, its errors, and the command lines of other tools
//! for it.

pub mod flags;
pub mod foreign;
pub(crate) mod prepare_error;
pub(crate) mod protocol_module;
pub mod relayed;
pub(crate) mod server_query;
pub(crate) mod service_offer;
