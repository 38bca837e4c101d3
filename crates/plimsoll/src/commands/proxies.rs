//! `plimsoll proxies`: lists the proxies that a ladder can put between load and server.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{ProxiedCalls, RungSecurity, WireFormat};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::ladder_run::{self, ProxyTask};
use crate::load::documents::JsonFlag;
use crate::proxies::{
    InstalledProxy, Proxy, ProxyCatalog, SameNeighbours, shipped_definition, shipped_names,
};
use crate::screen::console;

/// List the proxies that a ladder can put between load and server.
///
/// With --config, prints the configuration of one proxy; with --definition, the file from which Plimsoll generates
/// configurations.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: the proxies of this machine, and how to get the others
  plimsoll proxies
Example: the configuration with which a ladder measures HTTP/2 through HAProxy, with mutual TLS on both sides
  plimsoll proxies --config haproxy --carry HTTP/2 --tls mutual
Example: a definition to begin with, for a proxy of your own
  mkdir mine && plimsoll proxies --definition haproxy >mine/mine.toml
  plimsoll proxies --proxies mine --config mine")]
pub(crate) struct ProxiesArguments {
    /// Print the configuration of this proxy, with addresses and files as examples.
    #[arg(long, value_name = "PROXY")]
    config: Option<String>,

    /// The protocol to proxy: HTTP/1.1, HTTP/2, gRPC, WebSocket or TCP.
    #[arg(long, value_name = "PROTOCOL", default_value = "HTTP/1.1", requires = "config", value_parser = parse_wire_format)]
    carry: WireFormat,

    /// How the load's connections are secured: off, server or mutual.
    #[arg(long, value_name = "HOW", default_value = "off", requires = "config", value_parser = parse_security)]
    tls: RungSecurity,

    /// How the proxy's connections to the server are secured [default: --tls].
    #[arg(long, value_name = "HOW", requires = "config", value_parser = parse_security)]
    upstream_tls: Option<RungSecurity>,

    /// Number of worker threads or processes of the proxy.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "config", value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,

    /// Print the definition of this proxy, from which Plimsoll generates configurations.
    #[arg(long, value_name = "PROXY", conflicts_with_all = ["config", "json"])]
    definition: Option<String>,

    /// A folder with further definitions of proxies, each in a file NAME.toml; they replace Plimsoll's definitions of
    /// the same name.
    #[arg(long, value_name = "DIR")]
    proxies: Option<PathBuf>,

    #[command(flatten)]
    json: JsonFlag,
}

fn parse_wire_format(typed: &str) -> Result<WireFormat, String> {
    let mut all = WireFormat::ALL.into_iter();
    let found = all.find(|wire| wire.name().eq_ignore_ascii_case(typed));
    found.ok_or_else(|| {
        format!(
            "use one of {}",
            WireFormat::ALL.map(WireFormat::name).join(", ")
        )
    })
}

fn parse_security(typed: &str) -> Result<RungSecurity, String> {
    let mut all = RungSecurity::ALL.into_iter();
    let found = all.find(|secured| secured.name() == typed);
    found.ok_or_else(|| "use off, server or mutual".to_owned())
}

pub(crate) fn execute(arguments: &ProxiesArguments) -> Result<Exit, Failure> {
    let catalog = ProxyCatalog::load(arguments.proxies.as_deref())?;
    match (&arguments.config, &arguments.definition) {
        (Some(name), _) => show_configuration(arguments, &catalog, name)?,
        (None, Some(name)) => {
            let text = shipped_definition(name)
                .ok_or_else(|| unknown_value_failure("--definition", name, shipped_names()))?;
            console::print_result(format_args!("{text}"))?;
        }
        (None, None) => list_proxies(&catalog, &arguments.json)?,
    }
    Ok(Exit::Done)
}

fn unknown_value_failure<'a>(
    flag: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> Failure {
    let names: Vec<&str> = known.collect();
    Failure::usage(
        format_args!("{flag}: `{name}` is not a known proxy"),
        &format!("use one of {}", names.join(", ")),
    )
}

fn show_configuration(
    arguments: &ProxiesArguments,
    catalog: &ProxyCatalog,
    name: &str,
) -> Result<(), Failure> {
    let proxy = catalog.find_proxy(name).ok_or_else(|| {
        let names = catalog.iter().map(|proxy| proxy.name.as_str());
        unknown_value_failure("--config", name, names)
    })?;
    let wrong = |why: String| Failure::error(format_args!("--config {name}: {why}"));
    let installed = proxy.find_installed().map_err(wrong)?;
    let task = ProxyTask {
        calls: ProxiedCalls {
            wire: arguments.carry,
            calls_model: true,
        },
        listen: arguments.tls,
        upstream: arguments.upstream_tls.unwrap_or(arguments.tls),
        workers: arguments.workers,
        // Some proxies work in pairs; this is the first of one.
        neighbours: SameNeighbours {
            before: 0,
            after: 1,
        },
    };
    let text = ladder_run::example_configuration(&installed, task).map_err(wrong)?;
    console::print_result(format_args!("{text}"))
}

fn list_proxies(catalog: &ProxyCatalog, json: &JsonFlag) -> Result<(), Failure> {
    let mut documents = Vec::new();
    let mut lines = Vec::new();
    for proxy in catalog.iter() {
        let found = proxy.find_installed();
        let installed = found.as_ref().ok();
        documents.push(json!({
            "name": proxy.name,
            "title": proxy.title,
            "program": installed.map(|found| found.program.display().to_string()),
            "version": installed.map(|found| &found.version.number),
            "tls": installed.and_then(|found| found.version.tls.as_ref()),
            "carries": proxy.supported_protocols(),
            "remark": proxy.remark,
            "install": proxy.install,
        }));
        lines.push(describe_proxy(proxy, &found));
    }
    json.print_result(&json!({ "proxies": documents }), lines.join("\n"))
}

fn describe_proxy(proxy: &Proxy, found: &Result<InstalledProxy, String>) -> String {
    let here = match found {
        Ok(installed) => format!(
            "{} in {}",
            installed.describe(),
            installed.program.display()
        ),
        Err(why) => format!("not available: {why}"),
    };
    let remark = match proxy.remark.as_str() {
        "" => String::new(),
        remark => format!("; {remark}"),
    };
    format!(
        "{}\n  {here}\n  carries {}{remark}",
        proxy.name,
        proxy.supported_protocols_text()
    )
}
