//! The table of the memory that idle connections hold: in both processes, and separately in the kernel.

use plimsoll_model::runs::run::memory::{KernelGrowth, MemoryGrowth, MemoryReading, ProcessGrowth};
use plimsoll_model::runs::run::{KernelMemory, MemorySummary, ProcessMemory};

use crate::quantity::{bytes, count, or_dash, plural, signed_value};
use crate::sections::protocol_measures::CountFact;
use crate::sections::table::TextTable;

/// An explanation of the memory figures.
pub(crate) const MEMORY_NOTE: &str = "resident: pages in memory; proportional: shared pages in parts; private: pages of this process alone. Kernel memory belongs to no process: socket buffers of this network namespace, and slabs (sockets, among all else) of the whole machine, for all ends that are on it";

/// Describes how many connections were open when memory was read.
pub(crate) fn describe_open_connections(memory: &MemorySummary) -> CountFact {
    let text = format!(
        "{} at rest at the first reading of memory, {} at the last",
        plural(memory.held.connections, "connection"),
        count(memory.last.connections)
    );
    CountFact::new("held", text)
}

/// Formats the bytes of one connection, with a sign only if they are negative.
fn format_growth(value: f64) -> String {
    signed_value(value, |value| bytes(value.round() as u64)).replace('+', "")
}

/// Returns a row for each kind of memory: its name, the memory before the connections and while they were idle, and the
/// memory of one connection at the first and at the last reading.
pub(crate) fn table(memory: &MemorySummary) -> TextTable {
    let head = [
        "memory",
        "before",
        "at rest",
        "a connection",
        "a connection, at the end",
    ];
    let ends: [(&str, ReadingSelector, GrowthSelector); 2] = [
        ("client", |r| r.client, |g| g.client),
        ("server", |r| r.server, |g| g.server),
    ];
    let kinds: [MemoryKind<ProcessMemory, ProcessGrowth>; 3] = [
        ("resident", |m| m.rss_bytes, |g| g.rss_bytes),
        ("proportional", |m| m.pss_bytes, |g| g.pss_bytes),
        ("private", |m| m.private_bytes, |g| g.private_bytes),
    ];
    let mut rows = Vec::new();
    for (end, of, growth) in ends {
        let both = of(&memory.before).zip(of(&memory.held));
        rows.extend(kind_rows(memory, &format!("{end}, "), both, growth, &kinds));
    }
    let kinds: [MemoryKind<KernelMemory, KernelGrowth>; 2] = [
        (
            "kernel, socket buffers",
            |m| m.tcp_buffer_bytes,
            |g| g.tcp_buffer_bytes,
        ),
        ("kernel, slabs", |m| m.slab_bytes, |g| g.slab_bytes),
    ];
    let both = memory.before.kernel.zip(memory.held.kernel);
    rows.extend(kind_rows(memory, "", both, |g| g.kernel, &kinds));
    TextTable::new(head, &[0], rows)
}

/// Returns the rows for the readings before the connections and while they were idle; empty if they are not known.
fn kind_rows<M, G>(
    memory: &MemorySummary,
    whose: &str,
    both: Option<(M, M)>,
    growth: fn(&MemoryGrowth) -> Option<G>,
    kinds: &[MemoryKind<M, G>],
) -> Vec<[String; 5]> {
    let row = |(before, held): &(M, M), (kind, amount, grown): &MemoryKind<M, G>| {
        let part = |g| or_dash(growth(g), |growth| format_growth(grown(&growth)));
        [
            format!("{whose}{kind}"),
            bytes(amount(before)),
            bytes(amount(held)),
            part(&memory.per_connection),
            part(&memory.per_connection_last),
        ]
    };
    let both = both.iter();
    both.flat_map(|both| kinds.iter().map(|kind| row(both, kind)))
        .collect()
}

/// A kind of memory: its name, its value, and its growth.
type MemoryKind<M, G> = (&'static str, fn(&M) -> u64, fn(&G) -> f64);
type ReadingSelector = fn(&MemoryReading) -> Option<ProcessMemory>;
type GrowthSelector = fn(&MemoryGrowth) -> Option<ProcessGrowth>;
