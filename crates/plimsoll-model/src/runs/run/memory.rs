//! The memory use of idle connections: client, server and kernel are read without connections and again with them, and
//! the difference is divided by the number of connections.
//!
//! Readings are part of the intervals' records. They cover whole processes, so a difference includes other growth of
//! the process, which is negligible with many connections.

use serde::{Deserialize, Serialize};

/// Memory of a process or of several together, from /proc/PID/smaps_rollup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessBytes<T> {
    /// Resident: pages in memory, including shared ones.
    pub rss_bytes: T,
    /// Proportional: a shared page is divided among the processes that map it.
    pub pss_bytes: T,
    /// Private: pages that no other process has.
    pub private_bytes: T,
}

/// Memory of a process, in bytes.
pub type ProcessMemory = ProcessBytes<u64>;

/// Growth of a process's memory per connection, in bytes; negative where a process has shrunk.
pub type ProcessGrowth = ProcessBytes<f64>;

impl ProcessMemory {
    /// Returns the sums of the values of two processes.
    #[must_use]
    pub fn combine(self, other: ProcessMemory) -> ProcessMemory {
        self.zip_with(other, |ours, theirs| ours + theirs)
    }

    fn zip_with<T>(self, other: ProcessMemory, of: impl Fn(u64, u64) -> T) -> ProcessBytes<T> {
        ProcessBytes {
            rss_bytes: of(self.rss_bytes, other.rss_bytes),
            pss_bytes: of(self.pss_bytes, other.pss_bytes),
            private_bytes: of(self.private_bytes, other.private_bytes),
        }
    }
}

/// Memory of the kernel. It belongs to no process, so it can't be attributed to either end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelMemory {
    /// TCP sockets of the network namespace (/proc/net/sockstat: alloc).
    pub tcp_sockets: u64,
    /// Buffers of these sockets (/proc/net/sockstat: mem).
    pub tcp_buffer_bytes: u64,
    /// Slabs of the whole machine (/proc/meminfo: Slab), which include the sockets themselves.
    pub slab_bytes: u64,
}

/// The phase in which a reading was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPhase {
    /// Client and server were ready, and no connection had been made.
    Before,
    /// The connections were open and idle.
    Held,
}

/// Readings of both ends and the kernel at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReading {
    /// The phase of the reading: before connections, or with them.
    pub moment: MemoryPhase,
    /// Open connections.
    pub connections: u64,
    /// Memory of the client; `None`: not known.
    pub client: Option<ProcessMemory>,
    /// Memory of the server; `None`: it is not on this machine, or may not be read.
    pub server: Option<ProcessMemory>,
    /// Memory of the kernel; `None`: not known.
    pub kernel: Option<KernelMemory>,
}

/// Growth of the kernel's memory per connection. It covers the sockets of both ends if both are on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KernelGrowth {
    /// Bytes of TCP buffers.
    pub tcp_buffer_bytes: f64,
    /// Bytes of slabs.
    pub slab_bytes: f64,
}

/// The difference of two readings, per connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryGrowth {
    /// The client's growth. `None`, here and in the next two fields: not read in both phases.
    pub client: Option<ProcessGrowth>,
    /// The watched server's growth.
    pub server: Option<ProcessGrowth>,
    /// The kernel's growth for the sockets of both ends, where both are on this machine.
    pub kernel: Option<KernelGrowth>,
}

impl MemoryGrowth {
    /// Divides the difference of two readings by the number of connections; `None`: no connection was open.
    fn from_readings(before: &MemoryReading, held: &MemoryReading) -> Option<MemoryGrowth> {
        if held.connections == 0 {
            return None;
        }
        let each = held.connections as f64;
        // Rounded to a tenth of a byte, since readings are in whole pages anyway.
        let share =
            |before: u64, held: u64| ((held as f64 - before as f64) / each * 10.0).round() / 10.0;
        let process = |before: Option<ProcessMemory>, held: Option<ProcessMemory>| {
            Some(before?.zip_with(held?, share))
        };
        let kernel = before.kernel.zip(held.kernel);
        Some(MemoryGrowth {
            client: process(before.client, held.client),
            server: process(before.server, held.server),
            kernel: kernel.map(|(before, held)| KernelGrowth {
                tcp_buffer_bytes: share(before.tcp_buffer_bytes, held.tcp_buffer_bytes),
                slab_bytes: share(before.slab_bytes, held.slab_bytes),
            }),
        })
    }
}

/// The memory of connections, in total and per connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemorySummary {
    /// The reading without connections.
    pub before: MemoryReading,
    /// The first reading with connections.
    pub held: MemoryReading,
    /// The last reading, with the memory that use of the connections has added.
    pub last: MemoryReading,
    /// The growth from `before` to `held`.
    pub per_connection: MemoryGrowth,
    /// The growth from `before` to `last`.
    pub per_connection_last: MemoryGrowth,
}

impl MemorySummary {
    /// Summarises the readings; `None` where one of the phases is missing or no connection was open.
    pub fn from_readings(readings: &[MemoryReading]) -> Option<MemorySummary> {
        let of = |moment: MemoryPhase| move |reading: &&MemoryReading| reading.moment == moment;
        let before = *readings.iter().find(of(MemoryPhase::Before))?;
        let held = *readings.iter().find(of(MemoryPhase::Held))?;
        // Ignore readings with fewer connections: some had been lost and not replaced.
        let whole = |reading: &&MemoryReading| reading.connections >= held.connections;
        let mut of_all = readings.iter().filter(whole);
        let last = of_all.rfind(of(MemoryPhase::Held)).copied().unwrap_or(held);
        Some(MemorySummary {
            before,
            held,
            last,
            per_connection: MemoryGrowth::from_readings(&before, &held)?,
            per_connection_last: MemoryGrowth::from_readings(&before, &last)?,
        })
    }
}

/// Adds the readings of another process, phase by phase. Each process reads its own memory. All processes read the same
/// server and kernel: the first to read them saw no connections yet, and the last saw all connections.
pub(super) fn merge_readings(ours: &mut Vec<MemoryReading>, theirs: &[MemoryReading]) {
    for (at, reading) in theirs.iter().enumerate() {
        let same = |other: &&mut MemoryReading| other.moment == reading.moment;
        let earlier = theirs[..at].iter();
        let nth = earlier.filter(|r| r.moment == reading.moment).count();
        match ours.iter_mut().filter(same).nth(nth) {
            None => ours.push(*reading),
            Some(mine) => mine.merge(reading),
        }
    }
}

impl MemoryReading {
    fn merge(&mut self, other: &MemoryReading) {
        self.connections += other.connections;
        self.client = self.client.zip(other.client).map(|(a, b)| a.combine(b));
        let most = self.moment == MemoryPhase::Held;
        self.server = min_or_max(self.server, other.server, most);
        self.kernel = min_or_max(self.kernel, other.kernel, most);
    }
}

/// Returns the larger or the smaller of two values; `None`: one of them is missing.
fn min_or_max<T: Ord>(a: Option<T>, b: Option<T>, larger: bool) -> Option<T> {
    let (a, b) = (a?, b?);
    Some(if larger { a.max(b) } else { a.min(b) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(moment: MemoryPhase, connections: u64, bytes: u64) -> MemoryReading {
        let process = ProcessMemory {
            rss_bytes: bytes,
            pss_bytes: bytes / 2,
            private_bytes: bytes / 4,
        };
        MemoryReading {
            moment,
            connections,
            client: Some(process),
            server: None,
            kernel: Some(KernelMemory {
                tcp_sockets: 2 * connections,
                tcp_buffer_bytes: 0,
                slab_bytes: bytes,
            }),
        }
    }

    #[test]
    fn connection_memory_is_average_growth() {
        let readings = [
            reading(MemoryPhase::Before, 0, 10_000_000),
            reading(MemoryPhase::Held, 1_000, 12_000_000),
            reading(MemoryPhase::Held, 1_000, 11_000_000),
        ];
        let summary = MemorySummary::from_readings(&readings).unwrap();
        let client = summary.per_connection.client.unwrap();
        assert_eq!(
            (client.rss_bytes, client.pss_bytes, client.private_bytes),
            (2_000.0, 1_000.0, 500.0)
        );
        assert_eq!(summary.per_connection.server, None);
        assert_eq!(summary.per_connection.kernel.unwrap().slab_bytes, 2_000.0);
        assert_eq!(
            summary.per_connection_last.client.unwrap().rss_bytes,
            1_000.0
        );
        assert_eq!(MemorySummary::from_readings(&readings[..1]), None);
        let fewer = [readings[0], readings[1], reading(MemoryPhase::Held, 900, 1)];
        assert_eq!(
            MemorySummary::from_readings(&fewer).unwrap().last,
            readings[1]
        );
        let nobody = [readings[0], reading(MemoryPhase::Held, 0, 1)];
        assert_eq!(MemorySummary::from_readings(&nobody), None);
    }

    #[test]
    fn merge_sums_only_client_memory() {
        let with_server = |moment, connections, bytes, server| MemoryReading {
            server: Some(ProcessMemory {
                rss_bytes: server,
                ..ProcessMemory::default()
            }),
            ..reading(moment, connections, bytes)
        };
        let (before, held) = (MemoryPhase::Before, MemoryPhase::Held);
        let mut ours = vec![
            with_server(before, 0, 100, 500),
            with_server(held, 10, 300, 700),
        ];
        // This process started later, when the server already had connections.
        let theirs = [
            with_server(before, 0, 110, 600),
            with_server(held, 20, 330, 900),
            with_server(held, 20, 330, 901),
        ];
        merge_readings(&mut ours, &theirs);
        let seen = |r: &MemoryReading| (r.moment, r.connections, r.server.unwrap().rss_bytes);
        assert_eq!(
            ours.iter().map(seen).collect::<Vec<_>>(),
            [(before, 0, 500), (held, 30, 900), (held, 20, 901)]
        );
        let client = |r: &MemoryReading| r.client.unwrap().rss_bytes;
        assert_eq!((client(&ours[0]), client(&ours[1])), (210, 630));
    }
}
