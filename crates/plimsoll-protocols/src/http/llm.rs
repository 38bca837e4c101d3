//! The flags of `plimsoll llm`, a short form of `plimsoll http` for language models; they become one streamed request.
//! This file is long because the flags for all model APIs together determine one request body.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_model::rows::template::append_filler_words;
use plimsoll_model::spec::{
    CallSection, MetadataSpec, OptionalPeriod, RowsSpec, Spec, apply_flags_to_optional,
};
use serde_json::{Map, Value, json};

use super::call::HttpVersion;
use super::extra_keys::{merge_extra_keys, unquote_field};
use super::flags::would_queue;
use super::foreign_lines;
use super::llm_api::{LlmApi, ModelPrompt, ModelResponseRules};
use super::llm_data_set::{DataSetColumns, DataSetInput};
#[cfg(feature = "targets")]
use super::probe;
use super::section::{ConversationSpec, HttpSpec, StreamSpec};
use super::token_range::TokenRange;
use crate::interface::flags::{
    BasicAuthFlags, CredentialFlags, GoodputBound, combine_goodput_bounds, parse_fields,
};
use crate::interface::foreign::command_lines::LineTool;
use crate::interface::protocol_module::{
    EnvLookup, ProtocolCommand, UsageError, split_text_or_file,
};
#[cfg(feature = "targets")]
use crate::interface::server_query::QueryContext;
#[cfg(feature = "targets")]
use crate::interface::service_offer::ServiceOffer;

/// The number of connections of an open loop over HTTP/1.1, each of which streams one response at a time.
const DEFAULT_CONNECTIONS: u32 = 100;
/// The deadline of one call; long, because answers are streamed as they are generated.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
const DEFAULT_PROMPT: &str = "What does the load line show?";

/// Load-test a language model behind OpenAI's or Anthropic's API: the time from when a request was due to its answer's
/// first token.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Call",
    before_help = "\
Example: a simulated model, and 20 requests a second of which each should begin within 200 ms
  plimsoll serve llm --listen 127.0.0.1:8000 --token-delay 20ms &
  plimsoll llm http://127.0.0.1:8000 --model test --rate 20/s --duration 10s --objective 'ttft.p99 < 200ms'
Example: 16 users with prompts of about 500 tokens, answers of 128 at most, and what share of them is good
  plimsoll llm http://127.0.0.1:8000 --model test --clients 16 --calls 200 --prompt-tokens 500 --max-tokens 128 \\
      --goodput ttft=500ms --goodput tpot=50ms
Example: 2 conversations a second of 5 turns, a user thinking for 3 s between an answer and the next turn
  plimsoll llm http://127.0.0.1:8000 --model test --rate 2/s --duration 30s --turns 5 --think 3s \\
      --prompt 'Tell me about number {{seq}}.' --follow-up 'Go on.'
Example: prompts of a file, over TLS; the key comes from OPENAI_API_KEY
  plimsoll llm https://llm.example/v1 --model llama --rows prompts.csv --prompt '{{row.prompt}}' --rate 5/s --duration 60s"
)]
pub struct LlmFlags {
    /// The name by which the service knows the model (GET /v1/models lists them).
    #[arg(short, long, value_name = "NAME")]
    model: String,

    /// The API to call: chat, completions, responses or embeddings (OpenAI's), messages (Anthropic's), or rerank
    /// [default: chat].
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(LlmApi::names()).try_map(|name| find_api(&name)),
        hide_possible_values = true,
        value_name = "NAME"
    )]
    api: Option<&'static LlmApi>,

    /// The prompt, or @FILE or @- (stdin) to read it from; fields such as {{seq}} or {{row.NAME}} vary it.
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with = "prompt_tokens")]
    body: Option<String>,

    /// Take prompts or messages, and lengths of answers, from a file: JSON of ShareGPT, or JSON lines or CSV with
    /// messages, or with a prompt and output_tokens.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["body", "prompt_tokens", "rows"])]
    dataset: Option<PathBuf>,

    /// Generate prompts of about this many tokens, or of a random number such as 200..800, each with a different
    /// beginning, so that no prefix cache can answer for the model.
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<TokenRange>,

    /// Let all generated prompts begin with the same N tokens, which a prefix cache can hold.
    #[arg(
        long, value_name = "N", requires = "prompt_tokens",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    shared_prefix_tokens: Option<u32>,

    /// A document to rank, or @FILE to read it from, which may have fields; the prompt is the query; repeatable (rerank
    /// only).
    #[arg(long = "document", value_name = "TEXT")]
    documents: Vec<String>,

    /// The system message before the prompt, or @FILE to read it from (chat, responses, messages).
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Conversations: each user sends this many requests, each after the previous answer and with all messages so far;
    /// --think is the pause between an answer and the next turn (chat, responses, messages).
    #[arg(id = "conversation", 
        long = "turns", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    turns: Option<u32>,

    /// The prompts of the turns after the first, or @FILE for each, in order; repeatable [default: the prompt,
    /// with fields filled in anew].
    #[arg(
        id = "conversation.follow_ups",
        long = "follow-up",
        value_name = "TEXT",
        requires = "conversation"
    )]
    follow_up: Vec<String>,

    /// Maximum number of tokens of an answer, or a random number for each request such as 50..200 [default: the
    /// service's; with messages 1024].
    #[arg(long, value_name = "N")]
    max_tokens: Option<TokenRange>,

    /// More keys of the request: a JSON object, or @FILE to read one from, which may have fields: '{\"temperature\": 0,
    /// \"max_tokens\": {{row.n}}}'.
    #[arg(long, value_name = "JSON")]
    extra: Option<String>,

    #[command(flatten)]
    answers: AnswerFlags,

    /// The environment variable with the API key, sent as a bearer token, with messages as x-api-key; if it is not set,
    /// no key is sent [default: OPENAI_API_KEY; with messages ANTHROPIC_API_KEY].
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,

    /// A header field, 'name: value'; a value $NAME is taken from the environment ($$ is a plain $); repeatable.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// The version of HTTP: 1.1; 2, in plaintext by prior knowledge; auto, which lets the server choose by ALPN [default:
    /// 1.1].
    #[arg(long, value_name = "VERSION")]
    http_version: Option<HttpVersion>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: no limit below 4GiB; 256MiB for whole answers].
    #[arg(long, value_name = "SIZE")]
    max_body: Option<ByteSize>,

    /// Count an answer as good only if it succeeds within this time after its request was due: KEY is first_token
    /// (ttft), time_per_token (tpot) or query (e2e). May be given for each of them.
    #[arg(long, value_name = "KEY=TIME", value_delimiter = ',')]
    goodput: Vec<GoodputBound>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    basic: BasicAuthFlags,

    #[command(flatten)]
    rows: RowsSpec,
}

/// How answers are asked for, counted, and asked for again.
#[derive(Debug, Args)]
struct AnswerFlags {
    /// Ask for whole answers instead of streams. Their tokens have no times: there are only response times and counts.
    #[arg(long)]
    no_stream: bool,

    /// Don't ask the service to count tokens (stream_options), which some services refuse (chat and completions).
    #[arg(long, conflicts_with = "no_stream")]
    no_usage: bool,

    /// Also count the tokens of answers with this file (tokenizer.json, in the format of Hugging Face's tokenizers),
    /// once a second, on a thread that sends no load. Needs a build with the feature tokenizers.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Send a request that is answered with 429, or with 503 and Retry-After, up to N times more: after Retry-After, or
    /// else after a growing pause. Response times count from when it was due [default: such answers are failures].
    #[arg(long, value_name = "N")]
    retry_refused: Option<u32>,

    /// The longest wait before a request is sent again [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, requires = "retry_refused")]
    retry_wait: Option<Period>,
}

/// Returns the API with this name, which the flag parser has already validated.
fn find_api(name: &str) -> Result<&'static LlmApi, String> {
    LlmApi::find(name).ok_or_else(|| format!("`{name}` is not an API"))
}

impl ProtocolCommand for LlmFlags {
    type Section = HttpSpec;
    const COMMAND_NAME: &str = "llm";
    const LINE_TOOLS: &'static [&'static LineTool] = &foreign_lines::LLM_TOOLS;
    const TARGET_HELP: &str = "http://HOST:PORT, https://HOST:PORT over TLS, or unix:/SOCKET:/PATH; the API's path, such as /v1/chat/completions, is added unless the URL has a path, and the part after /v1 where it ends there";

    #[cfg(feature = "targets")]
    fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
        probe::probe_models(address, asking)
    }

    fn into_section(
        self,
        spec: &mut Spec,
        variables: EnvLookup<'_>,
    ) -> Result<HttpSpec, UsageError> {
        let api = self.api.unwrap_or(ModelResponseRules::default().api);
        spec.target = spec.target.as_deref().map(|url| with_api_path(url, api));
        let mut rows = self.rows.clone();
        rows.file = rows.file.or_else(|| self.dataset.clone());
        apply_flags_to_optional("rows", &rows, &mut spec.rows)?;
        let mut headers = parse_fields("--header", &self.headers)?;
        self.credentials.add_to(&mut headers)?;
        self.basic.add_to(&mut headers)?;
        self.add_api_fields(api, &mut headers, variables);
        let follow_ups = self.follow_up.iter();
        let follow_ups: Vec<String> = follow_ups
            .map(|typed| read_text("--follow-up", typed))
            .collect::<Result<_, _>>()?;
        let section = HttpSpec {
            version: self.http_version,
            method: Some("POST".to_owned()),
            body: Some(self.build_body(api)?),
            api: Some(api.name.to_owned()),
            stream: self.answers.no_stream.then_some(StreamSpec::Whole),
            tokenizer: self.answers.tokenizer.clone(),
            retry_refused: self.answers.retry_refused,
            retry_wait: self.answers.retry_wait,
            max_body: self.max_body,
            goodput: combine_goodput_bounds(&self.goodput),
            conversation: self.turns.map(|turns| ConversationSpec {
                turns: Some(turns),
                follow_ups: Some(follow_ups).filter(|texts| !texts.is_empty()),
            }),
            headers,
            ..HttpSpec::default()
        };
        let load = &mut spec.load;
        load.deadline = load
            .deadline
            .or(Some(OptionalPeriod::After(Period(DEFAULT_DEADLINE))));
        let is_open = load.clients.is_none() && section.calls_per_user().is_none();
        if is_open && would_queue(load, self.http_version) {
            load.connections = Some(DEFAULT_CONNECTIONS);
        }
        Ok(section)
    }
}

/// Adds the API's path to `url`, unless `url` already has a path.
fn with_api_path(url: &str, api: &LlmApi) -> String {
    let path = api.path;
    let bare = url.trim_end_matches('/');
    let has_path = match (bare.strip_prefix("unix:"), bare.split_once("://")) {
        (Some(socket), _) => socket.contains(':'),
        (None, Some((_, rest))) => rest.contains('/'),
        (None, None) => false,
    };
    match has_path {
        _ if bare.ends_with("/v1") => format!("{bare}{path}"),
        true => url.to_owned(),
        false if bare.starts_with("unix:") => format!("{bare}:/v1{path}"),
        false => format!("{bare}/v1{path}"),
    }
}

impl LlmFlags {
    /// Adds the header fields that the API needs, and the API key, except those that the user has set.
    fn add_api_fields(
        &self,
        api: &LlmApi,
        headers: &mut BTreeMap<String, MetadataSpec>,
        variables: EnvLookup<'_>,
    ) {
        let mut add = |name: &str, value: String| {
            if !headers.keys().any(|given| given.eq_ignore_ascii_case(name)) {
                headers.insert(name.to_owned(), MetadataSpec::Text(value));
            }
        };
        for (name, value) in api.headers {
            add(name, (*value).to_owned());
        }
        let variable = self.api_key_env.as_deref().unwrap_or(api.key.variable);
        if let Some(key) = variables(variable) {
            // The value of a header field is a template, so braces in the key are escaped.
            let key = key.replace("{{", "{{{{");
            add(api.key.field, format!("{}{key}", api.key.scheme));
        }
    }

    /// Returns the body of the request, which is a template.
    fn build_body(&self, api: &LlmApi) -> Result<String, UsageError> {
        let data_set = self.dataset.as_deref().map(DataSetColumns::read);
        let data_set = data_set.transpose()?;
        let input = data_set.as_ref().map(|data_set| &data_set.input);
        let prompt = match (&self.body, self.prompt_tokens, input) {
            (Some(prompt), ..) => read_text("--prompt", prompt)?,
            (None, Some(tokens), _) => self.build_filler_prompt(tokens)?,
            (None, None, Some(DataSetInput::Prompt(field))) => field.clone(),
            (None, None, _) => DEFAULT_PROMPT.to_owned(),
        };
        let system = self.system.as_deref();
        let system = system.map(|typed| read_text("--system", typed));
        let system = system.transpose()?;
        self.reject_unsupported_flags(api)?;
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.model));
        let documents = self.documents.iter();
        let documents = documents.map(|typed| read_text("--document", typed));
        let documents: Vec<String> = documents.collect::<Result<_, _>>()?;
        let prompt = ModelPrompt {
            system: system.as_deref(),
            prompt: &prompt,
            documents: &documents,
        };
        (api.put_prompt)(&mut body, &prompt);
        let messages = match input {
            Some(DataSetInput::Messages(field)) => {
                Some(self.insert_messages_field(api, &mut body, field)?)
            }
            _ => None,
        };
        if !api.computes_numbers {
            body.insert("stream".to_owned(), json!(!self.answers.no_stream));
        }
        if api.counts_on_request && !self.answers.no_stream && !self.answers.no_usage {
            let options = json!({ "include_usage": true });
            body.insert("stream_options".to_owned(), options);
        }
        let limit = self
            .max_tokens
            .or(api.default_limit.map(TokenRange::exactly));
        let own_limit = data_set.and_then(|data_set| data_set.limit);
        let limit = match own_limit.filter(|_| self.max_tokens.is_none()) {
            Some(field) => Some(Value::String(field)),
            None => limit.map(|tokens| tokens.to_json()),
        };
        if let (Some(key), Some(tokens)) = (api.limit_key, &limit) {
            body.insert(key.to_owned(), tokens.clone());
        }
        let text = match &self.extra {
            Some(typed) => merge_extra_keys(body, &read_text("--extra", typed)?)?,
            None => Value::Object(body).to_string(),
        };
        let text = match messages {
            Some((key, field)) => unquote_field(&text, key, &field),
            None => text,
        };
        Ok(match (api.limit_key, limit) {
            (Some(key), Some(tokens)) => unquote_field(&text, key, &tokens),
            _ => text,
        })
    }

    /// Sets the messages of the body to a template field of the data set. Returns the key of the messages, and the
    /// field.
    fn insert_messages_field(
        &self,
        api: &LlmApi,
        body: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(&'static str, Value), UsageError> {
        let refuse =
            |problem: &str, help: &str| UsageError::new(format_args!("--dataset: {problem}"), help);
        if self.system.is_some() || self.turns.is_some() {
            return Err(refuse(
                "its messages are whole conversations",
                "leave out --system and --turns",
            ));
        }
        let key = api.messages_key.ok_or_else(|| {
            refuse(
                &format!("it has messages, and the {} API takes none", api.name),
                &format!(
                    "write {}",
                    LlmApi::names_where(|api| api.messages_key.is_some())
                ),
            )
        })?;
        let field = Value::from(field);
        body.insert(key.to_owned(), field.clone());
        Ok((key, field))
    }

    /// Generates a prompt of about this many tokens. It begins with the shared prefix; the rest differs between calls
    /// and between runs.
    fn build_filler_prompt(&self, tokens: TokenRange) -> Result<String, UsageError> {
        let shared = self.shared_prefix_tokens.unwrap_or(0);
        if shared >= tokens.low {
            return Err(UsageError::new(
                format_args!(
                    "--shared-prefix-tokens: {shared} tokens leave no room in prompts of --prompt-tokens {tokens}"
                ),
                "use a smaller number",
            ));
        }
        let mut text = Vec::new();
        append_filler_words(shared, &mut text);
        if shared > 0 {
            text.push(b' ');
        }
        text.extend_from_slice(b"{{now}} {{seq}}:");
        let own = TokenRange {
            low: tokens.low - shared - 1,
            high: tokens.high - shared - 1,
        };
        if own.high > 0 {
            text.push(b' ');
        }
        if own.low == own.high {
            append_filler_words(own.low, &mut text);
        } else {
            text.extend_from_slice(format!("{{{{words {} {}}}}}", own.low, own.high).as_bytes());
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Rejects flags that the API does not support.
    fn reject_unsupported_flags(&self, api: &LlmApi) -> Result<(), UsageError> {
        let refuse = |flag: &str, lack: &str, has: fn(&LlmApi) -> bool| {
            UsageError::new(
                format_args!("{flag}: the {} API {lack}", api.name),
                &format!("leave it out, or write {}", LlmApi::names_where(has)),
            )
        };
        if self.system.is_some() && !api.has_system {
            return Err(refuse("--system", "has no system message", |api| {
                api.has_system
            }));
        }
        if self.turns.is_some() && api.messages_key.is_none() {
            let has = |api: &LlmApi| api.messages_key.is_some();
            return Err(refuse("--turns", "has no messages to continue", has));
        }
        if self.max_tokens.is_some() && api.limit_key.is_none() {
            let has = |api: &LlmApi| api.limit_key.is_some();
            return Err(refuse("--max-tokens", "generates no tokens", has));
        }
        if self.answers.no_stream && api.computes_numbers {
            let has = |api: &LlmApi| !api.computes_numbers;
            return Err(refuse("--no-stream", "streams nothing", has));
        }
        if !self.documents.is_empty() && !api.has_documents {
            let has = |api: &LlmApi| api.has_documents;
            return Err(refuse("--document", "has no documents", has));
        }
        // `--extra` may contain the documents, for services that expect them under another key.
        if self.documents.is_empty() && api.has_documents && self.extra.is_none() {
            return Err(UsageError::new(
                format_args!(
                    "--document: missing, and the {} API ranks documents",
                    api.name
                ),
                "write --document TEXT for each",
            ));
        }
        if self.answers.no_usage && !api.counts_on_request {
            let has = |api: &LlmApi| api.counts_on_request;
            return Err(refuse(
                "--no-usage",
                "counts tokens without being asked",
                has,
            ));
        }
        Ok(())
    }
}

/// Returns the value of `flag` as text: the value itself, the content of the file if it is `@FILE`, or stdin if it is
/// `@-`.
fn read_text(flag: &str, typed: &str) -> Result<String, UsageError> {
    if !typed.starts_with('@') {
        return Ok(typed.to_owned());
    }
    let (text, path) = split_text_or_file(Some(typed))?;
    let Some(path) = path else {
        return Ok(text.unwrap_or_default());
    };
    let text = std::fs::read_to_string(&path).map_err(|e| {
        UsageError::new(
            format_args!("{flag}: can't read {}: {e}", path.display()),
            "name a text file after the @",
        )
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests;
