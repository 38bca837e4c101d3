//! The operating system's sockets under epoll, with waits that are accurate to a microsecond.
//!
//! `epoll_pwait2` sleeps until shortly before the next arrival; in the remaining window, the loop polls without
//! sleeping, so that answers in the window are seen at once. The length of the window follows the measured oversleep of
//! this machine, up to the plan's `spin`. mio is not used because the timeout of plain epoll has millisecond
//! resolution.

use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::Target;
use rustix::net::{self, RecvFlags, SendFlags};
use rustix::time::Timespec;

use super::receive_timestamps::{self, ReceiveTimestamps};
use super::resolver::Resolver;
use super::tunnels::PendingTunnels;
use super::{
    ByteCounts, LookupScope, Network, ReceiveTime, ResolveResult, SocketReady, SocketToken,
    WaitKind, WakeTime, low_water, tcp_info,
};
use crate::clock::Clock;
use crate::transport::address::{Address, LocalResourceError};
use crate::transport::poller::{Interest, PollEvents, Poller, Waker};
use crate::transport::tunnel::Tunnel;

/// Options of sockets and waits.
#[derive(Clone, Debug, Default)]
pub struct SocketOptions {
    /// Source addresses, used round-robin; empty if the system chooses.
    pub sources: Vec<IpAddr>,
    /// Maximum busy wait before an arrival.
    pub spin: Duration,
    /// Whether to request the kernel's receive times, for [`Network::last_receive_time`].
    pub wants_receive_times: bool,
}

/// The operating system's network, for one worker thread.
pub struct OsNetwork {
    clock: Clock,
    poller: Poller,
    events: PollEvents,
    options: SocketOptions,
    next_source: usize,
    window: SpinWindow,
    resolvers: Vec<Resolver>,
    /// The proxy tunnel to each target, by the target's number; `None` if no proxy is used.
    tunnel_routes: Vec<Option<Arc<Tunnel>>>,
    tunnels: PendingTunnels,
    stamps: Option<ReceiveTimestamps>,
}

impl OsNetwork {
    /// Creates a network for one thread; `targets` are resolved by [`Network::resolve`], and `first_source` is the
    /// index of the first source address.
    ///
    /// # Errors
    /// Returns an error if the process has no free descriptor.
    pub fn new(
        clock: Clock,
        targets: &[&Target],
        options: SocketOptions,
        first_source: usize,
    ) -> io::Result<OsNetwork> {
        let poller = Poller::new()?;
        let waker = poller.waker();
        let resolver = |target: &&Target| Resolver::new(target, &options.sources, waker.clone());
        let resolvers = targets.iter().map(resolver).collect();
        let window = SpinWindow::new(options.spin);
        let stamps = options.wants_receive_times.then(ReceiveTimestamps::new);
        Ok(OsNetwork {
            clock,
            poller,
            events: PollEvents::default(),
            options,
            next_source: first_source,
            window,
            resolvers,
            tunnel_routes: targets
                .iter()
                .map(|target| Tunnel::for_target(target))
                .collect(),
            tunnels: PendingTunnels::default(),
            stamps,
        })
    }

    /// Returns a handle that ends a wait of this network from any thread.
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Minimises the timer slack of this thread, since the default of 50 µs causes most of the error of a sleep.
    pub fn minimize_timer_slack() {
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    }

    /// Watches a socket that was accepted elsewhere, in the same way as one that was connected here.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot watch more sockets.
    pub fn watch_socket(&mut self, socket: &TcpStream, token: SocketToken) -> io::Result<()> {
        if self.stamps.is_some() {
            receive_timestamps::enable(socket);
        }
        self.poller.add(socket, token, Interest::Changes)
    }

    /// Returns the next source address with the address family of `to`; `None` if the system chooses.
    fn next_source(&mut self, to: SocketAddr) -> Option<IpAddr> {
        let sources = &self.options.sources;
        let of_family = (0..sources.len())
            .map(|i| self.next_source.wrapping_add(i) % sources.len())
            .find(|i| sources[*i].is_ipv4() == to.is_ipv4());
        // If no source address has this family, binding fails with an error that explains the problem.
        let at = of_family.or((!sources.is_empty()).then_some(0))?;
        self.next_source = at + 1;
        Some(sources[at])
    }

    /// Polls once; returns true if there is something to do: ready sockets, a wake-up, or a signal.
    fn poll(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<SocketReady>,
    ) -> io::Result<bool> {
        let has_work = self.poller.wait(timeout, &mut self.events)?;
        for event in self.events.sockets() {
            if self.tunnels.is_empty() {
                ready.push(event)
            } else {
                ready.extend(self.tunnels.process_event(event))
            }
        }
        Ok(has_work)
    }
}

impl Network for OsNetwork {
    type Socket = TcpStream;

    #[inline]
    fn now(&mut self) -> Time {
        self.clock.now()
    }

    fn connect(
        &mut self,
        target: usize,
        to: &Address,
        token: SocketToken,
    ) -> io::Result<TcpStream> {
        let source = to.tcp_address().and_then(|to| self.next_source(to));
        let socket = to.start_connect(source)?;
        self.watch_socket(&socket, token)
            .map_err(LocalResourceError::refine_socket_error)?;
        if let Some(Some(way)) = self.tunnel_routes.get(target) {
            self.tunnels.add(&socket, token, way)?;
        }
        Ok(socket)
    }

    fn take_connect_result(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        if !self.tunnels.is_empty()
            && let Some(e) = self.tunnels.remove(socket)
        {
            return Err(e);
        }
        match socket
            .take_error()
            .map_err(LocalResourceError::refine_socket_error)?
        {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    fn pending_proxy(&self, socket: &TcpStream) -> Option<String> {
        self.tunnels.pending_proxy(socket)
    }

    fn change_token(&mut self, socket: &TcpStream, token: SocketToken) -> io::Result<()> {
        self.tunnels.change_token(socket, token);
        self.poller.change(socket, token, Interest::Changes)
    }

    #[inline]
    fn read(&mut self, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(stamps) = &mut self.stamps {
            return stamps.read(socket, buffer, self.clock);
        }
        // This bypasses the C library, whose `recv` is a cancellation point, which costs time.
        let (_, received) = net::recv(&*socket, buffer, RecvFlags::empty())?;
        Ok(received)
    }

    fn has_receive_times(&self) -> bool {
        self.stamps.is_some()
    }

    #[inline]
    fn last_receive_time(&self) -> Option<ReceiveTime> {
        self.stamps.as_ref()?.last_receive_time
    }

    fn set_low_water(&mut self, socket: &mut TcpStream, bytes: usize) {
        // An error is harmless: it only causes more wake-ups.
        let _ = low_water::set_low_water_mark(socket, bytes);
    }

    #[inline]
    fn write(&mut self, socket: &mut TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [one] => Ok(net::send(&*socket, one, SendFlags::NOSIGNAL)?),
            many => socket.write_vectored(many),
        }
    }

    fn byte_counts(&mut self, socket: &TcpStream) -> Option<ByteCounts> {
        tcp_info::byte_counts(socket)
    }

    fn close(&mut self, socket: TcpStream) {
        if !self.tunnels.is_empty() {
            self.tunnels.remove(&socket);
        }
        // Closing the descriptor removes it from the epoll set.
        drop(socket);
    }

    fn wait(&mut self, wake: Option<WakeTime>, ready: &mut Vec<SocketReady>) -> io::Result<()> {
        ready.clear();
        if self.resolvers.iter().any(Resolver::has_immediate_result) {
            self.poll(Some(Duration::ZERO), ready)?;
            return Ok(());
        }
        let Some(wake) = wake else {
            self.poll(None, ready)?;
            return Ok(());
        };
        let now = self.clock.now();
        let left = wake.at.since(now);
        match wake.kind {
            WaitKind::Precise => {}
            WaitKind::Rough => {
                self.poll(Some(Duration::from_nanos(left)), ready)?;
                return Ok(());
            }
            WaitKind::Asleep => {
                // A signal ends the sleep: the loop then sleeps again for the rest.
                if let Ok(left) = Timespec::try_from(Duration::from_nanos(left)) {
                    let _ = rustix::thread::nanosleep(&left);
                }
                self.poll(Some(Duration::ZERO), ready)?;
                return Ok(());
            }
        }
        let window = self.window.busy_wait_ns(left);
        if left > window {
            let target = wake.at.0 - window;
            if self.poll(Some(Duration::from_nanos(left - window)), ready)? {
                return Ok(());
            }
            let woke = self.clock.now();
            if woke.0 >= target {
                self.window.add_oversleep(woke.0 - target);
            }
        }
        // The remaining time is too short for a sleep: poll without blocking until it is over.
        loop {
            if !self.window.is_enabled() || self.clock.now() >= wake.at {
                if left == 0 {
                    self.poll(Some(Duration::ZERO), ready)?;
                }
                return Ok(());
            }
            if self.poll(Some(Duration::ZERO), ready)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    fn resolve(&mut self, target: usize, token: SocketToken, lookup: LookupScope) {
        self.resolvers[target].request(token, lookup);
    }

    fn next_lookup_result(&mut self) -> Option<(SocketToken, ResolveResult)> {
        self.resolvers.iter_mut().find_map(Resolver::next_result)
    }
}

/// The time before an arrival at which sleeping stops, learned from the measured oversleep.
#[derive(Clone, Copy, Debug)]
struct SpinWindow {
    max_ns: u64,
    mean_ns: f64,
    deviation_ns: f64,
}

impl SpinWindow {
    fn new(longest: Duration) -> SpinWindow {
        SpinWindow {
            max_ns: u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX),
            mean_ns: 20_000.0,
            deviation_ns: 10_000.0,
        }
    }

    fn is_enabled(&self) -> bool {
        self.max_ns > 0
    }

    /// Returns the length of the busy wait, in nanoseconds, for an arrival in `left` nanoseconds: at most half of that
    /// time, so that a fast schedule does not become a permanent busy loop.
    fn busy_wait_ns(&self, left: u64) -> u64 {
        let learned = self.mean_ns + 3.0 * self.deviation_ns;
        (learned as u64).min(self.max_ns).min(left / 2)
    }

    fn add_oversleep(&mut self, nanos: u64) {
        // Longer oversleeps are preemptions and are ignored: allowing for them would cost CPU time without any benefit.
        if nanos < 500_000 {
            let error = nanos as f64 - self.mean_ns;
            self.mean_ns += 0.05 * error;
            self.deviation_ns += 0.05 * (error.abs() - self.deviation_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_window_learns_bounded_oversleep() {
        let mut window = SpinWindow::new(Duration::from_micros(50));
        assert_eq!(window.busy_wait_ns(1_000_000), 50_000);
        for _ in 0..500 {
            window.add_oversleep(5_000);
        }
        let learned = window.busy_wait_ns(1_000_000);
        assert!((4_000..8_000).contains(&learned), "{learned}");
        assert_eq!(window.busy_wait_ns(2_000), 1_000);
        assert!(!SpinWindow::new(Duration::ZERO).is_enabled());
    }

    #[test]
    fn waits_are_exact_and_wakers_interrupt() {
        let clock = Clock::new();
        let mut network = OsNetwork::new(
            clock,
            &[],
            SocketOptions {
                spin: Duration::from_micros(50),
                ..SocketOptions::default()
            },
            0,
        )
        .unwrap();
        let mut ready = Vec::new();
        let at = clock.now() + Duration::from_millis(3);
        network
            .wait(
                Some(WakeTime {
                    at,
                    kind: WaitKind::Precise,
                }),
                &mut ready,
            )
            .unwrap();
        assert!(clock.now() >= at);

        let waker = network.waker();
        let thread = std::thread::spawn(move || waker.wake());
        network.wait(None, &mut ready).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn resolver_result_interrupts_precise_wait() {
        let clock = Clock::new();
        for host in ["127.0.0.1", "localhost"] {
            let options = SocketOptions {
                spin: Duration::from_micros(50),
                ..SocketOptions::default()
            };
            let target = Target::new_tcp(host, host, 1);
            let mut network = OsNetwork::new(clock, &[&target], options, 0).unwrap();
            let at = clock.now() + Duration::from_secs(60);
            network.resolve(0, SocketToken(7), LookupScope::Own);
            network
                .wait(
                    Some(WakeTime {
                        at,
                        kind: WaitKind::Precise,
                    }),
                    &mut Vec::new(),
                )
                .unwrap();
            assert!(clock.now() < at, "{host}");
            assert_eq!(
                network.next_lookup_result().map(|(token, _)| token),
                Some(SocketToken(7)),
                "{host}"
            );
        }
    }
}
