//! Flags of servers of TLS itself.

use std::path::PathBuf;

use clap::Args;

/// As whom a server speaks, and what it lets clients keep.
#[derive(Debug, Args)]
pub(super) struct NamesFlags {
    /// A folder of NAME.crt and NAME.key (PEM): a client that asks for NAME (SNI) gets that certificate.
    #[arg(long, value_name = "DIR", help_heading = "TLS")]
    pub(super) tls_certs: Option<PathBuf>,

    /// Send no session tickets: nothing can be resumed.
    #[arg(long, help_heading = "TLS")]
    pub(super) no_tickets: bool,
}
