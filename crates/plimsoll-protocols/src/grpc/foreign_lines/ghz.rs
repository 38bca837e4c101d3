//! Translates command lines of [ghz](https://ghz.sh).

use std::collections::BTreeMap;

use std::path::Path;

use plimsoll_model::formats::input;
use serde_json::{Map, Value};

use super::{add_descriptions, method_with_slash, schedules, set_target};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, METHOD_PLACEHOLDER, switch, value,
};

const FIXED_CLIENTS_REASON: &str = "the number of clients does not change during a load";

pub(super) static TOOL: LineTool = LineTool {
    names: &["ghz"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["config"], Text, Deferred),
        value(&["proto"], Text, Deferred),
        value(&["protoset"], Text, Deferred),
        value(&["import-path", "i", "import-paths"], Text, Deferred),
        value(&["call"], Text, Deferred),
        value(&["cacert"], Text, OurFlag("--ca", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        value(&["cname"], Text, OurFlag("--server-name", "")),
        switch(&["skipTLS"], OurFlag("--insecure", "")),
        switch(&["insecure"], Deferred),
        value(&["authority"], Text, OurFlag("--authority", "")),
        switch(&["async"], Ignored),
        value(&["r", "rps"], Decimal, Deferred),
        value(&["load-schedule"], Text, Deferred),
        value(&["load-start"], Number, Deferred),
        value(&["load-step"], Text, Deferred),
        value(&["load-end"], Number, Deferred),
        value(&["load-step-duration"], Text, Deferred),
        value(&["load-max-duration"], Text, Deferred),
        value(&["c", "concurrency"], Number, Deferred),
        value(
            &["concurrency-schedule"],
            Text,
            Missing(FIXED_CLIENTS_REASON),
        ),
        value(
            &["concurrency-start"],
            Number,
            Missing(FIXED_CLIENTS_REASON),
        ),
        value(&["concurrency-end"], Number, Missing(FIXED_CLIENTS_REASON)),
        value(&["concurrency-step"], Number, Missing(FIXED_CLIENTS_REASON)),
        value(
            &["concurrency-step-duration"],
            Text,
            Missing(FIXED_CLIENTS_REASON),
        ),
        value(
            &["concurrency-max-duration"],
            Text,
            Missing(FIXED_CLIENTS_REASON),
        ),
        value(&["n", "total"], Number, Deferred),
        value(&["t", "timeout"], Time, Deferred),
        value(&["z", "duration"], Time, Deferred),
        value(&["x", "max-duration"], Time, OurFlag("--duration", "")),
        value(&["duration-stop"], Text, Ignored),
        value(&["d", "data"], Text, Deferred),
        value(&["D", "data-file"], Text, Words(&["-d", "@{}"])),
        switch(&["b", "binary"], Words(&["--data-binary", "@-"])),
        value(
            &["B", "binary-file"],
            Text,
            Words(&["--data-binary", "@{}"]),
        ),
        value(&["m", "metadata"], Text, Deferred),
        value(
            &["M", "metadata-file"],
            Text,
            Missing("--metadata 'name: value' sets each"),
        ),
        value(&["stream-interval"], Time, OurFlag("--pace", "")),
        value(
            &["stream-call-duration"],
            Time,
            OurFlag("--stream-duration", ""),
        ),
        value(&["stream-call-count"], Number, OurFlag("--messages", "")),
        switch(&["stream-dynamic-messages"], Ignored),
        value(
            &["reflect-metadata"],
            Text,
            Missing("reflection queries carry the fields of --metadata"),
        ),
        value(
            &["max-recv-message-size", "max-send-message-size"],
            Text,
            Missing("--max-message 16MiB accepts larger answers"),
        ),
        switch(
            &["enable-compression", "e"],
            Words(&["--compression", "gzip"]),
        ),
        value(
            &["lb-strategy"],
            Text,
            Missing("all addresses of a name are used in turn"),
        ),
        value(&["connections"], Number, OurFlag("--connections", "")),
        value(&["connect-timeout"], Time, OurFlag("--connect-timeout", "")),
        value(&["keepalive"], Time, Missing("no keepalive pings are sent")),
        value(&["cpus"], Number, Deferred),
        value(&["name"], Text, OurFlag("--name", "")),
        value(&["tags"], Text, Ignored),
        value(&["o", "output"], Text, Deferred),
        value(&["O", "format"], Text, Deferred),
        value(
            &["skipFirst"],
            Number,
            Missing("--warmup 5s excludes the beginning, by time"),
        ),
        switch(&["count-errors"], Ignored),
        value(&["debug"], Text, Ignored),
        switch(&["disable-template-functions"], Ignored),
        switch(&["disable-template-data"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["call"]],
    finish,
};

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if let Some(file) = line.value("config").map(str::to_owned) {
        let words = config_words(&file)?;
        let parsed = TOOL.parse(&words);
        line.prepend_line(
            parsed.map_err(|_| format!("--config: {file} has a key that is not known"))?,
        );
    }
    let method = line.value("call").map(method_with_slash);
    let method = method.or(plimsoll_method(line).map(str::to_owned));
    line.add("-m", method.as_deref().unwrap_or(METHOD_PLACEHOLDER));
    add_data(line)?;
    add_descriptions(line);
    line.add_workers_from_flag("cpus", line.number("connections", 1));
    let clients = line.number("c", 50);
    let schedule = line.value("load-schedule").map(str::to_owned);
    let (rate, problem) = match schedule.as_deref() {
        Some(kind @ ("step" | "line")) => (None, schedules::add_rate_steps(line, kind).err()),
        _ => (line.value("r").map(str::to_owned), None),
    };
    match rate {
        None if line.our_flags.iter().any(|word| word == "--step") => {
            line.add("--max-in-flight", clients);
        }
        Some(rate) if rate != "0" => {
            line.add("--rate", format_args!("{rate}/s"));
            // Without --async, each of ghz's workers waits for the response before its next call.
            if !line.is_set("async") {
                line.add("--max-in-flight", clients);
            }
        }
        _ => line.add("--clients", clients),
    }
    match line.value("z").map(str::to_owned) {
        // Each step of the rate schedule has its own duration, so no total duration is needed.
        Some(_) if line.our_flags.iter().any(|word| word == "--step") => {}
        Some(time) => line.add("--duration", time),
        None => line.add("--calls", line.number("n", 200)),
    }
    if let Some(time) = line.value("t").map(str::to_owned) {
        line.add(
            "--deadline",
            if time == "0" || time == "0s" {
                "none".to_owned()
            } else {
                time
            },
        );
    }
    add_output(line);
    match line.words.clone().as_slice() {
        [address] => set_target(line, address, "insecure"),
        [] => return Err("the server's HOST:PORT is missing".to_owned()),
        [_, more, ..] => return Err(format!("unexpected argument `{more}`")),
    }
    if let Some(problem) = problem {
        return Err(problem);
    }
    if method.is_none() {
        return Err("the method is missing: --call package.Service/Method".to_owned());
    }
    Ok(())
}

/// Returns the value of `-m` if it is a method, as behind Plimsoll's own command; ghz's `-m` is a JSON object.
fn plimsoll_method(line: &LineBuilder) -> Option<&str> {
    let value = line.value("m").filter(|_| line.is_guessed)?;
    (value.contains('/') && !value.starts_with('{')).then_some(value)
}

/// Fields of ghz's templates, each with Plimsoll's equivalent. ghz's workers correspond to Plimsoll's clients.
const TEMPLATE_FIELDS: [(&str, &str); 9] = [
    ("{{.RequestNumber}}", "{{seq}}"),
    ("{{newUUID}}", "{{uuid}}"),
    ("{{.UUID}}", "{{uuid}}"),
    ("{{.WorkerID}}", "{{client}}"),
    ("{{.WorkerRequestNumber}}", "{{seq}}"),
    ("{{.Timestamp}}", "{{now rfc3339}}"),
    ("{{.TimestampUnix}}", "{{now s}}"),
    ("{{.TimestampUnixMilli}}", "{{now}}"),
    ("{{.TimestampUnixNano}}", "{{now ns}}"),
];

/// Replaces the fields of a ghz template with Plimsoll's.
fn translate_template_fields(line: &mut LineBuilder, flag: &str, text: &str) -> String {
    let tight = text.replace("{{ ", "{{").replace(" }}", "}}");
    let replaced = TEMPLATE_FIELDS
        .iter()
        .fold(tight, |text, (theirs, ours)| text.replace(theirs, ours));
    if replaced.contains("{{randomInt ") {
        line.add_unsupported(flag, "{{random LOW HIGH}} includes HIGH, unlike randomInt");
        return replaced.replace("{{randomInt ", "{{random ");
    }
    if let Some((before, after)) = replaced.split_once("{{randomString")
        && let Some((_, after)) = after.split_once("}}")
    {
        line.add_unsupported(flag, "no texts of random letters: {{uuid}} is as random");
        return format!("{before}{{{{uuid}}}}{after}");
    }
    let functions = ["{{.", "{{range", "{{if", "{{printf"];
    if functions.iter().any(|begin| replaced.contains(begin)) {
        line.add_unsupported(
            flag,
            "fields are {{seq}}, {{uuid}}, {{client}}, {{now}} and {{random 1 100}}",
        );
    }
    replaced
}

/// Returns the command-line words that are equivalent to a JSON configuration file.
fn config_words(file: &str) -> Result<Vec<String>, String> {
    let text = input::file_to_string(Path::new(file));
    let text = text.map_err(|e| format!("--config: can't read {file}: {e}"))?;
    let keys: Map<String, Value> = serde_json::from_str(&text).map_err(|e| {
        format!("--config: {file} is not JSON ({e}): write its keys as flags, or a plan")
    })?;
    let mut words = Vec::new();
    for (key, value) in keys {
        let value = match value {
            Value::String(text) if key == "host" => {
                words.push(text);
                continue;
            }
            Value::Bool(false) | Value::Null => continue,
            Value::Bool(true) => {
                words.push(format!("--{key}"));
                continue;
            }
            Value::String(text) => text,
            Value::Array(paths) if key.ends_with("paths") => {
                let paths = paths.iter().filter_map(Value::as_str);
                paths.collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        words.push(format!("--{key}={value}"));
    }
    Ok(words)
}

fn add_data(line: &mut LineBuilder) -> Result<(), String> {
    if let Some(data) = line.value("d").map(str::to_owned) {
        let data = translate_template_fields(line, "-d", &data);
        line.add("-d", if data == "@" { "@-".to_owned() } else { data });
    }
    let metadata = line.value("m").filter(|_| plimsoll_method(line).is_none());
    if let Some(metadata) = metadata.map(str::to_owned) {
        let read = serde_json::from_str::<BTreeMap<String, String>>(&metadata);
        let read = read.map_err(|_| format!("-m: `{metadata}` is not a JSON object of strings"))?;
        for (name, value) in read {
            let value = translate_template_fields(line, "-m", &value);
            line.add_field("--metadata", &name, &value);
        }
    }
    Ok(())
}

fn add_output(line: &mut LineBuilder) {
    let format = line.value("O").unwrap_or_default().to_owned();
    match (format.as_str(), line.value("o").map(str::to_owned)) {
        ("html", file) => line.add("--html", file.unwrap_or_else(|| "-".to_owned())),
        ("json" | "pretty", file) => {
            line.add_switch("--json");
            if file.is_some() {
                line.add_unsupported("-o", "`> FILE` behind the line writes the JSON to a file");
            }
        }
        ("summary" | "", None) => {}
        _ => line.add_unsupported(
            "-O",
            "--json, --html FILE and `plimsoll report --export` write results",
        ),
    }
}
