//! The set of processes that are measured together: those of a server, with their children, or of a control group.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use plimsoll_model::plan::{UnixSocket, WatchedProcess};
use procfs::net::{TcpState, UnixState};
use procfs::process::Process;

use super::ProcessResources;
use crate::host::cgroup::Cgroup;
use crate::transport::address::Address;

/// One or more processes that are measured together, such as the workers of a server that share a port.
#[derive(Clone, Debug)]
pub struct WatchedProcesses {
    pids: Vec<i32>,
    membership: MembershipRule,
}

/// The rule that determines which processes belong to the set.
#[derive(Clone, Debug)]
enum MembershipRule {
    /// Only the processes found initially.
    Fixed,
    /// The initial processes and all their descendants.
    Descendants,
    /// The initial processes and those of their descendants that have one of these sockets open, by inode number.
    Listeners(HashSet<u64>),
    /// All processes of a control group. The usage of the group is reported instead of the sum over its processes.
    Group(Cgroup),
}

impl WatchedProcesses {
    fn new(pids: Vec<i32>, membership: MembershipRule) -> WatchedProcesses {
        WatchedProcesses { pids, membership }
    }

    /// Returns the processes of a control group. CPU time and memory are measured for the whole group, including
    /// processes that have ended or will be started later.
    pub fn for_cgroup(group: Cgroup) -> WatchedProcesses {
        WatchedProcesses {
            pids: group.pids(),
            membership: MembershipRule::Group(group),
        }
    }

    /// Returns the set of this process without its descendants.
    pub fn this_process() -> WatchedProcesses {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        WatchedProcesses::new(vec![own], MembershipRule::Fixed)
    }

    /// Returns the process and its descendants.
    pub fn process_tree(pid: u32) -> WatchedProcesses {
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
        WatchedProcesses::new(pids, MembershipRule::Descendants)
    }

    /// Returns the current descendants of this process, without itself.
    pub fn own_descendants() -> WatchedProcesses {
        let mut watched = WatchedProcesses::process_tree(std::process::id());
        let own = WatchedProcesses::this_process();
        watched.pids.retain(|pid| !own.pids.contains(pid));
        watched.membership = MembershipRule::Fixed;
        watched
    }

    /// Returns the processes that listen on one of `addresses` on this machine; `None` if there are none that this user
    /// may inspect. Workers that these processes fork later belong to the set.
    pub fn listening_on(addresses: &[Address]) -> Option<WatchedProcesses> {
        let sockets = listening_sockets(addresses);
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
                && holds_any_socket(&entry.path().join("fd"), &sockets)
            {
                pids.push(pid);
            }
        }
        let membership = MembershipRule::Listeners(sockets);
        (!pids.is_empty()).then(|| WatchedProcesses::new(pids, membership))
    }

    /// Adds processes that watched processes have started since the last call, and removes those that have ended,
    /// unless all have ended. Returns whether that changed the set.
    pub fn refresh(&mut self) -> bool {
        let sockets = match &self.membership {
            MembershipRule::Fixed | MembershipRule::Group(_) => return false,
            MembershipRule::Descendants => None,
            MembershipRule::Listeners(sockets) => Some(sockets),
        };
        let is_member = |pid: i32| {
            let descriptors = format!("/proc/{pid}/fd");
            sockets.is_none_or(|sockets| holds_any_socket(Path::new(&descriptors), sockets))
        };
        let mut pids = self.pids.clone();
        let mut next = 0;
        while let Some(parent) = pids.get(next).copied() {
            for child in child_processes(parent) {
                if !pids.contains(&child) && is_member(child) {
                    pids.push(child);
                }
            }
            next += 1;
        }
        // This check needs no free descriptor; there may be none left.
        pids.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
        if pids.is_empty() || pids == self.pids {
            return false;
        }
        self.pids = pids;
        true
    }

    /// Makes `pids` the set of watched processes; they need not exist.
    #[cfg(test)]
    pub(super) fn keep_only(&mut self, pids: &[i32]) {
        self.pids = pids.to_vec();
    }

    /// Returns the process ids, including those of processes that have ended.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// Returns the total usage of the processes; `None` if none of them exists any more.
    pub fn usage(&self) -> Option<ProcessResources> {
        let each = self.usage_by_pid().into_iter();
        each.map(|(_, used)| used).reduce(ProcessResources::plus)
    }

    /// Returns the usage of each process that exists, with its id. A control group has a single entry, with the id 0.
    pub(super) fn usage_by_pid(&self) -> Vec<(i32, ProcessResources)> {
        match &self.membership {
            MembershipRule::Group(group) => {
                let used = group_usage(group);
                used.map(|used| (0, used)).into_iter().collect()
            }
            _ => {
                let used = |pid: &i32| Some((*pid, process_usage(*pid)?));
                self.pids.iter().filter_map(used).collect()
            }
        }
    }
}

/// Returns the processes that a process's threads have started and that still exist.
fn child_processes(parent: i32) -> Vec<i32> {
    let tasks = Process::new(parent).and_then(|process| process.tasks());
    let tasks = tasks.into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| task.children().ok()).flatten();
    children
        .filter_map(|child| i32::try_from(child).ok())
        .collect()
}

/// Returns the usage of a control group. Descriptors and threads are those of its current processes, and so is the
/// memory if the kernel does not account for it by group.
fn group_usage(group: &Cgroup) -> Option<ProcessResources> {
    let used = group.usage()?;
    let present = group.pids().into_iter().filter_map(process_usage);
    let present = present.reduce(ProcessResources::plus).unwrap_or_default();
    Some(ProcessResources {
        cpu_ns: used.cpu_us * 1000,
        // The unit of `user_ticks` and `system_ticks` does not matter, since only their ratio is used.
        user_ticks: used.user_us,
        system_ticks: used.system_us,
        rss_bytes: used.memory_bytes.unwrap_or(present.rss_bytes),
        ..present
    })
}

/// Returns the server processes that the plan selects for measurement, if they can be found.
pub fn find_server_processes(
    watch: &WatchedProcess,
    target: &[Address],
) -> Option<WatchedProcesses> {
    match *watch {
        WatchedProcess::TargetPort => WatchedProcesses::listening_on(target),
        WatchedProcess::Port(port) => {
            let hosts = target.iter().map(Address::ip);
            let hosts = hosts.map(|ip| ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
            let at_port = hosts.map(|ip| Address::Tcp(SocketAddr::new(ip, port)));
            WatchedProcesses::listening_on(&at_port.collect::<Vec<_>>())
        }
        WatchedProcess::Pid(pid) => Some(WatchedProcesses::process_tree(pid)),
        WatchedProcess::Group(ref name) => {
            let group = Cgroup::find(name).ok()?;
            Some(WatchedProcesses::for_cgroup(group))
        }
        WatchedProcess::Started => Some(WatchedProcesses::own_descendants()),
        WatchedProcess::Nothing => None,
    }
}

fn listening_sockets(addresses: &[Address]) -> HashSet<u64> {
    let takes = |local: SocketAddr, address: &SocketAddr| {
        local.port() == address.port()
            && (local.ip().is_unspecified() || is_same_host(local.ip(), address.ip()))
    };
    let (mut tcp, mut unix) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            Address::Tcp(address) => tcp.push(*address),
            Address::Unix(socket) => unix.extend(possible_socket_names(socket)),
        }
    }
    let entries = [procfs::net::tcp(), procfs::net::tcp6()];
    let networked = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry.state == TcpState::Listen
                && tcp
                    .iter()
                    .any(|address| takes(entry.local_address, address))
        })
        .map(|entry| entry.inode);
    let local = procfs::net::unix()
        .into_iter()
        .flatten()
        // Accepted sockets have the same name as their listener, but are in the state of a connected socket.
        .filter(|entry| matches!(entry.state, UnixState::UNCONNECTED))
        .filter(|entry| entry.path.as_ref().is_some_and(|path| unix.contains(path)))
        .map(|entry| entry.inode);
    networked.chain(local).collect()
}

/// Returns the names under which the kernel may list a socket: it lists the path that the server used, which may differ
/// from ours.
fn possible_socket_names(socket: &UnixSocket) -> Vec<PathBuf> {
    match socket {
        UnixSocket::Abstract(name) => vec![format!("@{name}").into()],
        UnixSocket::Path(path) => {
            let whole = std::path::absolute(path).ok();
            let real = path.canonicalize().ok();
            [Some(path.clone()), whole, real]
                .into_iter()
                .flatten()
                .collect()
        }
    }
}

/// Returns whether a process has one of the sockets open. Processes of other users cannot be read and are skipped. Each
/// descriptor takes only one `readlink`, because a busy machine has tens of thousands of descriptors.
fn holds_any_socket(descriptors: &Path, sockets: &HashSet<u64>) -> bool {
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

fn is_same_host(a: IpAddr, b: IpAddr) -> bool {
    a.to_canonical() == b.to_canonical()
}

fn process_usage(pid: i32) -> Option<ProcessResources> {
    let process = Process::new(pid).ok()?;
    let stat = process.stat().ok()?;
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
    let used = clock.now().ok()?;
    Some(ProcessResources {
        cpu_ns: u64::try_from(Duration::from(used).as_nanos()).ok()?,
        user_ticks: stat.utime,
        system_ticks: stat.stime,
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
    fn process_is_found_by_listening_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let watched = WatchedProcesses::listening_on(&[address.into()]).unwrap();
        assert_eq!(watched.pids(), WatchedProcesses::this_process().pids());
        let usage = watched.usage().unwrap();
        assert!(usage.rss_bytes > 100_000 && usage.descriptors > 3 && usage.threads >= 1);
        drop(listener);
        assert!(WatchedProcesses::listening_on(&[address.into()]).is_none());
    }

    #[test]
    fn process_is_found_by_unix_socket() {
        let path = std::env::temp_dir().join(format!("plimsoll-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let address = [Address::Unix(UnixSocket::Path(path.clone()))];
        let found = WatchedProcesses::listening_on(&address);
        fs::remove_file(&path).unwrap();
        assert_eq!(
            found.unwrap().pids(),
            WatchedProcesses::this_process().pids()
        );
        drop(listener);
        assert!(WatchedProcesses::listening_on(&address).is_none());
    }

    #[test]
    fn watched_process_includes_children() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let watched = WatchedProcesses::process_tree(std::process::id());
        let started = WatchedProcesses::own_descendants();
        assert!(
            !started
                .pids()
                .contains(&WatchedProcesses::this_process().pids()[0])
        );
        assert!(started.pids().contains(&(child.id() as i32)));
        child.kill().unwrap();
        let pid = i32::try_from(child.wait().map(|_| child.id()).unwrap()).unwrap();
        assert_eq!(
            watched.pids().first(),
            WatchedProcesses::this_process().pids().first()
        );
        assert!(watched.pids().contains(&pid), "{watched:?}");
    }

    #[test]
    fn exited_process_has_no_usage() {
        assert!(
            WatchedProcesses::process_tree(i32::MAX as u32)
                .usage()
                .is_none()
        );
    }
}
