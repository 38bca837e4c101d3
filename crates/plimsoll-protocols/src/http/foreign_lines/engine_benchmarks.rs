//! Recognises command lines that measure an inference engine without a server: `vllm bench latency`, `vllm bench
//! throughput`, and those of SGLang. The translation measures a server instead, and the error says how the figures
//! differ.

use crate::interface::foreign::command_lines::FlagMeaning::{Deferred, Dropped, Ignored, OurFlag};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineFlag, LineTool, switch, value,
};

const ENGINE_HINT: &str = "the server is started with it";

const FLAGS: &[LineFlag] = &[
    value(&["model", "model-path"], Text, OurFlag("--model", "")),
    value(
        &["input-len", "random-input-len", "random-input"],
        Number,
        Deferred,
    ),
    value(
        &["output-len", "random-output-len", "random-output"],
        Number,
        Deferred,
    ),
    value(&["batch-size", "batch"], Number, Deferred),
    value(&["num-iters"], Number, Deferred),
    value(&["num-iters-warmup"], Number, Ignored),
    value(&["num-prompts"], Number, Deferred),
    value(&["n"], Number, Ignored),
    value(&["dataset-name"], Text, Ignored),
    value(&["dataset-path", "dataset"], Text, OurFlag("--dataset", "")),
    value(&["backend"], Text, Ignored),
    value(&["tokenizer"], Text, Ignored),
    value(&["seed"], Number, OurFlag("--seed", "")),
    value(&["output-json", "result-filename"], Text, Ignored),
    switch(&["disable-detokenize"], Ignored),
    switch(&["trust-remote-code"], Ignored),
    value(
        &["tensor-parallel-size", "tp", "tp-size"],
        Number,
        Dropped(ENGINE_HINT),
    ),
    value(
        &["pipeline-parallel-size", "pp"],
        Number,
        Dropped(ENGINE_HINT),
    ),
    value(&["dtype"], Text, Dropped(ENGINE_HINT)),
    value(&["quantization"], Text, Dropped(ENGINE_HINT)),
    value(&["kv-cache-dtype"], Text, Dropped(ENGINE_HINT)),
    value(&["load-format"], Text, Dropped(ENGINE_HINT)),
    value(
        &["max-model-len", "context-length"],
        Number,
        Dropped(ENGINE_HINT),
    ),
    value(&["max-num-seqs"], Number, Dropped(ENGINE_HINT)),
    value(&["max-num-batched-tokens"], Number, Dropped(ENGINE_HINT)),
    value(
        &["gpu-memory-utilization", "mem-fraction-static"],
        Decimal,
        Dropped(ENGINE_HINT),
    ),
    switch(&["enforce-eager"], Dropped(ENGINE_HINT)),
    switch(&["enable-prefix-caching"], Dropped(ENGINE_HINT)),
    switch(&["enable-chunked-prefill"], Dropped(ENGINE_HINT)),
    value(&["device"], Text, Dropped(ENGINE_HINT)),
];

pub(super) static LATENCY_TOOL: LineTool = LineTool {
    names: &[
        "vllm bench latency",
        "bench latency",
        "benchmark_latency.py",
        "-m sglang.bench_one_batch",
        "-m sglang.bench_one_batch_server",
    ],
    style: FlagStyle::Gnu,
    flags: FLAGS,
    reads_stdin: false,
    marker_flags: &[],
    finish: |line| {
        let batch = line.number("batch-size", 8);
        add_load(
            line,
            batch,
            batch.saturating_mul(line.number("num-iters", 30)),
        )?;
        Err("it times batches inside the engine, or at a server that it starts for them: the line above has as many calls in flight at one, whose times count the HTTP request and what the server waits for".to_owned())
    },
};

pub(super) static THROUGHPUT_TOOL: LineTool = LineTool {
    names: &[
        "vllm bench throughput",
        "bench throughput",
        "benchmark_throughput.py",
        "-m sglang.bench_offline_throughput",
    ],
    style: FlagStyle::Gnu,
    flags: FLAGS,
    reads_stdin: false,
    marker_flags: &[],
    finish: |line| {
        let prompts = line.number("num-prompts", 1000);
        add_load(line, prompts, prompts)?;
        Err("it gives all prompts to the engine at once, without a server: the line above sends them to one at once, and its tokens a second count the HTTP requests".to_owned())
    },
};

/// Adds a load of a server: `clients` who make `calls` together.
///
/// # Errors
/// Returns an error if the line was guessed, or has no model.
fn add_load(line: &mut LineBuilder, clients: u64, calls: u64) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of an engine's benchmark".to_owned());
    }
    line.target = Some("http://127.0.0.1:8000".to_owned());
    line.add("--clients", clients);
    line.add("--calls", calls);
    line.add("--api", "completions");
    if !line.is_set("dataset-path") {
        line.add("--prompt-tokens", line.number("input-len", 32));
    }
    line.add("--max-tokens", line.number("output-len", 128));
    if line.is_set("model") {
        Ok(())
    } else {
        line.add("--model", "NAME");
        Err("the model is missing: --model NAME".to_owned())
    }
}
