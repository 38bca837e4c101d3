//! `plimsoll llm`: the quick form of a plan, for a model behind OpenAI's API.
//!
//! A short form of `http`: what is typed here becomes one request whose answer is a stream of
//! tokens (`[call.http]`, `stream = "openai"`), and the run's plan has that.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use plimsoll_model::spec::{Limit, MetadataSpec, Spec};
use plimsoll_model::units::Period;
use plimsoll_protocols::http::{ConversationSpec, HttpSpec, HttpVersion};
use serde_json::{Map, Value, json};

use super::http;
use crate::arguments::Origins;
use crate::credentials::CredentialFlags;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::goodput::{self, Bound};
use crate::load_flags::LoadFlags;
use crate::quick;
use crate::row_flags::RowFlags;

/// Of an open loop over HTTP/1.1: as many answers may stream at once.
const CONNECTIONS: u32 = 100;
/// For one answer: it streams for as long as there is text.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);
const PROMPT: &str = "What does the load line show?";

/// Put load on a language model behind OpenAI's API: every answer's first token, from when its request was due.
#[derive(Debug, Args)]
#[command(before_help = "\
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
  plimsoll llm https://llm.example/v1 --model llama --rows prompts.csv --prompt '{{row.prompt}}' --rate 5/s --duration 60s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// http://HOST:PORT, https://HOST:PORT over TLS 1.3, or unix:/SOCKET:/PATH; /v1/chat/completions or
    /// /v1/completions is added unless the URL has a path, and the part after /v1 where it ends there.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// The model, as the service calls it (GET /v1/models lists them).
    #[arg(long, value_name = "NAME", help_heading = "Call")]
    model: String,

    /// Which of its APIs is called [default: chat].
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        value_name = "chat|completions",
        help_heading = "Call"
    )]
    api: Option<Api>,

    /// What is asked, with fields such as {{seq}} or {{row.NAME}} where it varies.
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "prompt_tokens",
        help_heading = "Call"
    )]
    prompt: Option<String>,

    /// Make prompts of about so many tokens up, each with another beginning, so that no cache
    /// of prefixes answers for the model.
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Call"
    )]
    prompt_tokens: Option<u32>,

    /// The system's message before it (chat only).
    #[arg(long, value_name = "TEXT", help_heading = "Call")]
    system: Option<String>,

    /// Conversations: each user sends so many requests, one after another's answer, each with all that was said
    /// before; --think is the pause between an answer and the next turn (chat only).
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Call"
    )]
    turns: Option<u32>,

    /// What is said in the turns after the first, in turn; may be given again [default: the prompt, with fields
    /// filled in anew].
    #[arg(long, value_name = "TEXT", requires = "turns", help_heading = "Call")]
    follow_up: Vec<String>,

    /// Tokens of an answer, at most [default: the service's].
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Call"
    )]
    max_tokens: Option<u32>,

    /// More of the request, an object of JSON: '{\"temperature\": 0, \"ignore_eos\": true}'.
    #[arg(long, value_name = "JSON", help_heading = "Call")]
    extra: Option<String>,

    /// Don't ask the service to count tokens (stream_options), which some refuse.
    #[arg(long, help_heading = "Call")]
    no_usage: bool,

    /// The variable that holds the API's key, sent as a bearer token; where it is not set, none is sent.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "OPENAI_API_KEY",
        help_heading = "Call"
    )]
    api_key_env: String,

    /// A header field, 'name: value'; a value $NAME is taken from the environment; may be given again.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Call")]
    header: Vec<String>,

    /// The version of HTTP: 1.1; 2, in plaintext by prior knowledge; auto, which the server
    /// chooses by ALPN [default: 1.1].
    #[arg(long, value_name = "VERSION", help_heading = "Call")]
    http_version: Option<HttpVersion>,

    /// An answer counts as good when it succeeds within this, from when its request was due: KEY is
    /// first_token (ttft), time_per_token (tpot) or query (e2e). May be given for each of them.
    #[arg(
        long,
        value_name = "KEY=TIME",
        value_delimiter = ',',
        help_heading = "Call"
    )]
    goodput: Vec<Bound>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    rows: RowFlags,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Api {
    #[default]
    Chat,
    Completions,
}

impl Api {
    /// Below `/v1`.
    fn path(self) -> &'static str {
        match self {
            Api::Chat => "/chat/completions",
            Api::Completions => "/completions",
        }
    }
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    let api = arguments.api.unwrap_or_default();
    let call = quick::call(&arguments.call(api, environment)?)?;
    let target = arguments.target.as_deref().map(|url| whole_url(url, api));
    let mut spec = quick::spec(target.as_deref(), call, &arguments.load, origins)?;
    arguments.rows.apply(&mut spec);
    with_defaults(&mut spec, arguments.http_version);
    quick::run(&spec, &arguments.output, environment, process)
}

fn with_defaults(spec: &mut Spec, version: Option<HttpVersion>) {
    let load = &mut spec.load;
    load.deadline = load.deadline.or(Some(Limit::After(Period(DEADLINE))));
    if spec.call.calls_in_a_row().is_some() {
        return;
    }
    http::connections_for(spec, version);
    let load = &mut spec.load;
    let kept = load.reuse.as_ref().is_none_or(|reuse| reuse != "never");
    let queues = version != Some(HttpVersion::V2);
    if kept && queues && load.clients.is_none() && load.connections.is_none() {
        load.connections = Some(CONNECTIONS);
    }
}

/// `url` with the API's path, where it has none of its own.
fn whole_url(url: &str, api: Api) -> String {
    let path = api.path();
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

impl Arguments {
    fn call(&self, api: Api, environment: &Environment) -> Result<HttpSpec, Failure> {
        let mut headers = quick::fields("--header", &self.header)?;
        self.credentials.add_to(&mut headers)?;
        self.add_key(&mut headers, environment);
        Ok(HttpSpec {
            version: self.http_version,
            method: Some("POST".to_owned()),
            body: Some(self.body(api)?),
            stream: Some("openai".to_owned()),
            goodput: goodput::spec(&self.goodput),
            conversation: self.turns.map(|turns| ConversationSpec {
                turns: Some(turns),
                follow_ups: Some(self.follow_up.clone()).filter(|texts| !texts.is_empty()),
            }),
            headers,
            ..HttpSpec::default()
        })
    }

    fn add_key(&self, headers: &mut BTreeMap<String, MetadataSpec>, environment: &Environment) {
        let given = |name: &String| name.eq_ignore_ascii_case("authorization");
        let key = environment.get(&self.api_key_env);
        if let Some(key) = key.filter(|_| !headers.keys().any(given)) {
            // It is no template.
            let key = key.value.replace("{{", "{{{{");
            let value = MetadataSpec::Text(format!("Bearer {key}"));
            headers.insert("authorization".to_owned(), value);
        }
    }

    /// The request, as text with fields.
    fn body(&self, api: Api) -> Result<String, Failure> {
        let prompt = match (&self.prompt, self.prompt_tokens) {
            (Some(prompt), _) => prompt.clone(),
            (None, Some(tokens)) => made(tokens),
            (None, None) => PROMPT.to_owned(),
        };
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.model));
        match (api, &self.system) {
            (Api::Chat, system) => {
                let system = system.iter().map(|text| ("system", text));
                let messages = system.chain([("user", &prompt)]);
                let messages: Vec<Value> = messages
                    .map(|(role, content)| json!({ "role": role, "content": content }))
                    .collect();
                body.insert("messages".to_owned(), Value::Array(messages));
            }
            (Api::Completions, None) if self.turns.is_some() => {
                return Err(Failure::usage(
                    "--turns: completions have no messages to go on with",
                    "leave it out, or write --api chat",
                ));
            }
            (Api::Completions, None) => {
                body.insert("prompt".to_owned(), json!(prompt));
            }
            (Api::Completions, Some(_)) => {
                return Err(Failure::usage(
                    "--system: completions have no messages, and so none of the system",
                    "leave it out, or write --api chat",
                ));
            }
        }
        body.insert("stream".to_owned(), json!(true));
        if !self.no_usage {
            let options = json!({ "include_usage": true });
            body.insert("stream_options".to_owned(), options);
        }
        if let Some(tokens) = self.max_tokens {
            body.insert("max_tokens".to_owned(), json!(tokens));
        }
        if let Some(extra) = &self.extra {
            match serde_json::from_str(extra) {
                Ok(Value::Object(extra)) => body.extend(extra),
                Ok(_) => {
                    return Err(Failure::usage(
                        "--extra: not an object of JSON",
                        "write, for example, --extra '{\"temperature\": 0}'",
                    ));
                }
                Err(e) => {
                    return Err(Failure::usage(
                        format_args!("--extra: not JSON: {e}"),
                        "write, for example, --extra '{\"temperature\": 0}'",
                    ));
                }
            }
        }
        Ok(Value::Object(body).to_string())
    }
}

/// Short words that common tokenizers have a token for each.
const WORDS: [&str; 32] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home",
];

/// A prompt of about so many tokens: its beginning differs from call to call and from run to run.
fn made(tokens: u32) -> String {
    let mut text = "{{now}} {{seq}}:".to_owned();
    let mut state = 1u32;
    for _ in 1..tokens {
        // A linear congruential generator (Numerical Recipes): the same text every time.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push(' ');
        text.push_str(WORDS[(state >> 27) as usize]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_get_the_path_of_their_api() {
        for (typed, whole) in [
            ("http://h:1", "http://h:1/v1/chat/completions"),
            ("https://h/", "https://h/v1/chat/completions"),
            ("http://h:1/v1", "http://h:1/v1/chat/completions"),
            ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
            ("http://h:1/api/v1", "http://h:1/api/v1/chat/completions"),
            ("http://h:1/x?y=1", "http://h:1/x?y=1"),
            ("unix:/tmp/s", "unix:/tmp/s:/v1/chat/completions"),
            ("unix:/tmp/s:/v1", "unix:/tmp/s:/v1/chat/completions"),
            ("unix:/tmp/s:/x", "unix:/tmp/s:/x"),
        ] {
            assert_eq!(whole_url(typed, Api::Chat), whole);
        }
        let url = whole_url("http://h:1", Api::Completions);
        assert_eq!(url, "http://h:1/v1/completions");
    }

    #[test]
    fn made_prompts_have_a_word_a_token() {
        for tokens in [1, 2, 500] {
            let text = made(tokens);
            let (_, words) = text.split_once(':').unwrap();
            assert_eq!(words.split_whitespace().count() as u32 + 1, tokens);
        }
    }
}
