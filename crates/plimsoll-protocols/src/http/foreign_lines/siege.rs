//! Translates command lines of [siege](https://www.joedog.org/siege-manual/).

use super::addresses::take_target_from_file;
use super::{NO_FILE_HINT, take_target_without_verification};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

/// The number of users if `-c` is not set, as in siege's default configuration file.
const DEFAULT_USERS: u64 = 25;

pub(super) static TOOL: LineTool = LineTool {
    names: &["siege"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "concurrent"], Number, Deferred),
        value(&["r", "reps"], Text, Deferred),
        value(&["t", "time"], Text, Deferred),
        value(&["d", "delay"], Decimal, Deferred),
        switch(&["b", "benchmark"], Ignored),
        value(&["H", "header"], Text, OurFlag("-H", "")),
        value(&["A", "user-agent"], Text, Header("user-agent")),
        value(&["T", "content-type"], Text, Header("content-type")),
        value(&["f", "file"], Text, Deferred),
        switch(&["i", "internet"], Deferred),
        switch(&["g", "get"], Words(&["--clients", "1", "--calls", "1"])),
        value(&["l", "log"], Text, Dropped(NO_FILE_HINT)),
        value(&["m", "mark"], Text, Dropped(NO_FILE_HINT)),
        value(
            &["R", "rc"],
            Text,
            Missing("siege's configuration is not read"),
        ),
        switch(&["q", "quiet"], OurFlag("-q", "")),
        switch(&["v", "verbose"], Ignored),
        switch(&["j", "json-output"], OurFlag("--json", "")),
        switch(&["N", "no-follow"], Deferred),
        switch(&["no-parser"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["c", "r"], &["b", "c"]],
    finish,
};

/// Adds the flags that depend on several flags of siege. Repetitions are per user, and the unit of `-t` is a capital
/// letter. siege follows redirects. A word `URL POST body` is a request with a body.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let users = line.number("c", DEFAULT_USERS);
    if !line.is_set("g") {
        line.add("--clients", users);
        let repetitions = line.value("r").and_then(|text| text.parse::<u64>().ok());
        match (line.value("t").map(str::to_lowercase), repetitions) {
            // A number without a unit is in minutes.
            (Some(time), _) if time.parse::<u64>().is_ok() => {
                line.add("--duration", format_args!("{time}m"));
            }
            (Some(time), _) => line.add("--duration", time),
            (None, Some(each)) => line.add("--calls", users.saturating_mul(each)),
            (None, None) => return Err("it has no end: give -t or -r".to_owned()),
        }
        if let Some(delay) = line.value("d").filter(|delay| *delay != "0") {
            // The mean of siege's random pauses is half of their maximum.
            let mean = delay.parse::<f64>().unwrap_or(1.0) / 2.0;
            line.add_dropped(
                format!("the randomness of -d {delay}"),
                "pauses are random up to this length; --think has their mean",
            );
            line.add("--think", format_args!("{mean}s"));
        }
    }
    if !line.is_set("N") {
        line.add_switch("-L");
    }
    if let Some(file) = line.value("f").map(str::to_owned) {
        take_target_from_file(line, &file)?;
        if line.is_set("i") && line.our_flags.iter().any(|word| word == "--rows") {
            line.add("--rows-order", "random");
        }
        return Ok(());
    }
    let request = line.words.first().cloned().unwrap_or_default();
    if let Some((url, body)) = request.split_once(" POST") {
        line.words[0] = url.trim().to_owned();
        line.add("-X", "POST");
        match body.trim() {
            "" => {}
            body => match body.strip_prefix('<') {
                Some(file) => line.add("-d", format_args!("@{}", file.trim())),
                None => line.add("-d", body),
            },
        }
        let is_type = |word: &String| word.to_ascii_lowercase().starts_with("content-type:");
        if !body.trim().is_empty() && !line.our_flags.iter().any(is_type) {
            line.add_field("-H", "content-type", "application/x-www-form-urlencoded");
        }
    }
    take_target_without_verification(line)
}
