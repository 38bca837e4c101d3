//! What resolving needs of the world around it.

use std::path::Path;
use std::sync::Arc;

use super::GrpcSpec;
use super::problem::Problem;
use crate::plan::{MethodKind, Shapes};
use crate::template::{Render, Rows};

/// What resolving needs of the world: kept behind a trait, so that it is pure itself.
pub trait Surroundings {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text.
    ///
    /// # Errors
    /// The file system's.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// A file's bytes.
    ///
    /// # Errors
    /// The file system's.
    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    /// What a command of the shell prints, without the last line's end.
    ///
    /// # Errors
    /// Why it prints nothing.
    fn printed(&self, command: &str) -> Result<String, String> {
        Err(format!("`{command}` can't be run here"))
    }
    /// Finds the method, and encodes or checks its messages. `metadata` are the call's, for a
    /// server that has to be asked.
    ///
    /// # Errors
    /// A problem that names its key below `call.grpc`.
    fn encode_grpc(
        &self,
        call: &GrpcSpec,
        method: &str,
        messages: Messages<'_>,
        rows: Option<&Rows>,
        metadata: &[(String, String)],
    ) -> Result<EncodedCall, Problem> {
        let _ = (call, messages, rows, metadata);
        Err(Problem::new(
            "call.grpc.method",
            format!("{method} can't be looked up here"),
        ))
    }
}

/// A message in the protobuf encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryMessage {
    pub bytes: Vec<u8>,
    /// Where it comes from, in words for an error.
    pub source: String,
}

/// What a gRPC call is to send.
#[derive(Clone, Copy, Debug)]
pub enum Messages<'a> {
    /// JSON text, which may have the fields of a [`crate::template::Template`].
    Json(&'a str),
    Binary(&'a [BinaryMessage]),
}

/// A method that exists and a message that fits it.
#[derive(Clone, Debug)]
pub struct EncodedCall {
    /// `package.Service/Method`.
    pub method: String,
    pub kind: MethodKind,
    /// One; or several for a stream, where the JSON was a list. Where they vary: as the
    /// first call has them.
    pub messages: Vec<Vec<u8>>,
    /// What makes each call's own of them; empty: every call sends the same.
    pub varying: Vec<Arc<dyn Render>>,
    /// What an answer has to be; `None`: anything.
    pub answer: Option<Arc<Shapes>>,
}
