//! Why there is no connection, or none any more.

use plimsoll_model::Outcome;

use crate::driver::ProtocolError;

/// Why a connection ended.
#[derive(Clone, Debug)]
pub struct Loss {
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
}

impl Loss {
    pub(crate) fn new(outcome: Outcome, detail: impl Into<String>) -> Loss {
        let detail = detail.into();
        Loss { outcome, detail }
    }

    /// The peer closed its side in good order.
    pub(crate) fn closed() -> Loss {
        Loss::new(
            Outcome::ConnectionClosed,
            "the server closed the connection",
        )
    }

    /// The peer takes no calls any more, and took none.
    pub(crate) fn went_away() -> Loss {
        let detail = "the server went away before the connection's first call";
        Loss::new(Outcome::Goaway, detail)
    }
}

impl From<ProtocolError> for Loss {
    fn from(e: ProtocolError) -> Loss {
        Loss::new(e.outcome, e.detail)
    }
}

impl From<(Outcome, String)> for Loss {
    fn from((outcome, detail): (Outcome, String)) -> Loss {
        Loss::new(outcome, detail)
    }
}
