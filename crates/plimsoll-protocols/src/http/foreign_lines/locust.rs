//! Recognises command lines of [Locust](https://docs.locust.io/), and explains why they can't be translated: users are
//! Python code.

use plimsoll_model::formats::units::Period;

use super::{NO_FILE_HINT, script_steps, scripts};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Seconds, Text};
use crate::interface::foreign::command_lines::{
    FlagStyle, LineBuilder, LineTool, switch, value, with_unit,
};

const SEVERAL_MACHINES_HINT: &str =
    "several machines share a load by --rendezvous, and processes by --processes";
const ALL_AT_ONCE_HINT: &str = "clients begin together; --step 10s:100/s raises a rate in steps";

pub(super) static TOOL: LineTool = LineTool {
    names: &["locust"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["u", "users"], Number, Deferred),
        value(&["r", "spawn-rate"], Decimal, Dropped(ALL_AT_ONCE_HINT)),
        value(&["t", "run-time"], Seconds, Deferred),
        value(&["H", "host"], Text, Deferred),
        value(&["f", "locustfile"], Text, Deferred),
        value(
            &["config"],
            Text,
            Missing("write its options as flags of locust, or a plan: plimsoll run PLAN"),
        ),
        switch(&["headless"], Ignored),
        switch(&["autostart"], Ignored),
        value(&["autoquit"], Number, Ignored),
        switch(&["only-summary"], OurFlag("-q", "")),
        switch(&["print-stats"], Ignored),
        switch(&["json"], OurFlag("--json", "")),
        value(&["html"], Text, OurFlag("--html", "")),
        value(&["csv"], Text, Dropped(NO_FILE_HINT)),
        switch(&["csv-full-history"], Dropped(NO_FILE_HINT)),
        value(&["logfile"], Text, Dropped(NO_FILE_HINT)),
        value(&["L", "loglevel"], Text, Ignored),
        value(&["s", "stop-timeout"], Seconds, OurFlag("--drain", "s")),
        value(&["processes"], Number, OurFlag("--processes", "")),
        switch(&["master"], Missing(SEVERAL_MACHINES_HINT)),
        switch(&["worker"], Missing(SEVERAL_MACHINES_HINT)),
        value(&["master-host"], Text, Missing(SEVERAL_MACHINES_HINT)),
        value(&["expect-workers"], Number, Missing(SEVERAL_MACHINES_HINT)),
        value(
            &["T", "tags"],
            Text,
            Missing("give each request its own command, or its own lane"),
        ),
    ],
    reads_stdin: false,
    marker_flags: &[&["headless", "u"]],
    finish,
};

/// Adds the flags that depend on several flags of Locust, and on its file: users do its tasks one after another, with
/// pauses or at a pace.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    let host = line.value("H").map(str::to_owned);
    // A line with a URL but no file can be translated completely.
    let is_whole =
        !line.is_set("f") && (host.is_some() || !line.words.is_empty()) && line.is_guessed;
    let file = line.value("f").unwrap_or("locustfile.py").to_owned();
    let script = Some(&file).filter(|_| !is_whole);
    let script = script.and_then(|file| scripts::read_script(file));
    let script = script.unwrap_or_default();
    let user = script_steps::read_locust_script(&script);
    let users = line.number("u", 1);
    let rate = user.rate(users);
    match rate {
        Some(rate) => line.add("--rate", format_args!("{rate}/s")),
        None => line.add("--clients", users),
    }
    let time = line.value("t").unwrap_or("10s").to_owned();
    line.add("--duration", with_unit(&time, "s"));
    if let Some((pause, _)) = user.think().filter(|_| rate.is_none()) {
        line.add("--think", Period(pause));
    }
    if is_whole {
        line.words.extend(host);
        return line.set_target_from_word("http");
    }
    let host =
        host.or_else(|| scripts::find_first(&script, r#"\bhost\s*=\s*["'](https?://[^"']+)"#));
    let request = r#"\.client\.\w+\(\s*f?["'](/[^"'{]*)"#;
    let paths = scripts::find_all(&script, request);
    let path = paths.first().map_or("", String::as_str);
    line.plan = user.to_plan(host.as_deref(), &line.our_flags);
    line.target = host.map(|host| format!("{}{path}", host.trim_end_matches('/')));
    let first = match paths.len() {
        0 => "",
        1 => ", whose request is in the line above",
        _ => ", whose first request is in the line above",
    };
    let more = user.describe(line);
    Err(format!(
        "what its users do is in {file}, a program that is not run{first}; requests with values from one to the next are the [[steps]] of a plan{more}"
    ))
}
