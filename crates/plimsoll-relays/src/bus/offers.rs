//! Runs that one backend offers to the others, because it stops before they have ended.

use serde::{Deserialize, Serialize};

use super::Begun;

/// A run that another instance is to carry on after the last frame that its log has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Whose run it is.
    pub(crate) session: String,
    /// Of its answer, in all.
    pub(crate) tokens: usize,
    epoch: u64,
    /// The number before the run's first.
    last: u64,
    /// What its lock holds until it is taken.
    pub(super) name: String,
}

impl Offer {
    pub(super) fn new(session: &str, begun: Begun, tokens: usize) -> Offer {
        Offer {
            session: session.to_owned(),
            tokens,
            epoch: begun.epoch,
            last: begun.last,
            name: format!("offer {}", uuid::Uuid::new_v4()),
        }
    }

    /// As the run was begun.
    pub(crate) fn begun(&self) -> Begun {
        Begun {
            epoch: self.epoch,
            last: self.last,
        }
    }
}
