//! Ports for servers that cannot be asked to listen on any free one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below the ports that the kernel gives to clients by chance, 32768 to 60999 by default (`ip_local_port_range` of
/// ip(7)), and so are those 10,000 above it, at which the nodes of a Redis cluster talk.
const FIRST: u16 = 10_000;
const COUNT: u16 = 12_000;

/// A port that is free on all of `hosts`, addresses of this machine. A process is never given the same twice.
///
/// # Panics
/// If there is none.
pub(crate) fn free_port_on(hosts: &[&str]) -> u16 {
    // Processes begin anywhere, so that tests that run at the same time do not take the same.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(()) >> 1));
    let ports = (0..COUNT).map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        FIRST + u16::try_from(next).expect("below the number of ports")
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

/// A port that is free on 127.0.0.1.
pub(crate) fn free_port() -> u16 {
    free_port_on(&["127.0.0.1"])
}
