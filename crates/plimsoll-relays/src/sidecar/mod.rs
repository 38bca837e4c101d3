//! The sidecar: relays an application's connections to another sidecar or to a service, in
//! plaintext on one side and over mutual TLS on the other.
//!
//! Each worker is one event loop on epoll and shares only counters: it has its own listening sockets (`SO_REUSEPORT`),
//! upstream connections and timers. The sidecar recognises calls in HTTP/2, in Bolt and in the protocols of plugins.
//! With these, many client connections share few upstream connections, and calls get new ids. Everything else is
//! relayed as bytes, with one upstream connection for each client connection.
//!
//! Invariant: a request that a codec has accepted is answered exactly once, by the service or by
//! the sidecar itself with a status that gives the reason.

mod access_log;
mod admin;
mod config;
mod http2;
mod metrics;
mod setup;
mod tls;
mod transport;
mod upstream_calls;
mod upstream_names;
mod worker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use plimsoll_engine::transport::poller::Waker;
use plimsoll_engine::{Address, Clock, defect};
use plimsoll_protocols::interface::relayed::Watchdog;

use access_log::AccessLog;
pub use config::{FaultConfig, RouteConfig, SidecarConfig, TlsFiles, TlsVersionSpec, UpstreamTls};
use metrics::{SidecarMetrics, add_to_counter};
use setup::{ActiveRoute, WorkerSetup};
use upstream_names::NameResolver;
pub use upstream_names::Upstream;
use worker::{Worker, WorkerContext};

/// Why a sidecar cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct SidecarError {
    /// A key of the config, a route, or the operation that failed.
    place: String,
    problem: String,
}

impl SidecarError {
    fn new(place: impl Into<String>, problem: impl ToString) -> SidecarError {
        SidecarError {
            place: place.into(),
            problem: problem.to_string(),
        }
    }
}

/// Starts a thread of the sidecar.
///
/// # Errors
/// When the system cannot start another thread.
fn start_thread(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SidecarError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map_err(|e| SidecarError::new(format!("starting the thread `{name}`"), e))
}

/// Callback that receives the error of a thread that had to stop.
type FailureCallback = Arc<dyn Fn(SidecarError) + Send + Sync>;

/// Starts a thread whose failure stops the sidecar, because no other thread would accept the connections that the
/// system assigns to it.
///
/// # Errors
/// When the system cannot start another thread.
fn start_serving_thread(
    name: &'static str,
    failed: &FailureCallback,
    body: impl FnOnce() -> Result<(), SidecarError> + Send + 'static,
) -> Result<JoinHandle<()>, SidecarError> {
    let failed = Arc::clone(failed);
    start_thread(name, move || match defect::catch_panic(body) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => failed(error),
        // The panic has already been reported.
        Err(_) => failed(SidecarError::new(
            format!("the thread `{name}`"),
            "has ended",
        )),
    })
}

/// A running sidecar.
pub struct Sidecar {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
    mailboxes: Vec<(Sender<WorkerSetup>, Waker)>,
    admin: Option<SocketAddr>,
    metrics: Arc<SidecarMetrics>,
    names: Arc<NameResolver>,
    watchdog: Arc<Watchdog>,
    current: Mutex<CurrentConfig>,
}

/// The state of the config that was read last.
struct CurrentConfig {
    config: SidecarConfig,
    routes: Vec<ActiveRoute>,
    /// The threads that write access logs. The last one is in use; earlier ones end when the workers drop the old logs.
    access_logs: Vec<JoinHandle<()>>,
}

impl Sidecar {
    /// Loads every plugin, opens every port and reads every certificate before it accepts the first connection.
    /// `failed` is called on a thread of the sidecar when a thread that serves clients had to stop. Some clients are
    /// then no longer served, so the caller should stop the sidecar.
    ///
    /// # Errors
    /// When the sidecar cannot listen on an address, or a certificate or plugin is unusable.
    pub fn start(
        config: &SidecarConfig,
        failed: impl Fn(SidecarError) + Send + Sync + 'static,
    ) -> Result<Sidecar, SidecarError> {
        config.check()?;
        let failed: FailureCallback = Arc::new(failed);
        let metrics = Arc::new(SidecarMetrics::new());
        let (stop, clock) = (Arc::new(AtomicBool::new(false)), Clock::new());
        let (access_log, writer) = AccessLog::open(config)?;
        let watchdog = Arc::new(Watchdog::default());
        let (setups, routes) =
            setup::prepare(config, &[], &metrics, &watchdog, access_log.as_ref())?;
        let ready = setups.into_iter().map(|setup| {
            let shared = WorkerContext {
                metrics: Arc::clone(&metrics),
                stop: Arc::clone(&stop),
                clock,
            };
            Worker::new(setup, shared)
        });
        let ready: Vec<Worker> = ready.collect::<Result<_, _>>()?;
        let names = Arc::new(NameResolver::default());
        let upstreams = routes.iter().map(|route| Arc::clone(&route.upstreams));
        names.set_routes(upstreams.collect(), config.lookup(), &stop)?;
        let admin = match config.admin {
            Some(address) => Some(admin::start(
                address,
                Arc::clone(&metrics),
                Arc::clone(&names),
                Arc::clone(&stop),
                &failed,
            )?),
            None => None,
        };
        let mailboxes = ready
            .iter()
            .map(|worker| (worker.mailbox(), worker.waker()));
        let mailboxes = mailboxes.collect();
        let workers = ready
            .into_iter()
            .map(|worker| start_serving_thread("worker", &failed, move || worker.run()))
            .collect::<Result<_, _>>()
            .inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        Ok(Sidecar {
            stop,
            workers,
            mailboxes,
            admin,
            metrics,
            names,
            watchdog,
            current: Mutex::new(CurrentConfig {
                config: config.clone(),
                routes,
                access_logs: writer.into_iter().collect(),
            }),
        })
    }

    /// Applies a new config. Routes are added, changed and removed; calls in flight continue. The
    /// access log is reopened.
    ///
    /// # Errors
    /// Returns the errors of [`Sidecar::start`], and one for a change of a key that needs a restart. The old config
    /// then stays in use.
    pub fn reload(&self, config: &SidecarConfig) -> Result<(), SidecarError> {
        config.check()?;
        let mut now = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, is_same) in [
            ("admin", now.config.admin == config.admin),
            ("workers", now.config.workers() == config.workers()),
        ] {
            if !is_same {
                let problem = "can't change while the sidecar runs: restart it";
                return Err(SidecarError::new(key, problem));
            }
        }
        let (access_log, writer) = AccessLog::open(config)?;
        let prepared = setup::prepare(
            config,
            &now.routes,
            &self.metrics,
            &self.watchdog,
            access_log.as_ref(),
        )
        .and_then(|(setups, routes)| {
            let upstreams = routes.iter().map(|route| Arc::clone(&route.upstreams));
            self.names
                .set_routes(upstreams.collect(), config.lookup(), &self.stop)?;
            Ok((setups, routes))
        });
        let (setups, routes) = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                let new = config.route.iter().map(|route| route.name.as_str());
                self.remove_stale_metrics(&now.routes, new);
                return Err(e);
            }
        };
        for ((mailbox, waker), setup) in self.mailboxes.iter().zip(setups) {
            // A worker that has ended has already reported the reason.
            let _ = mailbox.send(setup);
            waker.wake();
        }
        let old = now.routes.iter().map(|route| route.route.name.as_str());
        self.remove_stale_metrics(&routes, old);
        now.access_logs.retain(|writer| !writer.is_finished());
        now.access_logs.extend(writer);
        (now.config, now.routes) = (config.clone(), routes);
        Ok(())
    }

    /// Removes the metrics of those `names` that no longer belong to a route.
    fn remove_stale_metrics<'a>(
        &self,
        routes: &[ActiveRoute],
        names: impl Iterator<Item = &'a str>,
    ) {
        for name in names {
            if !routes.iter().any(|route| route.route.name == name) {
                self.metrics.remove_route(name);
            }
        }
    }

    /// Calls `report` when a codec plugin exceeds its route's `codec_timeout`. Its worker is blocked permanently, so
    /// the process should exit.
    ///
    /// # Errors
    /// When the system cannot start another thread.
    pub fn watch_codecs(
        &self,
        report: impl FnOnce(String) + Send + 'static,
    ) -> Result<(), SidecarError> {
        let watching = Arc::clone(&self.watchdog).start(Arc::clone(&self.stop), report);
        watching.map_err(|e| SidecarError::new("starting the thread `watchdog`", e))
    }

    /// Returns each route's name and the address that it listens on, with the actual port.
    pub fn listen_addresses(&self) -> Vec<(String, Address)> {
        let now = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let routes = now.routes.iter();
        routes
            .map(|running| (running.route.name.clone(), running.address.clone()))
            .collect()
    }

    /// Returns the address of the admin page with its actual port; `None` if it is not served.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns one counter of a route, by its name on the admin page.
    pub fn counter_value(&self, route: &str, name: &str) -> Option<u64> {
        let labelled = format!("plimsoll_sidecar_{name}{{route=\"{route}\"}} ");
        let text = self.metrics.encode_text();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&labelled));
        values.next()?.parse().ok()
    }

    /// Stops accepting, waits for calls in flight up to the drain time, and returns.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for (_, waker) in &self.mailboxes {
            waker.wake();
        }
        // A thread that panicked or failed has already reported it.
        let ended = |threads: Vec<JoinHandle<()>>| {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        };
        ended(self.workers);
        // Setups that no worker has read still hold an access log.
        drop(self.mailboxes);
        let now = self.current.into_inner();
        ended(now.unwrap_or_else(PoisonError::into_inner).access_logs);
    }
}
