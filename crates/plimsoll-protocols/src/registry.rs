//! The list of all protocols, their load commands, their reference servers and their relay codecs. The binary
//! builds its command line from it.

use std::any::Any;
use std::ffi::OsString;
use std::ops::Deref;

use plimsoll_model::plan::ForwardProxy;
use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::{self, CallSpec, Spec, UrlSchemes};
use plimsoll_model::{Outcome, Plan};

use crate::bolt::{self, BoltFlags, BoltOptions};
pub use crate::fetch::sweep_checks;
use crate::fetch::{self, FetchFlags, FetchOptions};
pub use crate::grpc::GrpcSpec as DefaultFlags;
use crate::grpc::{self, GrpcCommand, GrpcSpec};
use crate::hold::{HoldFlags, HoldOptions};
use crate::http::{HttpFlags, HttpSpec, LlmFlags, SocketStepSpec, WsFlags};
use crate::interface::foreign::command_lines::{
    LineTool, METHOD_PLACEHOLDER, TARGET_PLACEHOLDER, TranslatedLine,
};
pub use crate::interface::foreign::command_lines::{PlimsollFlag, PlimsollFlagLookup};
use crate::interface::protocol_module::ProtocolVtable;
pub use crate::interface::protocol_module::{
    CommandEntry, EnvLookup, ExportSummary, ExportTarget, ForeignFormat, ForeignFormatError,
    LocalFolder, PlanImportRequest, PlanImportResult, PlanSource, PrepareError, PrepareRequest,
    PreparedLoad, ProtocolCommand, ProtocolModule, RequestError, ServerUnreachable, UsageError,
    load_with_driver, pair_keys_with_flags,
};
use crate::interface::relayed::{
    CodecOptions, FrameCodec, FrameError, FrameFlavor, FrameInfo, FrameSender, RelayMode,
    RelayProtocol,
};
pub use crate::interface::server_query::{QueryCommand, QueryContext, QueryError, QueryOutput};
pub use crate::interface::service_offer::{OfferDetail, OfferedCall, OfferedContent, ServiceOffer};
use crate::journey::{self, StepModule};
use crate::plugin::{self, PluginFlags, PluginOptions};
pub use crate::session::QueryFlags;
use crate::session::{SessionFlags, SessionSection};
#[cfg(feature = "targets")]
use plimsoll_serving::reference::ServerEntry;

/// All protocols, in the order in which messages list them.
static PROTOCOL_VTABLES: [ProtocolVtable; 7] = [
    ProtocolVtable::new::<GrpcSpec>(),
    ProtocolVtable::new::<HttpSpec>(),
    ProtocolVtable::new::<SessionSection>(),
    ProtocolVtable::new::<BoltOptions>(),
    ProtocolVtable::new::<HoldOptions>(),
    ProtocolVtable::new::<PluginOptions>(),
    ProtocolVtable::new::<FetchOptions>(),
];

/// The load commands, in the order in which the help lists them.
pub static COMMAND_ENTRIES: [CommandEntry; 9] = [
    CommandEntry::new::<GrpcCommand>(),
    CommandEntry::new::<BoltFlags>(),
    CommandEntry::new::<HoldFlags>(),
    CommandEntry::new::<PluginFlags>(),
    CommandEntry::new::<FetchFlags>(),
    CommandEntry::new::<HttpFlags>(),
    CommandEntry::new::<LlmFlags>(),
    CommandEntry::new::<WsFlags>(),
    CommandEntry::new::<SessionFlags>(),
];

/// The reference servers, in the order in which the help lists their commands.
#[cfg(feature = "targets")]
pub static REFERENCE_SERVERS: [ServerEntry; 10] = [
    ServerEntry::new::<crate::grpc::target::score::ScoreOptions>(),
    ServerEntry::new::<crate::grpc::target::orders::OrdersOptions>(),
    ServerEntry::new::<crate::grpc::target::echo::EchoOptions>(),
    ServerEntry::new::<crate::grpc::target::fast::FastOptions>(),
    ServerEntry::new::<crate::grpc::target::known::KnownOptions>(),
    ServerEntry::new::<crate::bolt::target::BoltOptions>(),
    ServerEntry::new::<crate::http::target::HttpOptions>(),
    ServerEntry::new::<crate::fetch::target::FilesOptions>(),
    ServerEntry::new::<crate::hold::target::HoldOptions>(),
    ServerEntry::new::<crate::plugin::target::PluginOptions>(),
];

/// Commands of `plimsoll check` that test a server by making every kind of call.
#[cfg(all(feature = "schema", feature = "targets"))]
pub static SERVER_CHECKS: [QueryCommand; 1] =
    [QueryCommand::new::<grpc::query_commands::EchoFlags>()];

/// The protocols that relays support, in the order in which messages list them.
pub static RELAYED_PROTOCOLS: [RelayProtocol<RelayCodec>; 4] = [
    RelayProtocol {
        name: "bolt",
        mode: RelayMode::Frames {
            open: |options| Ok(RelayCodec::Bolt(FrameCodec::open(options)?)),
            has_file: false,
        },
    },
    RelayProtocol {
        name: "grpc",
        mode: RelayMode::Streams { title: "gRPC" },
    },
    RelayProtocol {
        name: "plugin",
        mode: RelayMode::Frames {
            open: |options| Ok(RelayCodec::Plugin(FrameCodec::open(options)?)),
            has_file: true,
        },
    },
    RelayProtocol {
        name: "tcp",
        mode: RelayMode::Bytes,
    },
];

/// The protocols whose calls can be the steps of a journey.
static STEP_MODULES: [StepModule; 5] = [
    StepModule::for_section::<HttpSpec>(),
    StepModule::for_section::<SocketStepSpec>(),
    StepModule::for_section::<GrpcSpec>(),
    StepModule::for_section::<BoltOptions>(),
    StepModule::for_section::<PluginOptions>(),
];

/// Registers the protocols of this crate with the plan parser. Must be called before the first plan is read.
pub fn register_protocols() {
    journey::register(&STEP_MODULES);
    journey::register_descriptions(grpc::describe_messages);
    spec::register(PROTOCOL_VTABLES.iter().map(|kind| kind.protocol));
}

/// Returns plan keys with the flags that set them, such as `call.http.body` and `--data`.
pub fn flags_by_key() -> impl Iterator<Item = (String, String)> {
    COMMAND_ENTRIES.iter().flat_map(CommandEntry::flags)
}

/// Translates a command line of another tool to arguments of this program, without the program's name.
/// `words` starts with the tool's name. Returns `None` if the tool is not known.
///
/// # Errors
/// Returns an error if an argument has no counterpart.
pub fn translate_foreign_command(words: &[OsString]) -> Option<Result<Vec<String>, UsageError>> {
    fetch::openssl::translate(words)
}

/// A whole command line of another tool, and the Plimsoll command that it is translated to.
#[derive(Debug)]
pub struct ForeignLine<'a> {
    /// The tool.
    pub tool: &'static LineTool,
    /// The Plimsoll command.
    pub command: &'static str,
    /// The words after the tool's name.
    words: &'a [String],
    /// Whether the tool was recognised by its flags only, because the line does not name it.
    is_guessed: bool,
}

impl ForeignLine<'_> {
    /// Returns whether the tool was recognised by its flags only.
    pub fn is_guessed(&self) -> bool {
        self.is_guessed
    }

    /// Translates the line; `input` is the text of stdin, if the tool reads it.
    ///
    /// # Errors
    /// Returns an error for a flag that the tool does not have.
    pub fn translate(&self, input: Option<String>) -> Result<TranslatedLine, UsageError> {
        let translated = self.tool.translate(self.command, self.words, input);
        let mut translated =
            translated.map_err(|wrong| wrong.to_usage_error(self.tool, self.command))?;
        if self.is_guessed {
            keep_certificate_checks(self.words, &mut translated);
        }
        Ok(translated)
    }
}

fn tools_by_command() -> impl Iterator<Item = (&'static CommandEntry, &'static LineTool)> {
    let entries = COMMAND_ENTRIES.iter();
    entries.flat_map(|entry| entry.line_tools.iter().map(move |tool| (entry, *tool)))
}

/// Returns `words` as the line of the load tool that they name, or else of the first tool that recognises their flags.
pub fn find_foreign_line(words: &[String]) -> Option<ForeignLine<'_>> {
    let named = tools_by_command()
        .find_map(|(entry, tool)| Some((entry, tool, tool.strip_name(words)?, false)));
    let owning = || {
        // A word before the flags may be another tool's name.
        let is_name =
            |word: &String| word != "localhost" && word.bytes().all(|b| b.is_ascii_alphabetic());
        let found = tools_by_command().find(|(_, tool)| tool.recognises_line(words));
        let found = found.filter(|_| !words.first().is_some_and(is_name));
        found.map(|(entry, tool)| (entry, tool, words, true))
    };
    let (entry, tool, words, is_guessed) = named.or_else(owning)?;
    Some(ForeignLine {
        tool,
        command: entry.name,
        words,
        is_guessed,
    })
}

/// The words after one of Plimsoll's commands, read as a line of another tool.
#[derive(Debug)]
pub struct PossibleTranslation {
    /// The tool.
    pub tool: &'static LineTool,
    /// The line, translated to Plimsoll's words.
    pub translated: TranslatedLine,
    /// Whether the line's flags identify the tool; otherwise the tool is one of several that have these flags.
    pub is_owned: bool,
}

/// Reads the words after one of Plimsoll's commands as lines of other tools. Returns one reading if the flags identify
/// a tool. Otherwise reads the words as a line of each tool, and returns the readings with the fewest untranslated
/// flags. `input` reads standard input, for tools that read their targets from it.
pub fn find_possible_translations(
    command: &str,
    words: &[String],
    input: &dyn Fn() -> Option<String>,
    lookup: PlimsollFlagLookup<'_>,
) -> Vec<PossibleTranslation> {
    let tools = || tools_by_command().filter(|(entry, _)| entry.name == command);
    let owner = tools().find(|(_, tool)| tool.recognises_line(words));
    // Only tools that are written in Go have long flags with one dash.
    let is_go = tools().any(|(_, tool)| tool.has_long_flag_with_one_dash(words));
    let possible: Vec<&'static LineTool> = match owner {
        Some((_, tool)) => vec![tool],
        None => tools()
            .map(|(_, tool)| tool)
            .filter(|tool| !is_go || tool.has_long_flag_with_one_dash(words))
            .collect(),
    };
    let has_url = words.iter().any(|word| word.contains("://"));
    let has_target = has_url || words.iter().any(|word| is_host_with_port(word));
    let mut readings: Vec<PossibleTranslation> = Vec::new();
    for tool in possible {
        let input = if tool.reads_stdin && !has_url && tool.accepts_line(words) {
            input()
        } else {
            None
        };
        let Ok(mut translated) = tool.translate_mixed(command, words, input, lookup) else {
            continue;
        };
        // Skips a tool that finds no target or method in the line, although the line contains an address: its user
        // wrote them in another way.
        let is_placeholder =
            |word: &String| word == TARGET_PLACEHOLDER || word == METHOD_PLACEHOLDER;
        if has_target && translated.words.iter().any(is_placeholder) {
            continue;
        }
        if owner.is_none() && takes_word_for_host(&translated, words) {
            continue;
        }
        keep_certificate_checks(words, &mut translated);
        let is_new = |known: &PossibleTranslation| known.translated.words != translated.words;
        if readings.iter().all(is_new) {
            readings.push(PossibleTranslation {
                tool,
                translated,
                is_owned: owner.is_some(),
            });
        }
    }
    let fewest = |count: &dyn Fn(&PossibleTranslation) -> usize,
                  readings: &mut Vec<PossibleTranslation>| {
        let least = readings.iter().map(count).min().unwrap_or(0);
        readings.retain(|reading| count(reading) == least);
    };
    fewest(&|reading| reading.translated.reasons.len(), &mut readings);
    fewest(&|reading| reading.translated.notes.len(), &mut readings);
    fewest(
        &|reading| reading.tool.count_plimsoll_flags(words),
        &mut readings,
    );
    readings
}

/// Returns whether a word is HOST:PORT, with or without a path.
fn is_host_with_port(word: &str) -> bool {
    let authority = word.split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':');
    port.is_some_and(|(host, port)| {
        !host.is_empty() && !host.starts_with('-') && port.parse::<u16>().is_ok()
    })
}

/// Extensions of files, which no host name ends with.
const FILE_EXTENSIONS: [&str; 8] = [
    ".txt", ".json", ".jsonl", ".js", ".lua", ".csv", ".yml", ".toml",
];

/// Returns whether a reading makes a host of a word that is none, such as the method `POST` or the file `targets.txt`.
fn takes_word_for_host(translated: &TranslatedLine, words: &[String]) -> bool {
    let made = |word: &&String| translated.words.contains(&format!("http://{word}"));
    words.iter().find(made).is_some_and(|word| {
        let is_file = FILE_EXTENSIONS.iter().any(|end| word.ends_with(end));
        is_file || word != "localhost" && !word.contains(['.', ':', '/'])
    })
}

/// Removes `--insecure` unless the user gave it: if the tool was only guessed, certificates are checked.
fn keep_certificate_checks(words: &[String], translated: &mut TranslatedLine) {
    let is_typed = |word: &String| word == "-k" || word.contains("insecure");
    if !words.iter().any(is_typed) {
        translated.words.retain(|word| word != "--insecure");
    }
}

/// Returns whether a tool whose lines are translated to `command` has a flag of this name, without dashes.
pub fn is_foreign_flag(command: &str, name: &str) -> bool {
    let mut tools = tools_by_command().filter(|(entry, _)| entry.name == command);
    tools.any(|(_, tool)| tool.has_flag(name))
}

/// Returns the command that measures what other tools call `name`; `None` if they have no such name.
pub fn command_alias(name: &str) -> Option<&'static str> {
    match name {
        "websocket" | "websockets" => Some("ws"),
        "rest" | "web-request" => Some("http"),
        "rpc" => Some("grpc"),
        "openai" | "genai" => Some("llm"),
        _ => None,
    }
}

/// Returns the command whose targets have this URL's scheme.
pub fn command_for_url(url: &str) -> Option<&'static str> {
    let section = spec::section_for_url(url)?;
    let named = |name: &str| COMMAND_ENTRIES.iter().find(|entry| entry.name == name);
    let entry = named(spec::schemes_for_url(url).0).or_else(|| named(section))?;
    Some(entry.name)
}

/// Returns the command for an address without a scheme.
pub fn command_for_bare_address() -> &'static str {
    crate::http::BARE_ADDRESS_COMMAND
}

/// Returns why the words after `command` are for another protocol of the same name; `None` if they are not.
pub fn other_protocol_reason(command: &str, words: &[&str]) -> Option<&'static str> {
    crate::bolt::other_protocol_reason(command, words)
}

/// Returns the file formats of other tools that runs can be exported to or imported from.
pub fn foreign_formats() -> impl Iterator<Item = &'static ForeignFormat> {
    PROTOCOL_VTABLES
        .iter()
        .filter_map(|kind| kind.foreign_format)
}

/// Returns the plan source that recognises a file beginning with this text.
pub fn find_plan_source(beginning: &str) -> Option<&'static PlanSource> {
    let mut sources = PROTOCOL_VTABLES.iter().flat_map(|kind| kind.plan_sources);
    sources.find(|source| (source.recognises)(beginning))
}

/// Returns the text that the protocol of `run` adds below the run's tables.
pub fn report_footer(run: &Run) -> String {
    let name = run.header.protocol.as_deref();
    let kind = PROTOCOL_VTABLES
        .iter()
        .find(|kind| Some(kind.protocol.schemes.section) == name);
    kind.map_or_else(String::new, |kind| (kind.report_footer)(run))
}

/// Prepares the load of a plan. Returns `None` if the plan's protocol is not one of this crate.
///
/// # Errors
/// Returns an error if the protocol can't make the calls that the plan asks for, or if the target can't be
/// reached.
pub fn prepare_load(asked: PrepareRequest<'_>) -> Option<Result<PreparedLoad<'_>, PrepareError>> {
    PROTOCOL_VTABLES.iter().find_map(|kind| (kind.load)(asked))
}

/// Queries the server of `spec` for what a protocol needs to resolve a plan ([`ProtocolModule::query_server`]). Returns
/// an error if the server can't be reached.
pub fn query_server(
    question: &mut dyn Any,
    spec: &Spec,
    proxy: Option<&ForwardProxy>,
) -> Option<ServerUnreachable> {
    PROTOCOL_VTABLES
        .iter()
        .find_map(|kind| (kind.query_server)(question, spec, proxy))
}

/// Returns the protocol's advice for when no connection of `plan` could be established
/// ([`ProtocolModule::connect_advice`]).
pub fn connect_advice(plan: &Plan, outcome: Outcome) -> Option<&'static str> {
    PROTOCOL_VTABLES
        .iter()
        .find_map(|kind| (kind.advice)(plan, outcome))
}

/// Returns the advice for when a server could not be queried. Only gRPC has queries.
pub fn query_advice(outcome: Outcome) -> Option<&'static str> {
    grpc::connect_advice(outcome)
}

/// Returns a local folder that the calls of a plan need.
pub fn local_folder(call: &CallSpec) -> Option<LocalFolder> {
    PROTOCOL_VTABLES.iter().find_map(|kind| (kind.folder)(call))
}

/// A reference server that answers at once, and the command that puts load on it.
#[derive(Clone, Copy, Debug)]
pub struct CalibrationServer {
    /// The name of the reference server.
    pub server: &'static str,
    /// The command that puts load on the server.
    pub command: &'static str,
    /// The scheme of its URLs.
    pub scheme: &'static str,
}

/// The server for calibration, which shows how much load a machine can generate and measure. It speaks HTTP/1.1, which
/// needs neither a schema nor a certificate.
pub const CALIBRATION_SERVER: CalibrationServer = CalibrationServer {
    server: "http",
    command: "http",
    scheme: "http",
};

/// Returns the URL schemes that apply to a target given as host and port only.
pub fn default_schemes() -> &'static UrlSchemes {
    PROTOCOL_VTABLES[0].protocol.schemes
}

/// The header fields of the protocol whose calls relays forward as HTTP/2 streams.
pub type RelayedFields = grpc::relay_codec::GrpcRelayFields;

/// The codec of a protocol whose frames relays forward. Methods that are called for each frame are dispatched by
/// `match`, the others through [`FrameCodec`].
#[derive(Clone, Debug)]
pub enum RelayCodec {
    /// SOFABolt.
    Bolt(bolt::relayed::BoltRelayCodec),
    /// A codec plugin's protocol.
    Plugin(plugin::relayed::PluginRelayCodec),
}

macro_rules! each {
    ($of:ident, $codec:ident => $does:expr) => {
        match $of {
            RelayCodec::Bolt($codec) => $does,
            RelayCodec::Plugin($codec) => $does,
        }
    };
}

impl RelayCodec {
    /// Calls [`FrameCodec::layout_index`].
    #[inline]
    pub fn layout_index(&self, manner: FrameFlavor) -> usize {
        each!(self, codec => codec.layout_index(manner))
    }

    /// Calls [`FrameCodec::read`].
    #[inline]
    pub fn read(&self, from: FrameSender, bytes: &[u8]) -> Result<Option<FrameInfo>, FrameError> {
        each!(self, codec => codec.read(from, bytes))
    }

    /// Calls [`FrameCodec::renumber`].
    #[inline]
    pub fn renumber(
        &self,
        frame: &[u8],
        manner: FrameFlavor,
        id: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        each!(self, codec => codec.renumber(frame, manner, id, out))
    }

    /// Returns a copy of the codec for the thread of one worker.
    #[must_use]
    pub fn for_worker(&self, options: &CodecOptions<'_>) -> RelayCodec {
        match self {
            RelayCodec::Bolt(codec) => RelayCodec::Bolt(codec.for_worker(options)),
            RelayCodec::Plugin(codec) => RelayCodec::Plugin(codec.for_worker(options)),
        }
    }
}

impl Deref for RelayCodec {
    type Target = dyn FrameCodec;

    fn deref(&self) -> &Self::Target {
        each!(self, codec => codec)
    }
}
