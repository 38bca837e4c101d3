//! Translates command lines of other load tools for HTTP and language models; each tool has a file.

mod ab;
mod addresses;
mod aiperf;
mod autocannon;
mod bombardier;
mod cassowary;
mod curl;
mod engine_benchmarks;
mod fortio;
mod guidellm;
mod h2load;
mod hey;
mod httperf;
mod k6;
mod locust;
mod nghttp;
mod oha;
mod scenarios;
mod script_steps;
mod scripts;
mod siege;
mod test_plans;
mod vegeta;
mod vllm;
mod wrk;

use crate::interface::foreign::cipher_names::suite_from_openssl;
use crate::interface::foreign::command_lines::{LineBuilder, LineTool};

/// The translation of curl's command lines, which can also be imported as the steps of a plan.
pub(super) static CURL_TOOL: &LineTool = &curl::TOOL;

/// The tools whose command lines are translated to `plimsoll http`. A line without a tool's name belongs to the first
/// tool that recognises its flags.
pub(super) static HTTP_TOOLS: [&LineTool; 22] = [
    &h2load::TOOL,
    &hey::TOOL,
    &wrk::TOOL,
    &oha::TOOL,
    &ab::TOOL,
    &bombardier::TOOL,
    &vegeta::TOOL,
    &k6::TOOL,
    &curl::TOOL,
    &fortio::TOOL,
    &fortio::CURL_TOOL,
    &siege::TOOL,
    &locust::TOOL,
    &autocannon::TOOL,
    &httperf::TOOL,
    &nghttp::TOOL,
    &scenarios::DRILL_TOOL,
    &scenarios::ARTILLERY_TOOL,
    &cassowary::TOOL,
    &test_plans::JMETER_TOOL,
    &test_plans::TSUNG_TOOL,
    &test_plans::GATLING_TOOL,
];

/// The tools whose command lines are translated to `plimsoll llm`.
pub(super) static LLM_TOOLS: [&LineTool; 5] = [
    &aiperf::TOOL,
    &vllm::TOOL,
    &engine_benchmarks::LATENCY_TOOL,
    &engine_benchmarks::THROUGHPUT_TOOL,
    &guidellm::TOOL,
];

/// The number of connections of an open loop, for tools that open as many as they need.
const OPEN_LOOP_CONNECTIONS: u64 = 100;

const NO_SCRIPT_HINT: &str =
    "there is no script language; fields such as {{seq}} and --rows vary requests";
const NO_FILE_HINT: &str =
    "every run leaves a directory, and `plimsoll report --export` writes files from it";
/// The hint at files with a line per request.
const REQUESTS_FILE_HINT: &str = "a line of Plimsoll with --requests keeps each request, and `plimsoll report LATEST --export csv DIR` (or `lines FILE`) writes them";
/// The hint at files with the figures of a run.
const JSON_FILE_HINT: &str = "a line of Plimsoll with `--json > FILE` writes the figures as JSON";
const NO_HTTP3_HINT: &str = "HTTP/3 is not spoken; the line above uses HTTP/2 or HTTP/1.1, as far as the server offers them";
const ANY_ADDRESS_HINT: &str =
    "the system chooses among a name's addresses; --resolve NAME:PORT:ADDRESS gives it one";

/// Adds Basic authentication with `USER:PASSWORD` from the tool's flag `name`.
fn add_basic_auth(line: &mut LineBuilder, name: &str) {
    match line.value(name).map(str::to_owned) {
        Some(pair) if pair.contains(':') => line.add("-u", pair),
        Some(user) => {
            line.add("-u", format_args!("{user}:PASSWORD"));
            line.add_unsupported(
                format!("-{name}"),
                "the password is missing: -u USER:PASSWORD",
            );
        }
        None => {}
    }
}

/// Adds the tool's default content type `kind` if the line has a body but sets no content type. `bodies`: the tool's
/// flags for bodies.
fn add_content_type(line: &mut LineBuilder, bodies: &[&str], kind: &str) {
    let is_type = |word: &String| word.to_ascii_lowercase().starts_with("content-type:");
    if bodies.iter().any(|name| line.is_set(name)) && !line.our_flags.iter().any(is_type) {
        line.add_field("-H", "content-type", kind);
    }
}

/// Adds the flag for the number of redirects that the tool follows.
fn add_redirects(line: &mut LineBuilder, most: u64) {
    match most {
        0 => {}
        10 => line.add_switch("-L"),
        most => line.add_switch(&format!("--redirects={most}")),
    }
}

/// Adds `--proxy` with the value of the tool's flag `name`; a proxy without a scheme gets `http`.
fn add_proxy(line: &mut LineBuilder, name: &str) {
    if let Some(proxy) = line.value(name) {
        let proxy = crate::interface::foreign::command_lines::with_scheme(proxy, "http");
        line.add("--proxy", proxy);
    }
}

/// Adds one closed-loop client for each of the tool's workers. If there is a rate, adds an open loop with one
/// connection for each worker instead.
fn add_workers(line: &mut LineBuilder, workers: u64, rate: Option<f64>) {
    match rate {
        Some(rate) if rate > 0.0 => {
            line.add("--connections", workers);
            line.add("--rate", format_args!("{rate}/s"));
        }
        _ => line.add("--clients", workers),
    }
}

/// Adds `-X GET` for a tool that sends bodies with GET, where `plimsoll http` would use POST. `bodies`: the tool's
/// flags for bodies. `method`: its flag for the method.
fn add_get_with_body(line: &mut LineBuilder, bodies: &[&str], method: &str) {
    if bodies.iter().any(|name| line.is_set(name)) && !line.is_set(method) {
        line.add("-X", "GET");
    }
}

/// Rejects body texts that begin with @, which `plimsoll http` would read as a file's name.
fn reject_leading_at_sign(line: &mut LineBuilder, name: &str) {
    let begins = |text: &String| text.starts_with('@') || text == "-";
    if line.values(name).iter().any(begins) {
        line.add_unsupported(
            format!("-{name} @…"),
            "a body that begins with @ is the name of a file here: put the text into a file",
        );
    }
}

/// Adds `--suite` for each suite in the lists of the tool's flags `names`. Suites that are not supported are left out
/// if others remain.
fn add_suites(line: &mut LineBuilder, names: &[&str]) {
    let lists = names.iter().flat_map(|name| line.values(name));
    let lists: Vec<String> = lists.collect();
    let typed = lists.iter().flat_map(|list| list.split([':', ',']));
    let mut unsupported = Vec::new();
    let mut count = 0;
    for name in typed.filter(|name| !name.is_empty()) {
        if name.starts_with("TLS_") {
            line.add("--suite", name);
        } else if let Some(ours) = suite_from_openssl(name) {
            line.add("--suite", ours);
        } else {
            unsupported.push(name);
            continue;
        }
        count += 1;
    }
    for name in unsupported {
        if count > 0 {
            line.add_dropped(name, "the suite is not supported");
        } else {
            line.add_unsupported(name, "--suite names a suite of TLS 1.3 or 1.2");
        }
    }
}

/// Adds the flag that lets the server choose HTTP/2 by ALPN, for tools that allow this over TLS.
fn add_alpn(line: &mut LineBuilder) {
    let target = line.target.as_deref();
    if target.is_some_and(|url| url.starts_with("https")) {
        line.add("--http-version", "auto");
    }
}

/// Returns a flag's value as a number that may have a fraction.
fn decimal_value(line: &LineBuilder, name: &str) -> Option<f64> {
    line.value(name)?.parse().ok()
}

/// Adds `--deadline` if the tool's flag `name` is set; 0 means no deadline.
fn add_deadline(line: &mut LineBuilder, name: &str) {
    if let Some(time) = line.value(name) {
        let time = match time {
            "0" | "0s" => "none".to_owned(),
            time => crate::interface::foreign::command_lines::with_unit(time, "s"),
        };
        line.add("--deadline", time);
    }
}

/// Reads the target of a tool that does not check certificates, and adds `--insecure` for https.
fn take_target_without_verification(line: &mut LineBuilder) -> Result<(), String> {
    line.set_target_from_word("http")?;
    if line
        .target
        .as_deref()
        .is_some_and(|url| url.starts_with("https"))
    {
        line.add_switch("--insecure");
    }
    Ok(())
}
