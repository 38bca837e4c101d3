//! Why there is no connection, or none any more.

use plimsoll_model::Outcome;

use crate::driver::ProtocolError;

/// Why a connection ended.
#[derive(Clone, Debug)]
pub struct Loss {
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
}

impl From<ProtocolError> for Loss {
    fn from(e: ProtocolError) -> Loss {
        Loss {
            outcome: e.outcome,
            detail: e.detail,
        }
    }
}

impl From<(Outcome, String)> for Loss {
    fn from((outcome, detail): (Outcome, String)) -> Loss {
        Loss { outcome, detail }
    }
}
