//! `plimsoll serve files`.

use std::path::PathBuf;

use clap::Args;
use plimsoll_protocols::fetch::target as files;

use super::listen::ListenFlags;
use super::names::NamesFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// Files of a folder and bodies of any size, over HTTP/1.1.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: TLS 1.3 with session tickets; then fetch /bytes/1KiB, /bytes/512MiB, /index.html\n  \
    plimsoll serve files site --listen 127.0.0.1:4433 --tls-cert certs/server.crt --tls-key certs/server.key"
)]
pub(super) struct Arguments {
    /// The folder to serve; /bytes/SIZE is answered with SIZE bytes in any case.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    names: NamesFlags,

    /// Let resumed connections send this many bytes of a GET before the handshake is over (0-RTT).
    /// Such requests can be replayed by whoever records them (RFC 8446 §8) [default: none].
    #[arg(long, value_name = "BYTES", help_heading = "TLS")]
    max_early_data: Option<u32>,

    #[command(flatten)]
    pub(super) listen: ListenFlags,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "files";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = files::FilesOptions {
            root: self.dir.clone(),
            certificates: self.names.tls_certs.clone(),
            no_tickets: self.names.no_tickets,
            early_data: self.max_early_data.unwrap_or(0),
        };
        // A broken certificate is reported before the server announces itself.
        let server = files::Files::new(serving.bound, &options).map_err(Failure::error)?;
        serving.listen.announce(Self::NAME, server.bound())?;
        let stats = server
            .serve(serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("served", stats.served),
                ("refused", stats.refused),
                ("bytes", stats.bytes),
                ("full handshakes", stats.full_handshakes),
                ("resumed handshakes", stats.resumed_handshakes),
                ("early requests", stats.early),
            ],
        })
    }
}
