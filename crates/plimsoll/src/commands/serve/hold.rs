//! `plimsoll serve hold`.

use clap::Args;
use plimsoll_protocols::hold::target::{Hold, HoldOptions};

use super::listen::ListenFlags;
use super::names::NamesFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// Gives back every byte, and holds as many connections in as little memory as it can.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: TLS 1.3, then 18,000 connections that rest\n  \
    plimsoll serve hold --listen 127.0.0.1:4434 --tls-cert certs/server.crt --tls-key certs/server.key\n  \
    plimsoll hold tls://localhost:4434 --ca certs/ca.crt --connections 18000 --for 10s"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    names: NamesFlags,

    #[command(flatten)]
    pub(super) listen: ListenFlags,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "hold";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let options = HoldOptions {
            workers: self.listen.workers.unwrap_or(1),
            certificates: self.names.tls_certs.clone(),
            no_tickets: self.names.no_tickets,
            library_records: serving.listen.tls.offers_1_2(),
        };
        // A broken certificate is reported before the server announces itself.
        let server = Hold::new(serving.bound, &options).map_err(Failure::error)?;
        serving.listen.announce(Self::NAME, server.bound())?;
        let stats = server
            .serve(serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("echoed bytes", stats.echoed_bytes),
                ("full handshakes", stats.full_handshakes),
                ("resumed handshakes", stats.resumed_handshakes),
            ],
        })
    }
}
