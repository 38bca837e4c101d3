//! The TLS configurations of a sweep, each the sum of the slices (short runs) of a rung (variant).

use plimsoll_model::comparisons::ladder::throughput::{IntervalEstimate, ThroughputSample};
use plimsoll_model::comparisons::ladder::{LadderRecord, Rung, SliceThroughput};
use plimsoll_model::formats::units::ByteSize;

use crate::quantity::or_dash;

/// How the connections of a configuration are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionMode {
    New,
    Resumed,
    Reused,
}

impl ConnectionMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ConnectionMode::New => "new",
            ConnectionMode::Resumed => "resumed",
            ConnectionMode::Reused => "reused",
        }
    }
}

/// CPU time of the client or the server, summed over all slices in which it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTimeTotal {
    cpu_us: Option<f64>,
    floor_us: Option<f64>,
}

impl CpuTimeTotal {
    fn add(&mut self, cpu_us: Option<f64>, floor_us: Option<f64>, times: u64) {
        let add = |sum: Option<f64>, value: f64| Some(sum.unwrap_or(0.0) + value);
        if let Some(cpu) = cpu_us {
            self.cpu_us = add(self.cpu_us, cpu);
        }
        if let Some(floor) = floor_us {
            self.floor_us = add(self.floor_us, floor * times as f64);
        }
    }

    /// Returns the CPU time per fetch in µs; `of` is the number of fetches.
    pub(crate) fn us_per_file(self, of: u64) -> Option<f64> {
        Some(self.cpu_us.filter(|_| of > 0)? / of as f64)
    }

    pub(crate) fn bytes_per_s(self, bytes: u64) -> Option<f64> {
        let cpu = self.cpu_us.filter(|cpu| *cpu > 0.0)?;
        Some(bytes as f64 / cpu * 1e6)
    }

    /// Returns the share of CPU time that cryptography alone takes (0–1).
    fn crypto_share(self, of: u64) -> Option<f64> {
        let cpu = self.cpu_us.filter(|cpu| *cpu > 0.0 && of > 0)?;
        Some(self.floor_us? / cpu)
    }
}

/// One configuration, which is a rung: a cipher suite, a file size, and a connection mode.
#[derive(Clone, Debug)]
pub(crate) struct SweepConfiguration {
    pub(crate) name: String,
    pub(crate) suite: Option<String>,
    /// The size of a file in bytes.
    pub(crate) size: Option<u64>,
    pub(crate) mode: ConnectionMode,
    /// The settings of further axes, such as `group X25519`.
    others: String,
    pub(crate) elapsed_s: f64,
    pub(crate) ok: u64,
    pub(crate) full: u64,
    pub(crate) resumed: u64,
    pub(crate) bytes: u64,
    pub(crate) client: CpuTimeTotal,
    pub(crate) server: CpuTimeTotal,
    /// The number of slices, each of which is a run.
    pub(crate) slices: usize,
    /// The number of batches, if the slices were divided.
    pub(crate) batches: usize,
    /// Number of batches whose last call ended in another configuration's batch.
    pub(crate) overrun_batches: usize,
    /// Files fetched per second.
    pub(crate) files: Option<IntervalEstimate>,
    /// Bytes of files received per second.
    pub(crate) speed: Option<IntervalEstimate>,
    /// Share of the client's CPU that cryptography alone takes (0–1).
    pub(crate) client_share: Option<IntervalEstimate>,
    /// Share of the server's CPU that cryptography alone takes (0–1).
    pub(crate) server_share: Option<IntervalEstimate>,
}

impl SweepConfiguration {
    /// Adds up the slices of a rung. `links`: the number of configurations; their confidence intervals are adjusted so
    /// that all hold simultaneously.
    fn from_rung(rung: &Rung, links: usize) -> SweepConfiguration {
        let volumes = || rung.slices.iter().filter_map(|slice| slice.volume.as_ref());
        let setting = |axis: &str| rung.settings.get(axis).map(String::as_str);
        let (ok, bytes): (u64, u64) = volumes().fold((0, 0), |(ok, bytes), v| {
            (ok + v.ok, bytes + v.bytes_received)
        });
        let sum = |of: fn(&SliceThroughput) -> u64| volumes().map(of).sum::<u64>();
        let (full, resumed) = (sum(|v| v.connections_full), sum(|v| v.connections_resumed));
        let mode = match setting("connection") {
            Some("new") => ConnectionMode::New,
            Some("resumed") => ConnectionMode::Resumed,
            Some(_) => ConnectionMode::Reused,
            None if full + resumed < ok => ConnectionMode::Reused,
            None if resumed > full => ConnectionMode::Resumed,
            None => ConnectionMode::New,
        };
        let (mut client, mut server) = (CpuTimeTotal::default(), CpuTimeTotal::default());
        for v in volumes() {
            client.add(v.client_cpu_us, v.client_floor_us, v.ok);
            server.add(v.server_cpu_us, v.server_floor_us, v.ok);
        }
        let typed_size = setting("size").and_then(|text| text.parse::<ByteSize>().ok());
        let others: Vec<String> = rung
            .settings
            .iter()
            .filter(|(axis, _)| !["connection", "suite", "size"].contains(&axis.as_str()))
            .map(|(axis, value)| {
                let word = axis.rsplit('.').next().unwrap_or(axis);
                format!("{word} {value}")
            })
            .collect();
        let pieces =
            || volumes().flat_map(|v| v.samples().into_iter().map(move |piece| (v, piece)));
        let per_s = |n: u64, piece: &ThroughputSample| n as f64 / piece.elapsed_s;
        let elapsed_s: f64 = volumes().map(|v| v.elapsed_s).sum();
        let in_all = |n: u64| (elapsed_s > 0.0).then(|| n as f64 / elapsed_s);
        let share = |ok: u64, floor: Option<f64>, cpu| Some(floor? * ok as f64 / cpu?);
        let clients = pieces().filter_map(|(v, p)| share(p.ok, v.client_floor_us, p.client_cpu_us));
        let servers = pieces().filter_map(|(v, p)| share(p.ok, v.server_floor_us, p.server_cpu_us));
        SweepConfiguration {
            slices: volumes().count(),
            batches: volumes().map(|v| v.turns.len()).sum(),
            overrun_batches: pieces().filter(|(_, piece)| piece.overran).count(),
            files: IntervalEstimate::from_parts(
                in_all(ok),
                pieces().map(|(_, p)| per_s(p.ok, &p)),
                links,
            ),
            speed: {
                let pieces = pieces().map(|(_, p)| per_s(p.bytes_received, &p));
                IntervalEstimate::from_parts(in_all(bytes), pieces, links)
            },
            client_share: IntervalEstimate::from_parts(client.crypto_share(ok), clients, links),
            server_share: IntervalEstimate::from_parts(server.crypto_share(ok), servers, links),
            name: rung.name.clone(),
            suite: setting("suite")
                .map(str::to_owned)
                .or_else(|| volumes().find_map(|v| v.suite.clone())),
            size: typed_size
                .map(|size| size.0)
                .or_else(|| bytes.checked_div(ok)),
            mode,
            others: others.join(", "),
            elapsed_s,
            ok,
            full,
            resumed,
            bytes,
            client,
            server,
        }
    }

    /// Returns a title such as `AES-128-GCM, new`.
    pub(crate) fn title(&self) -> String {
        let suite = self.suite.as_deref().map_or("–", short_suite_name);
        let rest = if self.others.is_empty() { "" } else { ", " };
        format!("{suite}, {}{rest}{}", self.mode.name(), self.others)
    }

    pub(crate) fn size_text(&self) -> String {
        or_dash(self.size, |size| ByteSize(size).to_string())
    }

    pub(crate) fn fetches_per_s(&self) -> Option<f64> {
        (self.elapsed_s > 0.0).then(|| self.ok as f64 / self.elapsed_s)
    }

    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        (self.elapsed_s > 0.0).then(|| self.bytes as f64 / self.elapsed_s)
    }

    /// Returns a scenario name such as `tls_client_aes-128-gcm-sha256-1k`, if only suite, size and mode vary.
    pub(crate) fn scenario_name(&self) -> Option<String> {
        let suite = self.suite.as_deref()?.to_ascii_lowercase();
        let suite = suite.strip_prefix("tls_")?.replace('_', "-");
        let others = if self.others.is_empty() {
            String::new()
        } else {
            format!(
                "-{}",
                self.others.to_ascii_lowercase().replace([' ', ','], "")
            )
        };
        Some(format!(
            "tls_client_{suite}-{}{others}",
            scenario_size(self.size?)
        ))
    }
}

/// Returns the configurations of a sweep in a natural order: suites by name, other axes in the plan's order,
/// small files first.
pub(crate) fn sweep_configurations(record: &LadderRecord) -> Vec<SweepConfiguration> {
    let mut links: Vec<SweepConfiguration> = record
        .rungs
        .iter()
        .filter(|rung| rung.slices.iter().any(|slice| slice.volume.is_some()))
        .map(|rung| SweepConfiguration::from_rung(rung, record.rungs.len()))
        .collect();
    let mut others: Vec<String> = Vec::new();
    for link in &links {
        if !others.contains(&link.others) {
            others.push(link.others.clone());
        }
    }
    links.sort_by_key(|link| {
        let place = others.iter().position(|other| *other == link.others);
        (link.suite.clone(), place, link.size, link.mode)
    });
    links
}

/// Formats a size as in scenario names: `1k`, `10m`, `512m`.
fn scenario_size(bytes: u64) -> String {
    match bytes {
        n if n > 0 && n % (1 << 30) == 0 => format!("{}g", n >> 30),
        n if n > 0 && n % (1 << 20) == 0 => format!("{}m", n >> 20),
        n if n > 0 && n % (1 << 10) == 0 => format!("{}k", n >> 10),
        n => format!("{n}b"),
    }
}

/// Returns a suite's name without the common prefix.
pub(crate) fn short_suite_name(suite: &str) -> &str {
    match suite {
        "TLS_AES_128_GCM_SHA256" => "AES-128-GCM",
        "TLS_AES_256_GCM_SHA384" => "AES-256-GCM",
        "TLS_CHACHA20_POLY1305_SHA256" => "ChaCha20-Poly1305",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_scenario_names() {
        let sizes = [1 << 10, 100 << 10, 1 << 20, 512 << 20, 1 << 30, 1000, 0];
        assert_eq!(
            sizes.map(scenario_size),
            ["1k", "100k", "1m", "512m", "1g", "1000b", "0b"]
        );
    }
}
