//! A sweep of TLS links on the terminal and as JSON: what each carried, what that cost both
//! ends, and how near it came to what the machine can do in memory.

pub(crate) mod links;
mod metrics;

use std::fmt::Write as _;

use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::limits::Limits;
use serde_json::{Value, json};

use crate::ladder;
use crate::quantity::{rate, share, time};
use crate::terminal::{Options, Table, wrap};

use links::{Link, Mode};
pub use metrics::{Metric, csv, metrics};

/// The sweep, with a line's end at its end.
pub fn render(record: &LadderRecord, options: &Options) -> String {
    let links = links::links(record);
    let mut out = format!("{}\n\n", options.bold(&record.name));
    out += &carried(&links, options).to_string();
    if let Some(limits) = &record.limits {
        out.push('\n');
        out += &(wrap(&wall(limits), options.width).join("\n") + "\n");
    }
    let table = metrics(record);
    if !table.is_empty() {
        let _ = writeln!(out, "\n{}", options.bold("metrics"));
        let head = ["ScenarioName", "MetricName", "MetricUnit", "MetricValue"];
        let mut lines = Table::new(options.width, head, &[0, 1, 2]);
        lines.unbroken();
        for metric in table {
            lines.row(vec![
                metric.scenario.clone(),
                metric.name.to_owned(),
                metric.unit.to_owned(),
                metrics::number(metric.value),
            ]);
        }
        out += &lines.to_string();
    }
    let notes = notes(record, &links);
    if !notes.is_empty() {
        out.push('\n');
        for note in notes {
            for (i, line) in wrap(&note, options.width.saturating_sub(4))
                .iter()
                .enumerate()
            {
                let _ = writeln!(out, "  {} {line}", if i == 0 { "-" } else { " " });
            }
        }
    }
    out
}

/// The same for a program.
pub fn document(record: &LadderRecord) -> Value {
    let links = links::links(record);
    json!({
        "name": record.name,
        "interrupted": record.interrupted,
        "verdict": record.conclusion(),
        "links": links.iter().map(link).collect::<Vec<_>>(),
        "limits": record.limits,
        "metrics": metrics(record)
            .iter()
            .map(|m| json!({
                "ScenarioName": m.scenario,
                "MetricName": m.name,
                "MetricUnit": m.unit,
                "MetricValue": m.value,
            }))
            .collect::<Vec<_>>(),
        "notes": notes(record, &links),
    })
}

fn link(link: &Link) -> Value {
    json!({
        "name": link.name,
        "suite": link.suite,
        "size_bytes": link.size,
        "connections": link.mode.name(),
        "ok": link.ok,
        "connections_full": link.full,
        "connections_resumed": link.resumed,
        "elapsed_s": link.elapsed_s,
        "fetched_per_s": link.per_s(),
        "bytes_per_s": link.bytes_per_s(),
        "client_cpu_us_per_fetch": link.client.us(link.ok),
        "server_cpu_us_per_fetch": link.server.us(link.ok),
        "bytes_per_client_cpu_s": link.client.bytes_per_s(link.bytes),
        "bytes_per_server_cpu_s": link.server.bytes_per_s(link.bytes),
        "client_share_of_limit": link.client.of_limit(link.ok),
        "server_share_of_limit": link.server.of_limit(link.ok),
    })
}

/// What each link carried.
fn carried(links: &[Link], options: &Options) -> Table {
    let head = [
        "link",
        "size",
        "fetched",
        "client CPU",
        "server CPU",
        "GB/client CPU s",
        "of the limit",
    ];
    let mut table = Table::new(options.width, head, &[0]);
    table.unbroken();
    let dash = || "–".to_owned();
    for link in links {
        let gb = |bytes_per_s: f64| match bytes_per_s / 1e9 {
            small if small < 0.1 => format!("{small:.4}"),
            gb => format!("{gb:.2}"),
        };
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        table.row(vec![
            link.title(),
            link.size_text(),
            link.per_s().map_or_else(dash, rate),
            link.client.us(link.ok).map_or_else(dash, time),
            link.server.us(link.ok).map_or_else(dash, time),
            link.client.bytes_per_s(link.bytes).map_or_else(dash, gb),
            link.client.of_limit(link.ok).map_or_else(dash, percent),
        ]);
    }
    table
}

/// What the limit is made of.
pub(crate) fn wall(limits: &Limits) -> String {
    let speeds: Vec<String> = limits
        .open_bytes_per_s
        .iter()
        .map(|(suite, speed)| format!("{} {:.2} GB/s", links::short(suite), speed / 1e9))
        .collect();
    let exchanges: Vec<String> = limits
        .client_exchange_us
        .iter()
        .map(|(group, us)| {
            let server = limits.server_exchange_us.get(group).copied().unwrap_or(0.0);
            format!("{group} {} (server {})", time(*us), time(server))
        })
        .collect();
    format!(
        "The limit is what crypto alone costs on a core of this machine, measured in memory: {}; key exchange {}; ECDSA P-256 signed in {}, checked in {}. Hashing, the key schedule, system calls and TCP come on top, so a link comes near it and never reaches it.",
        speeds.join(", "),
        exchanges.join(", "),
        time(limits.sign_us),
        time(limits.verify_us),
    )
}

pub(crate) fn notes(record: &LadderRecord, links: &[Link]) -> Vec<String> {
    let mut notes = ladder::objectives(record);
    for link in links {
        if link.mode == Mode::Resumed && link.full > 0 {
            notes.push(format!(
                "{}: {} of the handshakes were full ones, though sessions were to be resumed: its figures are not those of resumption, and are left out of the metrics",
                link.name,
                share(link.full, link.full + link.resumed)
            ));
        }
        if link.ok == 0 {
            notes.push(format!(
                "{}: nothing was fetched in a whole slice: make slices longer (--slice)",
                link.name
            ));
        }
    }
    notes.extend(ladder::libraries(record));
    notes.extend(ladder::limits(record));
    notes
}
