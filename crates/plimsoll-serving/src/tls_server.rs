//! The server side of TLS: certificates and their renewal, early data, and session tickets.

pub mod early_data;
pub(crate) mod named_certificates;
pub(crate) mod renewal;
pub(crate) mod session_expiry;
pub(crate) mod tickets;
pub(crate) mod tls;
