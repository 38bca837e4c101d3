//! The value of a header field or metadata entry, as the user writes it in a plan or flag.

use std::fmt;
use std::path::PathBuf;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, de};

use super::section_keys::struct_keys;
use crate::formats::units::Period;

/// A metadata value: literal text, or the source of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetadataSpec {
    /// `{ env = "TOKEN" }`
    Env(String),
    /// `{ file = "token.txt" }`: the file's text without the last newline.
    File(PathBuf),
    /// `{ basic = "me:$PASSWORD" }`: Basic authentication (RFC 7617). A password written `$NAME` is read from that
    /// environment variable; a literal $ at the beginning of a password is written `$$`.
    Basic(String),
    /// Literal text.
    #[serde(untagged)]
    Text(String),
    /// `{ command = "mint token", refresh = "5m" }`: the output of a shell command, which is run again at that
    /// interval.
    #[serde(untagged)]
    Command {
        /// The command line for the shell.
        command: String,
        /// The interval; `None`: the command runs once.
        #[serde(skip_serializing_if = "Option::is_none")]
        refresh: Option<Period>,
    },
    /// `["a=1", "b=2"]`: the name is sent once for each value, in this order. Lists are not nested.
    #[serde(untagged)]
    Several(Vec<MetadataSpec>),
}

impl MetadataSpec {
    /// Returns the individual values, in order.
    pub fn values(&self) -> &[MetadataSpec] {
        match self {
            MetadataSpec::Several(values) => values,
            one => std::slice::from_ref(one),
        }
    }

    /// Parses a value in the syntax of flags: `$NAME` is read from that environment variable, and `$$` is a literal $.
    pub fn from_flag(text: &str) -> MetadataSpec {
        match text.strip_prefix('$') {
            Some(literal) if literal.starts_with('$') => MetadataSpec::Text(literal.to_owned()),
            Some(variable) => MetadataSpec::Env(variable.to_owned()),
            None => MetadataSpec::Text(text.to_owned()),
        }
    }

    /// Returns whether the plan itself contains the text of the value, which may be secret.
    pub(super) fn contains_secret_text(&self) -> bool {
        match self {
            MetadataSpec::Text(_) => true,
            MetadataSpec::Basic(pair) => {
                let password = pair.split_once(':').map_or("", |(_, password)| password);
                !matches!(MetadataSpec::from_flag(password), MetadataSpec::Env(_))
            }
            _ => false,
        }
    }

    /// Appends `value`.
    pub fn push(&mut self, value: MetadataSpec) {
        match self {
            MetadataSpec::Several(values) => values.push(value),
            first => {
                let first_value = std::mem::replace(first, MetadataSpec::Several(Vec::new()));
                *first = MetadataSpec::Several(vec![first_value, value]);
            }
        }
    }

    /// Returns the keys of a value that is a table.
    pub fn keys() -> &'static [&'static str] {
        struct_keys::<MetadataSource>()
    }
}

/// A value that the plan does not contain, or only in part. One of `env`, `file`, `basic` and `command` names its
/// source.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct MetadataSource {
    /// The environment variable that contains the value.
    env: Option<String>,
    /// The file that contains the value; a newline at its end is left out.
    file: Option<PathBuf>,
    /// `USER:PASSWORD` of Basic authentication (RFC 7617). A password `$NAME` is read from that environment variable;
    /// `$$` is a literal $.
    basic: Option<String>,
    /// The shell command that prints the value.
    command: Option<String>,
    /// How often `command` runs again. Default: it runs once.
    refresh: Option<Period>,
}

impl<'de> Deserialize<'de> for MetadataSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MetadataSpec, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = MetadataSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, { env = \"NAME\" }, { file = \"PATH\" }, { basic = \"USER:$NAME\" }, { command = \"CMD\" } or a list of these",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<MetadataSpec, E> {
                Ok(MetadataSpec::Text(text.into()))
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<MetadataSpec, S::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    match value {
                        MetadataSpec::Several(_) => {
                            return Err(de::Error::custom("a list within a list"));
                        }
                        value => values.push(value),
                    }
                }
                if values.is_empty() {
                    Err(de::Error::custom("an empty list: leave the name out"))
                } else {
                    Ok(MetadataSpec::Several(values))
                }
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<MetadataSpec, M::Error> {
                let source =
                    MetadataSource::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let given = (source.env, source.file, source.basic, source.command);
                match (given, source.refresh) {
                    ((Some(name), None, None, None), None) => Ok(MetadataSpec::Env(name)),
                    ((None, Some(path), None, None), None) => Ok(MetadataSpec::File(path)),
                    ((None, None, Some(pair), None), None) => Ok(MetadataSpec::Basic(pair)),
                    ((None, None, None, Some(command)), refresh) => {
                        Ok(MetadataSpec::Command { command, refresh })
                    }
                    _ => Err(de::Error::custom(
                        "a metadata value is either { env = \"NAME\" }, { file = \"PATH\" }, { basic = \"USER:$NAME\" } or { command = \"CMD\", refresh = \"5m\" }",
                    )),
                }
            }
        }
        deserializer.deserialize_any(MetadataVisitor)
    }
}
