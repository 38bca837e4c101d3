//! `plimsoll serve plugin`.

use std::path::PathBuf;

use clap::Args;
use plimsoll_plugin::Codec;
use plimsoll_protocols::plugin::target;

use super::listen::ListenFlags;
use super::{Counted, ReferenceServer, Serving};
use crate::failure::Failure;

/// The protocol of a codec plugin: each request is answered with its own payload.
#[derive(Debug, Args)]
#[command(before_help = "Example: the plugin that docs/plugin.md builds\n  \
    plimsoll serve plugin x_example.so --listen 127.0.0.1:7000")]
pub(super) struct Arguments {
    /// The shared object that brings the protocol (docs/plugin.md).
    #[arg(value_name = "FILE")]
    codec: PathBuf,

    #[command(flatten)]
    pub(super) listen: ListenFlags,
}

impl ReferenceServer for Arguments {
    const NAME: &str = "plugin";

    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure> {
        let codec = Codec::load(&self.codec).map_err(|e| {
            Failure::error_with_help(e, "docs/plugin.md says how a plugin is built")
        })?;
        target::check(&codec).map_err(Failure::error)?;
        serving.announce()?;
        let stats = target::serve(serving.bound, codec, serving.stopped)
            .await
            .map_err(Failure::error)?;
        Ok(Counted {
            connections: stats.connections,
            counts: vec![
                ("answered", stats.answered),
                ("oneway", stats.oneway),
                ("heartbeats", stats.heartbeats),
                ("malformed", stats.malformed),
                ("plugin faults", stats.plugin_faults),
            ],
        })
    }
}
