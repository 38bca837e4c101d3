//! Resolves host names to addresses outside the worker's thread.
//!
//! `getaddrinfo` blocks, so a helper thread calls it and wakes the worker ([why this does not use a DNS
//! library](../../../../docs/decisions/0005-names-as-the-system-resolves-them.md)). Addresses that are known beforehand
//! are returned at once, without a thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;

use plimsoll_model::plan::Target;

use super::{LookupScope, ResolveResult, ResolvedAddresses, SocketToken};
use crate::transport::address::{Address, LocalResourceError, look_up};
use crate::transport::poller::Waker;

pub(crate) struct Resolver {
    name: LookupName,
    waker: Waker,
    fixed: Option<ResolvedAddresses>,
    /// Results that needed no thread.
    immediate: Vec<(SocketToken, ResolveResult)>,
    thread: Option<ResolverThread>,
}

/// The name to resolve, and the source addresses that limit the result.
#[derive(Clone)]
struct LookupName {
    host: String,
    port: u16,
    /// One source address per family that connections use; empty if the system chooses.
    sources: Vec<IpAddr>,
    /// Whether the name is that of the proxy in front of the target.
    is_proxy: bool,
}

struct ResolverThread {
    requests: mpsc::Sender<(SocketToken, LookupScope)>,
    answers: mpsc::Receiver<(SocketToken, ResolveResult)>,
}

impl Resolver {
    pub(crate) fn new(target: &Target, sources: &[IpAddr], waker: Waker) -> Resolver {
        let is_proxy = target.proxy.is_some();
        let target = &target.next_hop();
        let name = LookupName {
            host: target.host.clone(),
            port: target.port,
            // The addresses serve only to tell which families are available, so one of each family is enough.
            sources: [IpAddr::is_ipv4, IpAddr::is_ipv6]
                .iter()
                .filter_map(|is_of| sources.iter().copied().find(is_of))
                .collect(),
            is_proxy,
        };
        let fixed = addresses_without_lookup(target).map(|addresses| ResolvedAddresses {
            addresses: filter_by_source_family(addresses, &name.sources).into(),
            may_change: false,
            is_proxy,
        });
        Resolver {
            name,
            waker,
            fixed,
            immediate: Vec::new(),
            thread: None,
        }
    }

    pub(crate) fn request(&mut self, token: SocketToken, lookup: LookupScope) {
        if let Some(fixed) = &self.fixed {
            self.immediate.push((token, Ok(fixed.clone())));
            return;
        }
        let thread = match self.thread.take() {
            Some(thread) => Ok(thread),
            None => spawn_resolver(self.name.clone(), self.waker.clone()),
        };
        match thread {
            Ok(thread) => {
                // The thread lives as long as this resolver, so sending cannot fail.
                let _ = thread.requests.send((token, lookup));
                self.thread = Some(thread);
            }
            // The next request tries again to start the thread.
            Err(e) => self.immediate.push((
                token,
                Err(Arc::new(LocalResourceError::from_thread_error(&e))),
            )),
        }
    }

    /// Returns whether a result is available that did not come from the thread, and for which the worker is therefore
    /// not woken.
    pub(crate) fn has_immediate_result(&self) -> bool {
        !self.immediate.is_empty()
    }

    pub(crate) fn next_result(&mut self) -> Option<(SocketToken, ResolveResult)> {
        if let Some(answer) = self.immediate.pop() {
            return Some(answer);
        }
        self.thread.as_ref()?.answers.try_recv().ok()
    }
}

fn spawn_resolver(name: LookupName, waker: Waker) -> io::Result<ResolverThread> {
    let (questions, asked) = mpsc::channel::<(SocketToken, LookupScope)>();
    let (answer, answers) = mpsc::channel();
    let body = move || {
        while let Ok(first) = asked.recv() {
            let mut shared = None;
            for (token, lookup) in std::iter::once(first).chain(asked.try_iter()) {
                let found = match lookup {
                    LookupScope::Own => resolve_name(&name),
                    LookupScope::Shared => {
                        shared.get_or_insert_with(|| resolve_name(&name)).clone()
                    }
                };
                if answer.send((token, found)).is_err() {
                    return;
                }
                waker.wake();
            }
        }
    };
    std::thread::Builder::new()
        .name("names".to_owned())
        .spawn(body)?;
    Ok(ResolverThread {
        requests: questions,
        answers,
    })
}

fn resolve_name(name: &LookupName) -> ResolveResult {
    let addresses = look_up_name(&name.host, name.port)?;
    Ok(ResolvedAddresses {
        addresses: filter_by_source_family(addresses, &name.sources).into(),
        may_change: true,
        is_proxy: name.is_proxy,
    })
}

/// Returns all addresses of a target, in the order in which connections are spread over them.
///
/// # Errors
/// Returns an error if the target's name does not resolve.
pub(crate) fn target_addresses(target: &Target) -> io::Result<Arc<[Address]>> {
    let target = &target.next_hop();
    let addresses = match addresses_without_lookup(target) {
        Some(known) => known,
        None => look_up_name(&target.host, target.port)?,
    };
    Ok(addresses.into())
}

/// Returns the target's addresses if they are known without a lookup.
fn addresses_without_lookup(target: &Target) -> Option<Vec<Address>> {
    let with_port = |ip: &IpAddr| Address::Tcp(SocketAddr::new(*ip, target.port));
    if let Some(socket) = &target.socket {
        return Some(vec![Address::Unix(socket.clone())]);
    }
    if !target.addresses.is_empty() {
        return Some(target.addresses.iter().map(with_port).collect());
    }
    let literal = target.host.parse().ok()?;
    Some(vec![with_port(&literal)])
}

fn look_up_name(host: &str, port: u16) -> io::Result<Vec<Address>> {
    let found = look_up((host, port))?;
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("host name {host:?} has no address"),
        ));
    }
    let mixed = interleave_families(found).into_iter();
    Ok(mixed.map(Address::Tcp).collect())
}

/// Interleaves the address families (RFC 8305 §4), beginning with the one that the system prefers. Within a family,
/// addresses are sorted: name servers rotate their answers, and processes that share a load must agree on which
/// connection uses which address.
fn interleave_families(mut found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_ipv6 = found.first().is_some_and(SocketAddr::is_ipv6);
    found.sort();
    found.dedup();
    let (first, second): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut mixed = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            return mixed;
        }
        mixed.extend(pair.into_iter().flatten());
    }
}

/// Removes addresses whose family has no source address, unless that would remove all.
fn filter_by_source_family(found: Vec<Address>, sources: &[IpAddr]) -> Vec<Address> {
    let has_source = |to: &Address| {
        let is_of = |from: &IpAddr| to.ip().is_none_or(|to| from.is_ipv4() == to.is_ipv4());
        sources.is_empty() || sources.iter().any(is_of)
    };
    if found.iter().any(has_source) {
        found.into_iter().filter(has_source).collect()
    } else {
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses_of(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn address_order_is_interleaved_and_deterministic() {
        let expected = addresses_of(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1", "[::3]:1"]);
        for answer in [
            ["[::2]:1", "[::1]:1", "[::3]:1", "10.0.0.2:1", "10.0.0.1:1"],
            ["[::3]:1", "10.0.0.1:1", "[::1]:1", "10.0.0.2:1", "[::2]:1"],
        ] {
            assert_eq!(interleave_families(addresses_of(&answer)), expected);
        }
        let first = interleave_families(addresses_of(&["10.0.0.1:1", "[::1]:1"]));
        assert!(first[0].is_ipv4());
    }

    #[test]
    fn addresses_without_matching_source_are_excluded() {
        let found = addresses_of(&["[::1]:1", "10.0.0.1:1"]);
        let found: Vec<Address> = found.into_iter().map(Address::Tcp).collect();
        let from = |text: &str| [text.parse().unwrap()];
        assert_eq!(
            filter_by_source_family(found.clone(), &from("10.0.0.9")),
            found[1..]
        );
        assert_eq!(
            filter_by_source_family(found[..1].to_vec(), &from("10.0.0.9")),
            found[..1]
        );
        assert_eq!(filter_by_source_family(found.clone(), &[]), found);
    }
}
