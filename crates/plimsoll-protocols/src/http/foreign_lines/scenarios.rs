//! Recognises command lines of tools that read their load from a file: [drill](https://github.com/fcsonline/drill) and
//! [Artillery](https://www.artillery.io/). The translation has the first request and the numbers in the file.

use super::{JSON_FILE_HINT, NO_FILE_HINT, scripts, take_target_without_verification};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Ignored, Missing, OurFlag,
};
use crate::interface::foreign::command_lines::ValueForm::{Number, Text};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const STEPS_HINT: &str = "the line above has its first request; all of them are the [[steps]] of a plan: plimsoll run PLAN";

pub(super) static DRILL_TOOL: LineTool = LineTool {
    names: &["drill"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["b", "benchmark"], Text, Deferred),
        switch(&["s", "stats"], Ignored),
        value(&["r", "report"], Text, Dropped(NO_FILE_HINT)),
        value(
            &["c", "compare"],
            Text,
            Missing("plimsoll compare RUN RUN compares two runs"),
        ),
        value(&["t", "threshold"], Text, Ignored),
        value(&["o", "timeout"], Number, OurFlag("--deadline", "s")),
        switch(&["n", "nanosec"], Ignored),
        switch(&["q", "quiet"], OurFlag("-q", "")),
        switch(&["relaxed-interpolations"], Ignored),
        switch(&["no-check-certificate"], OurFlag("--insecure", "")),
        switch(&["v", "verbose"], Ignored),
        value(&["tags"], Text, Ignored),
        value(&["skip-tags"], Text, Ignored),
    ],
    reads_stdin: false,
    marker_flags: &[&["b", "s"]],
    finish: |line| {
        let file = line
            .value("b")
            .ok_or("the file is missing: --benchmark FILE")?
            .to_owned();
        let text = scripts::read_script(&file).unwrap_or_default();
        let number = |name: &str, default: &str| {
            scripts::find_first(&text, &format!(r"(?m)^{name}:\s*(\d+)"))
                .unwrap_or(default.to_owned())
        };
        line.add("--clients", number("concurrency", "1"));
        line.add("--calls", number("iterations", "1"));
        let base = scripts::find_first(&text, r#"(?m)^base:\s*["']?(https?://[^"'\s]+)"#);
        let url = scripts::find_first(&text, r#"\burl:\s*["']?([^"'\s{]+)"#).unwrap_or_default();
        line.target = match base {
            _ if url.contains("://") => Some(url),
            Some(base) => Some(format!("{}{url}", base.trim_end_matches('/'))),
            None => None,
        };
        Err(format!("{file} is a file of requests: {STEPS_HINT}"))
    },
};

pub(super) static ARTILLERY_TOOL: LineTool = LineTool {
    names: &["artillery quick", "artillery run"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["c", "count"], Number, Deferred),
        value(&["n", "num"], Number, Deferred),
        value(&["o", "output"], Text, Dropped(JSON_FILE_HINT)),
        switch(&["k", "insecure"], OurFlag("--insecure", "")),
        switch(&["q", "quiet"], OurFlag("-q", "")),
        value(&["t", "target"], Text, Deferred),
        value(
            &["e", "environment"],
            Text,
            Missing("a plan has no environments: one plan for each"),
        ),
        value(
            &["p", "payload"],
            Text,
            Missing("--rows FILE has the values of requests"),
        ),
        value(
            &["overrides"],
            Text,
            Missing("flags of plimsoll run override a plan"),
        ),
        value(
            &["v", "variables"],
            Text,
            Missing("--rows FILE has the values of requests"),
        ),
    ],
    reads_stdin: false,
    marker_flags: &[],
    finish,
};

/// Adds the flags that depend on several flags of Artillery. With `quick`, each user makes requests one after another;
/// `run` reads a file.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    if line.is_guessed {
        return Err("it is no line of Artillery".to_owned());
    }
    let file = line.words.first().filter(|word| {
        [".yml", ".yaml", ".json"]
            .iter()
            .any(|end| word.ends_with(end))
    });
    let Some(file) = file.cloned() else {
        let users = line.number("c", 10);
        line.add("--clients", users);
        line.add("--calls", users.saturating_mul(line.number("n", 10)));
        return take_target_without_verification(line);
    };
    let text = scripts::read_script(&file).unwrap_or_default();
    let find = |pattern: &str| scripts::find_first(&text, pattern);
    if let Some(rate) = find(r"\barrivalRate:\s*(\d+)") {
        line.add("--rate", format_args!("{rate}/s"));
    }
    line.add(
        "--duration",
        format_args!(
            "{}s",
            find(r"\bduration:\s*(\d+)").unwrap_or("10".to_owned())
        ),
    );
    let typed = line.value("t").map(str::to_owned);
    let base = typed.or_else(|| find(r#"\btarget:\s*["']?(https?://[^"'\s]+)"#));
    let path = find(r#"\burl:\s*["']?(/[^"'\s{]*)"#).unwrap_or_default();
    line.target = base.map(|base| format!("{}{path}", base.trim_end_matches('/')));
    Err(format!("{file} is a file of requests: {STEPS_HINT}"))
}
