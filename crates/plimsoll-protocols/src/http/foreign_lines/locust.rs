//! Recognises command lines of [Locust](https://docs.locust.io/), and explains why they can't be translated: users are
//! Python code.

use super::NO_FILE;
use crate::foreign::lines::FlagMeaning::{Deferred, Dropped, Missing, Nothing, OurFlag};
use crate::foreign::lines::ValueForm::{Decimal, Number, Seconds, Text};
use crate::foreign::lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const SEVERAL_MACHINES: &str =
    "several machines share a load by --rendezvous, and processes by --processes";
const ALL_AT_ONCE: &str = "clients begin together; --step 10s:100/s raises a rate in steps";

pub(super) static TOOL: LineTool = LineTool {
    names: &["locust"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["u", "users"], Number, Deferred),
        value(&["r", "spawn-rate"], Decimal, Dropped(ALL_AT_ONCE)),
        value(&["t", "run-time"], Seconds, Deferred),
        value(&["H", "host"], Text, Deferred),
        value(&["f", "locustfile"], Text, Deferred),
        switch(&["headless"], Nothing),
        switch(&["autostart"], Nothing),
        value(&["autoquit"], Number, Nothing),
        switch(&["only-summary"], OurFlag("-q", "")),
        switch(&["print-stats"], Nothing),
        switch(&["json"], OurFlag("--json", "")),
        value(&["html"], Text, OurFlag("--html", "")),
        value(&["csv"], Text, Dropped(NO_FILE)),
        switch(&["csv-full-history"], Dropped(NO_FILE)),
        value(&["logfile"], Text, Dropped(NO_FILE)),
        value(&["L", "loglevel"], Text, Nothing),
        value(&["s", "stop-timeout"], Seconds, OurFlag("--drain", "s")),
        value(&["processes"], Number, OurFlag("--processes", "")),
        switch(&["master"], Missing(SEVERAL_MACHINES)),
        switch(&["worker"], Missing(SEVERAL_MACHINES)),
        value(&["master-host"], Text, Missing(SEVERAL_MACHINES)),
        value(&["expect-workers"], Number, Missing(SEVERAL_MACHINES)),
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

fn finish(line: &mut LineBuilder) -> Result<(), String> {
    line.add("--clients", line.number("u", 1));
    let time = line.value("t").unwrap_or("10s").to_owned();
    line.add("--duration", crate::foreign::lines::with_unit(&time, "s"));
    line.target = line.value("H").map(str::to_owned);
    Err(
        "what its users do is in the locustfile, a program: requests with values from one to the next are the [[steps]] of a plan"
            .to_owned(),
    )
}
