//! `plimsoll proxies`: lists the proxies that a ladder can put between load and server.

use clap::Args;
use plimsoll_model::spec::{RungSecurity, WireFormat};
use serde_json::json;

use crate::console;
use crate::documents::JsonFlag;
use crate::failure::{Exit, Failure};
use crate::ladder_run;
use crate::proxies::{PROXIES, Proxy, named};

/// List the proxies that a ladder can put between load and server, or print the configuration of one.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: the proxies of this machine, and how to get the others
  plimsoll proxies
Example: the configuration with which a ladder measures HTTP/2 through HAProxy, with mutual TLS on both sides
  plimsoll proxies --config haproxy --carry HTTP/2 --tls mutual")]
pub(crate) struct ProxiesArguments {
    /// Print the configuration of this proxy, with addresses and files as examples.
    #[arg(long, value_name = "PROXY")]
    config: Option<String>,

    /// The protocol to proxy: HTTP/1.1, HTTP/2, gRPC, WebSocket or TCP.
    #[arg(long, value_name = "PROTOCOL", default_value = "HTTP/1.1", requires = "config", value_parser = wire)]
    carry: WireFormat,

    /// How the load's connections are secured: off, server or mutual.
    #[arg(long, value_name = "HOW", default_value = "off", requires = "config", value_parser = secured)]
    tls: RungSecurity,

    /// How the proxy's connections to the server are secured [default: --tls].
    #[arg(long, value_name = "HOW", requires = "config", value_parser = secured)]
    upstream_tls: Option<RungSecurity>,

    #[command(flatten)]
    json: JsonFlag,
}

fn wire(typed: &str) -> Result<WireFormat, String> {
    let mut all = WireFormat::ALL.into_iter();
    let found = all.find(|wire| wire.name().eq_ignore_ascii_case(typed));
    found.ok_or_else(|| {
        format!(
            "use one of {}",
            WireFormat::ALL.map(WireFormat::name).join(", ")
        )
    })
}

fn secured(typed: &str) -> Result<RungSecurity, String> {
    let mut all = RungSecurity::ALL.into_iter();
    let found = all.find(|secured| secured.name() == typed);
    found.ok_or_else(|| "use off, server or mutual".to_owned())
}

pub(crate) fn execute(arguments: &ProxiesArguments) -> Result<Exit, Failure> {
    match &arguments.config {
        Some(name) => show_configuration(arguments, name)?,
        None => list(&arguments.json)?,
    }
    Ok(Exit::Done)
}

fn show_configuration(arguments: &ProxiesArguments, name: &str) -> Result<(), Failure> {
    let proxy = named(name).ok_or_else(|| {
        let names: Vec<&str> = PROXIES.iter().map(|proxy| proxy.name).collect();
        Failure::usage(
            format_args!("--config: `{name}` is not a known proxy"),
            &format!("use one of {}", names.join(", ")),
        )
    })?;
    let wrong = |why: String| Failure::error(format_args!("--config {name}: {why}"));
    let installed = proxy.installed().map_err(wrong)?;
    let upstream = arguments.upstream_tls.unwrap_or(arguments.tls);
    let text = ladder_run::example(&installed, arguments.carry, arguments.tls, upstream);
    console::result(format_args!("{}", text.map_err(wrong)?))
}

fn list(json: &JsonFlag) -> Result<(), Failure> {
    let mut documents = Vec::new();
    let mut lines = Vec::new();
    for proxy in PROXIES {
        let found = proxy.installed();
        let installed = found.as_ref().ok();
        documents.push(json!({
            "name": proxy.name,
            "title": proxy.title,
            "program": installed.map(|found| found.program.display().to_string()),
            "version": installed.map(|found| &found.version.number),
            "tls": installed.and_then(|found| found.version.tls.as_ref()),
            "carries": proxy.carries.iter().map(|wire| wire.name()).collect::<Vec<_>>(),
            "remark": proxy.remark,
            "install": proxy.install,
        }));
        lines.push(describe(proxy, &found));
    }
    json.result(&json!({ "proxies": documents }), lines.join("\n"))
}

fn describe(proxy: &Proxy, found: &Result<crate::proxies::InstalledProxy, String>) -> String {
    let here = match found {
        Ok(installed) => format!(
            "{} in {}",
            installed.describe(),
            installed.program.display()
        ),
        Err(why) => format!("not available: {why}"),
    };
    let remark = match proxy.remark {
        "" => String::new(),
        remark => format!("; {remark}"),
    };
    format!(
        "{}\n  {here}\n  carries {}{remark}",
        proxy.name,
        proxy.carries_in_words()
    )
}
