//! SOFABolt and SOFARPC (SOFABolt 1.6, protocol versions 1 and 2): the frame codec, the
//! Hessian 2 dialect that SOFARPC speaks, the client driver and the reference server.

pub mod call_encoding;
mod driver;
pub mod frame;
pub mod header;
pub mod hessian;
mod options;
pub(crate) mod relayed;
mod report;
mod request;
pub mod sofa;
pub mod status;
mod steps;
#[cfg(feature = "targets")]
pub mod target;
mod trace;
mod varying;

/// Schemes of the database whose protocol has the same name.
const DATABASE_MARKS: [&str; 4] = ["bolt://", "bolt+s", "neo4j://", "neo4j+s"];

/// Returns why a line is for the other protocol named Bolt; `None` if it is not.
pub(crate) fn other_protocol_reason(command: &str, words: &[&str]) -> Option<&'static str> {
    let is_marked = |word: &&str| DATABASE_MARKS.iter().any(|mark| word.starts_with(mark));
    (command == "bolt" && words.iter().any(is_marked)).then_some(
        "this is the Bolt of SOFARPC (sofa://HOST:PORT); the Bolt of Neo4j is another protocol, which is not spoken",
    )
}

pub use driver::{BoltDriver, BoltProtocol};
pub use frame::{
    BoltCommand, BoltFrame, BoltFrameError, BoltFrameHead, BoltFrameKind, FrameLayout,
};
pub use options::{BoltFlags, BoltOptions};
pub use request::BoltCall;
pub use status::Status;
pub use trace::BoltFrameTracer;
pub use varying::VaryingBoltCall;
