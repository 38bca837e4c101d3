//! `plimsoll serve hostile`: misbehaving servers for testing clients.

use std::sync::mpsc;

use clap::Args;
use plimsoll_engine::Address;
use plimsoll_hostile::{HostileBehaviour, HostileEndpoint, HostileProtocol, HostileServer};
use plimsoll_model::formats::quantity::plural;
use plimsoll_model::spec::suggest;

use crate::commands::tls_flags::ServerTlsFlags;
use crate::failure::{Exit, Failure};
use crate::load::documents::JsonFlag;
use crate::screen::console;
use crate::settings::listening::listening_address;
use crate::system::descriptors;
use crate::system::stopping;

/// Serve misbehaving servers, to test clients: named behaviours, each on its own port.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the list, with the code that a good client reports\n  \
        plimsoll serve hostile --list\n\
        Example: one behaviour\n  \
        plimsoll serve hostile h2-goaway-storm --listen 127.0.0.1:50051\n\
        Example: all of them, from port 20000 on\n  \
        plimsoll serve hostile --tls-cert certs/server.crt --tls-key certs/server.key"
)]
pub(super) struct HostileArguments {
    /// Behaviours, by name or by the beginning of the name, such as `h2-` [default: all].
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Print the behaviours, each with the code that a good client reports, and exit.
    #[arg(long)]
    list: bool,

    /// Where the first behaviour listens; the others use the ports after it. Port 0: any free ports.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:20000")]
    listen: String,

    #[command(flatten)]
    tls: ServerTlsFlags,

    #[command(flatten)]
    json: JsonFlag,
}

pub(super) fn execute(arguments: &HostileArguments) -> Result<Exit, Failure> {
    let chosen = select_behaviours(&arguments.names)?;
    if arguments.list {
        list_behaviours(&chosen, &arguments.json)?;
        return Ok(Exit::Done);
    }
    let tls = arguments.tls.server_options();
    let (served, left_out): (Vec<_>, Vec<_>) = chosen
        .into_iter()
        .partition(|(_, behaviour)| tls.is_some() || !behaviour.needs_certificate);
    if served.is_empty() {
        return Err(Failure::usage(
            "every requested behaviour begins with a valid TLS handshake",
            "give --tls-cert and --tls-key; plimsoll certs makes both",
        ));
    }
    descriptors::raise_limit()?;
    let Address::Tcp(first) = listening_address("--listen", &arguments.listen)? else {
        return Err(Failure::usage(
            format_args!("--listen: `{}` has no ports", arguments.listen),
            "each behaviour has a port of its own: write HOST:PORT, such as 127.0.0.1:20000",
        ));
    };
    let server = HostileServer::bind(&served, first, tls.as_ref()).map_err(Failure::error)?;
    for listening in server.endpoints() {
        announce(listening, &arguments.json)?;
    }
    if !left_out.is_empty() && !arguments.json.json {
        let they_need = if left_out.len() == 1 {
            "it needs"
        } else {
            "they need"
        };
        console::print_result(format_args!(
            "hostile: {} skipped: {they_need} --tls-cert and --tls-key\n",
            plural(left_out.len() as u64, "behaviour")
        ))?;
    }
    let stats = server.serve().map_err(Failure::error)?;
    let (stop, stopped) = mpsc::channel();
    // Misbehaving servers do not drain; stop immediately.
    stopping::on_signal(move |_| {
        let _ = stop.send(());
    })?;
    let _ = stopped.recv();
    let stats = stats();
    let (accepted, refused) = (stats.accepted, stats.refused);
    arguments.json.print_result(
        &serde_json::json!({ "connections": accepted, "refused": refused }),
        format_args!("connections {accepted}, refused {refused}"),
    )?;
    Ok(Exit::Done)
}

/// The selected behaviours with their protocols.
type SelectedBehaviours = Vec<(HostileProtocol, &'static HostileBehaviour)>;

/// Returns the behaviours whose names equal or start with one of `names`; all if there are none.
fn select_behaviours(names: &[String]) -> Result<SelectedBehaviours, Failure> {
    if names.is_empty() {
        return Ok(plimsoll_hostile::behaviours().collect());
    }
    let mut chosen = SelectedBehaviours::new();
    for name in names {
        let found: SelectedBehaviours = match plimsoll_hostile::find_behaviour(name) {
            Some(exact) => vec![exact],
            None => plimsoll_hostile::behaviours()
                .filter(|(_, behaviour)| behaviour.name.starts_with(name.as_str()))
                .collect(),
        };
        if found.is_empty() {
            return Err(unknown_behaviour(name));
        }
        // Skip behaviours that an earlier argument has already selected.
        let new = |(_, behaviour): &(HostileProtocol, &HostileBehaviour)| {
            !chosen.iter().any(|(_, other)| other.name == behaviour.name)
        };
        let found: SelectedBehaviours = found.into_iter().filter(new).collect();
        chosen.extend(found);
    }
    Ok(chosen)
}

/// Returns the error for an unknown name, with suggestions: names that contain it, or similar names.
fn unknown_behaviour(name: &str) -> Failure {
    /// Maximum number of names in an error.
    const MAX_SUGGESTIONS: usize = 6;
    let names: Vec<&str> = plimsoll_hostile::behaviours()
        .map(|(_, b)| b.name)
        .collect();
    let within = names.iter().copied().filter(|known| known.contains(name));
    let mut near: Vec<&str> = within.take(MAX_SUGGESTIONS).collect();
    if near.is_empty() {
        near.extend(suggest(name, &names));
    }
    let help = match near.as_slice() {
        [] => "plimsoll serve hostile --list prints the names".to_owned(),
        near => format!(
            "did you mean {}? plimsoll serve hostile --list prints all names",
            near.join(", ")
        ),
    };
    Failure::usage(
        format_args!("no behaviour is named `{name}`, and no name begins with it"),
        &help,
    )
}

fn list_behaviours(
    chosen: &[(HostileProtocol, &'static HostileBehaviour)],
    json: &JsonFlag,
) -> Result<(), Failure> {
    for (wire, behaviour) in chosen {
        let (wire, code) = (wire.name(), behaviour.outcome.code());
        json.print_result(
            &serde_json::json!({
                "name": behaviour.name,
                "protocol": wire,
                "does": behaviour.description,
                "code": code,
                "needs_certificate": behaviour.needs_certificate,
            }),
            format_args!(
                "{wire:10} {:30} {code:28} {}",
                behaviour.name, behaviour.description
            ),
        )?;
    }
    Ok(())
}

fn announce(listening: &HostileEndpoint, json: &JsonFlag) -> Result<(), Failure> {
    let url = listening.url();
    let name = listening.behaviour.name;
    json.print_result(
        &serde_json::json!({ "name": name, "url": url }),
        format_args!("hostile: {url} {name}"),
    )
}
