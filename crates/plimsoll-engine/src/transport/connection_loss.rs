//! The reason why a connection was lost or could not be established.

use std::io;

use plimsoll_model::Outcome;
use rustix::io::Errno;

use crate::driver::{Driver, ProtocolError};
use crate::transport::address::LocalResourceError;

/// The cause of a lost or failed connection: an outcome and a message.
#[derive(Clone, Debug)]
pub struct ConnectionLoss {
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
    /// Whether the proxy is at fault, which had not yet connected to the target.
    pub(crate) is_at_proxy: bool,
}

impl ConnectionLoss {
    pub(crate) fn new(outcome: Outcome, detail: impl Into<String>) -> ConnectionLoss {
        ConnectionLoss {
            outcome,
            detail: detail.into(),
            is_at_proxy: false,
        }
    }

    /// Marks the loss as the proxy's fault.
    pub(crate) fn at_proxy(self) -> ConnectionLoss {
        ConnectionLoss {
            is_at_proxy: true,
            ..self
        }
    }

    /// Returns the loss of a connection that the peer closed in an orderly way.
    pub(crate) fn closed_by_peer() -> ConnectionLoss {
        ConnectionLoss::new(
            Outcome::ConnectionClosed,
            "the server closed the connection",
        )
    }

    /// Classifies an error of an established connection; `during` follows "the connection was lost" in the message.
    pub(crate) fn from_io_error(during: &str, e: &io::Error) -> ConnectionLoss {
        if let Some(shortage) = LocalResourceError::from_io_error(e) {
            return ConnectionLoss::new(
                shortage.outcome(),
                format!("the connection was lost{during}: {shortage}"),
            );
        }
        let outcome = match Errno::from_io_error(e) {
            Some(Errno::CONNRESET | Errno::PIPE) => Outcome::Reset,
            Some(Errno::TIMEDOUT) => Outcome::LinkTimeout,
            Some(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN) => {
                Outcome::ConnectUnreachable
            }
            _ => match e.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Outcome::Reset,
                io::ErrorKind::TimedOut => Outcome::LinkTimeout,
                _ => Outcome::ConnectionClosed,
            },
        };
        ConnectionLoss::new(outcome, format!("the connection was lost{during}: {e}"))
    }

    /// Returns the loss of a connection, with this driver, whose peer stopped accepting calls before the first one.
    pub(crate) fn drained_before_first_call(driver: &impl Driver) -> ConnectionLoss {
        let detail = "the server went away before the connection's first call";
        ConnectionLoss::new(driver.draining_outcome(), detail)
    }
}

impl From<ProtocolError> for ConnectionLoss {
    fn from(e: ProtocolError) -> ConnectionLoss {
        ConnectionLoss::new(e.outcome, e.detail)
    }
}

impl From<(Outcome, String)> for ConnectionLoss {
    fn from((outcome, detail): (Outcome, String)) -> ConnectionLoss {
        ConnectionLoss::new(outcome, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connection_errors_map_to_outcomes() {
        for (errno, outcome) in [
            (Errno::CONNRESET, Outcome::Reset),
            (Errno::PIPE, Outcome::Reset),
            (Errno::TIMEDOUT, Outcome::LinkTimeout),
            (Errno::NOBUFS, Outcome::NoSocket),
            (Errno::NOMEM, Outcome::NoSocket),
            (Errno::HOSTUNREACH, Outcome::ConnectUnreachable),
            (Errno::PROTO, Outcome::ConnectionClosed),
        ] {
            let loss = ConnectionLoss::from_io_error("", &errno.into());
            assert_eq!(loss.outcome, outcome, "{errno}");
        }
    }
}
