//! The addresses of a target from one worker's point of view: decides which connection uses which address, and excludes
//! failing addresses for a time.
//!
//! Connections are spread over the addresses by their number, which is unique across workers and processes, so equal
//! loads are spread equally every time. An address to which connecting failed is excluded, for longer after each
//! failure, and tried again when that time has passed or no other address is left.

use std::io;
use std::time::Duration;

use plimsoll_model::{FailureSource, Outcome, Recorder, Time};

use crate::transport::address::{Address, LocalResourceError};
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{
    LookupScope, Network, ResolveResult, ResolvedAddresses, SocketToken,
};
use crate::transport::tunnel::{describe_proxy_failure, is_failure_of_proxy};

/// Time for which an address is excluded after its first failure; it doubles with each further failure.
const MIN_EXCLUSION: Duration = Duration::from_secs(1);
const MAX_EXCLUSION: Duration = Duration::from_secs(32);

/// The address index of a connection that has no address.
pub(crate) const NO_ADDRESS: u32 = u32::MAX;

/// The addresses of one target.
#[derive(Debug, Default)]
pub(crate) struct TargetAddresses {
    /// The target's index among the targets of the [`Network`].
    target: usize,
    /// All addresses that the target has had so far; an address keeps its index.
    known: Vec<KnownAddress>,
    /// Indices of the target's current addresses, in the order in which connections use them.
    current: Vec<u32>,
    /// The time at which the name must be resolved again.
    until: Time,
    /// Whether a shared lookup is in progress.
    is_lookup_pending: bool,
    /// Whether the addresses are those of the proxy in front of the target.
    is_proxy: bool,
}

#[derive(Debug)]
struct KnownAddress {
    address: Address,
    /// The number under which the worker's recorder counts this address.
    number: u32,
    /// Consecutive failed connection attempts.
    failures: u32,
    excluded_until: Time,
}

impl TargetAddresses {
    /// Creates an entry without addresses for the target with this index.
    pub(crate) fn for_target(target: usize) -> TargetAddresses {
        TargetAddresses {
            target,
            ..TargetAddresses::default()
        }
    }

    /// Returns whether the addresses are fresh enough to be used without a lookup.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        !self.current.is_empty() && now < self.until
    }

    /// Returns whether any addresses are known, however old.
    pub(crate) fn has_any(&self) -> bool {
        !self.current.is_empty()
    }

    /// Returns whether the addresses are those of the proxy in front of the target.
    pub(crate) fn is_proxy(&self) -> bool {
        self.is_proxy
    }

    /// Returns whether a shared lookup is in progress.
    pub(crate) fn is_resolving(&self) -> bool {
        self.is_lookup_pending
    }

    pub(crate) fn start_lookup<N: Network>(&mut self, token: SocketToken, network: &mut N) {
        self.is_lookup_pending = true;
        network.resolve(self.target, token, LookupScope::Shared);
    }

    /// Stores the result of a lookup, which is valid until `until`.
    ///
    /// # Errors
    /// Returns an error if the lookup failed and no usable older addresses are known.
    pub(crate) fn store_lookup_result(
        &mut self,
        found: ResolveResult,
        lookup: LookupScope,
        until: Time,
        recorder: &mut Recorder,
    ) -> Result<(), ConnectionLoss> {
        self.is_lookup_pending = false;
        match found {
            Ok(found) => self.update(&found, until, recorder),
            // Stale addresses are most likely still right (RFC 8767); only a newly started client must not use them.
            Err(e) if self.has_any() && lookup == LookupScope::Shared => {
                tracing::warn!("host name not resolved, still using its previous addresses: {e}");
                self.until = until;
            }
            Err(e) => {
                let detail = format!("host name not resolved: {e}");
                let outcome = LocalResourceError::from_io_error(&e)
                    .map_or(Outcome::ResolveFailed, LocalResourceError::outcome);
                return Err(ConnectionLoss::new(outcome, detail));
            }
        }
        Ok(())
    }

    fn update(&mut self, found: &ResolvedAddresses, until: Time, recorder: &mut Recorder) {
        self.until = if found.may_change { until } else { Time::NEVER };
        self.is_proxy = found.is_proxy;
        // A single literal address gets no separate statistics.
        let counted = found.may_change || found.addresses.len() > 1;
        self.current.clear();
        for address in found.addresses.iter() {
            let known = self.known.iter().position(|k| k.address == *address);
            let place = known.unwrap_or_else(|| {
                self.known.push(KnownAddress {
                    address: address.clone(),
                    number: if counted {
                        recorder.address_number(&address.to_string())
                    } else {
                        NO_ADDRESS
                    },
                    failures: 0,
                    excluded_until: Time::ZERO,
                });
                self.known.len() - 1
            });
            self.current.push(place as u32);
        }
    }

    /// Returns the index of the only address, if there is exactly one.
    pub(crate) fn only_index(&self) -> Option<u32> {
        match self.current[..] {
            [place] => Some(place),
            _ => None,
        }
    }

    /// Starts a connection to the address with the index `place`.
    ///
    /// # Errors
    /// Returns the network's error.
    pub(crate) fn connect<N: Network>(
        &self,
        place: u32,
        token: SocketToken,
        network: &mut N,
    ) -> io::Result<N::Socket> {
        network.connect(self.target, self.address_at(place), token)
    }

    fn address_at(&self, place: u32) -> &Address {
        &self.known[place as usize].address
    }

    /// Returns the number under which the worker's recorder counts the address with the index `place`.
    pub(crate) fn recorder_index(&self, place: u32) -> u32 {
        let known = self.known.get(place as usize);
        known.map_or(NO_ADDRESS, |known| known.number)
    }

    /// Returns the order in which connection `number` tries the addresses: first the one assigned to it by its number,
    /// excluded ones last.
    pub(crate) fn connect_order(&self, number: u64, now: Time) -> Vec<u32> {
        let is_out = |place: &u32| self.known[*place as usize].excluded_until > now;
        let (mut out, mut route): (Vec<u32>, Vec<u32>) =
            self.current.iter().copied().partition(is_out);
        for places in [&mut route, &mut out] {
            if !places.is_empty() {
                let own = number % places.len() as u64;
                places.rotate_left(own as usize);
            }
        }
        route.append(&mut out);
        route
    }

    /// Returns the failure of a connection whose last attempt, to the address with the index `place`, failed with `e`.
    /// If the target has several addresses, the message says that this was the last one.
    pub(crate) fn describe_connect_failure(&self, place: u32, e: &io::Error) -> ConnectionLoss {
        let advice = match LocalResourceError::from_io_error(e) {
            Some(LocalResourceError::Descriptors) => ", or use fewer connections",
            Some(LocalResourceError::Ports | LocalResourceError::PortsOrAddress) => {
                ", or give more addresses to connect from (load.source_addresses)"
            }
            Some(LocalResourceError::Source(_)) => " (load.source_addresses)",
            _ => "",
        };
        let last = match self.current.len() {
            0 | 1 => String::new(),
            n => format!(" (the last of {n} addresses)"),
        };
        let address = self.address_at(place);
        let unreached = if self.is_proxy {
            describe_proxy_failure(address, e)
        } else {
            address.describe_failure(e)
        };
        let loss = ConnectionLoss::new(
            classify_connect_error(e),
            format!("{unreached}{advice}{last}"),
        );
        if self.is_proxy && is_failure_of_proxy(e) {
            loss.at_proxy()
        } else {
            loss
        }
    }

    /// Records an established connection to the address with the index `place`.
    pub(crate) fn record_connect_success(
        &mut self,
        place: u32,
        stage: u8,
        recorder: &mut Recorder,
    ) {
        if let Some(known) = self.known.get_mut(place as usize) {
            (known.failures, known.excluded_until) = (0, Time::ZERO);
            recorder.count_connection_to_address(known.number, stage);
        }
    }

    /// Records that connecting to the address with the index `place` failed, or was far slower than connecting to
    /// another address. A shortage of local resources does not exclude the address.
    pub(crate) fn record_connect_failure(
        &mut self,
        place: u32,
        why: Outcome,
        stage: u8,
        now: Time,
        recorder: &mut Recorder,
    ) {
        let Some(known) = self.known.get_mut(place as usize) else {
            return;
        };
        recorder.count_connect_failure_to_address(known.number, stage);
        if why.failure_source() == Some(FailureSource::Client) {
            return;
        }
        let doublings = known.failures.min(5);
        known.failures += 1;
        known.excluded_until = now + (MIN_EXCLUSION * 2u32.pow(doublings)).min(MAX_EXCLUSION);
    }
}

/// Returns the outcome for a connection error.
pub fn classify_connect_error(e: &io::Error) -> Outcome {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => Outcome::ConnectRefused,
        io::ErrorKind::ConnectionReset => Outcome::Reset,
        io::ErrorKind::TimedOut => Outcome::ConnectTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Outcome::ConnectUnreachable
        }
        _ => LocalResourceError::from_io_error(e)
            .map_or(Outcome::ConnectFailed, LocalResourceError::outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tunnel::proxy_error;

    fn three_addresses(recorder: &mut Recorder) -> TargetAddresses {
        let mut addresses = TargetAddresses::default();
        let found = ResolvedAddresses {
            addresses: ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
                .map(|text| Address::Tcp(text.parse().unwrap()))
                .into(),
            may_change: true,
            is_proxy: false,
        };
        addresses.update(&found, Time(1_000), recorder);
        addresses
    }

    #[test]
    fn dead_address_is_skipped_temporarily() {
        let mut recorder = Recorder::new(1);
        let mut addresses = three_addresses(&mut recorder);
        let firsts = |addresses: &TargetAddresses, now| -> Vec<u32> {
            (0..6).map(|n| addresses.connect_order(n, now)[0]).collect()
        };
        assert_eq!(firsts(&addresses, Time(1)), [0, 1, 2, 0, 1, 2]);
        addresses.record_connect_failure(1, Outcome::ConnectRefused, 0, Time(1), &mut recorder);
        // The failed address's share goes to the others, and it is still tried last.
        assert_eq!(firsts(&addresses, Time(2)), [0, 2, 0, 2, 0, 2]);
        assert_eq!(addresses.connect_order(0, Time(2)), [0, 2, 1]);
        let later = Time(1) + MIN_EXCLUSION;
        assert_eq!(firsts(&addresses, later), [0, 1, 2, 0, 1, 2]);
        addresses.record_connect_failure(1, Outcome::ConnectRefused, 0, later, &mut recorder);
        assert_eq!(firsts(&addresses, later + MIN_EXCLUSION)[1], 2);
        addresses.record_connect_success(1, 0, &mut recorder);
        assert_eq!(firsts(&addresses, later)[1], 1);
        addresses.record_connect_failure(0, Outcome::NoPorts, 0, later, &mut recorder);
        assert_eq!(firsts(&addresses, later)[0], 0);
    }

    #[test]
    fn local_errors_blame_no_address() {
        let mut recorder = Recorder::new(1);
        let mut addresses = three_addresses(&mut recorder);
        for (shortage, outcome, needle) in [
            (
                LocalResourceError::Descriptors,
                Outcome::NoDescriptors,
                "fewer connections",
            ),
            (
                LocalResourceError::Ports,
                Outcome::NoPorts,
                "load.source_addresses",
            ),
            (LocalResourceError::Memory, Outcome::NoSocket, "no memory"),
            (
                LocalResourceError::Permission,
                Outcome::NoSocket,
                "does not permit",
            ),
        ] {
            let lacking = || io::Error::other(shortage);
            let lookup = addresses.store_lookup_result(
                Err(lacking().into()),
                LookupScope::Own,
                Time(1_000),
                &mut recorder,
            );
            assert_eq!(lookup.unwrap_err().outcome, outcome);
            let loss = addresses.describe_connect_failure(1, &lacking());
            assert_eq!(loss.outcome, outcome);
            assert!(loss.detail.contains(needle), "{}", loss.detail);
            addresses.record_connect_failure(1, outcome, 0, Time(1), &mut recorder);
            assert_eq!(addresses.connect_order(1, Time(2)), [1, 2, 0], "{shortage}");
        }
    }

    #[test]
    fn proxy_failures_differ_from_target_failures() {
        let mut recorder = Recorder::new(1);
        let mut addresses = TargetAddresses::default();
        let found = ResolvedAddresses {
            addresses: [Address::Tcp("10.0.0.1:3128".parse().unwrap())].into(),
            may_change: false,
            is_proxy: true,
        };
        addresses.update(&found, Time(1_000), &mut recorder);
        let system = |errno: rustix::io::Errno| io::Error::from(errno);
        let answer = |kind: io::ErrorKind| proxy_error(&io::Error::new(kind, "it answered"));
        for (e, is_at_proxy, prefix) in [
            (
                system(rustix::io::Errno::CONNREFUSED),
                true,
                "the proxy (load.proxy): connect to",
            ),
            (
                system(rustix::io::Errno::HOSTUNREACH),
                true,
                "the proxy (load.proxy): connect to",
            ),
            (answer(io::ErrorKind::PermissionDenied), true, "connect to"),
            // A SOCKS5 proxy says that the target refused.
            (
                answer(io::ErrorKind::ConnectionRefused),
                false,
                "connect to",
            ),
            (
                io::Error::other(LocalResourceError::Memory),
                false,
                "connect to",
            ),
        ] {
            let loss = addresses.describe_connect_failure(0, &e);
            assert_eq!(loss.is_at_proxy, is_at_proxy, "{e}");
            assert!(loss.detail.starts_with(prefix), "{}", loss.detail);
        }
    }

    #[test]
    fn address_keeps_index_across_lookups() {
        let mut recorder = Recorder::new(1);
        let mut addresses = three_addresses(&mut recorder);
        assert!(addresses.is_fresh(Time(999)) && !addresses.is_fresh(Time(1_000)));
        let found = ResolvedAddresses {
            addresses: ["10.0.0.3:1", "10.0.0.4:1"]
                .map(|text| Address::Tcp(text.parse().unwrap()))
                .into(),
            may_change: true,
            is_proxy: false,
        };
        addresses.update(&found, Time(2_000), &mut recorder);
        assert_eq!(addresses.connect_order(0, Time(1)), [2, 3]);
        assert_eq!(addresses.address_at(3).to_string(), "10.0.0.4:1");
        assert_eq!(
            addresses.recorder_index(3),
            recorder.address_number("10.0.0.4:1")
        );
    }
}
