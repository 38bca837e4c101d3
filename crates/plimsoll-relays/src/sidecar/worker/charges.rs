//! What is held against clients: calls that they reset or abandon, malformed ones, and those that an upstream's
//! connection has ended with. They cost upstreams work for nothing, and may make one end a connection that others
//! share.
//!
//! It is counted by address, as a client that is sent away can connect anew. Beyond a few in a second, calls
//! of the connection at fault go upstream by a connection of their own, and so do those of new connections
//! from there: whatever it dies of harms nobody else. Beyond many, the next one ends its connection. A
//! connection that was there before, and does nothing wrong, stays as it is.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use foldhash::fast::RandomState;
use plimsoll_model::Time;
use plimsoll_protocols::relayed::Why;
use plimsoll_wire::http2::{ErrorCode, Violation};

use super::super::calls::Call;
use super::{Connection, Found, Role, Worker};

const COUNTED_FOR: Duration = Duration::from_secs(1);
/// Calls held against one address within [`COUNTED_FOR`] before it no longer shares connections upstream.
const MAX_SHARED: u32 = 20;
const APART_FOR: Duration = Duration::from_secs(10);
const MAX_ADDRESSES: usize = 4096;
/// Connections upstream, of one route and worker, that each carry one client's calls.
const MAX_APART: usize = 256;
/// Clients that one end of a connection upstream is held against, where its protocol does not say which call it was.
const MAX_SUSPECTS: usize = 16;
/// A request without an answer is suspected for so long: nothing says when it was done.
const ONEWAY_SUSPECTED_FOR: Duration = Duration::from_secs(1);
/// Connections of clients that are remembered after their end, as an upstream may end only then.
const MAX_DEPARTED: usize = 1024;

/// An address; of IPv6 the network, which is one customer's. `None`: sockets of this machine.
type Account = Option<IpAddr>;

#[derive(Clone, Copy, Default)]
struct Charge {
    count: u32,
    counted_until: Time,
    apart_until: Time,
}

/// What is held against whom.
#[derive(Default)]
pub(super) struct Charges {
    accounts: HashMap<Account, Charge, RandomState>,
    /// Connections of clients that ended, the newest last.
    departed: VecDeque<(u64, Account)>,
}

/// The isolation of a client's connection: whether its calls share connections upstream with those of others.
#[derive(Default)]
pub(super) struct Isolation {
    /// They share none until then.
    until: Time,
    /// The connections upstream that carry these calls alone: of frames, one for each of their layouts.
    own: Vec<u64>,
}

impl Isolation {
    pub(super) fn is_active(&self, now: Time) -> bool {
        now < self.until
    }

    fn extend(&mut self, until: Time) {
        self.until = self.until.max(until);
    }
}

impl Charges {
    fn of(&mut self, account: Account, now: Time) -> &mut Charge {
        let accounts = &mut self.accounts;
        if accounts.len() >= MAX_ADDRESSES && !accounts.contains_key(&account) {
            accounts.retain(|_, charge| now < charge.counted_until.max(charge.apart_until));
            if accounts.len() >= MAX_ADDRESSES {
                accounts.clear();
            }
        }
        accounts.entry(account).or_default()
    }

    /// Adds to what is held against an account, and returns how much that is.
    fn add(&mut self, account: Account, count: u32, now: Time) -> Charge {
        let charge = self.of(account, now);
        if now >= charge.counted_until {
            (charge.count, charge.counted_until) = (0, now + COUNTED_FOR);
        }
        charge.count = charge.count.saturating_add(count);
        if charge.count > MAX_SHARED {
            charge.apart_until = now + APART_FOR;
        }
        *charge
    }

    fn remember(&mut self, token: u64, account: Account) {
        if self.departed.len() >= MAX_DEPARTED {
            self.departed.pop_front();
        }
        self.departed.push_back((token, account));
    }

    fn account_of_departed(&self, token: u64) -> Option<Account> {
        let mut departed = self.departed.iter().rev();
        departed.find_map(|(known, account)| (*known == token).then_some(*account))
    }
}

/// The connections of the newest calls that were lost, each once. `oneway`: the last request without an answer.
fn suspects(lost: &[Call], oneway: Option<(u64, Time)>, now: Time) -> Vec<u64> {
    let mut newest: Vec<_> = lost.iter().map(|call| (call.began, call.from)).collect();
    let oneway = oneway.filter(|(_, at)| now < *at + ONEWAY_SUSPECTED_FOR);
    newest.extend(oneway.map(|(from, at)| (at, from)));
    newest.sort_unstable_by(|a, b| b.cmp(a));
    let mut tokens = Vec::new();
    for (_, from) in newest {
        if tokens.len() == MAX_SUSPECTS {
            break;
        }
        if !tokens.contains(&from) {
            tokens.push(from);
        }
    }
    tokens
}

impl Connection {
    /// The client's connection whose calls it carries; `None`: it carries those of all.
    pub(super) fn owner(&self) -> Option<u64> {
        match &self.role {
            Role::Up { owner, .. } => *owner,
            Role::Http2(http2) => http2.owner,
            Role::Down { .. } | Role::Pipe { .. } => None,
        }
    }

    /// It carries frames of this layout.
    fn has_layout(&self, wanted: usize) -> bool {
        match &self.role {
            Role::Up { layout, .. } => *layout == wanted,
            _ => true,
        }
    }
}

fn account(connection: &Connection) -> Account {
    connection
        .client()
        .map(|address| match address.ip().to_canonical() {
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            ip => ip,
        })
}

impl Worker {
    /// Holds so many calls, reset or malformed, against the client of a connection.
    ///
    /// # Errors
    /// They are more than it may have in flight, within a second: the connection must not go on.
    pub(super) fn charge(&mut self, token: u64, calls: u32, now: Time) -> Result<(), Violation> {
        let Some(connection) = self.live(token) else {
            return Ok(());
        };
        if connection.endpoint.is_some() {
            return Ok(());
        }
        let (account, route) = (account(connection), connection.route);
        let charge = self.charges.add(account, calls, now);
        if let Some(connection) = self.live(token) {
            connection.isolation.extend(charge.apart_until);
        }
        let most = self.routes[route].setup.route.max_streams();
        if charge.count <= most {
            return Ok(());
        }
        let why = format!(
            "more than {most} calls of one address reset, or malformed, within a second (max_streams)"
        );
        Err(Violation::connection(ErrorCode::ENHANCE_YOUR_CALM, why))
    }

    /// Holds a malformed frame, which its connection is to end for, against the client's address.
    pub(super) fn charge_malformed(&mut self, connection: &Connection, now: Time) {
        self.charges.add(account(connection), 1, now);
    }

    /// A client's connection is over, and so are its calls: over HTTP/2 that is a reset of each. Of frames, upstreams
    /// are not told, and one may end only later of what it was sent.
    pub(super) fn charge_abandoned(&mut self, connection: &Connection, now: Time) {
        match &connection.role {
            Role::Http2(http2) => {
                let calls = http2.session.open_streams();
                if calls > 0 {
                    self.charges.add(account(connection), calls as u32, now);
                }
            }
            Role::Down { .. } => self.charges.remember(connection.token, account(connection)),
            Role::Up { .. } | Role::Pipe { .. } => {}
        }
    }

    /// A client's connection begins: it has what its address has done.
    pub(super) fn admit(&mut self, token: u64) {
        let Some(connection) = self.live(token) else {
            return;
        };
        let account = account(connection);
        let known = self.charges.accounts.get(&account);
        let until = known.map_or(Time::ZERO, |charge| charge.apart_until);
        if let Some(connection) = self.live(token) {
            connection.isolation.extend(until);
        }
    }

    /// A connection upstream ends with the call `key` as the last that was looked at: its client's next
    /// calls go alone, and if it happens again it harms nobody else.
    pub(super) fn blame(&mut self, key: u64, now: Time) {
        let Some(exchange) = self.exchanges.get(key) else {
            return;
        };
        let token = exchange.down.token;
        self.isolate(token, now);
    }

    /// A connection upstream has ended, and its protocol does not say what for: it may be any call that it has not
    /// answered, and most likely a new one. The next calls of all these clients go alone, so the second time it
    /// harms nobody but who made it.
    pub(super) fn blame_newest(&mut self, lost: &[Call], oneway: Option<(u64, Time)>, now: Time) {
        for token in suspects(lost, oneway, now) {
            self.isolate(token, now);
        }
    }

    /// Has a client's next calls, and those of new connections from its address, go alone.
    fn isolate(&mut self, token: u64, now: Time) {
        let account = match self.connections.get(token) {
            Some(connection) => account(connection),
            None => match self.charges.account_of_departed(token) {
                Some(account) => account,
                None => return,
            },
        };
        let until = now + APART_FOR;
        self.charges.of(account, now).apart_until = until;
        if let Some(connection) = self.live(token) {
            connection.isolation.extend(until);
        }
    }

    /// Calls [`Worker::own_upstream`] for a client in the table, over HTTP/2.
    pub(super) fn find_apart(&mut self, down: u64, route: usize, now: Time) -> Option<Found> {
        let mut isolation = std::mem::take(&mut self.live(down)?.isolation);
        let found = self.own_upstream(down, &mut isolation, route, 0, now);
        if let Some(connection) = self.live(down) {
            connection.isolation = isolation;
        }
        found
    }

    /// The connection upstream of a client whose calls go alone; `None`: they share others'.
    #[inline]
    pub(super) fn own_upstream(
        &mut self,
        down: u64,
        isolation: &mut Isolation,
        route: usize,
        layout: usize,
        now: Time,
    ) -> Option<Found> {
        if isolation.is_active(now) {
            Some(self.find_or_make_own(down, isolation, route, layout, now))
        } else {
            None
        }
    }

    fn find_or_make_own(
        &mut self,
        down: u64,
        isolation: &mut Isolation,
        route: usize,
        layout: usize,
        now: Time,
    ) -> Found {
        let connections = &self.connections;
        let takes_more = |own: &Connection| own.owner().is_some();
        (isolation.own).retain(|token| connections.get(*token).is_some_and(|own| takes_more(own)));
        let own = isolation.own.iter();
        let mut own = own.filter_map(|token| connections.get(*token));
        if let Some(own) = own.find(|own| own.has_layout(layout)) {
            return self.find_own(own);
        }
        if self.routes[route].apart >= MAX_APART {
            return self.find_other_own(isolation, route, layout);
        }
        let Some(endpoint) = self.next_endpoint(route, now) else {
            return Found::Refused(self.why_unconnected(route, now));
        };
        let is_http2 = self.routes[route].setup.codec.is_none();
        let role = self.routes[route].up(layout, Some(down));
        let Some(token) = self.connect(route, endpoint, || role, now) else {
            return Found::Refused(self.why_unconnected(route, now));
        };
        self.routes[route].apart += 1;
        isolation.own.push(token);
        if is_http2 {
            self.greet(token);
            return Found::Upstream(token);
        }
        Found::Connecting
    }

    /// Where as many clients as may be have connections of their own, further ones share these: some are only
    /// suspected. Streams are refused, as they end with the client that the connection was made for.
    fn find_other_own(&self, isolation: &mut Isolation, route: usize, layout: usize) -> Found {
        let connections = self.connections.values();
        let others = connections.filter(|other| {
            other.route == route
                && matches!(other.role, Role::Up { owner: Some(_), .. })
                && other.has_layout(layout)
        });
        match others.min_by_key(|other| other.calls()) {
            Some(other) => {
                isolation.own.push(other.token);
                self.find_own(other)
            }
            None => Found::Refused(Why::Busy),
        }
    }

    /// A client's connection is over: those that carried its calls alone have no use. One of frames ends once it has
    /// sent what it was given, and nothing is in flight any more.
    pub(super) fn close_own(&mut self, isolation: Isolation, now: Time) {
        for token in isolation.own {
            if let Some(own) = self.live(token)
                && matches!(own.role, Role::Http2(_))
            {
                own.unneeded = true;
                self.close(token, now);
            }
        }
    }

    /// A connection upstream that carries one client's calls takes no more of them.
    pub(super) fn leave_owner(&mut self, token: u64, owner: Option<u64>) {
        if let Some(client) = owner.and_then(|owner| self.live(owner)) {
            client.isolation.own.retain(|own| *own != token);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_protocols::relayed::Manner;

    use super::*;

    #[test]
    fn charges_are_per_address_and_bounded() {
        let mut charges = Charges::default();
        let of = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        let now = Time::ZERO + Duration::from_secs(5);
        assert_eq!(charges.add(of(1), MAX_SHARED, now).apart_until, Time::ZERO);
        let later = now + Duration::from_millis(999);
        assert_eq!(charges.add(of(1), 1, later).apart_until, later + APART_FOR);
        assert_eq!(charges.add(of(2), 1, later).count, 1);
        let next = now + COUNTED_FOR;
        assert_eq!(charges.add(of(1), 1, next).count, 1);
        for n in 0..3 * MAX_ADDRESSES as u32 {
            charges.add(of(n), 1, next);
            assert!(charges.accounts.len() <= MAX_ADDRESSES);
        }
        assert!(
            charges
                .accounts
                .contains_key(&of(3 * MAX_ADDRESSES as u32 - 1))
        );
    }

    #[test]
    fn suspects_are_newest_distinct_callers() {
        let second = |n: u64| Time::ZERO + Duration::from_secs(n);
        let call = |from, at| Call {
            from,
            id: 0,
            manner: Manner::default(),
            began: second(at),
            deadline: Time::NEVER,
            bytes: 0,
        };
        let lost = [call(1, 1), call(2, 4), call(1, 3), call(3, 2)];
        let now = second(5);
        assert_eq!(suspects(&lost, None, now), [2, 1, 3]);
        // What wants no answer is forgotten soon.
        assert_eq!(suspects(&lost, Some((7, now)), now), [7, 2, 1, 3]);
        assert_eq!(suspects(&[], Some((7, second(4))), now), [0; 0]);
        let many: Vec<_> = (0..1000).map(|n| call(n, n)).collect();
        let newest: Vec<_> = (0..1000).rev().take(MAX_SUSPECTS).collect();
        assert_eq!(suspects(&many, None, second(1000)), newest);
    }

    #[test]
    fn recently_closed_connections_are_remembered() {
        let mut charges = Charges::default();
        let of = |n: u64| Some(IpAddr::from((n as u32).to_be_bytes()));
        for token in 0..3 * MAX_DEPARTED as u64 {
            charges.remember(token, of(token));
            assert!(charges.departed.len() <= MAX_DEPARTED);
            assert_eq!(charges.account_of_departed(token), Some(of(token)));
        }
        assert_eq!(charges.account_of_departed(0), None);
    }
}
