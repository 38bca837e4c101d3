//! What is held against clients: calls that they reset or abandon, and malformed ones. They cost upstreams
//! work for nothing, and may make one end a connection that others share.
//!
//! It is counted by address, as a client that is sent away can connect anew. Beyond a few in a second, calls
//! of the connection at fault go upstream by a connection of their own, and so do those of new connections
//! from there: whatever it dies of harms nobody else. Beyond many, the next one ends its connection. A
//! connection that was there before, and does nothing wrong, stays as it is.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use foldhash::fast::RandomState;
use plimsoll_model::Time;
use plimsoll_protocols::relayed::Why;
use plimsoll_wire::http2::{ErrorCode, Side, Violation};

use super::http2::{Http2, http2_of};
use super::{Connection, Found, Role, Worker};

const COUNTED_FOR: Duration = Duration::from_secs(1);
/// In [`COUNTED_FOR`], of one address.
const MAX_SHARED: u32 = 20;
const APART_FOR: Duration = Duration::from_secs(10);
const MAX_ADDRESSES: usize = 4096;
/// Connections upstream, of one route and worker, that each carry one client's calls.
const MAX_APART: usize = 256;

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
pub(super) struct Charges(HashMap<Account, Charge, RandomState>);

impl Charges {
    fn of(&mut self, account: Account, now: Time) -> &mut Charge {
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&account) {
            self.0
                .retain(|_, charge| now < charge.counted_until.max(charge.apart_until));
            if self.0.len() >= MAX_ADDRESSES {
                self.0.clear();
            }
        }
        self.0.entry(account).or_default()
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
        if let Some((_, http2)) = http2_of(&mut self.connections, token) {
            http2.apart_until = http2.apart_until.max(charge.apart_until);
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

    /// A client's connection is over, and so are its calls: that is a reset of each.
    pub(super) fn charge_abandoned(&mut self, connection: &Connection, now: Time) {
        if let Role::Http2(http2) = &connection.role {
            let calls = http2.session.open_streams();
            if calls > 0 {
                self.charges.add(account(connection), calls as u32, now);
            }
        }
    }

    /// A client's connection begins: it has what its address has done.
    pub(super) fn admit(&mut self, token: u64, now: Time) {
        let Some(connection) = self.live(token) else {
            return;
        };
        let account = account(connection);
        let known = self.charges.0.get(&account);
        let until = known.map_or(Time::ZERO, |charge| charge.apart_until);
        if until > now
            && let Some((_, http2)) = http2_of(&mut self.connections, token)
        {
            http2.apart_until = until;
        }
    }

    /// A connection upstream ends with the call `key` as the last that was looked at: its client's next
    /// calls go alone, and if it happens again it harms nobody else.
    pub(super) fn blame(&mut self, key: u64, now: Time) {
        let Some(exchange) = self.exchanges.get(key) else {
            return;
        };
        let token = exchange.down.token;
        let Some(account) = self.live(token).map(|connection| account(connection)) else {
            return;
        };
        let until = now + APART_FOR;
        self.charges.of(account, now).apart_until = until;
        if let Some((_, http2)) = http2_of(&mut self.connections, token) {
            http2.apart_until = until;
        }
    }

    /// The connection upstream of a client whose calls go alone; `None`: they share others'.
    pub(super) fn find_apart(&mut self, down: u64, route: usize, now: Time) -> Option<Found> {
        let (_, http2) = http2_of(&mut self.connections, down)?;
        if now >= http2.apart_until {
            return None;
        }
        let most = self.routes[route].setup.route.max_in_flight();
        if let Some(token) = http2.own
            && let Some((_, own)) = http2_of(&mut self.connections, token)
        {
            return Some(match own.calls() < most {
                true => Found::Upstream(token),
                false => Found::Refused(Why::Busy),
            });
        }
        if self.routes[route].apart >= MAX_APART {
            return Some(Found::Refused(Why::Busy));
        }
        let Some(endpoint) = self.next_endpoint(route, now) else {
            return Some(Found::Refused(self.why_unconnected(route, now)));
        };
        let role = || {
            let mut http2 = Http2::new(Side::Client);
            http2.owner = Some(down);
            Role::Http2(Box::new(http2))
        };
        let Some(token) = self.connect(route, endpoint, role, now) else {
            return Some(Found::Refused(self.why_unconnected(route, now)));
        };
        self.routes[route].apart += 1;
        if let Some((_, http2)) = http2_of(&mut self.connections, down) {
            http2.own = Some(token);
        }
        self.greet(token);
        Some(Found::Upstream(token))
    }

    /// A connection upstream that carries one client's calls takes no more of them.
    pub(super) fn leave_owner(&mut self, token: u64, owner: Option<u64>) {
        if let Some(owner) = owner
            && let Some((_, http2)) = http2_of(&mut self.connections, owner)
            && http2.own == Some(token)
        {
            http2.own = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_counted_by_address_and_bounded() {
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
            assert!(charges.0.len() <= MAX_ADDRESSES);
        }
        assert!(charges.0.contains_key(&of(3 * MAX_ADDRESSES as u32 - 1)));
    }
}
