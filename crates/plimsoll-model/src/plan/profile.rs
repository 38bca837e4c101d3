//! What a run samples to show where CPU time was spent.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// Samples per second of CPU time, unless the plan says otherwise. An odd number, so that samples do not keep step with
/// timers of 10 or 100 Hz.
pub const DEFAULT_SAMPLING_HZ: u32 = 99;

/// Most samples per second of CPU time. With more, sampling would be a considerable part of what it measures.
pub const MAX_SAMPLING_HZ: u32 = 4999;

named! {
    /// An end of the load whose processes are sampled.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ProfiledEnd by name and words {
        /// The watched processes, with their children and the proxies that a ladder started before them.
        Server "server" "the server",
        /// The load generator.
        Client "client" "the load generator",
    }
}

named! {
    /// How the callers of a sampled function are found.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum StackUnwinding by name and words {
        /// By the chain of frame pointers, which costs next to nothing and which a program must have been compiled to
        /// keep.
        #[default]
        FramePointers "frame-pointers" "frame pointers",
        /// By the call frame information of the executables, from a copy of each sample's stack.
        Dwarf "dwarf" "DWARF call frame information",
    }
}

/// A request to sample processes during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfilePlan {
    /// The ends to sample; not empty, each once.
    pub ends: Vec<ProfiledEnd>,
    /// Samples per second of CPU time.
    pub frequency_hz: u32,
    /// How callers are found.
    pub unwinding: StackUnwinding,
    /// Processes in front of the server that belong to it, such as proxies that a ladder started.
    pub proxy_pids: Vec<u32>,
}
