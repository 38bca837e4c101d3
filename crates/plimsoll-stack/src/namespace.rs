//! A network namespace: a second network stack on this machine, connected to the host's by a pair of virtual Ethernet
//! devices.
//!
//! Packets between the two network stacks pass through a device on each side instead of the loopback device, as between
//! two machines, except that there is no wire. The namespace is created and removed with `ip` (iproute2), which needs
//! the capability to administer the network. A namespace left behind by a killed process is removed when the next one
//! is created.

use std::ffi::OsStr;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The reason why a namespace could not be created.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("`ip` can't be run: {0}; install the package iproute2")]
    NoProgram(io::Error),
    #[error("`ip {arguments}`: {problem}")]
    Refused { arguments: String, problem: String },
}

/// A network namespace, which is removed when the value is dropped.
#[derive(Debug)]
pub struct NetworkNamespace {
    name: String,
    /// The device on the host's side.
    host_device: String,
    namespace_address: Ipv4Addr,
}

/// The address range reserved for benchmarks (RFC 2544, appendix C.2.2), 198.18.0.0/15, which nothing else uses.
const BENCHMARK_NETWORK: u32 = 0xc612_0000;
/// The number of subnets of four addresses in [`BENCHMARK_NETWORK`].
const SUBNET_COUNT: u32 = 1 << 15;
const NAME_PREFIX: &str = "plimsoll-";

impl NetworkNamespace {
    /// Creates a namespace and the link between it and the host.
    ///
    /// # Errors
    /// Returns an error if `ip` is missing, or if this process may not administer the network.
    pub fn create() -> Result<NetworkNamespace, NamespaceError> {
        remove_abandoned_namespaces();
        let number = std::process::id();
        let name = format!("{NAME_PREFIX}{number}");
        let first = BENCHMARK_NETWORK + number % SUBNET_COUNT * 4;
        let (outer, inner) = (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2));
        // Device names may have at most 15 characters.
        let (near, far) = (format!("pl{number}a"), format!("pl{number}b"));
        run_ip(["netns", "add", &name])?;
        // From here on, dropping the value removes everything after an error.
        let made = NetworkNamespace {
            name,
            host_device: near,
            namespace_address: inner,
        };
        let (name, near) = (made.name.as_str(), made.host_device.as_str());
        run_ip([
            "link", "add", near, "type", "veth", "peer", "name", &far, "netns", name,
        ])?;
        run_ip(["address", "add", &format!("{outer}/30"), "dev", near])?;
        run_ip(["link", "set", near, "up"])?;
        run_ip([
            "-n",
            name,
            "address",
            "add",
            &format!("{inner}/30"),
            "dev",
            &far,
        ])?;
        run_ip(["-n", name, "link", "set", &far, "up"])?;
        run_ip(["-n", name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Returns the address of the namespace, which is the same from both sides.
    pub fn address(&self) -> Ipv4Addr {
        self.namespace_address
    }

    /// Returns a command that runs `program` in the namespace. The command starts `ip`, which `program` then replaces
    /// in the same process.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // A failure can't be handled here; the next namespace that is created tries again. Without the first command,
        // the device would disappear with the namespace, but only some time later.
        let _ = run_ip(["link", "delete", &self.host_device]);
        let _ = run_ip(["netns", "delete", &self.name]);
    }
}

/// Removes the namespaces of processes that no longer exist.
fn remove_abandoned_namespaces() {
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
            let _ = run_ip(["netns", "delete", name]);
        }
    }
}

fn run_ip<const N: usize>(arguments: [&str; N]) -> Result<(), NamespaceError> {
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
