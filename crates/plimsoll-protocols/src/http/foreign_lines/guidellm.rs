//! Translates command lines of [GuideLLM](https://github.com/vllm-project/guidellm): `guidellm benchmark --target URL
//! --rate-type constant --rate 10 --data prompt_tokens=256,output_tokens=128 …`.

use super::NO_FILE_HINT;
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, switch, value, with_scheme,
};

const PROMPT_FILE_HINT: &str =
    "--dataset FILE takes prompts from a file in the format of ShareGPT, of messages or of prompts";

pub(super) static TOOL: LineTool = LineTool {
    names: &["guidellm benchmark run", "guidellm benchmark", "guidellm"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["target"], Text, Deferred),
        value(&["model"], Text, OurFlag("--model", "")),
        value(&["rate-type", "profile"], Text, Deferred),
        value(&["rate"], Text, Deferred),
        value(&["max-seconds"], Decimal, OurFlag("--duration", "s")),
        value(&["max-requests"], Number, OurFlag("--calls", "")),
        value(&["data"], Text, Deferred),
        value(&["request-type"], Text, Deferred),
        value(&["random-seed"], Number, OurFlag("--seed", "")),
        value(
            &["warmup-percent", "warmup"],
            Decimal,
            Missing("--warmup 5s warms up by time"),
        ),
        value(
            &["cooldown-percent", "cooldown"],
            Decimal,
            Missing("a load's end is not left out"),
        ),
        value(&["processor"], Text, Ignored),
        value(&["processor-args"], Text, Ignored),
        value(&["data-args"], Text, Ignored),
        value(&["data-sampler"], Text, Ignored),
        value(&["backend", "backend-type"], Text, Ignored),
        value(
            &["backend-args", "backend-kwargs"],
            Text,
            Missing("--extra JSON adds members to requests, and -H fields"),
        ),
        value(&["output-path", "output-dir"], Text, Dropped(NO_FILE_HINT)),
        value(&["output-extras", "outputs"], Text, Ignored),
        switch(&["disable-progress", "disable-console"], Ignored),
        switch(&["disable-console-outputs"], Ignored),
        switch(&["display-scheduler-stats"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish,
};

/// Adds the flags that depend on several flags of GuideLLM. The rate of a `concurrent` profile is its number of streams.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of GuideLLM".to_owned());
    }
    let target = line.value("target").unwrap_or("http://localhost:8000");
    line.target = Some(with_scheme(target, "http"));
    add_profile(line);
    add_data(line);
    match line.value("request-type").unwrap_or("chat_completions") {
        "chat_completions" => {}
        "text_completions" => line.add("--api", "completions"),
        _ => line.add_unsupported("request-type", "requests are of chat or of completions"),
    }
    if let Some(word) = line.words.first() {
        return Err(format!("unexpected argument `{word}`"));
    }
    if !line.is_set("model") {
        line.add("--model", "NAME");
        return Err("the model is missing: --model NAME".to_owned());
    }
    if !line.is_set("max-seconds") && !line.is_set("max-requests") {
        line.add("--duration", "30s");
        return Err("it has no end: the line above has --duration 30s".to_owned());
    }
    Ok(())
}

/// Adds the clients or the rate of the profile. Of several rates, the first is taken: each is a load of its own.
fn add_profile(line: &mut LineBuilder) {
    let rates = line.value("rate").unwrap_or_default().to_owned();
    let (first, others) = rates.split_once(',').unwrap_or((rates.as_str(), ""));
    if !others.is_empty() {
        line.add_unsupported(
            format!("--rate {rates}"),
            "each rate is a load of its own: repeat the line with each",
        );
    }
    let first = if first.is_empty() { "1" } else { first };
    match line.value("rate-type").unwrap_or("sweep") {
        "synchronous" => line.add("--clients", 1),
        "concurrent" => line.add("--clients", first),
        "constant" => line.add("--rate", format_args!("{first}/s")),
        "poisson" | "async" => {
            line.add("--rate", format_args!("{first}/s"));
            line.add("--arrivals", "poisson");
        }
        "throughput" => {
            line.add("--clients", line.number("max-requests", 512));
            if !line.is_set("max-requests") {
                line.add_unsupported(
                    "throughput",
                    "a closed loop has a number of clients: GuideLLM sends as many requests as it can",
                );
            }
        }
        _ => {
            line.add("--clients", 1);
            line.add_unsupported(
                "sweep",
                "the highest rate that meets an objective is found by a search: save the line's plan by --save-plan FILE, then plimsoll find FILE",
            );
        }
    }
}

/// Adds the lengths of made-up prompts and answers, or a file of prompts.
fn add_data(line: &mut LineBuilder) {
    let Some(data) = line.value("data").map(str::to_owned) else {
        return;
    };
    if [".json", ".jsonl"].iter().any(|end| data.ends_with(end)) {
        line.add("--dataset", data);
        return;
    }
    // The lengths are written as `prompt_tokens=256,output_tokens=128`, or as a JSON object.
    let plain: String = data.chars().filter(|c| !"{}\" ".contains(*c)).collect();
    let pairs = plain
        .split(',')
        .filter_map(|pair| pair.split_once(['=', ':']));
    let mut has_prompts = false;
    for (key, text) in pairs {
        let flag = match key {
            "prompt_tokens" => "--prompt-tokens",
            "output_tokens" => "--max-tokens",
            _ => continue,
        };
        if let Ok(tokens) = text.parse::<u64>() {
            has_prompts |= key == "prompt_tokens";
            line.add(flag, tokens);
        }
    }
    if !has_prompts {
        line.add_unsupported(data, PROMPT_FILE_HINT);
    } else if plain.contains("_stdev") {
        line.add_dropped(
            "the spread of lengths",
            "a range of lengths is --prompt-tokens 200..300",
        );
    }
}
