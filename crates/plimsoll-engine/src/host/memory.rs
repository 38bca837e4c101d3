//! The memory of processes, and the kernel's memory for their sockets, at one moment.
//!
//! The conductor reads both from /proc for protocols with mostly idle connections. The kernel needs about a millisecond
//! per 100 MB of a process's memory.

use std::fs;

use plimsoll_model::runs::run::{KernelMemory, ProcessMemory};
use procfs::Current;
use procfs::process::Process;

use crate::host::resources::WatchedProcesses;

/// Returns the total memory of `processes`; `None` if one cannot be read. Shared pages count in the resident memory of
/// each process.
pub fn read_total_memory(processes: &WatchedProcesses) -> Option<ProcessMemory> {
    processes
        .pids()
        .iter()
        .map(|pid| read_process_memory(*pid))
        .try_fold(ProcessMemory::default(), |all, one| Some(all.combine(one?)))
}

fn read_process_memory(pid: i32) -> Option<ProcessMemory> {
    let rollup = Process::new(pid).ok()?.smaps_rollup().ok()?;
    let sums = &rollup.memory_map_rollup.0.first()?.extension.map;
    let bytes = |key: &str| sums.get(key).copied();
    Some(ProcessMemory {
        rss_bytes: bytes("Rss")?,
        pss_bytes: bytes("Pss")?,
        private_bytes: bytes("Private_Clean")? + bytes("Private_Dirty")?,
    })
}

/// Returns the kernel's memory for the sockets of this network namespace, and its slabs (which include
/// sockets) for the whole machine.
pub fn read_kernel_memory() -> Option<KernelMemory> {
    let sockstat = fs::read_to_string("/proc/net/sockstat").ok()?;
    let (sockets, pages) = parse_tcp_socket_usage(&sockstat)?;
    Some(KernelMemory {
        tcp_sockets: sockets,
        tcp_buffer_bytes: pages * procfs::page_size(),
        slab_bytes: procfs::Meminfo::current().ok()?.slab,
    })
}

/// Returns the number of allocated TCP sockets and the pages of their buffers, from the text of /proc/net/sockstat.
fn parse_tcp_socket_usage(sockstat: &str) -> Option<(u64, u64)> {
    let line = sockstat
        .lines()
        .find_map(|line| line.strip_prefix("TCP:"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let of = |key: &str| {
        let at = words.iter().step_by(2).position(|word| *word == key)?;
        words.get(2 * at + 1)?.parse().ok()
    };
    Some((of("alloc")?, of("mem")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_kernel_memory_are_readable() {
        let own = read_total_memory(&WatchedProcesses::this_process())
            .expect("Linux 4.14 and later report it");
        assert!(
            own.private_bytes > 100_000 && own.rss_bytes >= own.private_bytes,
            "{own:?}"
        );
        assert!(
            (own.private_bytes..=own.rss_bytes).contains(&own.pss_bytes),
            "{own:?}"
        );
        let kernel = read_kernel_memory().expect("/proc is there");
        assert!(kernel.slab_bytes > 0, "{kernel:?}");
        assert_eq!(
            read_total_memory(&WatchedProcesses::process_tree(i32::MAX as u32)),
            None
        );
    }

    #[test]
    fn rss_grows_when_pages_are_touched() {
        let grown = || {
            let private = || {
                let own = read_total_memory(&WatchedProcesses::this_process()).expect("see above");
                own.private_bytes
            };
            let before = private();
            let block = std::hint::black_box(vec![1u8; 128 << 20]);
            let after = private();
            drop(block);
            after.saturating_sub(before)
        };
        // Other tests of this process may free memory meanwhile, but not half as much.
        let mut seen = Vec::new();
        while seen.last().is_none_or(|grown| *grown < 64 << 20) {
            assert!(seen.len() < 20, "{seen:?}");
            seen.push(grown());
        }
    }

    #[test]
    fn sockstat_is_parsed_by_key() {
        let text =
            "sockets: used 294\nTCP: inuse 4 orphan 0 tw 74 alloc 9 mem 136\nUDP: inuse 0 mem 3\n";
        assert_eq!(parse_tcp_socket_usage(text), Some((9, 136)));
        assert_eq!(parse_tcp_socket_usage("TCP: inuse 4"), None);
        assert_eq!(parse_tcp_socket_usage(""), None);
    }
}
