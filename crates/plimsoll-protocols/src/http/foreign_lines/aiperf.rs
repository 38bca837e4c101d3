//! Translates command lines of [AIPerf](https://github.com/ai-dynamo/aiperf): `aiperf profile --model NAME --url
//! HOST:PORT …`; its predecessor GenAI-Perf has the same flags.

use super::NO_FILE_HINT;
use crate::foreign::command_lines::FlagMeaning::{Deferred, Dropped, Missing, Ignored, OurFlag};
use crate::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value, with_scheme};

pub(super) const LENGTH_SPREAD_HINT: &str =
    "prompts are about as long as --prompt-tokens says; --rows has prompts of any lengths";
/// The hint for a line that ranks documents, since the translation can't supply them.
pub(super) const DOCUMENTS_HINT: &str =
    "write a document that is ranked in place of TEXT, and --document for each further one";
const RANKED_TEXTS_HINT: &str = "write the documents that are ranked in place of TEXT";
const PASSAGES_HINT: &str =
    "the documents that are ranked are given, not drawn: --document TEXT for each";
const PROMPT_FILE_HINT: &str = "--rows FILE with --prompt '{{row.NAME}}' takes prompts from a file";

pub(super) static TOOL: LineTool = LineTool {
    names: &[
        "aiperf profile",
        "genai-perf profile",
        "aiperf",
        "genai-perf",
    ],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["m", "model", "model-names"], Text, OurFlag("--model", "")),
        value(&["u", "url"], Text, Deferred),
        value(&["endpoint"], Text, Deferred),
        value(&["custom-endpoint"], Text, Deferred),
        value(&["endpoint-type"], Text, Deferred),
        switch(&["streaming"], Ignored),
        value(&["concurrency"], Number, Deferred),
        value(&["request-rate"], Decimal, Deferred),
        value(&["request-rate-mode", "arrival-pattern"], Text, Deferred),
        value(
            &["request-count", "num-requests"],
            Number,
            OurFlag("--calls", ""),
        ),
        value(&["benchmark-duration"], Decimal, OurFlag("--duration", "s")),
        value(
            &["warmup-request-count", "num-warmup-requests"],
            Number,
            Missing("--warmup 5s warms up by time"),
        ),
        value(
            &[
                "synthetic-input-tokens-mean",
                "isl",
                "prompt-input-tokens-mean",
            ],
            Number,
            OurFlag("--prompt-tokens", ""),
        ),
        value(
            &[
                "synthetic-input-tokens-stddev",
                "isl-stddev",
                "prompt-input-tokens-stddev",
            ],
            Decimal,
            Deferred,
        ),
        value(
            &["output-tokens-mean", "osl", "prompt-output-tokens-mean"],
            Number,
            OurFlag("--max-tokens", ""),
        ),
        value(
            &[
                "output-tokens-stddev",
                "osl-stddev",
                "prompt-output-tokens-stddev",
            ],
            Decimal,
            Deferred,
        ),
        value(&["rankings-passages-mean"], Number, Missing(PASSAGES_HINT)),
        value(&["rankings-passages-stddev"], Decimal, Ignored),
        value(&["rankings-passages-prompt-token-mean"], Number, Ignored),
        value(&["rankings-passages-prompt-token-stddev"], Decimal, Ignored),
        value(
            &["rankings-query-prompt-token-mean"],
            Number,
            OurFlag("--prompt-tokens", ""),
        ),
        value(&["rankings-query-prompt-token-stddev"], Decimal, Deferred),
        value(&["tokenizer"], Text, Ignored),
        switch(&["tokenizer-trust-remote-code"], Ignored),
        value(&["tokenizer-revision"], Text, Ignored),
        value(&["random-seed"], Number, OurFlag("--seed", "")),
        value(&["extra-inputs"], Text, Deferred),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        value(&["api-key"], Text, Deferred),
        value(&["goodput"], Text, Deferred),
        value(
            &["request-timeout-seconds"],
            Decimal,
            OurFlag("--deadline", "s"),
        ),
        value(&["input-file"], Text, Missing(PROMPT_FILE_HINT)),
        value(&["public-dataset"], Text, Missing(PROMPT_FILE_HINT)),
        value(&["custom-dataset-type"], Text, Missing(PROMPT_FILE_HINT)),
        value(
            &["session-turns-mean", "conversation-turn-mean"],
            Number,
            OurFlag("--turns", ""),
        ),
        value(
            &["artifact-dir", "output-artifact-dir"],
            Text,
            OurFlag("--out", ""),
        ),
        value(&["profile-export-file"], Text, Dropped(NO_FILE_HINT)),
        value(&["workers-max", "max-workers"], Number, Ignored),
        value(&["ui", "ui-type"], Text, Ignored),
        value(&["service-kind"], Text, Ignored),
        value(&["backend"], Text, Ignored),
        value(&["measurement-interval", "p"], Number, Deferred),
        switch(&["v", "verbose"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[
        &["m", "request-count"],
        &["m", "endpoint-type"],
        &["m", "request-rate"],
    ],
    finish,
};

/// Adds the flags that depend on several flags of AIPerf. Without a concurrency it sends one request at a time, and
/// without a count at least ten; with a rate, arrivals are random.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    match line.value("request-rate").map(str::to_owned) {
        Some(rate) => {
            line.add("--rate", format_args!("{rate}/s"));
            match line.value("request-rate-mode") {
                Some("constant") => {}
                Some("poisson") | None => line.add("--arrivals", "poisson"),
                Some(_) => line.add_missing(
                    "--request-rate-mode",
                    "arrivals are constant, poisson or gamma=SHAPE",
                ),
            }
            if let Some(most) = line.value("concurrency").map(str::to_owned) {
                line.add("--max-in-flight", most);
            }
        }
        None => line.add("--clients", line.number("concurrency", 1)),
    }
    if !line.is_set("request-count") && !line.is_set("benchmark-duration") {
        line.add(
            "--calls",
            line.number("concurrency", 1).saturating_mul(2).max(10),
        );
    }
    add_request(line);
    for pairs in line.values("goodput") {
        add_goodput(line, &pairs);
    }
    let url = line.value("u").unwrap_or("localhost:8000");
    let path = ["endpoint", "custom-endpoint"]
        .iter()
        .find_map(|name| line.value(name));
    let url = with_scheme(url, "http");
    let path = path.or(default_path(line.value("endpoint-type")));
    let path = path.map_or_else(String::new, |path| {
        format!("/{}", path.trim_start_matches('/'))
    });
    line.target = Some(format!("{}{path}", url.trim_end_matches('/')));
    match &line.words[..] {
        [] if line.is_set("m") => Ok(()),
        [] => {
            line.add("--model", "NAME");
            Err("the model is missing: --model NAME".to_owned())
        }
        [word, ..] => Err(format!("unexpected argument `{word}`")),
    }
}

/// Returns the path of an endpoint whose default path differs from ours.
fn default_path(endpoint: Option<&str>) -> Option<&'static str> {
    match endpoint? {
        "cohere_rankings" => Some("v2/rerank"),
        "rankings" | "hf_tei_rankings" => Some("rerank"),
        _ => None,
    }
}

fn add_request(line: &mut LineBuilder) {
    let data = [
        "synthetic-input-tokens-mean",
        "rankings-query-prompt-token-mean",
        "input-file",
        "public-dataset",
    ];
    if !data.iter().any(|name| line.is_set(name)) {
        line.add("--prompt-tokens", 550);
    }
    let mut extra = Vec::new();
    match line.value("endpoint-type").unwrap_or("chat") {
        "chat" => {}
        api @ ("completions" | "responses" | "embeddings") => {
            let api = api.to_owned();
            line.add("--api", api);
        }
        "nim_embeddings" => {
            line.add("--api", "embeddings");
            extra.push("\"input_type\": \"query\"".to_owned());
        }
        "cohere_rankings" => {
            line.add("--api", "rerank");
            line.add("--document", "TEXT");
            line.add_missing("--endpoint-type cohere_rankings", DOCUMENTS_HINT);
        }
        "rankings" | "hf_tei_rankings" => {
            line.add("--api", "rerank");
            extra.push("\"texts\": [\"TEXT\"]".to_owned());
            line.add_missing("--endpoint-type hf_tei_rankings", RANKED_TEXTS_HINT);
        }
        _ => line.add_missing(
            "--endpoint-type",
            "--api knows chat, completions, responses, messages, embeddings and rerank",
        ),
    }
    for name in [
        "synthetic-input-tokens-stddev",
        "rankings-query-prompt-token-stddev",
        "output-tokens-stddev",
    ] {
        if line
            .value(name)
            .is_some_and(|value| value.parse() != Ok(0.0))
        {
            line.add_missing(format!("--{name}"), LENGTH_SPREAD_HINT);
        }
    }
    if line.is_set("api-key") {
        line.add_missing(
            "--api-key",
            "the key comes from the variable OPENAI_API_KEY (--api-key-env NAME names another)",
        );
    }
    if line.is_set("measurement-interval") {
        let milliseconds = line.number("measurement-interval", 0);
        line.add("--duration", format_args!("{milliseconds}ms"));
    }
    let given = line.values("extra-inputs");
    extra.extend(given.iter().map(|pair| to_json_member(pair)));
    if !extra.is_empty() {
        line.add("--extra", format_args!("{{{}}}", extra.join(", ")));
    }
}

/// Converts a pair such as `ignore_eos:true` to a member of a JSON object. The text of an object is converted to its
/// members.
fn to_json_member(pair: &str) -> String {
    let object = pair.trim().strip_prefix('{');
    if let Some(members) = object.and_then(|rest| rest.strip_suffix('}')) {
        return members.to_owned();
    }
    let (name, value) = pair.split_once(':').unwrap_or((pair, "true"));
    let is_json = serde_json::from_str::<serde_json::Value>(value).is_ok();
    let value = if is_json {
        value.to_owned()
    } else {
        serde_json::Value::from(value).to_string()
    };
    format!("{}: {value}", serde_json::Value::from(name))
}

/// Adds `--goodput` for limits in milliseconds, such as `time_to_first_token:300 inter_token_latency:20`.
pub(super) fn add_goodput(line: &mut LineBuilder, pairs: &str) {
    for pair in pairs.split([' ', ',']).filter(|pair| !pair.is_empty()) {
        let (name, limit) = pair.split_once(':').unwrap_or((pair, ""));
        let key = match name {
            "time_to_first_token" | "ttft" => "ttft",
            "inter_token_latency" | "tpot" | "time_per_output_token" => "tpot",
            "request_latency" | "e2el" => "e2e",
            _ => {
                line.add_missing("--goodput", "goodput bounds are ttft, tpot and e2e");
                continue;
            }
        };
        line.add("--goodput", format_args!("{key}={limit}ms"));
    }
}
