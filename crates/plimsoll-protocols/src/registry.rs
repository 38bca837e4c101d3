//! The protocols that own themselves, a line each. The binary makes their commands.

use plimsoll_model::spec::{self, Of};

use crate::bolt::BoltOptions;
use crate::fetch::FetchOptions;
use crate::hold::HoldOptions;
use crate::http::HttpSpec;
pub use crate::owned::{Asked, Entry, Load, Owned, Usage, driven};
use crate::plugin::PluginOptions;
use crate::session::SessionSection;

/// In the order of their commands in the help.
pub static ENTRIES: [Entry; 4] = [
    Entry::of::<BoltOptions>(),
    Entry::of::<HoldOptions>(),
    Entry::of::<PluginOptions>(),
    Entry::of::<FetchOptions>(),
];

/// Those whose commands are files of the binary.
static BESIDES: [&dyn spec::Protocol; 2] = [&Of::<HttpSpec>::NEW, &Of::<SessionSection>::NEW];

/// Makes plans know the protocols of this crate. To be called before the first plan is read.
pub fn register() {
    let others = ENTRIES.iter().map(|entry| entry.protocol);
    spec::register(BESIDES.into_iter().chain(others));
}

/// What the engine needs for the calls of a plan; `None`: their protocol is not here.
///
/// # Errors
/// Where the protocol can't make the calls that the plan asks for.
pub fn load(asked: Asked<'_>) -> Option<Result<Load<'_>, String>> {
    ENTRIES.iter().find_map(|entry| (entry.load)(asked))
}
