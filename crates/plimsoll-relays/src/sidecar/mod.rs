//! The sidecar: carries an application's connections to another sidecar or to a service,
//! in plaintext on one side and over mutual TLS on the other.
//!
//! A loop a worker under epoll, nothing shared but counters: each worker has its own
//! listening sockets (`SO_REUSEPORT`), its own connections upstream and its own timers.
//! Where a codec tells calls apart (Bolt, or a plugin), and over HTTP/2, many connections
//! downstream share few upstream, with ids renumbered; everything else passes as a stream
//! of bytes, a connection for a connection.
//!
//! Invariant: a request that was told apart and taken is answered exactly once, by the
//! service or by the sidecar itself with a status that says why.

mod access_log;
mod admin;
mod calls;
mod codec;
mod config;
mod http2;
mod link;
mod metrics;
mod names;
mod poll;
mod tls;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use plimsoll_engine::{Address, Clock};

use crate::metrics::Counter;
use access_log::AccessLog;
use codec::Codec;
pub use config::{Config, Protocol, Route, TlsFiles, UpstreamTls};
use metrics::{Counters, Metrics};
pub use names::Upstream;
use names::{Names, Upstreams};
use worker::{Shared, Worker};

/// Why a sidecar can't start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    #[error("{key}: {problem}")]
    Config { key: String, problem: String },
    #[error("route {route}: listening on {address}: {problem}")]
    Listen {
        route: String,
        address: Address,
        problem: String,
        source: io::Error,
    },
    #[error("admin: listening on {address}: {source}")]
    Admin {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("route {route}: {what} {}: {problem}", path.display())]
    Tls {
        route: String,
        what: &'static str,
        path: PathBuf,
        problem: String,
    },
    #[error("access_log {}: {source}", path.display())]
    AccessLog { path: PathBuf, source: io::Error },
    #[error("route {route}: {source}")]
    Plugin {
        route: String,
        source: plimsoll_plugin::LoadError,
    },
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

pub(crate) fn count(counter: &Counter, n: u64) {
    counter.inc_by(n);
}

/// A running sidecar.
pub struct Sidecar {
    stop: Arc<AtomicBool>,
    wakers: Vec<poll::Waker>,
    workers: Vec<JoinHandle<()>>,
    listening: Vec<(String, Address)>,
    admin: Option<SocketAddr>,
    counters: Arc<Vec<(String, Counters)>>,
    access_log: Option<access_log::Writer>,
}

impl Sidecar {
    /// Loads every plugin, opens every port and reads every certificate before the first connection is taken.
    ///
    /// # Errors
    /// When an address can't be listened on, or a certificate or plugin can't be used.
    pub fn start(config: &Config) -> Result<Sidecar, SidecarError> {
        config.check()?;
        let metrics = Arc::new(Metrics::new());
        let routes = config.route.iter();
        let counters: Arc<Vec<(String, Counters)>> = Arc::new(
            routes
                .map(|route| (route.name.clone(), metrics.route(&route.name)))
                .collect(),
        );
        for (name, counters) in counters.iter() {
            if config.insecure_routes().any(|insecure| insecure == name) {
                counters.insecure.set(1);
            }
        }
        let codecs = config
            .route
            .iter()
            .map(Codec::of)
            .collect::<Result<Vec<_>, _>>()?;
        let (stop, clock) = (Arc::new(AtomicBool::new(false)), Clock::new());
        let (access_log, writer) = match &config.access_log {
            Some(path) => {
                let (log, writer) = AccessLog::open(path)?;
                (Some(log), Some(writer))
            }
            None => (None, None),
        };
        let routes = config.route.iter().zip(counters.iter());
        let upstreams: Vec<Arc<Upstreams>> = routes
            .map(|(route, (name, counters))| {
                let failures = counters.lookup_failures.clone();
                Arc::new(Upstreams::new(name, &route.upstream, failures))
            })
            .collect();
        for route in &upstreams {
            route.look_up();
        }
        let names = Arc::new(Names::default());
        names.keep(upstreams.clone(), config.lookup(), &stop);
        let mut ready: Vec<Worker> = Vec::new();
        for _ in 0..config.workers() {
            let worker = Worker::new(
                config,
                &codecs,
                &upstreams,
                ready.first(),
                Shared {
                    counters: Arc::clone(&counters),
                    metrics: Arc::clone(&metrics),
                    stop: Arc::clone(&stop),
                    access_log: access_log.clone(),
                    clock,
                },
            )?;
            ready.push(worker);
        }
        let listening = ready.first().map(Worker::listening).unwrap_or_default();
        let admin = match config.admin {
            Some(address) => Some(admin::start(
                address,
                Arc::clone(&metrics),
                Arc::clone(&names),
                Arc::clone(&stop),
            )?),
            None => None,
        };
        let wakers = ready.iter().map(Worker::waker).collect();
        let workers = ready
            .into_iter()
            .map(|worker| thread::spawn(move || worker.run()))
            .collect();
        Ok(Sidecar {
            stop,
            wakers,
            workers,
            listening,
            admin,
            counters,
            access_log: writer,
        })
    }

    /// Each route's name and the address it listens on (port 0 asks for a free one).
    pub fn listening(&self) -> &[(String, Address)] {
        &self.listening
    }

    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// One counter of a route, by the name that the admin page shows.
    pub fn counter(&self, route: &str, name: &str) -> Option<u64> {
        let (_, counters) = self.counters.iter().find(|(known, _)| known == route)?;
        counters.named(name)
    }

    /// Takes no more connections, lets calls in flight end for at most the drain time,
    /// and returns.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for waker in &self.wakers {
            waker.wake();
        }
        for worker in self.workers {
            // A worker that panicked has told so already.
            let _ = worker.join();
        }
        if let Some(writer) = self.access_log {
            writer.finish();
        }
    }
}
