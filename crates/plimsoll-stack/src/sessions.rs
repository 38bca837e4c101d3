//! Starts, inspects and stops a token-streaming stack on this machine: redis-server, haproxy, and plimsoll's own
//! backends and gateways.
//!
//! All state of a stack is in its folder, so that any later process can inspect or stop it. Only processes that the
//! stack started are stopped: a process is identified by its id together with its start time, which no other process
//! shares.

mod balancer;
mod limits;
mod process;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

pub use balancer::BalancerConfig;
pub use limits::StackLimits;
use plimsoll_model::formats::input;
use plimsoll_wire::http1::{FieldStorage, ResponseHead, append_request_head};
pub use process::{ProcessError, StackProcess};
use serde::{Deserialize, Serialize};

const STATE_FILE: &str = "stack.json";
const HEALTH_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit for each process to become healthy.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The topology of a stack.
#[derive(Clone, Debug)]
pub struct StackTopology {
    /// The number of `serve llm` processes.
    pub backends: u16,
    /// The number of `relay gateway` processes.
    pub gateways: u16,
    /// The number of balancers that share the ports of `api`, `sockets` and `stats`.
    pub balancers: u16,
    /// The number of threads of each backend and of each gateway.
    pub workers: u16,
    /// Whether sharded channels of Redis 7 are used, which are cheaper.
    pub sharded: bool,
    /// The time between two tokens, in the format of `--token-delay`.
    pub token_delay: String,
    /// The port of the API.
    pub api: u16,
    /// The port of the WebSockets.
    pub sockets: u16,
    /// The port of haproxy's statistics.
    pub stats: u16,
    /// The port of redis; backends and gateways use the ports after it.
    pub first_port: u16,
    /// The number of concurrent sessions that the limits have to allow.
    pub sessions: u32,
    /// Whether backend and gateway run in one process that listens on `api` and `sockets`, without redis and haproxy.
    pub embedded: bool,
}

impl Default for StackTopology {
    fn default() -> StackTopology {
        StackTopology {
            backends: 2,
            gateways: 3,
            balancers: 1,
            workers: 1,
            sharded: false,
            token_delay: "50ms".to_owned(),
            api: 8080,
            sockets: 8081,
            stats: 8404,
            first_port: 7400,
            sessions: 10_000,
            embedded: false,
        }
    }
}

impl StackTopology {
    /// Returns the addresses on which the stack listens, with names for error messages.
    fn listen_addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        let mut ports = vec![("the API", self.api), ("the sockets", self.sockets)];
        if !self.embedded {
            ports.extend([("the statistics", self.stats), ("redis", self.first_port)]);
            let first = self.first_port;
            ports.extend((1..=self.backends).map(|i| ("a backend", first + i)));
            let first = first + self.backends;
            ports.extend((1..=self.gateways).map(|i| ("a gateway", first + i)));
        }
        let local = |(name, port)| (name, localhost_address(port));
        ports.into_iter().map(local).collect()
    }

    /// Returns the maximum number of connections to redis: eight per process, as many again that are being closed, and
    /// 64 others.
    fn max_redis_connections(&self) -> u32 {
        64 + 2 * 8 * (u32::from(self.backends) + u32::from(self.gateways))
    }
}

/// The reason why a stack could not be started, inspected or stopped.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("{0} is not installed; on Debian: apt-get install redis-server haproxy")]
    Missing(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} contains a running stack; stop it first: plimsoll stack down sessions", .0.display())]
    StillRunning(PathBuf),
    #[error("{} contains no stack", .0.display())]
    NoStack(PathBuf),
    #[error("haproxy does not accept {}: {printed}", path.display())]
    Configuration { path: PathBuf, printed: String },
    #[error(
        "{name} can't listen on {address}, which is already in use: choose another port \
         (--api-port, --socket-port, --stats-port, --first-port)"
    )]
    AddressInUse { name: String, address: SocketAddr },
    #[error("{name} exited at once; {} contains: {logged}", log.display())]
    Exited {
        name: String,
        log: PathBuf,
        logged: String,
    },
    #[error("{name} was not healthy within {STARTUP_TIMEOUT:?}; see {}", log.display())]
    NotHealthy { name: String, log: PathBuf },
    #[error(transparent)]
    Process(#[from] ProcessError),
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> StackError + '_ {
    move |source| StackError::File {
        path: path.to_owned(),
        source,
    }
}

/// A running stack, as stored in its folder.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stack {
    /// The address of the API, which creates sessions and starts their queries.
    pub api: SocketAddr,
    /// The address at which clients open their WebSockets.
    pub sockets: SocketAddr,
    /// The address of the balancer's statistics; `None` if there is no balancer.
    pub stats: Option<SocketAddr>,
    /// The processes in the order in which they were started.
    pub processes: Vec<StackProcess>,
}

fn localhost_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Stack {
    /// Starts a stack with the binary `plimsoll`, and waits until all its processes are healthy. If anything fails, the
    /// processes started so far are stopped.
    ///
    /// # Errors
    /// Returns any error in [`StackError`].
    pub fn up(dir: &Path, plimsoll: &Path, topology: &StackTopology) -> Result<Stack, StackError> {
        let servers = if topology.embedded {
            None
        } else {
            Some((find_program("redis-server")?, find_program("haproxy")?))
        };
        if let Ok(old) = Stack::load(dir)
            && old.processes.iter().any(StackProcess::is_alive)
        {
            return Err(StackError::StillRunning(dir.to_owned()));
        }
        fs::create_dir_all(dir).map_err(file_error(dir))?;
        let mut stack = Stack {
            api: localhost_address(topology.api),
            sockets: localhost_address(topology.sockets),
            stats: servers.is_some().then(|| localhost_address(topology.stats)),
            processes: Vec::new(),
        };
        if let Some((name, address)) = limits::find_address_in_use(topology.listen_addresses()) {
            let name = name.to_owned();
            return Err(StackError::AddressInUse { name, address });
        }
        let secret = dir.join("jwt-secret");
        write_secret(&secret).map_err(file_error(&secret))?;
        let started = match &servers {
            None => stack.start_embedded(dir, plimsoll, topology, &secret),
            Some(servers) => stack.start(dir, plimsoll, topology, &secret, servers),
        };
        if started.is_err() {
            stack.stop_all();
        }
        started.map(|()| stack)
    }

    fn start(
        &mut self,
        dir: &Path,
        plimsoll: &Path,
        topology: &StackTopology,
        secret: &Path,
        (redis, haproxy): &(PathBuf, PathBuf),
    ) -> Result<(), StackError> {
        let redis_port = topology.first_port;
        let mut command = Command::new(redis);
        command
            .args(["--port", &redis_port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--maxclients"])
            .arg(topology.max_redis_connections().to_string())
            .arg("--dir")
            .arg(dir);
        self.start_process(
            dir,
            "redis",
            localhost_address(redis_port),
            None,
            &mut command,
        )?;

        let url = format!("redis://127.0.0.1:{redis_port}");
        let workers = topology.workers.to_string();
        let mut ours = |name: String, words: &[&str], port: u16, more: &[&str]| {
            let mut command = Command::new(plimsoll);
            command
                .args(words)
                .args([
                    "--listen",
                    &localhost_address(port).to_string(),
                    "--redis",
                    &url,
                ])
                .args(["--workers", &workers, "--jwt-secret-file"])
                .arg(secret)
                .args(topology.sharded.then_some("--sharded"))
                .args(more);
            self.start_process(
                dir,
                &name,
                localhost_address(port),
                Some("/health"),
                &mut command,
            )
        };
        let backends: Vec<u16> = (1..=topology.backends).map(|i| redis_port + i).collect();
        let gateways: Vec<u16> = (1..=topology.gateways)
            .map(|i| redis_port + topology.backends + i)
            .collect();
        for (i, port) in backends.iter().enumerate() {
            let delay = ["--token-delay", &topology.token_delay];
            ours(
                format!("backend-{}", i + 1),
                &["serve", "llm"],
                *port,
                &delay,
            )?;
        }
        for (i, port) in gateways.iter().enumerate() {
            ours(
                format!("gateway-{}", i + 1),
                &["relay", "gateway"],
                *port,
                // Gateways trust the balancer to tell them the addresses of its clients.
                &["--trusted-proxy", "127.0.0.1"],
            )?;
        }

        let config = self.write_balancer_config(dir, haproxy, topology, &backends, &gateways)?;
        let api = self.api;
        for i in 1..=topology.balancers.max(1) {
            // The command runs a master process and its worker: SIGUSR2 reloads the configuration, and existing sockets
            // remain open.
            let mut command = Command::new(haproxy);
            command.args(["-W", "-db", "-f"]).arg(&config);
            let name = match i {
                1 => "haproxy".to_owned(),
                _ => format!("haproxy-{i}"),
            };
            // The balancer is healthy when it has found a healthy backend.
            self.start_process(dir, &name, api, Some("/health"), &mut command)?;
        }
        Ok(())
    }

    /// Writes the configuration of the balancer, and has HAProxy check it.
    fn write_balancer_config(
        &self,
        dir: &Path,
        haproxy: &Path,
        topology: &StackTopology,
        backends: &[u16],
        gateways: &[u16],
    ) -> Result<PathBuf, StackError> {
        let config = dir.join("haproxy.cfg");
        let at = |ports: &[u16]| {
            ports
                .iter()
                .map(|port| localhost_address(*port).to_string())
                .collect()
        };
        let balancer = BalancerConfig {
            connections: balancer::max_client_connections(topology.sessions, topology.balancers),
            api: self.api.to_string(),
            sockets: self.sockets.to_string(),
            stats: localhost_address(topology.stats).to_string(),
            backends: at(backends),
            gateways: at(gateways),
            looks_up_names: false,
        };
        fs::write(&config, balancer.configuration()).map_err(file_error(&config))?;
        let checked = Command::new(haproxy)
            .args(["-c", "-f"])
            .arg(&config)
            .output();
        let checked = checked.map_err(file_error(haproxy))?;
        if !checked.status.success() {
            return Err(StackError::Configuration {
                path: config,
                printed: String::from_utf8_lossy(&checked.stderr).trim().to_owned(),
            });
        }
        Ok(config)
    }

    fn start_embedded(
        &mut self,
        dir: &Path,
        plimsoll: &Path,
        topology: &StackTopology,
        secret: &Path,
    ) -> Result<(), StackError> {
        let mut command = Command::new(plimsoll);
        command
            .args(["serve", "llm", "--listen", &self.api.to_string()])
            .args(["--with-gateway", &self.sockets.to_string()])
            .args(["--workers", &topology.workers.to_string()])
            .args(["--token-delay", &topology.token_delay])
            .arg("--jwt-secret-file")
            .arg(secret);
        self.start_process(dir, "server", self.api, Some("/health"), &mut command)
    }

    /// Starts one process, stores it in the folder immediately, and waits until it is healthy.
    fn start_process(
        &mut self,
        dir: &Path,
        name: &str,
        address: SocketAddr,
        health: Option<&str>,
        command: &mut Command,
    ) -> Result<(), StackError> {
        let log = dir.join(format!("{name}.log"));
        let process = StackProcess::start(name, address, &log, command)?;
        self.processes.push(process);
        let state = dir.join(STATE_FILE);
        let text = serde_json::to_string_pretty(&self).map_err(io::Error::other);
        text.and_then(|text| fs::write(&state, text))
            .map_err(file_error(&state))?;
        let Some(process) = self.processes.last() else {
            return Ok(());
        };
        let mut waited = Duration::ZERO;
        loop {
            if is_healthy(address, health) {
                return Ok(());
            }
            if !process.is_alive() {
                let logged = fs::read_to_string(&log).unwrap_or_default();
                let logged = logged.lines().rev().take(3).collect::<Vec<_>>();
                return Err(StackError::Exited {
                    name: name.to_owned(),
                    log,
                    logged: logged.into_iter().rev().collect::<Vec<_>>().join(" | "),
                });
            }
            if waited > STARTUP_TIMEOUT {
                let name = name.to_owned();
                return Err(StackError::NotHealthy { name, log });
            }
            thread::sleep(HEALTH_POLL_INTERVAL);
            waited += HEALTH_POLL_INTERVAL;
        }
    }

    /// Loads the stack of a folder.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn load(dir: &Path) -> Result<Stack, StackError> {
        let text = input::file_to_string(&dir.join(STATE_FILE))
            .map_err(|_| StackError::NoStack(dir.to_owned()))?;
        serde_json::from_str(&text).map_err(|_| StackError::NoStack(dir.to_owned()))
    }

    /// Stops the processes that are still running, in reverse order, and returns their number.
    ///
    /// # Errors
    /// Returns an error if the files of the stack's state can't be removed.
    pub fn down(&mut self, dir: &Path) -> Result<usize, StackError> {
        let ended = self.stop_all();
        for name in [STATE_FILE, "jwt-secret"] {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(file_error(&path))?;
        }
        Ok(ended)
    }

    fn stop_all(&mut self) -> usize {
        let living: Vec<&mut StackProcess> = self
            .processes
            .iter_mut()
            .rev()
            .filter(|p| p.is_alive())
            .collect();
        let count = living.len();
        for process in living {
            process.terminate();
        }
        count
    }
}

fn find_program(name: &'static str) -> Result<PathBuf, StackError> {
    // haproxy is in sbin, which is not in the PATH of ordinary users; PATH may also be empty.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or(StackError::Missing(name))
}

/// Writes a new secret for signing session tokens, readable only by its owner.
fn write_secret(path: &Path) -> io::Result<()> {
    let mut random = [0u8; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Returns whether a server listens at `address`, and, if `path` is given, answers it with 200.
pub fn is_healthy(address: SocketAddr, path: Option<&str>) -> bool {
    check_health(address, &address.to_string(), path).is_ok()
}

/// Connects, and requests `path`, if it is given, with `host` as the `Host` header. Takes at most two seconds.
///
/// # Errors
/// Returns an error if nothing listens, or if the response is not 200.
pub fn check_health(address: SocketAddr, host: &str, path: Option<&str>) -> io::Result<()> {
    let limit = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    let Some(path) = path else {
        return Ok(());
    };
    stream.set_read_timeout(Some(limit))?;
    let mut request = Vec::new();
    let fields = [("Host", host), ("Connection", "close")];
    append_request_head(&mut request, "GET", path, &fields);
    stream.write_all(&request)?;
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let got = stream.read(&mut piece)?;
        answer.extend_from_slice(&piece[..got]);
        let mut space = FieldStorage::new();
        let head = ResponseHead::parse_final(&answer, &mut space).map_err(io::Error::other)?;
        return match head.map(|head| head.status) {
            None if got > 0 => continue,
            None => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(200) => Ok(()),
            Some(status) => Err(io::Error::other(format!(
                "GET {path} was answered with status {status}"
            ))),
        };
    }
}
