//! `plimsoll relay`: what carries a service's traffic.

use std::path::PathBuf;
use std::sync::mpsc;

use clap::{Args, Subcommand};
use plimsoll_relays::sidecar::{Config, Sidecar};

use crate::console;
use crate::descriptors;
use crate::failure::{Exit, Failure};
use crate::stopping::{self, Wish};

/// Carry a service's traffic.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: an application's calls to another machine, over mutual TLS\n  \
        plimsoll relay sidecar client.toml",
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    relay: Relay,
}

#[derive(Debug, Subcommand)]
enum Relay {
    Sidecar(SidecarArguments),
}

/// Plaintext on the application's side, mutual TLS between sidecars; Bolt and any TCP.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: requests to 127.0.0.1:12200 go to the sidecar at 10.0.0.2:12443\n  \
    cat > client.toml <<'END'\n  \
    [[route]]\n  \
    name = \"orders\"\n  \
    protocol = \"bolt\"\n  \
    listen = \"127.0.0.1:12200\"\n  \
    upstream = [\"10.0.0.2:12443\"]\n  \
    upstream_tls = { ca = \"ca.crt\", cert = \"client.crt\", key = \"client.key\", server_name = \"localhost\" }\n  \
    END\n  \
    plimsoll relay sidecar client.toml"
)]
struct SidecarArguments {
    /// Routes, as docs/sidecar.md has them.
    #[arg(value_name = "FILE", env = "PLIMSOLL_SIDECAR")]
    file: PathBuf,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    match &arguments.relay {
        Relay::Sidecar(arguments) => sidecar(arguments),
    }
}

fn sidecar(arguments: &SidecarArguments) -> Result<Exit, Failure> {
    let name = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file).map_err(|e| {
        Failure::error_with_help(
            format_args!("can't read {name}: {e}"),
            "give the path of a sidecar's TOML file; docs/sidecar.md has an example",
        )
    })?;
    let config = Config::read(&text).map_err(|e| {
        Failure::usage(
            format_args!("{name}: {e}"),
            "docs/sidecar.md lists the keys",
        )
    })?;
    descriptors::raise_limit();
    let (tell, told) = mpsc::channel();
    let mut pulled = false;
    stopping::on_signal(move |wish| {
        if matches!(wish, Wish::Gracefully) && !pulled {
            pulled = true;
            let _ = tell.send(());
        } else {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    })?;
    let sidecar = Sidecar::start(&config).map_err(Failure::error)?;
    for (route, address) in sidecar.listening() {
        console::result(format_args!("sidecar: {route}: listening on {address}\n"))?;
    }
    if let Some(address) = sidecar.admin() {
        console::result(format_args!("sidecar: admin: listening on {address}\n"))?;
    }
    // The sender lives in the signal handler for as long as the process does.
    let _ = told.recv();
    sidecar.stop();
    Ok(Exit::Done)
}
