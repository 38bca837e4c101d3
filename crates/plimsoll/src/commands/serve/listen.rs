//! Common parts of the reference servers: listening, TLS, shutdown and final counts.

use std::io::{self, Read as _};

use clap::Args;
use plimsoll_engine::{Address, defect};
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_serving::reference::ServerCounts;
use plimsoll_serving::{BoundServer, ListenOptions, ReservedAddress, TicketSeed};

use crate::commands::final_counts;
use crate::commands::tls_flags::ServerTlsFlags;
use crate::failure::Failure;
use crate::load::documents::JsonFlag;
use crate::screen::defects;
use crate::settings::listening::listening_address;
use crate::system::descriptors;

#[derive(Debug, Args)]
pub(crate) struct ListenFlags {
    /// Where to listen; port 0: any free port; unix:/PATH: a Unix socket.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50051")]
    pub(super) listen: String,

    #[command(flatten)]
    pub(super) tls: ServerTlsFlags,

    /// Number of threads [default: one per core; fast and hold: one].
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<usize>,

    /// Maximum number of calls in flight on a connection; 0: no limit.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(super) max_streams: u32,

    /// Share the port with other processes (SO_REUSEPORT).
    #[arg(long)]
    pub(super) reuse_port: bool,

    /// Serve from N processes, which share the port; connections are spread over them.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub(super) processes: u16,

    /// First read the seed of the session tickets from standard input.
    #[arg(long, hide = true)]
    pub(super) tickets_from_input: bool,

    /// How long calls in flight may continue after a stop request.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    pub(super) drain: Period,

    #[command(flatten)]
    pub(super) json: JsonFlag,
}

impl ListenFlags {
    pub(super) fn bind(&self) -> Result<BoundServer, Failure> {
        descriptors::raise_limit()?;
        self.listen_options()?.bind().map_err(Failure::error)
    }

    /// Reserves the port for processes that will share it.
    pub(super) fn reserve_port(&self) -> Result<ReservedAddress, Failure> {
        self.listen_options()?
            .reserve_address()
            .map_err(Failure::error)
    }

    fn listen_options(&self) -> Result<ListenOptions, Failure> {
        Ok(ListenOptions {
            address: listening_address("--listen", &self.listen)?,
            reuse_port: self.reuse_port,
            tls: self.tls.server_options(),
            tickets: self.read_ticket_seed()?,
            max_concurrent_streams: Some(self.max_streams).filter(|&n| n > 0),
            drain: self.drain.0,
            ..ListenOptions::default()
        })
    }

    /// Reads the ticket seed from stdin, because other users could see it on the command line, or in the environment.
    fn read_ticket_seed(&self) -> Result<Option<TicketSeed>, Failure> {
        if !self.tickets_from_input {
            return Ok(None);
        }
        let mut seed = [0; TicketSeed::LEN];
        io::stdin().read_exact(&mut seed).map_err(|e| {
            Failure::error(format_args!("--tickets-from-input: nothing to read: {e}"))
        })?;
        Ok(Some(seed.into()))
    }

    /// Prints the server's address and other properties to stdout, before the server accepts its first connection.
    pub(super) fn announce(
        &self,
        name: &str,
        address: &Address,
        facts: &[(&str, String)],
    ) -> Result<(), Failure> {
        let link = self.tls.describe_security();
        let processes = match self.processes {
            0 | 1 => String::new(),
            n => format!(", {n} processes"),
        };
        let mut document = serde_json::json!({
            "server": name,
            "address": address.to_string(),
            "tls": self.tls.uses_tls(),
        });
        let mut words = String::new();
        for (fact, value) in facts {
            document[fact.replace(' ', "_")] = value.as_str().into();
            words += &format!(", {fact} {value}");
        }
        self.json.print_result(
            &document,
            format_args!("{name}: listening on {address} ({link}){processes}{words}"),
        )
    }

    /// Prints the server's counts.
    pub(super) fn print_final_counts(&self, counted: &ServerCounts) -> Result<(), Failure> {
        let connections = &counted.connections;
        let all = [
            ("connections", connections.accepted),
            ("connections at once", connections.peak_open),
            ("handshakes failed", connections.handshakes_failed),
            ("connections broken", connections.broken),
            ("connections cut off", connections.cut_off),
            (defects::PANICS_COUNTER, defect::panic_count()),
        ];
        let all: Vec<(&str, u64)> = counted.counts.iter().copied().chain(all).collect();
        self.print_counts(&all)
    }

    /// Prints the first count, which is the number of calls, and all others that are not zero.
    pub(super) fn print_counts(&self, all: &[(&str, u64)]) -> Result<(), Failure> {
        final_counts::print(&self.json, all, |(i, n)| i == 0 || n > 0)
    }
}
