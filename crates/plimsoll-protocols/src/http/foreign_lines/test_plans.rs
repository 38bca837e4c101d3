//! Recognises command lines of tools whose load is in a file of their own format:
//! [JMeter](https://jmeter.apache.org), [Tsung](http://tsung.erlang-projects.org) and [Gatling](https://gatling.io).
//! The translation has the first request and the numbers in the file, if the file has them.

use super::{NO_FILE_HINT, scripts};
use crate::interface::foreign::command_lines::FlagMeaning::{Deferred, Dropped, Ignored, Missing};
use crate::interface::foreign::command_lines::ValueForm::{Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const STEPS_HINT: &str = "which is not run: the line above has its numbers and its first request; all requests are the [[steps]] of a plan, with a pause before each";

const SEVERAL_MACHINES_HINT: &str = "several machines share a load by --rendezvous";

pub(super) static JMETER_TOOL: LineTool = LineTool {
    names: &["jmeter", "jmeter.sh", "jmeter.bat"],
    style: FlagStyle::Gnu,
    flags: &[
        switch(&["n", "nongui"], Ignored),
        value(&["t", "testfile"], Text, Deferred),
        value(&["l", "logfile"], Text, Dropped(NO_FILE_HINT)),
        value(&["j", "jmeterlogfile"], Text, Ignored),
        switch(&["e", "reportatendofloadtests"], Ignored),
        value(
            &["o", "reportoutputfolder"],
            Text,
            Dropped("every run leaves report.html"),
        ),
        switch(&["f", "forceDeleteResultFile"], Ignored),
        value(
            &["J", "jmeterproperty"],
            Text,
            Missing("write the value in its place"),
        ),
        value(
            &["G", "globalproperty"],
            Text,
            Missing("write the value in its place"),
        ),
        value(&["D", "systemproperty"], Text, Ignored),
        value(&["p", "propfile"], Text, Ignored),
        value(&["q", "addprop"], Text, Ignored),
        value(&["L", "loglevel"], Text, Ignored),
        value(&["i", "jmeterlogconf"], Text, Ignored),
        value(
            &["H", "proxyHost"],
            Text,
            Missing("--proxy http://HOST:PORT names a proxy"),
        ),
        value(&["P", "proxyPort"], Number, Ignored),
        value(&["N", "nonProxyHosts"], Text, Ignored),
        switch(&["r", "runremote"], Missing(SEVERAL_MACHINES_HINT)),
        value(&["R", "remotestart"], Text, Missing(SEVERAL_MACHINES_HINT)),
        switch(&["X", "remoteexit"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish: finish_jmeter,
};

/// Adds the numbers of the first thread group, and the first request.
fn finish_jmeter(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of JMeter".to_owned());
    }
    let file = line.value("t").map(str::to_owned);
    let text = file.as_deref().and_then(scripts::read_script);
    let text = text.unwrap_or_default();
    let property = |name: &str| {
        let pattern = format!(r#"name="{name}">\s*([^<$\s][^<$]*?)\s*<"#);
        scripts::find_first(&text, &pattern)
    };
    let number = |name: &str| property(name)?.parse::<u64>().ok();
    let threads = number(r"ThreadGroup\.num_threads").unwrap_or(1);
    line.add("--clients", threads);
    // A group keeps the duration that it does not use.
    let is_timed = property(r"ThreadGroup\.scheduler").is_none_or(|on| on != "false");
    match (
        number(r"ThreadGroup\.duration").filter(|_| is_timed),
        number(r"LoopController\.loops"),
    ) {
        (Some(seconds), _) => line.add("--duration", format_args!("{seconds}s")),
        (None, Some(loops)) => line.add("--calls", threads.saturating_mul(loops)),
        (None, None) => line.add("--duration", "10s"),
    }
    if let Some(pause) = number(r"ConstantTimer\.delay") {
        line.add("--think", format_args!("{pause}ms"));
    }
    if let Some(method) = property(r"HTTPSampler\.method").filter(|method| method != "GET") {
        line.add("-X", method);
    }
    line.target = property(r"HTTPSampler\.domain").map(|host| {
        let scheme = property(r"HTTPSampler\.protocol").unwrap_or_else(|| "http".to_owned());
        let port =
            property(r"HTTPSampler\.port").map_or_else(String::new, |port| format!(":{port}"));
        let path = property(r"HTTPSampler\.path").unwrap_or_default();
        format!("{scheme}://{host}{port}/{}", path.trim_start_matches('/'))
    });
    Err(match file {
        Some(file) => format!("{file} is a test plan, {STEPS_HINT}"),
        None => "the test plan is missing: -t FILE".to_owned(),
    })
}

pub(super) static TSUNG_TOOL: LineTool = LineTool {
    names: &["tsung"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["f"], Text, Deferred),
        value(&["l"], Text, Dropped(NO_FILE_HINT)),
        value(&["i"], Text, Ignored),
        value(&["m"], Text, Ignored),
        value(&["r"], Text, Missing(SEVERAL_MACHINES_HINT)),
        switch(&["n"], Ignored),
        switch(&["k"], Ignored),
        value(&["w"], Number, Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish: finish_tsung,
};

/// Adds the numbers of the first arrival phase, and the first request.
fn finish_tsung(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of Tsung".to_owned());
    }
    let file = line.value("f").unwrap_or("~/.tsung/tsung.xml").to_owned();
    let text = scripts::read_script(&file).unwrap_or_default();
    let attribute = |element: &str, name: &str| {
        let pattern = format!(r#"<{element}\s[^>]*\b{name}=["']([^"']+)["']"#);
        scripts::find_first(&text, &pattern)
    };
    let number = |element: &str, name: &str| attribute(element, name)?.parse::<f64>().ok();
    let unit = |element: &str| match attribute(element, "unit").as_deref() {
        Some("hour") => "h",
        Some("minute") => "m",
        _ => "s",
    };
    let each = number("users", "interarrival").filter(|each| *each > 0.0);
    let rate = number("users", "arrivalrate").or(each.map(|each| (1e3 / each).round() / 1e3));
    line.add(
        "--rate",
        format_args!("{}/{}", rate.unwrap_or(1.0), unit("users")),
    );
    let length = number("arrivalphase", "duration").unwrap_or(10.0);
    line.add(
        "--duration",
        format_args!("{length}{}", unit("arrivalphase")),
    );
    if let Some(method) = attribute("http", "method").filter(|method| method != "GET") {
        line.add("-X", method);
    }
    let url = attribute("http", "url").unwrap_or_default();
    line.target = if url.contains("://") {
        Some(url)
    } else {
        attribute("server", "host").map(|host| {
            let scheme = match attribute("server", "type").as_deref() {
                Some("ssl") => "https",
                _ => "http",
            };
            let port = attribute("server", "port");
            let port = port.map_or_else(String::new, |port| format!(":{port}"));
            format!("{scheme}://{host}{port}/{}", url.trim_start_matches('/'))
        })
    };
    Err(format!("{file} is a scenario, {STEPS_HINT}"))
}

pub(super) static GATLING_TOOL: LineTool = LineTool {
    names: &[
        "gatling.sh",
        "gatling",
        "gatling.bat",
        "mvn gatling:test",
        "mvnw gatling:test",
        "gradle gatlingRun",
        "gradlew gatlingRun",
    ],
    style: FlagStyle::Go,
    flags: &[
        value(&["s", "simulation"], Text, Ignored),
        value(&["sf", "simulations-folder"], Text, Ignored),
        value(&["rf", "results-folder"], Text, Dropped(NO_FILE_HINT)),
        value(&["rsf", "resources-folder"], Text, Ignored),
        value(&["bf", "binaries-folder"], Text, Ignored),
        value(&["rd", "run-description"], Text, Ignored),
        value(&["rm", "run-mode"], Text, Ignored),
        value(&["ro", "reports-only"], Text, Ignored),
        value(&["erjo", "extra-run-jvm-options"], Text, Ignored),
        switch(&["nr", "no-reports"], Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish: |line| {
        line.add("--rate", "1/s");
        line.add("--duration", "10s");
        Err("a simulation is a program, which is not run: its requests are the [[steps]] of a plan, and constantUsersPerSec(1).during(10) is the rate above; docs/coming-from-scripts.md has one journey in both".to_owned())
    },
};
