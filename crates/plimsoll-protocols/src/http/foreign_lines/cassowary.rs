//! Translates command lines of [cassowary](https://github.com/rogerwelin/cassowary): `cassowary run -u URL -c 10 -n
//! 1000`.

use super::addresses::take_target_from_file;
use super::{NO_FILE_HINT, add_workers};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

pub(super) static TOOL: LineTool = LineTool {
    names: &["cassowary run"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["u", "url"], Text, Deferred),
        value(&["f", "file"], Text, Deferred),
        value(&["c", "concurrency"], Number, Deferred),
        value(&["n", "requests"], Number, Deferred),
        value(&["d", "duration"], Decimal, Deferred),
        value(&["t", "timeout"], Decimal, OurFlag("--deadline", "s")),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        value(&["postfile"], Text, Words(&["-X", "POST", "-d", "@{}"])),
        value(&["putfile"], Text, Words(&["-X", "PUT", "-d", "@{}"])),
        value(&["patchfile"], Text, Words(&["-X", "PATCH", "-d", "@{}"])),
        switch(&["disable-keep-alive"], OurFlag("--cold", "")),
        value(&["ca"], Text, OurFlag("--ca", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        switch(&["F", "json-metrics"], OurFlag("--json", "")),
        value(&["json-metrics-file"], Text, Dropped(NO_FILE_HINT)),
        switch(&["R", "raw-output"], Dropped(NO_FILE_HINT)),
        switch(&["b", "boxplot"], Dropped(NO_FILE_HINT)),
        switch(
            &["histogram"],
            Dropped("plimsoll report LATEST --histogram shows it"),
        ),
        value(
            &["p", "prompushgwurl"],
            Text,
            Dropped("--telemetry URL reports during the load"),
        ),
        switch(
            &["C", "cloudwatch"],
            Dropped("--telemetry URL reports during the load"),
        ),
        switch(&["q", "quiet"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish,
};

/// Adds the flags that depend on several flags of cassowary. With a duration, requests are spread over it.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of cassowary".to_owned());
    }
    let requests = line.number("n", 1);
    let seconds = line.value("d").and_then(|text| text.parse::<f64>().ok());
    let rate = seconds.filter(|seconds| *seconds > 0.0);
    let rate = rate.map(|seconds| (requests as f64 / seconds * 1e3).round() / 1e3);
    add_workers(line, line.number("c", 1), rate);
    line.add("--calls", requests);
    let url = line.value("u").map(str::to_owned);
    line.words.extend(url);
    match line.value("f").map(str::to_owned) {
        Some(file) if file.contains("://") => {
            line.set_target_from_word("http")?;
            Err(format!("{file} is not fetched: --rows FILE reads a file"))
        }
        // The file has paths of the URL, or URLs.
        Some(file) if line.words.is_empty() => take_target_from_file(line, &file),
        Some(file) => {
            line.set_target_from_word("http")?;
            Err(format!(
                "the paths of {file} are a column of rows: http://HOST/{{{{row.path}}}} with --rows FILE"
            ))
        }
        None => line.set_target_from_word("http"),
    }
}
