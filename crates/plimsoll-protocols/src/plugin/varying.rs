//! The part of a step's call in a plugin's protocol that differs from user to user.

use plimsoll_model::rows::template::VariationSettings;

use crate::http::VaryingBody;

/// The payload of a call, which differs from user to user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingPluginCall {
    pub(super) variation: VariationSettings,
    pub(super) payload: VaryingBody,
}
