//! The settings of CPU profiling: which processes a run samples, and how.

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;

/// Samples per second of CPU time, unless the plan says otherwise. The odd number keeps samples from being synchronous
/// with timers of 10 or 100 Hz.
pub const DEFAULT_SAMPLING_HZ: u32 = 99;

/// Maximum samples per second of CPU time. With more, sampling itself would use a considerable part of the CPU time.
pub const MAX_SAMPLING_HZ: u32 = 4999;

named! {
    /// The side of the load whose processes are sampled: server or client.
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
        /// By the chain of frame pointers, which costs almost nothing. The program must have been compiled with frame
        /// pointers.
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
    /// Processes in front of the server that are sampled with it, such as proxies that a ladder started.
    pub proxy_pids: Vec<u32>,
}
