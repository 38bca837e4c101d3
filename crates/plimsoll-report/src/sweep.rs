//! A sweep of TLS configurations for the terminal and as JSON: the throughput, its CPU cost at client and server, and
//! how close it is to the limit that cryptography in memory sets on this machine.

pub(crate) mod links;
mod metrics;

use std::fmt::Write as _;

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::comparisons::ladder::throughput::IntervalEstimate;
use plimsoll_model::crypto_speeds::CryptoSpeeds;
use serde_json::{Value, json};

use crate::ladder;
use crate::quantity::{count, or_dash, rate, share, time};
use crate::sections::table::TextTable;
use crate::terminal::{TerminalOptions, write_list, write_wrapped};

use links::{ConnectionMode, SweepConfiguration};
pub use metrics::{SweepMetric, csv, metrics};

/// Renders the sweep, with a line feed at its end.
pub fn render(record: &LadderRecord, options: &TerminalOptions) -> String {
    let links = links::sweep_configurations(record);
    let mut out = format!("{}\n\n", options.bold(&record.name));
    out += &table(&links)
        .columns(&NARROW_COLUMNS)
        .render_unwrapped(options.width);
    if let Some(limits) = &record.limits {
        out.push('\n');
        write_wrapped(&mut out, &describe_limit(limits), options);
    }
    let metrics = metrics(record);
    if !metrics.is_empty() {
        let _ = writeln!(out, "\n{}", options.bold("metrics"));
        let head = ["ScenarioName", "MetricName", "MetricUnit", "MetricValue"];
        let rows = metrics.into_iter().map(|m| {
            let value = metrics::format_number(m.value);
            [m.scenario, m.name.to_owned(), m.unit.to_owned(), value]
        });
        out += &TextTable::new(head, &[0, 1, 2], rows).render_unwrapped(options.width);
    }
    let notes = notes(record, &links);
    if !notes.is_empty() {
        out.push('\n');
        write_list(&mut out, notes, options);
    }
    out
}

/// Returns the sweep as JSON.
pub fn sweep_json(record: &LadderRecord) -> Value {
    let links = links::sweep_configurations(record);
    json!({
        "name": record.name,
        "interrupted": record.interrupted,
        "verdict": record.conclusion(),
        "links": links.iter().map(link_json).collect::<Vec<_>>(),
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

fn link_json(link: &SweepConfiguration) -> Value {
    json!({
        "name": link.name,
        "suite": link.suite,
        "size_bytes": link.size,
        "connections": link.mode.name(),
        "ok": link.ok,
        "connections_full": link.full,
        "connections_resumed": link.resumed,
        "elapsed_s": link.elapsed_s,
        "slices": link.slices,
        "batches": link.batches,
        "fetched_per_s": link.files.map(|f| f.value),
        "fetched_per_s_interval": link.files.map(|f| f.interval),
        "bytes_per_s": link.speed.map(|f| f.value),
        "bytes_per_s_interval": link.speed.map(|f| f.interval),
        "client_cpu_us_per_fetch": link.client.us_per_file(link.ok),
        "server_cpu_us_per_fetch": link.server.us_per_file(link.ok),
        "bytes_per_client_cpu_s": link.client.bytes_per_s(link.bytes),
        "bytes_per_server_cpu_s": link.server.bytes_per_s(link.bytes),
        "client_share_of_limit": link.client_share.map(|f| f.value),
        "client_share_of_limit_interval": link.client_share.map(|f| f.interval),
        "server_share_of_limit": link.server_share.map(|f| f.value),
        "server_share_of_limit_interval": link.server_share.map(|f| f.interval),
    })
}

/// Formats a figure, followed by its interval if there is one.
pub(crate) fn format_estimate(figure: IntervalEstimate, show: impl Fn(f64) -> String) -> String {
    let spread = figure
        .relative_half_width()
        .map(|s| format!(" ±{:.1} %", s * 100.0));
    show(figure.value) + &spread.unwrap_or_default()
}

/// The columns of [`table`] that narrow terminals show.
pub(crate) const NARROW_COLUMNS: [usize; 7] = [0, 1, 2, 4, 5, 6, 9];

/// Returns a row for each configuration.
pub(crate) fn table(links: &[SweepConfiguration]) -> TextTable {
    let head = [
        "configuration",
        "size",
        "fetched",
        "bytes",
        "client CPU",
        "server CPU",
        "GB/client CPU s",
        "full handshakes",
        "resumed",
        "of crypto-only limit",
        "of crypto-only limit, server",
    ];
    let gb = |bytes_per_s: f64| match bytes_per_s / 1e9 {
        small if small < 0.1 => format!("{small:.4}"),
        gb => format!("{gb:.2}"),
    };
    let known = |of: Option<IntervalEstimate>, show: fn(f64) -> String| {
        or_dash(of, |of| format_estimate(of, show))
    };
    let rows = links.iter().map(|link| {
        [
            link.title(),
            link.size_text(),
            known(link.files, rate),
            known(link.speed, format_speed),
            or_dash(link.client.us_per_file(link.ok), time),
            or_dash(link.server.us_per_file(link.ok), time),
            or_dash(link.client.bytes_per_s(link.bytes), gb),
            count(link.full),
            count(link.resumed),
            known(link.client_share, format_percent),
            known(link.server_share, format_percent),
        ]
    });
    TextTable::new(head, &[0], rows)
}

/// Formats bytes per second.
pub(crate) fn format_speed(bytes_per_s: f64) -> String {
    format_in_unit(bytes_per_s, |value| {
        let digits = usize::from(value < 100.0 && value.fract() > 0.0);
        format!("{value:.digits$}")
    })
}

/// Formats a throughput in decimal units, as network links are specified.
pub(crate) fn format_in_unit(bytes_per_s: f64, show: fn(f64) -> String) -> String {
    let (value, unit) = match bytes_per_s {
        b if b >= 1e9 => (b / 1e9, "GB/s"),
        b if b >= 1e6 => (b / 1e6, "MB/s"),
        b if b >= 1e3 => (b / 1e3, "kB/s"),
        b => (b, "B/s"),
    };
    format!("{} {unit}", show(value))
}

pub(crate) fn format_percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Describes the limit that cryptography alone sets.
pub(crate) fn describe_limit(limits: &CryptoSpeeds) -> String {
    let speeds: Vec<String> = limits
        .open_bytes_per_s
        .iter()
        .map(|(suite, speed)| format!("{} {:.2} GB/s", links::short_suite_name(suite), speed / 1e9))
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
        "The limit is what crypto alone costs on a core of this machine, measured in memory: {}; key exchange {}; ECDSA P-256 signed in {}, checked in {}. Hashing, the key schedule, system calls and TCP come on top, so a configuration comes near it and never reaches it.",
        speeds.join(", "),
        exchanges.join(", "),
        time(limits.sign_us),
        time(limits.verify_us),
    )
}

pub(crate) fn notes(record: &LadderRecord, links: &[SweepConfiguration]) -> Vec<String> {
    let mut notes = ladder::objective_lines(record);
    for link in links {
        if link.mode == ConnectionMode::Resumed && link.full > 0 {
            notes.push(format!(
                "{}: {} of the handshakes were full ones, although resumption was requested: its figures are not those of resumption, and are omitted from the metrics",
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
    let turns = || links.iter().map(|link| link.batches);
    if let (Some(fewest), Some(most @ 1..)) = (turns().min(), turns().max()) {
        let each = if fewest == most {
            fewest.to_string()
        } else {
            format!("{fewest} to {most}")
        };
        notes.push(format!(
            "all configurations were up together, each with a server of its own, and had batches in random order within each round: {each} batches a configuration"
        ));
    }
    if let Some(why) = &record.sliced_because {
        notes.push(format!(
            "configurations ran one after another, in slices: {why}"
        ));
    }
    for link in links.iter().filter(|link| link.overrun_batches > 0) {
        notes.push(format!(
            "{}: {} of {} batches ended in the next configuration's: use fewer clients or smaller files, or slices (--slice)",
            link.name, link.overrun_batches, link.batches
        ));
    }
    let has_interval =
        |link: &&SweepConfiguration| link.files.is_some_and(|f| f.interval.is_some());
    let without: Vec<&str> = links
        .iter()
        .filter(|link| !has_interval(link))
        .map(|link| link.name.as_str())
        .collect();
    if without.len() < links.len() {
        let (pieces, more) = if turns().any(|turns| turns > 0) {
            ("batches", "--duration")
        } else {
            ("slices", "--rounds")
        };
        notes.push(format!(
            "± is the interval of a figure over a configuration's {pieces}; the intervals are simultaneous for all configurations"
        ));
        if !without.is_empty() {
            notes.push(format!(
                "not enough {pieces} for an interval ({more} makes more): {}",
                without.join("; ")
            ));
        }
    }
    notes.extend(ladder::describe_libraries(record));
    notes.extend(ladder::common_notes(record));
    notes
}
