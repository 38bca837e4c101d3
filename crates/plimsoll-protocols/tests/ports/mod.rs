//! Ports for servers that cannot be asked to listen on any free one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first port. All of them lie below those that the kernel gives to clients, 32768 to 60999 by default
/// (`ip_local_port_range` of ip(7)), and so does each plus 10,000, the cluster bus port of a Redis node.
const FIRST_PORT: u16 = 10_000;
const PORT_COUNT: u16 = 12_000;

/// Returns a port that is free on all of `hosts`, addresses of this machine. Calls of one process do not get the same
/// port before all have been given.
///
/// # Panics
/// If there is none.
pub(crate) fn free_port_on(hosts: &[&str]) -> u16 {
    // Each process starts at a random port, so that tests that run at the same time do not take the same.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(()) >> 1));
    let ports = (0..PORT_COUNT).map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(PORT_COUNT);
        FIRST_PORT + u16::try_from(next).expect("below the number of ports")
    });
    let is_free = |port: &u16| {
        hosts
            .iter()
            .all(|host| TcpListener::bind((*host, *port)).is_ok())
    };
    let mut free = ports.filter(is_free);
    free.next()
        .unwrap_or_else(|| panic!("no port is free on {hosts:?}"))
}

/// Returns a port that is free on 127.0.0.1.
pub(crate) fn free_port() -> u16 {
    free_port_on(&["127.0.0.1"])
}
