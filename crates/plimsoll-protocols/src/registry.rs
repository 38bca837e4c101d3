//! The protocols and the commands that put load on them, a line each. The binary makes the commands.

use plimsoll_model::spec;

use crate::bolt::{BoltFlags, BoltOptions};
use crate::fetch::{FetchFlags, FetchOptions};
use crate::grpc::{GrpcCommand, GrpcSpec};
use crate::hold::{HoldFlags, HoldOptions};
use crate::http::{HttpFlags, HttpSpec, LlmFlags, WsFlags};
use crate::owned::Kind;
pub use crate::owned::{
    Asked, Entry, Export, Load, Owned, Quick, Unmade, Usage, Variables, driven,
};
use crate::plugin::{PluginFlags, PluginOptions};
#[cfg(feature = "targets")]
use crate::serving::reference::Server;
use crate::session::{SessionFlags, SessionSection};

/// In the order in which messages list them.
static KINDS: [Kind; 7] = [
    Kind::of::<GrpcSpec>(),
    Kind::of::<HttpSpec>(),
    Kind::of::<SessionSection>(),
    Kind::of::<BoltOptions>(),
    Kind::of::<HoldOptions>(),
    Kind::of::<PluginOptions>(),
    Kind::of::<FetchOptions>(),
];

/// In the order of their commands in the help.
pub static ENTRIES: [Entry; 9] = [
    Entry::of::<GrpcCommand>(),
    Entry::of::<BoltFlags>(),
    Entry::of::<HoldFlags>(),
    Entry::of::<PluginFlags>(),
    Entry::of::<FetchFlags>(),
    Entry::of::<HttpFlags>(),
    Entry::of::<LlmFlags>(),
    Entry::of::<WsFlags>(),
    Entry::of::<SessionFlags>(),
];

/// The reference servers, in the order of their commands in the help.
#[cfg(feature = "targets")]
pub static SERVERS: [Server; 9] = [
    Server::of::<crate::grpc::target::score::ScoreOptions>(),
    Server::of::<crate::grpc::target::orders::OrdersOptions>(),
    Server::of::<crate::grpc::target::echo::EchoOptions>(),
    Server::of::<crate::grpc::target::fast::FastOptions>(),
    Server::of::<crate::bolt::target::BoltOptions>(),
    Server::of::<crate::http::target::HttpOptions>(),
    Server::of::<crate::fetch::target::FilesOptions>(),
    Server::of::<crate::hold::target::HoldOptions>(),
    Server::of::<crate::plugin::target::PluginOptions>(),
];

/// Makes plans know the protocols of this crate. To be called before the first plan is read.
pub fn register() {
    spec::register(KINDS.iter().map(|kind| kind.protocol));
}

/// The keys of plans with the flags of commands that mean the same: `call.http.body` and `--data`.
pub fn flags() -> impl Iterator<Item = (String, String)> {
    ENTRIES.iter().flat_map(Entry::flags)
}

/// What the engine needs for the calls of a plan; `None`: their protocol is not here.
///
/// # Errors
/// Where the protocol can't make the calls that the plan asks for, or has no way to a target.
pub fn load(asked: Asked<'_>) -> Option<Result<Load<'_>, Unmade>> {
    KINDS.iter().find_map(|kind| (kind.load)(asked))
}
