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
    /// As the run was begun.
    #[serde(flatten)]
    pub(crate) begun: Begun,
    /// What its lock holds until it is taken.
    pub(super) name: String,
}

impl Offer {
    pub(super) fn new(session: &str, begun: Begun, tokens: usize) -> Offer {
        Offer {
            session: session.to_owned(),
            tokens,
            begun,
            name: format!("offer {}", uuid::Uuid::new_v4()),
        }
    }
}
