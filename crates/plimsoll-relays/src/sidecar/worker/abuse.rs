//! Counts abuse by clients: calls that a client resets or abandons, malformed calls, and calls that are suspected of
//! having ended an upstream's connection. Such calls cost upstreams work without a result, and may make an upstream
//! close a connection that other clients share.
//!
//! Abuse is counted by address, because a client that is disconnected can reconnect. After more than
//! [`MAX_ABUSIVE_CALLS`] in a second, the calls of that connection and of new ones from its address are isolated: they
//! use upstream connections reserved for them, so that a failure affects no other client. If there are even more, the
//! connection is closed. Older connections of the address that were not abusive stay open and are not isolated.
//!
//! A new address is on probation: its calls are isolated, too, until some were answered, so that even its first harmful
//! call affects no other client. The very first address is exempt, because there is no other client that it could harm.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use foldhash::fast::RandomState;
use plimsoll_model::Time;
use plimsoll_wire::http2::{ErrorCode, Violation};

use super::{RelayConnection, RelayRole, Worker};

const COUNTING_WINDOW: Duration = Duration::from_secs(1);
/// Abusive calls of one address within [`COUNTING_WINDOW`] after which the address is isolated.
const MAX_ABUSIVE_CALLS: u32 = 20;
const ISOLATION_PERIOD: Duration = Duration::from_secs(10);
/// Answered calls after which an address is trusted and shares connections upstream.
const MIN_ANSWERED_CALLS_FOR_TRUST: u8 = 10;
const MAX_REMEMBERED_ADDRESSES: usize = 4096;
/// Closed client connections that are remembered, because an upstream may fail only after a client's connection has
/// ended.
const MAX_REMEMBERED_CLIENTS: usize = 1024;

/// A client's address; the /64 network for IPv6, which belongs to one customer. `None` for Unix
/// sockets.
pub(super) type ClientNetwork = Option<IpAddr>;

#[derive(Clone, Copy, Default)]
struct AbuseRecord {
    count: u32,
    counted_until: Time,
    isolated_until: Time,
    /// Number of answered calls, at most [`MIN_ANSWERED_CALLS_FOR_TRUST`]; with that many the address is trusted.
    answered: u8,
}

impl AbuseRecord {
    fn is_trusted(&self) -> bool {
        self.answered >= MIN_ANSWERED_CALLS_FOR_TRUST
    }

    fn start_isolation(&mut self, now: Time) {
        self.isolated_until = now + ISOLATION_PERIOD;
        self.answered = 0;
    }
}

/// The abuse counted for each address.
#[derive(Default)]
pub(super) struct AbuseLedger {
    records: HashMap<ClientNetwork, AbuseRecord, RandomState>,
    /// Client connections that have ended, the newest last.
    closed_clients: VecDeque<(u64, ClientNetwork)>,
    /// Whether the first address has been seen; it is trusted from the beginning.
    has_first: bool,
}

/// Whether a client's calls must not share upstream connections with the calls of other clients.
#[derive(Default)]
pub(super) struct Isolation {
    /// The calls are isolated until this time.
    until: Time,
    /// The calls are isolated until the address is trusted.
    is_on_probation: bool,
    /// The upstream connections reserved for these calls; for framed protocols, one for each
    /// layout.
    pub(super) reserved: Vec<u64>,
}

impl Isolation {
    #[inline]
    pub(super) fn is_active(&self, now: Time) -> bool {
        now < self.until || self.is_on_probation
    }

    /// Returns whether an isolated client is isolated only because its address is on probation.
    pub(super) fn is_only_on_probation(&self, now: Time) -> bool {
        now >= self.until
    }

    fn extend(&mut self, until: Time) {
        self.until = self.until.max(until);
    }
}

impl AbuseLedger {
    fn record_mut(&mut self, account: ClientNetwork, now: Time) -> &mut AbuseRecord {
        let accounts = &mut self.records;
        if accounts.len() >= MAX_REMEMBERED_ADDRESSES && !accounts.contains_key(&account) {
            accounts.retain(|_, charge| {
                charge.is_trusted() || now < charge.counted_until.max(charge.isolated_until)
            });
            if accounts.len() >= MAX_REMEMBERED_ADDRESSES {
                accounts.clear();
            }
        }
        accounts.entry(account).or_default()
    }

    /// Adds abusive calls to an address and returns its record.
    fn add_abusive_calls(&mut self, account: ClientNetwork, count: u32, now: Time) -> AbuseRecord {
        let charge = self.record_mut(account, now);
        if now >= charge.counted_until {
            (charge.count, charge.counted_until) = (0, now + COUNTING_WINDOW);
        }
        charge.count = charge.count.saturating_add(count);
        if charge.count > MAX_ABUSIVE_CALLS {
            charge.start_isolation(now);
        }
        *charge
    }

    /// Returns the isolation of a new connection from this address.
    fn initial_isolation(&mut self, account: ClientNetwork, now: Time) -> Isolation {
        if !std::mem::replace(&mut self.has_first, true) {
            self.record_mut(account, now).answered = MIN_ANSWERED_CALLS_FOR_TRUST;
        }
        let known = self.records.get(&account).copied().unwrap_or_default();
        Isolation {
            until: known.isolated_until,
            is_on_probation: !known.is_trusted(),
            reserved: Vec::new(),
        }
    }

    /// Records an answered call; returns whether the address is trusted now.
    fn count_answered(&mut self, account: ClientNetwork, now: Time) -> bool {
        let charge = self.record_mut(account, now);
        if now >= charge.isolated_until && !charge.is_trusted() {
            charge.answered += 1;
        }
        charge.is_trusted()
    }

    fn remember_closed_client(&mut self, token: u64, account: ClientNetwork) {
        if self.closed_clients.len() >= MAX_REMEMBERED_CLIENTS {
            self.closed_clients.pop_front();
        }
        self.closed_clients.push_back((token, account));
    }

    fn closed_client_network(&self, token: u64) -> Option<ClientNetwork> {
        let mut departed = self.closed_clients.iter().rev();
        departed.find_map(|(known, account)| (*known == token).then_some(*account))
    }
}

pub(super) fn client_network(connection: &RelayConnection) -> ClientNetwork {
    connection
        .client_address()
        .map(|address| match address.ip().to_canonical() {
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            ip => ip,
        })
}

impl Worker {
    /// Counts reset or malformed calls against the client of a connection.
    ///
    /// # Errors
    /// When more calls from one address than `max_streams` were reset or malformed within a second. The connection must
    /// then be closed.
    pub(super) fn count_abusive_calls(
        &mut self,
        token: u64,
        calls: u32,
        now: Time,
    ) -> Result<(), Violation> {
        let Some(connection) = self.connection_mut(token) else {
            return Ok(());
        };
        if connection.endpoint.is_some() {
            return Ok(());
        }
        let (account, route) = (client_network(connection), connection.route);
        let charge = self.abuse.add_abusive_calls(account, calls, now);
        if let Some(connection) = self.connection_mut(token) {
            connection.isolation.extend(charge.isolated_until);
        }
        let most = self.routes[route].setup.route.max_streams();
        if charge.count <= most {
            return Ok(());
        }
        let why = format!(
            "more than {most} calls of one address reset, or malformed, within a second (max_streams)"
        );
        Err(Violation::connection_error(
            ErrorCode::ENHANCE_YOUR_CALM,
            why,
        ))
    }

    /// Counts a malformed frame against the client's address. The frame ends its connection.
    pub(super) fn count_malformed_frame(&mut self, connection: &RelayConnection, now: Time) {
        self.abuse
            .add_abusive_calls(client_network(connection), 1, now);
    }

    /// Counts the unfinished calls of a client's connection that has ended. Over HTTP/2 each of them is a reset. With
    /// framed protocols upstreams are not told, so an upstream may fail because of such a call only later.
    pub(super) fn count_abandoned_calls(&mut self, connection: &RelayConnection, now: Time) {
        match &connection.role {
            RelayRole::Http2(http2) => {
                let calls = http2.session.open_stream_count();
                if calls > 0 {
                    self.abuse
                        .add_abusive_calls(client_network(connection), calls as u32, now);
                }
                self.abuse
                    .remember_closed_client(connection.token, client_network(connection));
            }
            RelayRole::Down { .. } => self
                .abuse
                .remember_closed_client(connection.token, client_network(connection)),
            RelayRole::Up { .. } | RelayRole::Pipe { .. } => {}
        }
    }

    /// Applies the record of an address to a new connection from it.
    pub(super) fn apply_abuse_record(&mut self, token: u64, now: Time) {
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        let account = client_network(connection);
        let isolation = self.abuse.initial_isolation(account, now);
        if let Some(connection) = self.connection_mut(token) {
            connection.isolation = isolation;
        }
    }

    /// Records that a service has answered a call of a client.
    #[inline]
    pub(super) fn record_client_answer(&mut self, client: u64, now: Time) {
        if let Some(connection) = self.connection_mut(client)
            && connection.isolation.is_on_probation
        {
            let account = client_network(connection);
            self.end_probation(client, account, now);
        }
    }

    #[cold]
    fn end_probation(&mut self, client: u64, account: ClientNetwork, now: Time) {
        if self.abuse.count_answered(account, now)
            && let Some(connection) = self.connection_mut(client)
        {
            connection.isolation.is_on_probation = false;
        }
    }

    /// Isolates a client's next calls and those of new connections from its address. The client's own connection may
    /// already be closed.
    pub(super) fn isolate(&mut self, client: u64, now: Time) {
        let account = match self.connections.get(client) {
            Some(connection) => client_network(connection),
            None => match self.abuse.closed_client_network(client) {
                Some(account) => account,
                None => return,
            },
        };
        self.abuse.record_mut(account, now).start_isolation(now);
        if let Some(connection) = self.connection_mut(client) {
            connection.isolation.extend(now + ISOLATION_PERIOD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_per_address_and_bounded() {
        let mut charges = AbuseLedger::default();
        let of = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        let now = Time::ZERO + Duration::from_secs(5);
        assert_eq!(
            charges
                .add_abusive_calls(of(1), MAX_ABUSIVE_CALLS, now)
                .isolated_until,
            Time::ZERO
        );
        let later = now + Duration::from_millis(999);
        assert_eq!(
            charges.add_abusive_calls(of(1), 1, later).isolated_until,
            later + ISOLATION_PERIOD
        );
        assert_eq!(charges.add_abusive_calls(of(2), 1, later).count, 1);
        let next = now + COUNTING_WINDOW;
        assert_eq!(charges.add_abusive_calls(of(1), 1, next).count, 1);
        for n in 0..3 * MAX_REMEMBERED_ADDRESSES as u32 {
            charges.add_abusive_calls(of(n), 1, next);
            assert!(charges.records.len() <= MAX_REMEMBERED_ADDRESSES);
        }
        assert!(
            charges
                .records
                .contains_key(&of(3 * MAX_REMEMBERED_ADDRESSES as u32 - 1))
        );
    }

    #[test]
    fn new_address_is_trusted_once_answered() {
        let mut charges = AbuseLedger::default();
        let of = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        let now = Time::ZERO + Duration::from_secs(5);
        assert!(
            !charges.initial_isolation(of(1), now).is_active(now),
            "the first of all"
        );
        for _ in 0..MIN_ANSWERED_CALLS_FOR_TRUST {
            assert!(charges.initial_isolation(of(2), now).is_active(now));
            charges.count_answered(of(2), now);
        }
        assert!(!charges.initial_isolation(of(2), now).is_active(now));
        // Abuse also ends the address's trust.
        charges.record_mut(of(2), now).start_isolation(now);
        let later = now + ISOLATION_PERIOD;
        assert!(!charges.count_answered(of(2), now));
        assert!(charges.initial_isolation(of(2), now).until == later);
        assert!(charges.initial_isolation(of(2), later).is_active(later));
        for _ in 0..MIN_ANSWERED_CALLS_FOR_TRUST {
            charges.count_answered(of(2), later);
        }
        assert!(!charges.initial_isolation(of(2), later).is_active(later));
    }

    #[test]
    fn recently_closed_connections_are_remembered() {
        let mut charges = AbuseLedger::default();
        let of = |n: u64| Some(IpAddr::from((n as u32).to_be_bytes()));
        for token in 0..3 * MAX_REMEMBERED_CLIENTS as u64 {
            charges.remember_closed_client(token, of(token));
            assert!(charges.closed_clients.len() <= MAX_REMEMBERED_CLIENTS);
            assert_eq!(charges.closed_client_network(token), Some(of(token)));
        }
        assert_eq!(charges.closed_client_network(0), None);
    }
}
