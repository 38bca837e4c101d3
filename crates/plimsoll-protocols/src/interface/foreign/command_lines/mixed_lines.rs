//! Translates lines that mix flags of Plimsoll with flags of another tool.
//!
//! Such a line begins with a Plimsoll command, and most of its flags come from the other tool: `plimsoll http -I -n 5
//! URL` has curl's `-I` and Plimsoll's `-n`. A flag that both have keeps the other tool's meaning.

use super::{LineBuilder, LineError, LineTool, TranslatedLine, remove_flag};

/// The placeholder for a method that is missing in a line.
pub const METHOD_PLACEHOLDER: &str = "SERVICE/METHOD";

/// A flag of a Plimsoll command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlimsollFlag {
    /// The long spelling, with its dashes.
    pub long: String,
    /// Whether the flag takes a value.
    pub takes_value: bool,
}

/// A function that looks up a flag of the command by its short or long spelling (`-n`, `--calls`).
pub type PlimsollFlagLookup<'a> = &'a dyn Fn(&str) -> Option<PlimsollFlag>;

/// A flag of Plimsoll in a line of another tool, and its value.
type GivenPlimsollFlag = (PlimsollFlag, Option<String>);

/// First names of the tools' flags that limit the number of calls.
const CALL_COUNT_FLAGS: [&str; 5] = ["n", "i", "r", "request-count", "num-prompts"];

/// First names of the tools' flags that limit the time of the load.
const DURATION_FLAGS: [&str; 7] = ["z", "d", "t", "x", "D", "duration", "benchmark-duration"];

impl LineTool {
    /// Translates the words after `command`, a command of Plimsoll. Flags that the tool does not have are looked up
    /// among those of the command, and override the tool's defaults.
    ///
    /// # Errors
    /// Returns an error for a flag that neither the tool nor the command has, or whose value is wrong.
    pub fn translate_mixed(
        &self,
        command: &str,
        words: &[String],
        input: Option<String>,
        lookup: PlimsollFlagLookup<'_>,
    ) -> Result<TranslatedLine, LineError> {
        let (theirs, own) = self.split_plimsoll_flags(words, lookup)?;
        let parse = self.parse(&theirs)?;
        let line = LineBuilder {
            is_guessed: true,
            ..self.parse(&theirs)?
        };
        let mut translated = self.translate_parsed(command, line, input)?;
        let is_typed = |names: &[&str]| names.iter().any(|name| parse.is_set(name));
        let is_own = |long: &str| own.iter().any(|(flag, _)| flag.long == long);
        let ours = &mut translated.words;
        if is_own("--duration") && !is_typed(&CALL_COUNT_FLAGS) {
            remove_flag(ours, "--calls");
        }
        if is_own("--calls") && !is_typed(&DURATION_FLAGS) {
            remove_flag(ours, "--duration");
        }
        if is_own("--rate") {
            replace_clients_with_connections(ours);
        }
        for (flag, value) in own {
            let spelled = ours.iter().position(|word| *word == flag.long);
            match (value, spelled) {
                (Some(value), Some(at)) if at + 1 < ours.len() => ours[at + 1] = value,
                (None, Some(_)) => {}
                (value, _) => {
                    ours.push(flag.long);
                    ours.extend(value);
                }
            }
        }
        Ok(translated)
    }

    /// Returns how many flags in `words` the tool does not have.
    pub fn count_plimsoll_flags(&self, words: &[String]) -> usize {
        let flags = words.iter().filter(|word| word.starts_with('-'));
        flags.filter(|word| self.parse_word(word).is_err()).count()
    }

    /// Separates the words of the tool from flags of Plimsoll. A Plimsoll flag whose long name the tool has, too, stays
    /// among the tool's words.
    fn split_plimsoll_flags(
        &self,
        words: &[String],
        lookup: PlimsollFlagLookup<'_>,
    ) -> Result<(Vec<String>, Vec<GivenPlimsollFlag>), LineError> {
        let mut theirs = Vec::new();
        let mut own = Vec::new();
        let mut left = words.iter();
        while let Some(word) = left.next() {
            if word == "--" {
                theirs.push(word.clone());
                theirs.extend(left.cloned());
                break;
            }
            if word.len() < 2 || !word.starts_with('-') {
                theirs.push(word.clone());
                continue;
            }
            let unknown = match self.parse_word(word) {
                Ok(flags) => {
                    theirs.push(word.clone());
                    let last = flags.last();
                    if last
                        .is_some_and(|(flag, attached, _)| flag.takes_value() && attached.is_none())
                    {
                        let value = left.next();
                        theirs.extend(value.cloned());
                        if value.is_some_and(|value| value == "[") {
                            let end = left.as_slice().iter().position(|word| word == "]");
                            let inner = left.by_ref().take(end.map_or(0, |end| end + 1));
                            theirs.extend(inner.cloned());
                        }
                    }
                    continue;
                }
                Err(unknown) => unknown,
            };
            let (spelled, attached) = split_value(word);
            let flag = lookup(spelled).ok_or(unknown)?;
            let value = match attached {
                Some(_) if !flag.takes_value => {
                    return Err(LineError::InvalidValue(spelled.to_owned()));
                }
                None if flag.takes_value => {
                    let next = left.next();
                    let next = next.ok_or_else(|| LineError::InvalidValue(spelled.to_owned()))?;
                    Some(next.clone())
                }
                attached => attached.map(str::to_owned),
            };
            if self.has_flag(flag.long.trim_start_matches('-')) {
                theirs.push(flag.long);
                theirs.extend(value);
            } else {
                own.push((flag, value));
            }
        }
        Ok((theirs, own))
    }
}

impl LineBuilder {
    /// Puts the flags and words of another line before those of this line, so those of this line take precedence.
    pub(crate) fn prepend_line(&mut self, mut other: LineBuilder) {
        other.typed_flags.append(&mut self.typed_flags);
        other.our_flags.append(&mut self.our_flags);
        self.typed_flags = other.typed_flags;
        self.our_flags = other.our_flags;
        if self.words.is_empty() {
            self.words = other.words;
        }
        self.without_counterpart.extend(other.without_counterpart);
    }
}

/// Takes the next word as a value. A value that begins with a bracket, such as `[ -c 1 -d 5 ]`, ends with the bracket
/// that closes it.
pub(super) fn next_value(left: &mut std::slice::Iter<'_, String>) -> Option<String> {
    let mut value = left.next()?.clone();
    if value == "[" {
        for word in left.by_ref() {
            value += &format!(" {word}");
            if word == "]" {
                break;
            }
        }
    }
    Some(value)
}

/// Splits a flag from the value that is attached to it: `--calls=5`, `-n5`.
fn split_value(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
    }
    let end = word.char_indices().nth(2).map_or(word.len(), |(at, _)| at);
    let (flag, value) = word.split_at(end);
    let value = value.strip_prefix('=').unwrap_or(value);
    (flag, Some(value).filter(|value| !value.is_empty()))
}

/// Converts the number of clients to a number of connections, because a load with a rate has no clients.
fn replace_clients_with_connections(ours: &mut Vec<String>) {
    if ours.iter().any(|word| word == "--connections") {
        remove_flag(ours, "--clients");
        return;
    }
    for word in ours.iter_mut().filter(|word| *word == "--clients") {
        "--connections".clone_into(word);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FlagMeaning, FlagStyle, ValueForm, switch, value};
    use super::*;

    static TOOL: LineTool = LineTool {
        names: &["tool"],
        style: FlagStyle::Gnu,
        flags: &[
            value(&["n"], ValueForm::Number, FlagMeaning::Deferred),
            switch(&["I"], FlagMeaning::Words(&["-X", "HEAD"])),
            value(
                &["deadline"],
                ValueForm::Text,
                FlagMeaning::OurFlag("--deadline", ""),
            ),
        ],
        reads_stdin: false,
        marker_flags: &[],
        finish: |line| {
            line.add("--clients", 3);
            line.add("--calls", line.number("n", 200));
            line.set_target_from_word("http")
        },
    };

    fn translated(line: &str) -> Result<String, LineError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let lookup = |typed: &str| {
            let (long, takes_value) = match typed {
                "-z" | "--duration" => ("--duration", true),
                "--calls" => ("--calls", true),
                "-r" => ("--rate", true),
                "-D" => ("--deadline", true),
                "-q" => ("--quiet", false),
                _ => return None,
            };
            let long = long.to_owned();
            Some(PlimsollFlag { long, takes_value })
        };
        let translated = TOOL.translate_mixed("http", &words, None, &lookup)?;
        Ok(translated.words.join(" "))
    }

    #[test]
    fn own_flags_replace_defaults_of_tool() {
        for (line, ours) in [
            ("-I a", "http http://a -X HEAD --clients 3 --calls 200"),
            (
                "-I a --calls 7 -q",
                "http http://a -X HEAD --clients 3 --calls 7 --quiet",
            ),
            (
                "-z5s a -I",
                "http http://a -X HEAD --clients 3 --duration 5s",
            ),
            (
                "-n 4 --duration=5s a",
                "http http://a --clients 3 --calls 4 --duration 5s",
            ),
            (
                "-r 9/s a",
                "http http://a --connections 3 --calls 200 --rate 9/s",
            ),
            (
                "-D 1s a",
                "http http://a --deadline 1s --clients 3 --calls 200",
            ),
        ] {
            assert_eq!(translated(line).as_deref(), Ok(ours), "{line}");
        }
    }

    #[test]
    fn flags_of_neither_are_refused() {
        let unknown = LineError::UnknownFlag("-y".to_owned());
        assert_eq!(translated("-y a"), Err(unknown));
        let invalid = LineError::InvalidValue("-z".to_owned());
        assert_eq!(translated("a -z"), Err(invalid));
        let invalid = LineError::InvalidValue("-q".to_owned());
        assert_eq!(translated("a -q5"), Err(invalid));
    }
}
