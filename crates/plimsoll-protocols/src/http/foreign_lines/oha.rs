//! Translates command lines of [oha](https://github.com/hatoo/oha).

use super::addresses::{override_addresses, override_with_unix_socket, take_target_from_file};
use super::{
    ANY_ADDRESS_HINT, NO_FILE_HINT, NO_HTTP3_HINT, add_basic_auth, add_deadline, add_get_with_body,
    add_proxy, add_redirects, add_workers, decimal_value, reject_leading_at_sign,
};
use crate::interface::foreign::command_lines::FlagMeaning::{
    Deferred, Dropped, Header, Ignored, Missing, OurFlag, Words,
};
use crate::interface::foreign::command_lines::ValueForm::{Decimal, Number, Text, Time};
use crate::interface::foreign::command_lines::{FlagStyle, LineBuilder, LineTool, switch, value};

const ONE_URL_HINT: &str = "one URL is measured; fields and --rows vary its path";

pub(super) static TOOL: LineTool = LineTool {
    names: &["oha"],
    style: FlagStyle::Gnu,
    flags: &[
        value(&["n"], Number, Deferred),
        value(&["c"], Number, Deferred),
        value(&["p"], Number, Deferred),
        value(&["z"], Time, Deferred),
        switch(&["w", "wait-ongoing-requests-after-deadline"], Ignored),
        value(&["q", "query-per-second"], Decimal, Deferred),
        value(&["burst-delay"], Time, Deferred),
        value(&["burst-rate"], Number, Deferred),
        switch(&["rand-regex-url"], Deferred),
        switch(&["urls-from-file"], Deferred),
        value(&["max-repeat"], Number, Missing(ONE_URL_HINT)),
        value(&["dump-urls"], Number, Missing(ONE_URL_HINT)),
        switch(&["latency-correction"], Ignored),
        switch(&["no-tui"], Words(&["--progress", "lines"])),
        switch(&["no-color", "disable-color"], Ignored),
        switch(&["j", "json"], OurFlag("--json", "")),
        value(&["output-format"], Text, Deferred),
        value(&["o", "output"], Text, Dropped(NO_FILE_HINT)),
        value(&["db-url"], Text, Dropped(NO_FILE_HINT)),
        value(&["fps"], Number, Ignored),
        switch(&["stats-success-breakdown"], Ignored),
        value(&["m", "method"], Text, OurFlag("-X", "")),
        value(&["H"], Text, OurFlag("-H", "")),
        value(&["t"], Time, Deferred),
        value(&["A"], Text, Header("accept")),
        value(&["d"], Text, OurFlag("-d", "")),
        value(&["D"], Text, Words(&["-d", "@{}"])),
        value(&["T"], Text, Header("content-type")),
        value(&["a"], Text, Deferred),
        value(&["x"], Text, Deferred),
        value(&["http-version"], Text, Deferred),
        switch(&["http3"], Missing(NO_HTTP3_HINT)),
        switch(&["http2"], Words(&["--http-version", "2"])),
        value(&["host"], Text, OurFlag("--host", "")),
        switch(&["disable-compression"], Deferred),
        value(&["r", "redirect"], Number, Deferred),
        switch(&["disable-keepalive"], OurFlag("--cold", "")),
        switch(&["no-pre-lookup"], Ignored),
        switch(&["ipv4"], Dropped(ANY_ADDRESS_HINT)),
        switch(&["ipv6"], Dropped(ANY_ADDRESS_HINT)),
        value(&["cacert"], Text, OurFlag("--ca", "")),
        value(&["cert"], Text, OurFlag("--cert", "")),
        value(&["key"], Text, OurFlag("--key", "")),
        switch(&["insecure"], OurFlag("--insecure", "")),
        value(&["connect-to"], Text, Deferred),
        value(&["unix-socket"], Text, Deferred),
        switch(&["debug"], Missing("one call is --clients 1 --calls 1")),
    ],
    reads_stdin: false,
    marker_flags: &[&["z", "q"], &["n", "p"], &["no-tui"]],
    finish,
};

/// The value of oha's `accept-encoding` field; oha does not decode responses.
const ACCEPTED_CODINGS: &str = "gzip, compress, deflate, br";

/// Adds the flags that depend on several flags of oha. `-p` is the number of streams of each connection, and `-z`
/// overrides `-n`. By default, oha asks for compressed responses, and follows redirects over HTTP/1.1.
fn finish(line: &mut LineBuilder) -> Result<(), String> {
    match line.value("http-version").map(str::to_owned) {
        Some(version) if version.starts_with('3') => {
            line.add_unsupported("--http-version 3", NO_HTTP3_HINT);
        }
        Some(version) => line.add("--http-version", version),
        None => {}
    }
    add_get_with_body(line, &["d", "D"], "m");
    reject_leading_at_sign(line, "d");
    let connections = line.number("c", 50);
    let streams = line.number("p", 1);
    let is_newer = line.is_set("http2") || line.value("http-version") == Some("2");
    let rate = decimal_value(line, "q").or(add_bursts(line));
    // Clients of HTTP/2 would share one connection.
    if (streams > 1 || is_newer) && rate.is_none() {
        line.add("--connections", connections);
    }
    let workers = if rate.is_some() {
        connections
    } else {
        connections * streams
    };
    add_workers(line, workers, rate);
    match line.value("z").map(str::to_owned) {
        Some(time) => line.add("--duration", time),
        None => line.add("--calls", line.number("n", 200)),
    }
    match line.value("output-format") {
        Some("json") => line.add_switch("--json"),
        Some("text" | "quiet") | None => {}
        Some(_) => line.add_unsupported("--output-format", NO_FILE_HINT),
    }
    add_deadline(line, "t");
    let is_field = |word: &String| word.to_ascii_lowercase().starts_with("accept-encoding:");
    if !line.is_set("disable-compression") && !line.our_flags.iter().any(is_field) {
        line.add_field("-H", "accept-encoding", ACCEPTED_CODINGS);
    }
    if !is_newer {
        add_redirects(line, line.number("r", 10));
    }
    add_basic_auth(line, "a");
    add_proxy(line, "x");
    if line.is_set("urls-from-file") {
        let [file] = &line.words.clone()[..] else {
            return Err("the file of the URLs is missing".to_owned());
        };
        take_target_from_file(line, file)?;
    } else {
        line.set_target_from_word("http")?;
    }
    if line.is_set("rand-regex-url") {
        add_random_path(line);
    }
    override_addresses(line, "connect-to");
    override_with_unix_socket(line, "unix-socket");
    Ok(())
}

/// Adds arrivals in bursts. Returns their mean rate in calls per second; `None` if the line sets no bursts.
fn add_bursts(line: &mut LineBuilder) -> Option<f64> {
    let delay = line.value("burst-delay").and_then(parse_seconds)?;
    let calls = line.number("burst-rate", 1);
    line.add("--arrivals", "gamma=0.1");
    line.add_unsupported(
        "--burst-delay",
        "its bursts come at equal distances; those of --arrivals gamma=0.1 come at random, with the same mean rate, and --arrivals file=FILE without --rate takes the second of each call from a file",
    );
    Some((calls as f64 / delay * 1000.0).round() / 1000.0)
}

/// Parses a time with one unit, such as `5s` or `100ms`, to seconds; `None` for anything else.
fn parse_seconds(time: &str) -> Option<f64> {
    let at = time.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = time[..at].parse().ok()?;
    let unit = match &time[at..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Some(number * unit).filter(|seconds| *seconds > 0.0)
}

/// Maximum number of repetitions of a class in a URL pattern.
const MAX_REPETITIONS: usize = 32;

/// Splits `{3}` from the text after a class; returns how often the class is repeated.
fn split_repetitions(text: &str) -> (usize, &str) {
    let counted = text.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    let counted = counted.and_then(|(count, rest)| Some((count.parse().ok()?, rest)));
    counted
        .filter(|(count, _)| *count <= MAX_REPETITIONS)
        .unwrap_or((1, text))
}

/// Replaces the random digits of a URL pattern, such as `[0-9]{3}`, by template fields. Other patterns have no
/// counterpart.
fn add_random_path(line: &mut LineBuilder) {
    const OTHER_PATTERNS_HINT: &str =
        "numbers are drawn in place of other patterns; --rows FILE has paths of any kind";
    let Some(url) = line.target.take() else {
        return;
    };
    let mut replaced = String::new();
    let mut rest = url.as_str();
    let mut has_others = false;
    while let Some((before, after)) = rest.split_once('[') {
        let (class, after) = after.split_once(']').unwrap_or((after, ""));
        has_others |= class != "0-9";
        replaced.push_str(before);
        let (count, after) = split_repetitions(after);
        replaced.push_str(&"{{random 0 9}}".repeat(count));
        rest = after;
    }
    replaced.push_str(rest);
    has_others |= replaced
        .replace("{{random 0 9}}", "")
        .contains(['(', '{', '\\', '*', '+', '|']);
    if has_others {
        line.add_unsupported("--rand-regex-url", OTHER_PATTERNS_HINT);
    }
    line.target = Some(replaced);
}
