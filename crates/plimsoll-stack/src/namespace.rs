//! A network namespace: a second network stack on this machine, joined to its own by a pair
//! of virtual Ethernet devices.
//!
//! A packet between the two takes the way that it takes between machines, but for the wire:
//! through a device on either side instead of the loopback one. Made and removed through
//! `ip` (iproute2), which needs the right to administer the network. One that a killed
//! process has left behind is removed when the next one is made.

use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

/// A namespace could not be made.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("`ip` can't be run: {0}; it is in the package iproute2")]
    NoProgram(io::Error),
    #[error("`ip {arguments}`: {problem}")]
    Refused { arguments: String, problem: String },
}

/// Removed when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// The device on this side.
    near: String,
    inner: Ipv4Addr,
}

/// Addresses for measuring devices between networks (RFC 2544, C.2.2), which nothing else
/// uses: 198.18.0.0/15.
const BENCHMARK_NETWORK: u32 = 0xc612_0000;
/// Networks of four addresses that fit in there.
const SUBNET_COUNT: u32 = 1 << 15;
const NAME_PREFIX: &str = "plimsoll-";

impl Namespace {
    /// Makes a namespace, and the way to it.
    ///
    /// # Errors
    /// Where there is no `ip`, or this process may not administer the network.
    pub fn make() -> Result<Namespace, NamespaceError> {
        remove_abandoned();
        let number = std::process::id();
        let name = format!("{NAME_PREFIX}{number}");
        let first = BENCHMARK_NETWORK + number % SUBNET_COUNT * 4;
        let (outer, inner) = (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2));
        // A device's name has 15 characters at most.
        let (near, far) = (format!("pl{number}a"), format!("pl{number}b"));
        ip(["netns", "add", &name])?;
        // From here on what is there is removed, whatever comes.
        let made = Namespace { name, near, inner };
        let (name, near) = (made.name.as_str(), made.near.as_str());
        ip([
            "link", "add", near, "type", "veth", "peer", "name", &far, "netns", name,
        ])?;
        ip(["address", "add", &format!("{outer}/30"), "dev", near])?;
        ip(["link", "set", near, "up"])?;
        ip([
            "-n",
            name,
            "address",
            "add",
            &format!("{inner}/30"),
            "dev",
            &far,
        ])?;
        ip(["-n", name, "link", "set", &far, "up"])?;
        ip(["-n", name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Its address, as seen from outside and inside.
    pub fn address(&self) -> Ipv4Addr {
        self.inner
    }

    /// A command that runs `program` inside, as the process that is started.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing can be done about a failure; the next one that is made tries again. The device would go
        // with the namespace, but only some time after it.
        let _ = ip(["link", "delete", &self.near]);
        let _ = ip(["netns", "delete", &self.name]);
    }
}

/// Removes the namespaces of processes that are gone.
fn remove_abandoned() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        let number = name
            .strip_prefix(NAME_PREFIX)
            .and_then(|n| n.parse::<u32>().ok());
        if let Some(number) = number
            && !Path::new(&format!("/proc/{number}")).exists()
        {
            let _ = ip(["netns", "delete", name]);
        }
    }
}

fn ip<const N: usize>(arguments: [&str; N]) -> Result<(), NamespaceError> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(NamespaceError::NoProgram)?;
    if output.status.success() {
        return Ok(());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    let problem = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(NamespaceError::Refused {
        arguments: arguments.join(" "),
        problem: if problem.is_empty() {
            output.status.to_string()
        } else {
            problem
        },
    })
}
