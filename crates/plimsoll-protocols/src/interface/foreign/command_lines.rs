//! Translates whole command lines of other load tools to Plimsoll's, by a table of each tool's flags.
//!
//! A [`LineTool`] is a table of one tool's flags, each with its meaning in Plimsoll. [`LineTool::translate`] reads a
//! line by that table. Combinations of flags (connections times streams, a rate per worker) are translated by the
//! tool's `finish` function. Flags are listed without their dashes: one letter is a short flag, more letters are a long
//! flag.
//!
//! [`crate::registry`] lists the tools of each command and calls this module.
//!
//! This file is long because flags and values are read and translated in one pass.

mod line_error;
mod mixed_lines;
mod tool_recognition;

pub use line_error::LineError;
pub use mixed_lines::{METHOD_PLACEHOLDER, PlimsollFlag, PlimsollFlagLookup};

/// Another load tool whose whole command lines are translated.
#[derive(Debug)]
pub struct LineTool {
    /// The names of the tool: `["h2load"]`, `["vegeta attack", "vegeta"]`. Its lines begin with one of them.
    pub names: &'static [&'static str],
    /// How the tool writes flags.
    pub style: FlagStyle,
    /// The tool's flags.
    pub flags: &'static [LineFlag],
    /// Whether the tool reads its targets from stdin.
    pub reads_stdin: bool,
    /// Sets of flags that identify the tool: a line without a tool's name belongs to this tool if it has all flags of
    /// one set, and no flag or value that the tool would refuse.
    pub marker_flags: &'static [&'static [&'static str]],
    /// Completes the line: translates combinations of flags, and adds the tool's own defaults.
    ///
    /// # Errors
    /// Returns the reason why the line can't be run, in words.
    pub finish: fn(&mut LineBuilder) -> Result<(), String>,
}

/// How a tool writes flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagStyle {
    /// Short flags with one dash, which may be combined and followed by a value (`-kc50`); long flags with two dashes.
    Gnu,
    /// Flags of any length with one dash or two, as in Go's `flag` package.
    Go,
}

/// A flag of another tool.
#[derive(Debug)]
pub struct LineFlag {
    names: &'static [&'static str],
    /// The form of the flag's value; `None`: the flag takes no value.
    value: Option<ValueForm>,
    meaning: FlagMeaning,
}

/// The form of a flag's value. A line with a value of another form belongs to another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// Any text.
    Text,
    /// A whole number.
    Number,
    /// A whole number, which k, M or G may follow.
    Metric,
    /// A number, which may have a fraction.
    Decimal,
    /// A time with a unit, `10s`, `1m30s`.
    Time,
    /// A time; a bare number is seconds.
    Seconds,
}

/// The meaning of another tool's flag in Plimsoll.
#[derive(Clone, Copy, Debug)]
pub enum FlagMeaning {
    /// Plimsoll's flag with this meaning, and the unit that is appended to a bare number.
    OurFlag(&'static str, &'static str),
    /// Words of a Plimsoll command line with this meaning; the flag's value replaces `{}`.
    Words(&'static [&'static str]),
    /// A header field of this name.
    Header(&'static str),
    /// The flag is ignored, because it changes neither the load nor the figures.
    Ignored,
    /// The flag is dropped for this reason: the line runs without it, and a notice says so.
    Dropped(&'static str),
    /// The flag has no counterpart in Plimsoll, for this reason. The line can't be run.
    Missing(&'static str),
    /// [`LineTool::finish`] translates the flag, and looks it up by its first name.
    Deferred,
}

/// Makes a flag that takes a value.
pub(crate) const fn value(
    names: &'static [&'static str],
    form: ValueForm,
    meaning: FlagMeaning,
) -> LineFlag {
    LineFlag {
        names,
        value: Some(form),
        meaning,
    }
}

/// Makes a flag without a value.
pub(crate) const fn switch(names: &'static [&'static str], means: FlagMeaning) -> LineFlag {
    LineFlag {
        names,
        value: None,
        meaning: means,
    }
}

impl LineFlag {
    /// Returns the flag's names, without dashes.
    pub fn names(&self) -> &'static [&'static str] {
        self.names
    }

    /// Returns whether the flag takes a value.
    pub fn takes_value(&self) -> bool {
        self.value.is_some()
    }
}

impl ValueForm {
    fn accepts(self, text: &str) -> bool {
        let is_number = || text.parse::<f64>().is_ok_and(f64::is_finite);
        match self {
            ValueForm::Text => true,
            ValueForm::Number => text.parse::<u64>().is_ok(),
            ValueForm::Metric => parse_suffixed_number(text).is_some(),
            ValueForm::Decimal => is_number(),
            ValueForm::Time => is_duration(text),
            ValueForm::Seconds => is_number() || is_duration(text),
        }
    }
}

/// Parses a whole number with an optional metric suffix, such as `1k` for 1000.
fn parse_suffixed_number(text: &str) -> Option<u64> {
    let (digits, factor) = match text.chars().next_back()? {
        'k' | 'K' => (&text[..text.len() - 1], 1_000),
        'm' | 'M' => (&text[..text.len() - 1], 1_000_000),
        'g' | 'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Returns whether `text` consists of numbers with a unit of time each, such as `1m30s`.
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let after = rest.trim_start_matches(number);
        let unit = after.find(number).unwrap_or(after.len());
        let known = ["ns", "us", "µs", "ms", "s", "m", "h", "d"];
        if after.len() == rest.len() || !known.contains(&&after[..unit]) {
            return false;
        }
        rest = &after[unit..];
    }
    !text.is_empty()
}

/// A line of another tool that is being translated: the flags translated so far, and the flags as the user gave them,
/// which [`LineTool::finish`] looks up.
#[derive(Debug, Default)]
pub struct LineBuilder {
    /// The words that are neither flags nor values of flags, without the tool's name.
    pub words: Vec<String>,
    /// Plimsoll's flags so far.
    pub our_flags: Vec<String>,
    /// Plimsoll's command, if it differs from the command for the tool's other lines; `finish` sets it.
    pub command: Option<&'static str>,
    /// The target of the calls; `finish` sets it.
    pub target: Option<String>,
    /// A subcommand of Plimsoll, such as `describe`, and its arguments, if the line makes no load; `finish` sets it.
    pub subcommand: Option<Vec<String>>,
    /// Whether the tool was guessed from its flags, because the line begins with a command of Plimsoll or with flags.
    pub is_guessed: bool,
    /// The text of stdin, for a tool that reads its targets from it.
    pub input: Option<String>,
    /// The plan for a script with several requests, as TOML; `finish` sets it.
    pub plan: Option<String>,
    /// The flags that the user gave, by their first names, with their values.
    typed_flags: Vec<(&'static str, String)>,
    /// Flags without a counterpart, with the reason.
    without_counterpart: Vec<(String, &'static str)>,
    /// Flags that the line runs without, with the reason.
    dropped: Vec<(String, &'static str)>,
}

impl LineBuilder {
    /// Returns the value of a flag, by its first name. If the flag was given several times, the last one counts.
    pub fn value(&self, name: &str) -> Option<&str> {
        let mut given = self.typed_flags.iter().rev();
        given
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns all values of a flag, by its first name.
    pub fn values(&self, name: &str) -> Vec<String> {
        let given = self.typed_flags.iter().filter(|(known, _)| *known == name);
        given.map(|(_, value)| value.clone()).collect()
    }

    /// Returns whether the flag of this first name was given, and not switched off (`-keepalive=false`).
    pub fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value != "false")
    }

    /// Returns a flag's value as a number, or `default`.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.value(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    }

    /// Returns a flag's value as a number that may have a metric suffix, or `default`.
    pub fn suffixed_number(&self, name: &str, default: u64) -> u64 {
        self.value(name)
            .and_then(parse_suffixed_number)
            .unwrap_or(default)
    }

    /// Returns whether the last occurrence of the flag `name` comes after every occurrence of `other`. Both are first
    /// names.
    pub fn is_after(&self, name: &str, other: &str) -> bool {
        let last = |name: &str| {
            self.typed_flags
                .iter()
                .rposition(|(known, _)| *known == name)
        };
        last(name) > last(other)
    }

    /// Adds one of Plimsoll's flags with its value.
    pub fn add(&mut self, flag: &str, value: impl ToString) {
        self.our_flags.extend([flag.to_owned(), value.to_string()]);
    }

    /// Adds one of Plimsoll's flags that takes no value.
    pub fn add_switch(&mut self, flag: &str) {
        self.our_flags.push(flag.to_owned());
    }

    /// Adds a header field with `flag`, Plimsoll's flag for header fields.
    pub fn add_field(&mut self, flag: &str, name: &str, value: &str) {
        self.add(flag, format_args!("{name}: {value}"));
    }

    /// Records a flag or value that has no counterpart.
    pub fn add_unsupported(&mut self, what: impl Into<String>, why: &'static str) {
        self.without_counterpart.push((what.into(), why));
    }

    /// Records something that the line runs without.
    pub fn add_dropped(&mut self, what: impl Into<String>, why: &'static str) {
        self.dropped.push((what.into(), why));
    }

    /// Adds the flag for workers, as many as the tool's flag `name` sets processors, but at most `connections`: each
    /// worker needs a connection.
    pub fn add_workers_from_flag(&mut self, name: &str, connections: u64) {
        let processors = self.number(name, 0);
        if processors > connections {
            self.add_dropped(
                format!("--{name} {processors}"),
                "a worker has at least one connection, and there are fewer",
            );
        }
        let workers = processors.min(connections);
        if workers > 1 {
            self.add("--workers", workers);
        }
    }

    /// Sets the target to the only word, with `scheme` if it has no scheme.
    ///
    /// # Errors
    /// Returns an error if there is no word, or more than one.
    pub fn set_target_from_word(&mut self, scheme: &str) -> Result<(), String> {
        match &self.words[..] {
            [] => Err("the URL is missing".to_owned()),
            [url] => {
                self.target = Some(with_scheme(url, scheme));
                Ok(())
            }
            [_, more, ..] => Err(format!("unexpected argument `{more}`")),
        }
    }
}

/// Prepends the scheme to a URL that has none.
pub fn with_scheme(url: &str, scheme: &str) -> String {
    if url.contains("://") || url.starts_with("unix:") {
        url.to_owned()
    } else {
        format!("{scheme}://{url}")
    }
}

/// Appends the unit to a bare number.
pub fn with_unit(value: &str, unit: &str) -> String {
    if value.parse::<f64>().is_ok() {
        format!("{value}{unit}")
    } else {
        value.to_owned()
    }
}

/// The placeholder for a target that is missing in a line.
pub(crate) const TARGET_PLACEHOLDER: &str = "URL";

/// A line of another tool, translated into a Plimsoll line.
#[derive(Debug, PartialEq, Eq)]
pub struct TranslatedLine {
    /// Plimsoll's command, its target and its flags.
    pub words: Vec<String>,
    /// The reasons why the line cannot be run: missing words, and flags without a counterpart. Empty if it can be run.
    pub reasons: Vec<String>,
    /// Notes on dropped flags, with the reasons.
    pub notes: Vec<String>,
    /// A plan with the requests of a script that the line names, as TOML; `None` if it has at most one request.
    pub plan: Option<String>,
}

/// A flag in a word of the line, the value attached to the flag, and the flag as it is spelled in the line.
type SpelledFlag<'a> = (&'a LineFlag, Option<String>, String);

impl LineTool {
    /// Returns the tool's name.
    pub fn name(&self) -> &'static str {
        self.names[0].split(' ').next().unwrap_or_default()
    }

    /// Returns the words after the tool's name if `words` begin with one of its names.
    pub fn strip_name<'a>(&self, words: &'a [String]) -> Option<&'a [String]> {
        self.names.iter().find_map(|name| {
            let mut rest = words;
            for part in name.split(' ') {
                let (first, others) = rest.split_first()?;
                if first.rsplit('/').next() != Some(part) {
                    return None;
                }
                rest = others;
            }
            Some(rest)
        })
    }

    /// Translates the words after the tool's name to a line of Plimsoll's `command`. `input` is the text of stdin, if
    /// the tool reads it.
    ///
    /// # Errors
    /// Returns an error for a flag that the tool does not have, or whose value is wrong.
    pub fn translate(
        &self,
        command: &str,
        words: &[String],
        input: Option<String>,
    ) -> Result<TranslatedLine, LineError> {
        self.translate_parsed(command, self.parse(words)?, input)
    }

    /// Translates a line that [`LineTool::parse`] has read.
    fn translate_parsed(
        &self,
        command: &str,
        mut line: LineBuilder,
        input: Option<String>,
    ) -> Result<TranslatedLine, LineError> {
        line.input = input;
        let lacks = (self.finish)(&mut line).err();
        let command = line.command.unwrap_or(command);
        resolve_conflicts(command, &mut line.our_flags);
        let target = line.target.unwrap_or_else(|| TARGET_PLACEHOLDER.to_owned());
        let target = escape_url_variables(&target);
        let plaintext_only = remove_tls_flags(&target, &mut line.our_flags);
        if target.contains("{{") {
            // The URL varies from call to call, so no redirect can be followed before the load.
            let follows = |word: &String| word == "-L" || word.starts_with("--redirects=");
            line.our_flags.retain(|word| !follows(word));
        }
        let (question, symbol) = match line.subcommand {
            Some(mut words) if !words.is_empty() => (Some(words.remove(0)), words),
            _ => (None, Vec::new()),
        };
        let missing = line
            .without_counterpart
            .iter()
            .map(|(what, why)| format!("`{what}` has no counterpart: {why}"));
        Ok(TranslatedLine {
            words: std::iter::once(command.to_owned())
                .chain(question)
                .chain(std::iter::once(target))
                .chain(symbol)
                .chain(line.our_flags)
                .collect(),
            reasons: lacks.into_iter().chain(missing).collect(),
            notes: line
                .dropped
                .iter()
                .map(|(what, why)| (what.clone(), *why))
                .chain(plaintext_only.into_iter().map(|flag| (flag, NO_TLS_REASON)))
                .map(|(what, why)| format!("`{what}` is left out: {why}"))
                .collect(),
            plan: line.plan,
        })
    }

    /// Reads words by the tool's table.
    ///
    /// # Errors
    /// Returns the flag that the tool does not have, or whose value is wrong.
    pub(crate) fn parse(&self, words: &[String]) -> Result<LineBuilder, LineError> {
        let mut line = LineBuilder::default();
        let mut left = words.iter();
        while let Some(word) = left.next() {
            if word == "--" {
                line.words.extend(left.cloned());
                break;
            }
            let is_flag = word.len() > 1 && word.starts_with('-');
            if !is_flag {
                line.words.push(word.clone());
                continue;
            }
            for (flag, attached, shown) in self.parse_word(word)? {
                let value = match (flag.value, attached) {
                    (None, None) => String::new(),
                    // Switches may have a value in Go's `flag` package and in kingpin.
                    (None, Some(said)) if said == "true" => String::new(),
                    (None, Some(said)) if said == "false" => {
                        line.typed_flags.push((flag.names[0], said));
                        continue;
                    }
                    (None, Some(_)) => return Err(LineError::InvalidValue(shown)),
                    (Some(form), attached) => {
                        let value = attached.or_else(|| mixed_lines::next_value(&mut left));
                        value
                            .filter(|value| form.accepts(value))
                            .ok_or_else(|| LineError::InvalidValue(shown.clone()))?
                    }
                };
                line.typed_flags.push((flag.names[0], value.clone()));
                add_translation(&mut line, flag, shown, &value);
            }
        }
        Ok(line)
    }

    /// Returns the flags of one word.
    fn parse_word(&self, word: &str) -> Result<Vec<SpelledFlag<'_>>, LineError> {
        let unknown = |shown: &str| LineError::UnknownFlag(shown.to_owned());
        let find = |name: &str| self.flags.iter().find(|flag| flag.names.contains(&name));
        let bare = word.trim_start_matches('-');
        let dashes = word.len() - bare.len();
        let (name, attached) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        if dashes > 2 {
            return Err(unknown(word));
        }
        if self.style == FlagStyle::Go || dashes == 2 {
            let is_long = self.style == FlagStyle::Go || name.chars().count() > 1;
            let flag = find(name).filter(|_| is_long);
            let shown = format!("{}{name}", "-".repeat(dashes));
            return flag
                .map(|flag| vec![(flag, attached, shown.clone())])
                .ok_or_else(|| unknown(&shown));
        }
        let mut found = Vec::new();
        for (at, letter) in bare.char_indices() {
            let shown = format!("-{letter}");
            let end = at + letter.len_utf8();
            let flag = find(&bare[at..end]).ok_or_else(|| unknown(&shown))?;
            if flag.value.is_some() {
                let rest = &bare[end..];
                let rest = rest.strip_prefix('=').unwrap_or(rest);
                found.push((flag, (!rest.is_empty()).then(|| rest.to_owned()), shown));
                break;
            }
            found.push((flag, None, shown));
        }
        Ok(found)
    }
}

/// Adds the translation of a single flag to `line`.
fn add_translation(line: &mut LineBuilder, flag: &LineFlag, shown: String, value: &str) {
    match flag.meaning {
        FlagMeaning::OurFlag(ours, _)
            if flag.value.is_none() && line.our_flags.iter().any(|word| word == ours) => {}
        FlagMeaning::OurFlag(ours, unit) => {
            line.add_switch(ours);
            if flag.value.is_some() {
                line.our_flags.push(with_unit_if_any(value, unit));
            }
        }
        FlagMeaning::Words(words) => {
            let filled = words.iter().map(|word| word.replace("{}", value));
            line.our_flags.extend(filled);
        }
        FlagMeaning::Header(name) => line.add_field("-H", name, value),
        FlagMeaning::Missing(why) => line.add_unsupported(shown, why),
        FlagMeaning::Dropped(why) => line.add_dropped(shown, why),
        FlagMeaning::Ignored | FlagMeaning::Deferred => {}
    }
}

/// Plimsoll's flags whose values may contain an environment variable after a colon.
const FLAGS_WITH_VARIABLES: [&str; 3] = ["-H", "--metadata", "-u"];

/// Escapes a `$` at the beginning of a value: other tools send the character, but Plimsoll would replace the variable.
fn escape_variables(ours: &mut [String]) {
    for at in 1..ours.len() {
        if !FLAGS_WITH_VARIABLES.contains(&&*ours[at - 1]) {
            continue;
        }
        let Some((name, value)) = ours[at].split_once(':') else {
            continue;
        };
        let begin = value.len() - value.trim_start().len();
        if value[begin..].starts_with('$') {
            ours[at] = format!("{name}:{}$${}", &value[..begin], &value[begin + 1..]);
        }
    }
}

/// Escapes each `$` after a `=` in the query of a URL, and a `$` at the start of the user name, which Plimsoll would
/// replace as variables.
fn escape_url_variables(url: &str) -> String {
    let (begin, query) = url.split_at(url.find('?').unwrap_or(url.len()));
    format!(
        "{}{}",
        begin.replace("://$", "://%24"),
        query.replace("=$", "=%24")
    )
}

/// Removes flags of Plimsoll that conflict with each other although other tools allow the combination: a CA if no
/// certificate is checked, and a number of connections if each call has its own connection. With a rate, that number
/// becomes the limit of calls in flight. For HTTP, the field `host` becomes `--host`, and fields that persistent
/// connections imply are removed.
fn resolve_conflicts(command: &str, ours: &mut Vec<String>) {
    escape_variables(ours);
    let has = |flag: &str| ours.iter().any(|word| word == flag);
    let (is_unchecked, is_cold, is_open) = (has("--insecure"), has("--cold"), has("--rate"));
    if is_unchecked {
        remove_flag(ours, "--ca");
    }
    if is_cold && is_open {
        for word in ours.iter_mut() {
            if word.as_str() == "--connections" {
                *word = "--max-in-flight".to_owned();
            }
        }
    } else if is_cold {
        remove_flag(ours, "--connections");
    }
    if command != "http" {
        return;
    }
    let is_implied = |field: &str| {
        let field = field.to_ascii_lowercase();
        field == "connection: keep-alive" || field == "te: trailers"
    };
    let implied = |ours: &[String]| {
        ours.windows(2)
            .position(|pair| pair[0] == "-H" && is_implied(&pair[1]))
    };
    while let Some(at) = implied(ours.as_slice()) {
        ours.drain(at..at + 2);
    }
    for at in 1..ours.len() {
        let host = match ours[at].split_once(':') {
            Some((name, host)) if ours[at - 1] == "-H" && name.eq_ignore_ascii_case("host") => {
                host.trim().to_owned()
            }
            _ => continue,
        };
        ours[at - 1] = "--host".to_owned();
        ours[at] = host;
    }
}

const NO_TLS_REASON: &str = "the target is plaintext, as its URL says";

/// Plimsoll's flags about TLS that take a value.
const TLS_VALUE_FLAGS: [&str; 9] = [
    "--ca",
    "--cert",
    "--key",
    "--crl",
    "--server-name",
    "--tls-version",
    "--suite",
    "--group",
    "--pin",
];

/// Removes the flags about TLS if the target is plaintext, where other tools ignore them; returns the removed flags.
fn remove_tls_flags(target: &str, ours: &mut Vec<String>) -> Vec<String> {
    let is_plain = target.starts_with("http://") && !target.contains("unix:");
    if !is_plain {
        return Vec::new();
    }
    let has = |ours: &[String], flag: &str| ours.iter().any(|word| word == flag);
    let mut removed = Vec::new();
    for flag in TLS_VALUE_FLAGS {
        if has(ours, flag) {
            remove_flag(ours, flag);
            removed.push(flag.to_owned());
        }
    }
    if has(ours, "--insecure") {
        ours.retain(|word| word != "--insecure");
        removed.push("--insecure".to_owned());
    }
    removed
}

/// Removes every occurrence of a flag, each with its value.
fn remove_flag(ours: &mut Vec<String>, flag: &str) {
    while let Some(at) = ours.iter().position(|word| word == flag) {
        let end = ours.len().min(at + 2);
        ours.drain(at..end);
    }
}

fn with_unit_if_any(value: &str, unit: &str) -> String {
    if unit.is_empty() {
        value.to_owned()
    } else {
        with_unit(value, unit)
    }
}

#[cfg(test)]
mod tests;
