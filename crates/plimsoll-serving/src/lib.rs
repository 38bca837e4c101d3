//! Building blocks of all reference servers: listening sockets, the server side of TLS, accept loops, HTTP/2, and
//! timers more precise than the runtime's.
//!
//! A server is bound first and run afterwards, so that the caller knows its address (port 0 picks a free one), and
//! every mistake in files and addresses is reported before the first connection. The reference servers and the service
//! simulator use this crate.

#![warn(missing_docs)]

pub mod accepting;
mod admission;
pub mod envelope;
pub mod event_loop;
pub mod http2;
mod listener;
pub mod pages;
mod peer;
pub mod precise_timer;
pub mod proxy_header;
pub mod reference;
pub mod response_timing;
mod resumption;
mod serve_error;
mod startup_facts;
pub mod tls_server;
pub mod unix;

pub use admission::UnprovenGuard;
pub use listener::{AcceptFailures, AsyncListener, BoundServer, ListenOptions, ReservedAddress};
pub use peer::PeerAddress;
pub use proxy_header::TrustedProxies;
pub use response_timing::{ResponseDelay, ResponseTiming, ServerStall};
pub use serve_error::{ConnectionStats, ServeError, build_runtime, join_threads};
pub use startup_facts::StartupFacts;
pub use tls_server::early_data::ServerStream;
pub use tls_server::renewal::CertificateRenewal;
pub use tls_server::tickets::TicketSeed;
pub use tls_server::tls::ServerTlsOptions;
