//! `[[steps]]` of a plan: the steps of a journey, in the form that users write.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_model::formats::redaction::QuerySecrets;
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::URL_KEYS;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use toml::Table;

/// A step: its place in the journey, and its call. The call has the same keys as its protocol's section of the plan,
/// and takes the values of absent keys from that section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSpec {
    /// The place in the journey.
    #[serde(flatten)]
    pub flow: StepControlSpec,
    /// The call, with the keys of its protocol's section.
    #[serde(flatten)]
    pub call: Table,
}

/// Returns the secrets in the query strings of all steps, with the variables that replace them in a saved plan.
pub(super) fn query_string_secrets(steps: &[StepSpec]) -> Vec<(String, String)> {
    let mut secrets = QuerySecrets::default();
    for step in steps {
        let urls = URL_KEYS.iter().filter_map(|key| match *key {
            "target" => step.flow.target.as_deref(),
            key => step.call.get(key)?.as_str(),
        });
        urls.for_each(|url| drop(secrets.replace_secrets(url)));
    }
    secrets.into_variables()
}

/// The place of a step in its journey.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepControlSpec {
    /// The step's name in reports. Default: method and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The URL that the step calls, if it is not the plan's target; its scheme determines the step's protocol. The
    /// steps of a user have at most 8 targets, and a connection to each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The limits that this step must meet, as in `[objective]`: `"p99" = "< 100ms"`, `"errors" = "< 1%"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub objective: BTreeMap<String, String>,
    /// Names for values of the answer, which later steps use as `{{NAME}}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub take: BTreeMap<String, TakeSpec>,
    /// The pause before the step: "1s", "1s to 3s" (uniform) or "exponential 2s". Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseSpec>,
    /// How often the step is made: a number, or "while NAME": repeated as long as the name is bound. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<RepeatSpec>,
    /// Make the step only if a name is bound (`"NAME"`), is not bound (`"!NAME"`), or its value equals or differs from
    /// a text (`"NAME == VALUE"`, `"NAME != VALUE"`).
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The branch that the step belongs to. Of consecutive branches, each user takes one. Default: a step with a weight
    /// is its own branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The loop that the step belongs to, whose steps follow each other. The first of them says how often they are
    /// made: `loop = { name = "query", repeat = 10 }`; the others have its name: `loop = "query"`.
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    pub in_loop: Option<LoopSpec>,
    /// The weight of the branch that begins with this step. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The effect of a failure: "end" (the journey ends as failed), "continue" (it continues, but counts as failed) or
    /// "retry". Default "end".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
    /// How often a step with `on_failure = "retry"` is tried in total. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The pause before the second attempt; it doubles each time. Default 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Period>,
}

/// The source of a value in an answer: `"/token"` (JSON Pointer, RFC 6901) or `"$.items[*].id"` (JSONPath, RFC 9535),
/// or a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a JSON Pointer or JSONPath, or a table such as { header = \"location\" }"
)]
pub enum TakeSpec {
    /// A JSON Pointer or JSONPath.
    Json(String),
    /// One of the other sources.
    From(TakeTable),
}

impl TakeSpec {
    /// Returns the text that the value's bytes become.
    pub fn encoding(&self) -> Option<ValueEncoding> {
        match self {
            TakeSpec::Json(_) => None,
            TakeSpec::From(table) => table.encoding,
        }
    }
}

/// The source of a value, and whether an answer may lack the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TakeTable {
    /// A value in a JSON body, by JSON Pointer or JSONPath; if several values match, each user takes one at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// A header field of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// A metadata entry of the answer, from its headers or trailers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// A cookie that this answer or an earlier one has set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    /// A regular expression, which is searched for in the body, or with `header` in that field; the value is its first
    /// group, or the whole match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The bytes of the body from one index to before another, from 0: `"4..8"`, or to the end: `"4.."`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// The text that the bytes of `bytes` or `regex` become: "hex" or "base64". Default: they are taken as they are.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub encoding: Option<ValueEncoding>,
    /// Whether an answer may lack the value; then the name is not bound. Default false: the step fails with
    /// TAKE_MISSING.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// How bytes become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueEncoding {
    /// Lower-case hexadecimal digits.
    Hex,
    /// Base64 (RFC 4648, 4).
    Base64,
}

/// The pause before a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PauseSpec {
    /// A pause of this duration.
    Fixed(Duration),
    /// A pause that is uniformly distributed between two durations.
    Uniform(Duration, Duration),
    /// A pause that is exponentially distributed with this mean.
    Exponential(Duration),
}

impl PauseSpec {
    /// Returns the longest pause, or the mean if there is none.
    pub(super) fn upper_bound(self) -> Duration {
        match self {
            PauseSpec::Fixed(pause)
            | PauseSpec::Uniform(_, pause)
            | PauseSpec::Exponential(pause) => pause,
        }
    }
}

impl FromStr for PauseSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PauseSpec, String> {
        let period = |text: &str| text.trim().parse::<Period>().map(|period| period.0);
        if let Some(mean) = text.strip_prefix("exponential ") {
            return period(mean).map(PauseSpec::Exponential);
        }
        let Some((low, high)) = text.split_once(" to ") else {
            return period(text).map(PauseSpec::Fixed);
        };
        match (period(low)?, period(high)?) {
            (low, high) if low <= high => Ok(PauseSpec::Uniform(low, high)),
            _ => Err(format!("`{text}`: the first time is above the second")),
        }
    }
}

impl fmt::Display for PauseSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PauseSpec::Fixed(pause) => write!(f, "{}", Period(pause)),
            PauseSpec::Uniform(low, high) => write!(f, "{} to {}", Period(low), Period(high)),
            PauseSpec::Exponential(mean) => write!(f, "exponential {}", Period(mean)),
        }
    }
}

impl Serialize for PauseSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PauseSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PauseSpec, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The loop that a step belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a loop, or in its first step { name = \"query\", repeat = 10 }"
)]
pub enum LoopSpec {
    /// The name of the loop that an earlier step began.
    Name(String),
    /// The loop that begins with this step.
    Begin(LoopTable),
}

impl LoopSpec {
    /// Returns the name of the loop.
    pub fn name(&self) -> &str {
        match self {
            LoopSpec::Name(name) | LoopSpec::Begin(LoopTable { name, .. }) => name,
        }
    }
}

/// A loop over several steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopTable {
    /// The loop's name, which its further steps have as `loop`.
    pub name: String,
    /// How often the steps of the loop are made: a number, or "while NAME": again as long as the name is bound at the
    /// end of an iteration, of which no step has failed (at most 100 times).
    pub repeat: RepeatSpec,
}

/// How many times a step is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or \"while NAME\"")]
pub enum RepeatSpec {
    /// The step runs this many times.
    Times(u32),
    /// `while NAME`: the step is repeated as long as its response binds the name.
    While(String),
}

/// Returns whether the text can't contain a secret, even in a field such as `authorization`: it consists of template
/// fields only, apart from the name of an authentication scheme (RFC 9110, 11.1).
pub(crate) fn has_only_template_fields(text: &str) -> bool {
    let (mut rest, mut literal) = (text, String::new());
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((_, behind)) = after.split_once("}}") else {
            return false;
        };
        literal.push_str(before);
        rest = behind;
    }
    literal.push_str(rest);
    let has_field = rest.len() < text.len();
    has_field && matches!(literal.trim(), "" | "Bearer" | "Basic" | "Token")
}

/// Returns the name of a step's header field, made unique among all steps.
pub(super) fn step_field_name(step: usize, name: &str) -> String {
    format!("step{step}-{}", name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_lengths_ranges_or_means() {
        for text in ["1s", "500ms to 2s", "exponential 250ms"] {
            assert_eq!(text.parse::<PauseSpec>().unwrap().to_string(), text);
        }
        for wrong in ["", "soon", "3s to 1s", "exponential"] {
            assert!(wrong.parse::<PauseSpec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bound_values_hold_nothing_secret() {
        for (text, bound) in [
            ("Bearer {{token}}", true),
            ("{{a}}{{b}}", true),
            ("Bearer abc", false),
            ("abc{{token}}", false),
            ("{{token", false),
            ("", false),
        ] {
            assert_eq!(has_only_template_fields(text), bound, "{text}");
        }
    }

    #[test]
    fn steps_round_trip_as_tables() {
        let text = r#"
name = "log in"
method = "POST"
path = "/login"
body = '{"user":"ada"}'
repeat = "while more"
if = "!token"
pause = "1s to 2s"
[take]
token = "/token"
id = { header = "x-id", optional = true }
[headers]
accept = "application/json"
"#;
        let step: StepSpec = toml::from_str(text).unwrap();
        assert_eq!(step.flow.name.as_deref(), Some("log in"));
        assert_eq!(step.flow.take.len(), 2);
        assert_eq!(step.call.len(), 4);
        let again: StepSpec = toml::from_str(&toml::to_string(&step).unwrap()).unwrap();
        assert_eq!(again, step);
    }
}
