//! The spacing of open-loop arrivals, as the user writes it: a name, or a table with one key.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// The spacing of arrivals.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ArrivalsSpec {
    /// The name of an arrival process.
    Named(String),
    /// An arrival process with parameters, or a file.
    Table(ArrivalsTable),
}

/// Arrivals with parameters: exactly one key is set. Spacings without parameters are given by name:
/// `arrivals = "poisson"` in `[load]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArrivalsTable {
    /// The shape of a gamma distribution, from which gaps are drawn: 1 gives a Poisson process, lower values bursts
    /// (0.25: gaps vary twice as much as those of a Poisson process), higher values more even gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gamma: Option<f64>,
    /// A file of times in seconds, one per line: when each call is due, from the beginning of the load. It replaces a
    /// rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

impl ArrivalsSpec {
    /// Returns arrivals whose gaps follow a gamma distribution.
    pub fn gamma(shape: f64) -> ArrivalsSpec {
        ArrivalsSpec::Table(ArrivalsTable {
            gamma: Some(shape),
            file: None,
        })
    }

    /// Returns the file of times, if there is one.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            ArrivalsSpec::Named(_) => None,
            ArrivalsSpec::Table(table) => table.file.as_ref(),
        }
    }
}

impl FromStr for ArrivalsSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<ArrivalsSpec, String> {
        let text = text.trim();
        match text.split_once('=') {
            Some(("gamma", shape)) => match shape.trim().parse() {
                Ok(shape) => Ok(ArrivalsSpec::gamma(shape)),
                Err(_) => Err(format!(
                    "`{shape}` is not the shape of a gamma distribution: write a number, such as gamma=0.25"
                )),
            },
            Some(("file", file)) if !file.is_empty() => Ok(ArrivalsSpec::Table(ArrivalsTable {
                gamma: None,
                file: Some(file.into()),
            })),
            _ => Ok(ArrivalsSpec::Named(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for ArrivalsSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ArrivalsSpec, D::Error> {
        struct ArrivalsVisitor;
        impl<'de> Visitor<'de> for ArrivalsVisitor {
            type Value = ArrivalsSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("constant, poisson, { gamma = 0.25 } or { file = \"times.txt\" }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ArrivalsSpec, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ArrivalsSpec, M::Error> {
                ArrivalsTable::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(ArrivalsSpec::Table)
            }
        }
        deserializer.deserialize_any(ArrivalsVisitor)
    }
}
