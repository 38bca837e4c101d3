//! Translates command lines of [AIPerf](https://github.com/ai-dynamo/aiperf): `aiperf profile --model NAME --url
//! HOST:PORT …`; its predecessor GenAI-Perf has the same flags.

use super::NO_FILE_HINT;
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, switch, value, with_scheme,
};

const LENGTH_SPREAD_HINT: &str =
    "lengths are drawn evenly from a range of this mean and spread, not from a normal distribution";
/// The hint for a command line that ranks documents, which the translation can't supply.
pub(super) const DOCUMENTS_HINT: &str =
    "write a document that is ranked in place of TEXT, and --document for each further one";
const RANKED_TEXTS_HINT: &str = "write the documents that are ranked in place of TEXT";
const PASSAGES_HINT: &str =
    "the documents that are ranked are given, not drawn: --document TEXT for each";
const PROMPT_FILE_HINT: &str =
    "--dataset FILE takes prompts from a file in the format of ShareGPT, of messages or of prompts";

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
        switch(&["streaming"], Deferred),
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
            Deferred,
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
            Deferred,
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
        value(&["rankings-query-prompt-token-mean"], Number, Deferred),
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
        value(&["input-file"], Text, Deferred),
        value(&["public-dataset"], Text, Missing(PROMPT_FILE_HINT)),
        value(&["custom-dataset-type"], Text, Deferred),
        value(
            &["conversation-num", "num-conversations", "num-sessions"],
            Number,
            Deferred,
        ),
        value(
            &["conversation-turn-stddev", "session-turns-stddev"],
            Decimal,
            Ignored,
        ),
        value(
            &["conversation-turn-delay-mean", "session-turn-delay-mean"],
            Decimal,
            OurFlag("--think", "ms"),
        ),
        value(&["num-dataset-entries", "num-prompts"], Number, Ignored),
        value(
            &["request-cancellation-rate"],
            Decimal,
            Missing("no calls are cancelled on purpose"),
        ),
        value(
            &["prefix-prompt-length", "shared-system-prompt-length"],
            Number,
            Deferred,
        ),
        value(&["num-prefix-prompts"], Number, Ignored),
        switch(&["gpu-telemetry", "no-gpu-telemetry"], Ignored),
        value(&["server-metrics"], Text, OurFlag("--server-metrics", "")),
        switch(&["no-server-metrics"], Ignored),
        value(&["profile-export-level", "export-level"], Text, Ignored),
        value(&["record-processors"], Number, Ignored),
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

/// Adds the flags that depend on several flags of AIPerf. Without a concurrency, AIPerf sends one request at a time,
/// and without a count at least ten; with a rate, arrivals are random.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    match line.value("request-rate").map(str::to_owned) {
        Some(rate) => {
            line.add("--rate", format_args!("{rate}/s"));
            match line.value("request-rate-mode") {
                Some("constant") => {}
                Some("poisson") | None => line.add("--arrivals", "poisson"),
                Some(_) => line.add_unsupported(
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
    let conversations = line.number("conversation-num", 0);
    if conversations > 0 && !line.is_set("request-count") {
        let turns = line.number("session-turns-mean", 1);
        line.add("--calls", conversations.saturating_mul(turns));
    } else if !line.is_set("request-count") && !line.is_set("benchmark-duration") {
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
    let path = path.or(endpoint_default_path(line.value("endpoint-type")));
    let path = path.map_or_else(String::new, |path| {
        format!("/{}", path.trim_start_matches('/'))
    });
    line.target = Some(format!("{}{path}", url.trim_end_matches('/')));
    if line.is_set("goodput") {
        // The values of `--goodput ttft:200 tpot:50` are separate words of the line.
        let is_limit = |word: &String| {
            let (name, limit) = word.split_once(':').unwrap_or_default();
            !name.contains(['.', '/']) && name != "localhost" && limit.parse::<f64>().is_ok()
        };
        let words = std::mem::take(&mut line.words);
        let (limits, others): (Vec<String>, Vec<String>) = words.into_iter().partition(is_limit);
        line.words = others;
        for limit in limits {
            add_goodput(line, &limit);
        }
    }
    if line.is_guessed
        && !line.is_set("u")
        && let [typed] = &line.words[..]
    {
        let url = with_scheme(typed, "http");
        line.target = Some(format!("{}{path}", url.trim_end_matches('/')));
        line.words.clear();
    }
    // AIPerf asks for whole answers unless it is told to stream; APIs without answer tokens never stream. Limits of
    // tokens' times need a stream.
    let answers = ["chat", "completions", "responses"];
    let endpoint = line.value("endpoint-type").unwrap_or("chat");
    let is_whole = !line.is_set("streaming") && !line.is_set("goodput");
    if !line.is_guessed && is_whole && answers.contains(&endpoint) {
        line.add_switch("--no-stream");
    }
    if let Some(at) = line.words.iter().position(|word| word.starts_with('-')) {
        let further = line.words.split_off(at).join(" ");
        line.add_dropped(
            format!("-- {further}"),
            "these are flags of another program",
        );
    }
    match &line.words[..] {
        [] if line.is_set("m") => Ok(()),
        [] => {
            line.add("--model", "NAME");
            Err("the model is missing: --model NAME".to_owned())
        }
        [word, ..] => Err(format!("unexpected argument `{word}`")),
    }
}

/// Returns the path of an endpoint type whose default path differs from Plimsoll's.
fn endpoint_default_path(endpoint: Option<&str>) -> Option<&'static str> {
    match endpoint? {
        "cohere_rankings" => Some("v2/rerank"),
        "rankings" | "hf_tei_rankings" => Some("rerank"),
        _ => None,
    }
}

/// The length of prompts if the line sets none, in tokens.
const DEFAULT_PROMPT_TOKENS: u64 = 550;

/// Adds the lengths of prompts and answers, or the file of prompts.
fn add_lengths(line: &mut LineBuilder) {
    if let Some(file) = line.value("input-file").map(str::to_owned) {
        match line.value("custom-dataset-type").unwrap_or("single_turn") {
            "single_turn" => line.add("--dataset", file),
            "mooncake_trace" => line.add("--replay", file),
            _ => line.add_unsupported("--custom-dataset-type", PROMPT_FILE_HINT),
        }
    } else if !line.is_set("public-dataset") {
        let mean = [
            "synthetic-input-tokens-mean",
            "rankings-query-prompt-token-mean",
        ]
        .iter()
        .find_map(|name| line.value(name)?.parse().ok())
        .unwrap_or(DEFAULT_PROMPT_TOKENS);
        let spreads = [
            "synthetic-input-tokens-stddev",
            "rankings-query-prompt-token-stddev",
        ];
        let prefix = line.number("prefix-prompt-length", 0);
        add_length(line, "--prompt-tokens", mean, prefix, &spreads);
        if prefix > 0 {
            line.add("--shared-prefix-tokens", prefix);
        }
    }
    if let Some(mean) = line.value("output-tokens-mean") {
        let mean = mean.parse().unwrap_or(1);
        add_length(line, "--max-tokens", mean, 0, &["output-tokens-stddev"]);
    }
}

/// Adds a length of `mean` + `more` tokens. If one of the flags in `spreads` sets a standard deviation, adds the range
/// with the same mean and standard deviation.
fn add_length(line: &mut LineBuilder, flag: &str, mean: u64, more: u64, spreads: &[&str]) {
    let spread = spreads
        .iter()
        .find_map(|name| line.value(name)?.parse::<f64>().ok())
        .unwrap_or(0.0);
    // The standard deviation of an even distribution is its width divided by √12.
    let half = (spread * 3_f64.sqrt()).round() as u64;
    if half == 0 {
        line.add(flag, mean + more);
        return;
    }
    let low = mean.saturating_sub(half).max(1);
    line.add_dropped(format!("--{}", spreads[0]), LENGTH_SPREAD_HINT);
    line.add(flag, format_args!("{}..{}", low + more, mean + half + more));
}

fn add_request(line: &mut LineBuilder) {
    add_lengths(line);
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
            line.add_unsupported("--endpoint-type cohere_rankings", DOCUMENTS_HINT);
        }
        "rankings" | "hf_tei_rankings" => {
            line.add("--api", "rerank");
            extra.push("\"texts\": [\"TEXT\"]".to_owned());
            line.add_unsupported("--endpoint-type hf_tei_rankings", RANKED_TEXTS_HINT);
        }
        _ => line.add_unsupported(
            "--endpoint-type",
            "--api knows chat, completions, responses, messages, embeddings and rerank",
        ),
    }
    if line.is_set("api-key") {
        line.add_unsupported(
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
                line.add_unsupported("--goodput", "goodput bounds are ttft, tpot and e2e");
                continue;
            }
        };
        line.add("--goodput", format_args!("{key}={limit}ms"));
    }
}
