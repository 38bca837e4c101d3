//! The list of all protocols, their load commands, their reference servers and their relay codecs. The binary
//! builds its command line from it.

use std::any::Any;
use std::ffi::OsString;
use std::ops::Deref;

use plimsoll_model::plan::Proxy;
use plimsoll_model::run::Run;
use plimsoll_model::spec::{self, CallSpec, Schemes, Spec};
use plimsoll_model::{Outcome, Plan};

pub use crate::asked::{Answer, Ask, Asking, Unanswered};
use crate::bolt::{self, BoltFlags, BoltOptions};
pub use crate::fetch::sweeping;
use crate::fetch::{self, FetchFlags, FetchOptions};
use crate::foreign::lines::{LineTool, Translated};
pub use crate::grpc::GrpcSpec as DefaultFlags;
use crate::grpc::{self, GrpcCommand, GrpcSpec};
use crate::hold::{HoldFlags, HoldOptions};
use crate::http::{HttpFlags, HttpSpec, LlmFlags, WsFlags};
use crate::owned::Kind;
pub use crate::owned::{
    Asked, Entry, Export, Files, Folder, Load, Lost, Owned, Quick, RequestError, Unmade, Unread,
    Usage, Variables, Written, driven, flags_of,
};
use crate::plugin::{self, PluginFlags, PluginOptions};
use crate::relayed::{Broken, Carriage, CodecOptions, FrameCodec, Manner, Relayed, Seen, Sender};
#[cfg(feature = "targets")]
use crate::serving::reference::Server;
pub use crate::session::QueryFlags;
use crate::session::{SessionFlags, SessionSection};

/// All protocols, in the order in which messages list them.
static PROTOCOL_KINDS: [Kind; 7] = [
    Kind::of::<GrpcSpec>(),
    Kind::of::<HttpSpec>(),
    Kind::of::<SessionSection>(),
    Kind::of::<BoltOptions>(),
    Kind::of::<HoldOptions>(),
    Kind::of::<PluginOptions>(),
    Kind::of::<FetchOptions>(),
];

/// The load commands, in the order in which the help lists them.
pub static COMMAND_ENTRIES: [Entry; 9] = [
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

/// The reference servers, in the order in which the help lists their commands.
#[cfg(feature = "targets")]
pub static REFERENCE_SERVERS: [Server; 10] = [
    Server::of::<crate::grpc::target::score::ScoreOptions>(),
    Server::of::<crate::grpc::target::orders::OrdersOptions>(),
    Server::of::<crate::grpc::target::echo::EchoOptions>(),
    Server::of::<crate::grpc::target::fast::FastOptions>(),
    Server::of::<crate::grpc::target::known::KnownOptions>(),
    Server::of::<crate::bolt::target::BoltOptions>(),
    Server::of::<crate::http::target::HttpOptions>(),
    Server::of::<crate::fetch::target::FilesOptions>(),
    Server::of::<crate::hold::target::HoldOptions>(),
    Server::of::<crate::plugin::target::PluginOptions>(),
];

/// Commands of `plimsoll check` that test a link by making calls of every kind.
#[cfg(all(feature = "schema", feature = "targets"))]
pub static LINK_CHECKS: [Ask; 1] = [Ask::of::<grpc::questions::EchoFlags>()];

/// The protocols that relays carry, in the order in which messages list them.
pub static RELAYED_PROTOCOLS: [Relayed<Codec>; 4] = [
    Relayed {
        name: "bolt",
        carriage: Carriage::Frames {
            open: |options| Ok(Codec::Bolt(FrameCodec::open(options)?)),
            has_file: false,
        },
    },
    Relayed {
        name: "grpc",
        carriage: Carriage::Streams { title: "gRPC" },
    },
    Relayed {
        name: "plugin",
        carriage: Carriage::Frames {
            open: |options| Ok(Codec::Plugin(FrameCodec::open(options)?)),
            has_file: true,
        },
    },
    Relayed {
        name: "tcp",
        carriage: Carriage::Bytes,
    },
];

/// Registers the protocols of this crate with the plan parser. Must be called before the first plan is read.
pub fn register() {
    spec::register(PROTOCOL_KINDS.iter().map(|kind| kind.protocol));
}

/// Returns plan keys with the flags that set them, such as `call.http.body` and `--data`.
pub fn flags() -> impl Iterator<Item = (String, String)> {
    COMMAND_ENTRIES.iter().flat_map(Entry::flags)
}

/// Translates a command line of another tool to arguments of this program, without the program's name.
/// `words` starts with the tool's name. Returns `None` if the tool is not known.
///
/// # Errors
/// Returns an error if an argument has no counterpart.
pub fn foreign(words: &[OsString]) -> Option<Result<Vec<String>, Usage>> {
    fetch::openssl::ours(words)
}

/// A whole line of another tool, and our command that it becomes one of.
#[derive(Debug)]
pub struct ForeignLine<'a> {
    /// The tool.
    pub tool: &'static LineTool,
    /// Our command.
    pub command: &'static str,
    /// The words behind the tool's name.
    words: &'a [String],
}

impl ForeignLine<'_> {
    /// Writes the line as ours; `input` is what stdin holds, where the tool reads it.
    ///
    /// # Errors
    /// Returns an error for a flag that the tool does not have.
    pub fn translate(&self, input: Option<String>) -> Result<Translated, Usage> {
        let translated = self.tool.translate(self.command, self.words, input);
        translated.map_err(|wrong| wrong.usage(self.tool, self.command))
    }
}

fn line_tools() -> impl Iterator<Item = (&'static Entry, &'static LineTool)> {
    let entries = COMMAND_ENTRIES.iter();
    entries.flat_map(|entry| entry.line_tools.iter().map(move |tool| (entry, *tool)))
}

/// The line of a load tool that `words` begin with the name of; or else of the one that owns a line without a name.
pub fn foreign_line(words: &[String]) -> Option<ForeignLine<'_>> {
    let named = line_tools().find_map(|(entry, tool)| Some((entry, tool, tool.named_in(words)?)));
    let owning = || {
        let found = line_tools().find(|(_, tool)| tool.owns(words));
        found.map(|(entry, tool)| (entry, tool, words))
    };
    let (entry, tool, words) = named.or_else(owning)?;
    Some(ForeignLine {
        tool,
        command: entry.name,
        words,
    })
}

/// The command whose calls a target of this URL's scheme takes.
pub fn command_for(url: &str) -> Option<&'static str> {
    let section = spec::section_of(url)?;
    let named = |name: &str| COMMAND_ENTRIES.iter().find(|entry| entry.name == name);
    let entry = named(spec::schemes_like(url).0).or_else(|| named(section))?;
    Some(entry.name)
}

/// Returns the file formats of other tools that runs can be exported to or imported from.
pub fn files() -> impl Iterator<Item = &'static Files> {
    PROTOCOL_KINDS.iter().filter_map(|kind| kind.files)
}

/// Returns the text that the protocol of `run` prints below its tables.
pub fn below_tables(run: &Run) -> String {
    let name = run.header.protocol.as_deref();
    let kind = PROTOCOL_KINDS
        .iter()
        .find(|kind| Some(kind.protocol.schemes.section) == name);
    kind.map_or_else(String::new, |kind| (kind.below_tables)(run))
}

/// Prepares the load of a plan. Returns `None` if the plan's protocol is not one of this crate.
///
/// # Errors
/// Returns an error if the protocol can't make the calls that the plan asks for, or if the target can't be
/// reached.
pub fn load(asked: Asked<'_>) -> Option<Result<Load<'_>, Unmade>> {
    PROTOCOL_KINDS.iter().find_map(|kind| (kind.load)(asked))
}

/// Answers a protocol's query by asking the server of `spec`; returns an error if the server can't be
/// reached.
pub fn ask(question: &mut dyn Any, spec: &Spec, proxy: Option<&Proxy>) -> Option<Lost> {
    PROTOCOL_KINDS
        .iter()
        .find_map(|kind| (kind.ask)(question, spec, proxy))
}

/// Returns the protocol's advice for when no connection of `plan` could be established ([`Owned::advice`]).
pub fn advice(plan: &Plan, outcome: Outcome) -> Option<&'static str> {
    PROTOCOL_KINDS
        .iter()
        .find_map(|kind| (kind.advice)(plan, outcome))
}

/// Returns the same advice for a server that was only queried. All queries are of one protocol.
pub fn advice_of_asked(outcome: Outcome) -> Option<&'static str> {
    grpc::advice(outcome)
}

/// Returns a local folder that the calls of a plan need.
pub fn folder(call: &CallSpec) -> Option<Folder> {
    PROTOCOL_KINDS.iter().find_map(|kind| (kind.folder)(call))
}

/// Returns the URL schemes that apply to a target given as host and port only.
pub fn default_schemes() -> &'static Schemes {
    PROTOCOL_KINDS[0].protocol.schemes
}

/// The header fields of the protocol whose calls relays carry as HTTP/2 streams.
pub type Streams = grpc::relayed::Fields;

/// The codec of a protocol whose frames relays carry. Methods that are called for each frame are dispatched
/// by `match`, the others through [`FrameCodec`].
#[derive(Clone, Debug)]
pub enum Codec {
    /// SOFABolt.
    Bolt(bolt::relayed::Codec),
    /// A codec plugin's protocol.
    Plugin(plugin::relayed::Codec),
}

macro_rules! each {
    ($of:ident, $codec:ident => $does:expr) => {
        match $of {
            Codec::Bolt($codec) => $does,
            Codec::Plugin($codec) => $does,
        }
    };
}

impl Codec {
    /// Calls [`FrameCodec::layout`].
    #[inline]
    pub fn layout(&self, manner: Manner) -> usize {
        each!(self, codec => codec.layout(manner))
    }

    /// Calls [`FrameCodec::read`].
    #[inline]
    pub fn read(&self, from: Sender, bytes: &[u8]) -> Result<Option<Seen>, Broken> {
        each!(self, codec => codec.read(from, bytes))
    }

    /// Calls [`FrameCodec::renumber`].
    #[inline]
    pub fn renumber(
        &self,
        frame: &[u8],
        manner: Manner,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        each!(self, codec => codec.renumber(frame, manner, id, out))
    }

    /// Returns a copy of the codec for the thread of one worker.
    #[must_use]
    pub fn of_worker(&self, options: &CodecOptions<'_>) -> Codec {
        match self {
            Codec::Bolt(codec) => Codec::Bolt(codec.of_worker(options)),
            Codec::Plugin(codec) => Codec::Plugin(codec.of_worker(options)),
        }
    }
}

impl Deref for Codec {
    type Target = dyn FrameCodec;

    fn deref(&self) -> &Self::Target {
        each!(self, codec => codec)
    }
}
