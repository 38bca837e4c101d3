//! CPU, memory and descriptors of processes: Plimsoll's own and, where it runs on this
//! machine, the server's.
//!
//! Read from /proc once an interval by the conductor, never by a worker.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use plimsoll_model::plan::Watch;
use plimsoll_model::run::Resources;
use procfs::net::TcpState;
use procfs::process::Process;

/// What a process has used so far, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Since the process began, in microseconds. The kernel counts these in ticks of
    /// 10 ms, so only differences over many ticks mean much.
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    /// Resident set size.
    pub rss_bytes: u64,
    pub descriptors: u64,
    pub threads: u64,
}

impl Usage {
    fn plus(self, other: Usage) -> Usage {
        Usage {
            cpu_user_us: self.cpu_user_us + other.cpu_user_us,
            cpu_system_us: self.cpu_system_us + other.cpu_system_us,
            rss_bytes: self.rss_bytes + other.rss_bytes,
            descriptors: self.descriptors + other.descriptors,
            threads: self.threads + other.threads,
        }
    }
}

/// One or more processes that are watched together: the workers of a server that share
/// a port count as one.
#[derive(Clone, Debug)]
pub struct Watched {
    pids: Vec<i32>,
}

impl Watched {
    /// This process.
    pub fn own() -> Watched {
        Watched {
            pids: vec![i32::try_from(std::process::id()).unwrap_or(0)],
        }
    }

    /// The process and those it has started by now.
    pub fn pid(pid: u32) -> Watched {
        let mut pids: Vec<i32> = i32::try_from(pid).into_iter().collect();
        let parents: Vec<(i32, i32)> = procfs::process::all_processes()
            .into_iter()
            .flatten()
            .filter_map(|process| process.ok()?.stat().ok())
            .map(|stat| (stat.pid, stat.ppid))
            .collect();
        let mut next = 0;
        while let Some(parent) = pids.get(next).copied() {
            let children = parents.iter().filter(|(_, of)| *of == parent);
            pids.extend(children.map(|(child, _)| *child));
            next += 1;
        }
        Watched { pids }
    }

    /// The processes that listen on `address`'s port on this machine; `None` if there
    /// are none that this user may look at.
    pub fn listening_on(address: SocketAddr) -> Option<Watched> {
        let sockets = listening_sockets(address);
        if sockets.is_empty() {
            return None;
        }
        let mut pids = Vec::new();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && holds_one_of(&entry.path().join("fd"), &sockets)
            {
                pids.push(pid);
            }
        }
        (!pids.is_empty()).then_some(Watched { pids })
    }

    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// What they use together; `None` when none of them is there any more.
    pub fn usage(&self) -> Option<Usage> {
        self.pids
            .iter()
            .filter_map(|pid| usage_of(*pid))
            .reduce(Usage::plus)
    }
}

/// What a [`Watched`] uses from one reading to the next.
#[derive(Clone, Debug)]
pub struct Meter {
    watched: Watched,
    last: Option<Usage>,
}

impl Meter {
    /// What was used before now does not count.
    pub fn new(watched: Watched) -> Meter {
        let last = watched.usage();
        Meter { watched, last }
    }

    pub fn pids(&self) -> &[i32] {
        self.watched.pids()
    }

    /// What was used since the last reading; `None` when the processes are gone.
    pub fn read(&mut self) -> Option<Resources> {
        let now = self.watched.usage()?;
        let before = self.last.replace(now).unwrap_or(now);
        Some(Resources {
            cpu_user_us: now.cpu_user_us.saturating_sub(before.cpu_user_us),
            cpu_system_us: Some(now.cpu_system_us.saturating_sub(before.cpu_system_us)),
            rss_bytes: now.rss_bytes,
            descriptors: now.descriptors,
            threads: now.threads,
        })
    }
}

/// The server whose resources the plan wants to be read, where it can be found.
pub fn server_of(watch: Watch, target: SocketAddr) -> Option<Watched> {
    match watch {
        Watch::TargetPort => Watched::listening_on(target),
        Watch::Port(port) => Watched::listening_on(SocketAddr::new(target.ip(), port)),
        Watch::Pid(pid) => Some(Watched::pid(pid)),
        Watch::Nothing => None,
    }
}

fn listening_sockets(address: SocketAddr) -> HashSet<u64> {
    let entries = [procfs::net::tcp(), procfs::net::tcp6()];
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry.state == TcpState::Listen
                && entry.local_address.port() == address.port()
                && (entry.local_address.ip().is_unspecified()
                    || same_host(entry.local_address.ip(), address.ip()))
        })
        .map(|entry| entry.inode)
        .collect()
}

/// Whether a process's descriptors lead to one of the sockets. Other users' processes
/// hide theirs and are passed over. One `readlink` a descriptor and nothing more: a busy
/// machine has tens of thousands.
fn holds_one_of(descriptors: &Path, sockets: &HashSet<u64>) -> bool {
    let Ok(entries) = fs::read_dir(descriptors) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let Ok(target) = fs::read_link(entry.path()) else {
            return false;
        };
        target
            .to_str()
            .and_then(|name| {
                name.strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()
            })
            .is_some_and(|inode| sockets.contains(&inode))
    })
}

fn same_host(a: IpAddr, b: IpAddr) -> bool {
    a.to_canonical() == b.to_canonical()
}

fn usage_of(pid: i32) -> Option<Usage> {
    let process = Process::new(pid).ok()?;
    let stat = process.stat().ok()?;
    let tick_us = 1_000_000 / procfs::ticks_per_second().max(1);
    Some(Usage {
        cpu_user_us: stat.utime * tick_us,
        cpu_system_us: stat.stime * tick_us,
        rss_bytes: stat.rss * procfs::page_size(),
        descriptors: process.fd_count().unwrap_or(0) as u64,
        threads: u64::try_from(stat.num_threads).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn this_process_is_found_by_the_port_it_listens_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let watched = Watched::listening_on(address).unwrap();
        assert_eq!(watched.pids(), Watched::own().pids());
        let usage = watched.usage().unwrap();
        assert!(usage.rss_bytes > 100_000 && usage.descriptors > 3 && usage.threads >= 1);
        drop(listener);
        assert!(Watched::listening_on(address).is_none());
    }

    #[test]
    fn a_process_is_watched_with_those_it_has_started() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let watched = Watched::pid(std::process::id());
        child.kill().unwrap();
        let pid = i32::try_from(child.wait().map(|_| child.id()).unwrap()).unwrap();
        assert_eq!(watched.pids().first(), Watched::own().pids().first());
        assert!(watched.pids().contains(&pid), "{watched:?}");
    }

    #[test]
    fn a_process_that_is_gone_has_no_usage() {
        assert!(Watched::pid(i32::MAX as u32).usage().is_none());
    }
}
