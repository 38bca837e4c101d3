//! Translates command lines of [vLLM](https://docs.vllm.ai)'s server benchmark: `vllm bench serve --model NAME …`.

use super::NO_FILE_HINT;
use super::aiperf::{DOCUMENTS_HINT, add_goodput};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const PROMPT_FILE_HINT: &str =
    "--dataset FILE takes prompts from a file in the format of ShareGPT, of messages or of prompts";

const ANSWER_LENGTH_HINT: &str = "the server decides how long an answer is; --max-tokens N limits all, and a column output_tokens each";

/// Backends for embeddings and rankings, with their APIs.
const POOLING_BACKENDS: [(&str, &str); 3] = [
    ("openai-embeddings", "embeddings"),
    ("infinity-embeddings", "embeddings"),
    ("vllm-rerank", "rerank"),
];

/// Backends with OpenAI's API.
const OPENAI_BACKENDS: [&str; 9] = [
    "vllm",
    "openai",
    "openai-comp",
    "openai-chat",
    "lmdeploy",
    "scalellm",
    "sglang",
    "sglang-oai",
    "sglang-oai-chat",
];

pub(super) static TOOL: LineTool = LineTool {
    names: &[
        "vllm bench serve",
        "bench serve",
        "benchmark_serving.py",
        "-m sglang.bench_serving",
        "sglang.bench_serving",
    ],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["model"], Text, Deferred),
        value(&["served-model-name"], Text, Deferred),
        value(&["backend", "endpoint-type"], Text, Deferred),
        value(&["base-url"], Text, Deferred),
        value(&["host"], Text, Deferred),
        value(&["port"], Number, Deferred),
        value(&["endpoint"], Text, Deferred),
        value(&["header"], Text, Deferred),
        value(&["num-prompts"], Number, Deferred),
        value(&["request-rate"], Text, Deferred),
        value(&["burstiness"], Decimal, Deferred),
        value(&["max-concurrency"], Number, Deferred),
        value(
            &["num-warmups"],
            Number,
            Missing("--warmup 5s warms up by time"),
        ),
        value(&["dataset-name"], Text, Deferred),
        value(&["dataset-path"], Text, Deferred),
        value(
            &["random-input-len", "random-input", "input-len"],
            Number,
            Deferred,
        ),
        value(
            &["random-output-len", "random-output", "output-len"],
            Number,
            Deferred,
        ),
        value(&["random-range-ratio"], Decimal, Deferred),
        value(&["random-prefix-len"], Number, Deferred),
        value(&["sharegpt-output-len"], Number, Deferred),
        value(&["custom-output-len"], Number, Deferred),
        value(&["top-p"], Decimal, Deferred),
        value(&["top-k"], Number, Deferred),
        switch(&["custom-skip-chat-template"], Ignored),
        switch(&["skip-chat-template"], Ignored),
        switch(&["no-stream", "disable-stream"], OurFlag("--no-stream", "")),
        switch(
            &["profile"],
            Missing("--profile of a load samples the server by perf"),
        ),
        value(&["label"], Text, Ignored),
        value(&["metadata"], Text, Ignored),
        value(&["tokenizer-mode"], Text, Ignored),
        value(
            &["lora-modules"],
            Text,
            Missing("a run has one model: --model NAME"),
        ),
        value(&["logprobs"], Number, Deferred),
        switch(&["ignore-eos"], Deferred),
        value(&["temperature"], Decimal, Deferred),
        value(&["tokenizer"], Text, Ignored),
        value(&["seed"], Number, OurFlag("--seed", "")),
        value(&["goodput"], Text, Deferred),
        value(&["percentile-metrics"], Text, Ignored),
        value(&["metric-percentiles"], Text, Ignored),
        switch(&["save-result"], Ignored),
        switch(&["save-detailed"], OurFlag("--requests", "")),
        value(&["result-dir"], Text, Dropped(NO_FILE_HINT)),
        value(&["result-filename"], Text, Dropped(NO_FILE_HINT)),
        switch(&["trust-remote-code"], Ignored),
        switch(&["disable-tqdm"], Ignored),
        value(&["ready-check-timeout-sec"], Number, Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["num-prompts"], &["random-input-len"]],
    finish,
};

/// Adds the flags that depend on several flags of vLLM's benchmark. Requests arrive at random times; with the rate
/// `inf`, all arrive at once.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let prompts = line.number("num-prompts", 1000);
    let most = line.value("max-concurrency").map(str::to_owned);
    let rate = line
        .value("request-rate")
        .filter(|rate| *rate != "inf")
        .map(str::to_owned);
    match rate {
        Some(rate) if rate.parse::<f64>().is_err() => {
            return Err(format!("--request-rate: `{rate}` is not a rate"));
        }
        Some(rate) => {
            line.add("--rate", format_args!("{rate}/s"));
            let shape = line.value("burstiness").unwrap_or("1").to_owned();
            if shape.parse() == Ok(1.0) {
                line.add("--arrivals", "poisson");
            } else {
                line.add("--arrivals", format_args!("gamma={shape}"));
            }
            if let Some(most) = most {
                line.add("--max-in-flight", most);
            }
        }
        None => line.add("--clients", most.unwrap_or_else(|| prompts.to_string())),
    }
    line.add("--calls", prompts);
    add_request(line);
    let base = line
        .value("base-url")
        .map(str::to_owned)
        .unwrap_or_else(|| {
            format!(
                "http://{}:{}",
                line.value("host").unwrap_or("127.0.0.1"),
                line.value("port").unwrap_or("8000")
            )
        });
    let endpoint = line.value("endpoint").unwrap_or_default().to_owned();
    line.target = Some(format!("{}{endpoint}", base.trim_end_matches('/')));
    // The values of `--goodput ttft:200 tpot:50` are separate words of the line.
    for word in std::mem::take(&mut line.words) {
        if line.is_guessed && word.contains("://") && !line.is_set("base-url") {
            line.target = Some(format!("{}{endpoint}", word.trim_end_matches('/')));
            continue;
        }
        if !line.is_set("goodput") || !word.contains(':') {
            return Err(format!("unexpected argument `{word}`"));
        }
        add_goodput(line, &word);
    }
    if line.is_set("model") || line.is_set("served-model-name") {
        Ok(())
    } else {
        line.add("--model", "NAME");
        Err("the model is missing: --model NAME".to_owned())
    }
}

/// Returns the API for the backend and endpoint of the line; `None` if Plimsoll does not support it.
fn find_api(line: &LineBuilder) -> Option<&'static str> {
    let backend = line.value("backend").unwrap_or(OPENAI_BACKENDS[0]);
    let mut pooling = POOLING_BACKENDS.into_iter();
    if let Some((_, api)) = pooling.find(|(name, _)| *name == backend) {
        return Some(api);
    }
    let endpoint = line.value("endpoint").unwrap_or_default();
    let ends_with_chat = |path: &str| path.trim_end_matches('/').ends_with("chat/completions");
    let base = line
        .words
        .iter()
        .map(String::as_str)
        .chain(line.value("base-url"));
    let mut paths = base.filter(|url| url.contains("://")).chain([endpoint]);
    // Behind Plimsoll's own command, its default API is meant.
    let is_default = line.is_guessed && !line.is_set("backend") && endpoint.is_empty();
    let is_chat = backend.ends_with("chat") || paths.any(ends_with_chat) || is_default;
    let is_known = OPENAI_BACKENDS.contains(&backend);
    is_known.then_some(if is_chat { "chat" } else { "completions" })
}

/// Adds the lengths of prompts and answers. `--random-range-ratio` spreads both evenly around their means. The length
/// of a prompt does not include the shared prefix.
fn add_random_lengths(line: &mut LineBuilder, has_answers: bool) {
    let ratio = line.value("random-range-ratio");
    let ratio: f64 = ratio.and_then(|ratio| ratio.parse().ok()).unwrap_or(0.0);
    let prefix = line.number("random-prefix-len", 0);
    let range = |mean: u64, more: u64| {
        let low = (mean as f64 * (1.0 - ratio)).floor().max(1.0) as u64;
        let high = (mean as f64 * (1.0 + ratio)).ceil() as u64;
        if low >= high {
            format!("{}", mean + more)
        } else {
            format!("{}..{}", low + more, high + more)
        }
    };
    let prompts = range(line.number("random-input-len", 1024), prefix);
    line.add("--prompt-tokens", prompts);
    if prefix > 0 {
        line.add("--shared-prefix-tokens", prefix);
    }
    // Only models that generate answers have answer tokens; embeddings and rankings do not.
    if has_answers {
        let answers = range(line.number("random-output-len", 128), 0);
        line.add("--max-tokens", answers);
    }
}

/// Adds the file of a data set if Plimsoll can read its format.
fn add_data_set(line: &mut LineBuilder) {
    let name = line.value("dataset-name").unwrap_or_default().to_owned();
    let file = line.value("dataset-path").map(str::to_owned);
    let limit = ["sharegpt-output-len", "custom-output-len", "output-len"]
        .iter()
        .find_map(|name| line.value(name))
        .map(str::to_owned);
    match (name.as_str(), file) {
        ("sharegpt" | "custom" | "openai", Some(file)) => {
            line.add("--dataset", file);
            match limit {
                Some(limit) => line.add("--max-tokens", limit),
                None => {
                    line.add_dropped("the length of the data set's answers", ANSWER_LENGTH_HINT)
                }
            }
        }
        ("sharegpt" | "custom" | "openai", None) => line.add_unsupported(
            format!("--dataset-name {name}"),
            "nothing is downloaded: --dataset FILE names a file of your own",
        ),
        _ => line.add_unsupported(format!("--dataset-name {name}"), PROMPT_FILE_HINT),
    }
}

fn add_request(line: &mut LineBuilder) {
    let model = line.value("served-model-name").or(line.value("model"));
    if let Some(model) = model.map(str::to_owned) {
        line.add("--model", model);
    }
    let api = find_api(line);
    match api {
        Some("chat") => {}
        Some(api) => line.add("--api", api),
        None => line.add_unsupported(
            "--backend",
            "--api knows chat, completions, responses, messages, embeddings and rerank",
        ),
    }
    if api == Some("rerank") {
        line.add("--document", "TEXT");
        line.add_unsupported("--backend vllm-rerank", DOCUMENTS_HINT);
    }
    let is_random = |name: &str| name.starts_with("random");
    if line.value("dataset-name").is_none_or(is_random) {
        add_random_lengths(line, matches!(api, Some("chat" | "completions") | None));
    } else {
        add_data_set(line);
    }
    let mut extra = Vec::new();
    if line.is_set("ignore-eos") {
        extra.push("\"ignore_eos\": true".to_owned());
    }
    for (name, key) in [
        ("temperature", "temperature"),
        ("top-p", "top_p"),
        ("top-k", "top_k"),
        ("logprobs", "logprobs"),
    ] {
        if let Some(value) = line.value(name) {
            extra.push(format!("\"{key}\": {value}"));
        }
    }
    if !extra.is_empty() {
        line.add("--extra", format_args!("{{{}}}", extra.join(", ")));
    }
    for field in line.values("header") {
        match field.split_once('=') {
            Some((name, value)) => line.add_field("-H", name, value),
            None => line.add("-H", field),
        }
    }
    for pairs in line.values("goodput") {
        add_goodput(line, &pairs);
    }
}
