//! What the users of a request do, as typed: conversations, and scripts of frames.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::units::Period;

/// Calls of each user that follow from each other: a turn's request carries what was said before, the
/// service's answers included. Users pause for `load.think` between an answer and their next turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConversationSpec {
    /// Calls of a user.
    pub turns: Option<u32>,
    /// What is said in the turns after the first, in turn, with fields. Default: the last message of the
    /// request, anew.
    pub follow_ups: Option<Vec<String>>,
}

/// A frame of a script. Each one that is answered is a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSpec {
    /// What is sent, which may have fields.
    pub body: Option<String>,
    /// A file that holds it.
    pub body_file: Option<PathBuf>,
    /// Default: the socket's `binary`.
    pub binary: Option<bool>,
    /// Wait for an answer. Default true; a frame without one goes out with the next that has one.
    pub answer: Option<bool>,
    /// The message that ends the answer, as `stream_until` of the request, which is the default.
    pub until: Option<String>,
    /// Text that the message that ends the answer, or one before it, has to hold. Default: the request's
    /// `expect_body`.
    pub expect: Option<String>,
    /// The pause before it, from the end of the answer before. Default: `load.think`.
    pub pace: Option<Period>,
}

impl FrameSpec {
    /// Reads a file of frames: a TOML document with a table `[[frames]]` for each.
    ///
    /// # Errors
    /// It is no such document, or there are none.
    pub fn script(text: &str) -> Result<Vec<FrameSpec>, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Script {
            frames: Vec<FrameSpec>,
        }
        let script: Script = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        match script.frames.is_empty() {
            true => Err("no frames".to_owned()),
            false => Ok(script.frames),
        }
    }
}
