//! The parts of a step's call over Bolt that differ from user to user.

use plimsoll_model::rows::template::{Template, VariationSettings};

use crate::http::VaryingBody;

/// The parts of a step's call that differ from user to user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingBoltCall {
    pub(super) variation: VariationSettings,
    pub(super) content: VaryingContent,
    /// The entries of the header map whose values vary.
    pub(super) header: Vec<(String, Template)>,
}

/// The content of a call, whose JSON text varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VaryingContent {
    Service {
        service: String,
        method: String,
        signature: Option<Vec<String>>,
        arguments: VaryingBody,
    },
    Raw {
        class: String,
        content: VaryingBody,
    },
    /// The content is that of the call.
    Constant,
}

impl VaryingBoltCall {
    /// Returns the templates.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let content = match &self.content {
            VaryingContent::Service { arguments, .. } => Some(&arguments.template),
            VaryingContent::Raw { content, .. } => Some(&content.template),
            VaryingContent::Constant => None,
        };
        let header = self.header.iter().map(|(_, template)| template);
        header.chain(content)
    }
}
