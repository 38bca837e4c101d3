//! `search.json`: a search with its trials. The trials' run directories are next to the file.

use std::path::Path;

use jiff::Timestamp;
use serde::ser::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{SearchGoal, SearchResult, SearchVariable, Trial, TrialVerdict};
use crate::formats::document;
use crate::formats::input;
use crate::runs::run::{CommonConditions, RunError};

/// The record's file name in the directory of a search.
pub const FILE_NAME: &str = "search.json";

/// A search with the trials made so far. In the JSON of a search over users, the keys `…_per_s` of searched rates are
/// `…_users`, and `rate_per_s` is `users`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct SearchRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The plan's name.
    pub name: String,
    /// The URL as the user wrote it.
    pub target: String,
    /// The version of Plimsoll that measured.
    pub tool_version: String,
    /// The time at which the first trial began.
    pub started_at: Timestamp,
    /// Conditions that all trials share; older versions do not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<CommonConditions>,
    /// The objectives of every trial, as the user wrote them.
    pub objectives: Vec<String>,
    /// The maximum share of failed calls that applies because the plan has no objective on errors; `None`: it has one.
    pub implied_errors_share: Option<f64>,
    /// The goal of the search.
    pub goal: SearchGoal,
    /// The trials in the order in which they were made.
    pub trials: Vec<Trial>,
    /// The result; `None`: the search has not ended, or was killed.
    pub finding: Option<SearchResult>,
    /// Whether the search was stopped by a signal.
    pub interrupted: bool,
}

impl Serialize for SearchRecord {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.goal.variable == SearchVariable::Rate {
            return SearchRecord::serialize(self, to);
        }
        let mut value =
            SearchRecord::serialize(self, serde_json::value::Serializer).map_err(Error::custom)?;
        rename_rates(&mut value);
        value.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SearchRecord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SearchRecord, D::Error> {
        SearchRecord::deserialize(from)
    }
}

/// Renames the keys of the searched rates to those of users; the types accept both.
fn rename_rates(value: &mut Value) {
    const RATES: [&str; 7] = [
        "start",
        "least",
        "most",
        "line",
        "low",
        "high",
        "generator_limit",
    ];
    match value {
        Value::Array(all) => all.iter_mut().for_each(rename_rates),
        Value::Object(fields) => {
            let named = std::mem::take(fields).into_iter().map(|(key, mut value)| {
                rename_rates(&mut value);
                match key.strip_suffix("_per_s") {
                    Some("rate") => ("users".to_owned(), value),
                    Some(rate) if RATES.contains(&rate) => (format!("{rate}_users"), value),
                    _ => (key, value),
                }
            });
            *fields = named.collect();
        }
        _ => {}
    }
}

impl SearchRecord {
    /// Writes `search.json` in `dir` atomically.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Reads the search in `dir`.
    ///
    /// # Errors
    /// When there is no search, it was written in another version of the format, or its numbers contradict each other.
    pub fn load(dir: &Path) -> Result<SearchRecord, RunError> {
        document::read_checked(&dir.join(FILE_NAME), |record: &SearchRecord| {
            check(&record.trials, record.finding.as_ref())
        })
    }

    /// Returns whether `dir` contains a search.
    pub fn exists_in(dir: &Path) -> bool {
        input::is_plain_file(&dir.join(FILE_NAME))
    }
}

/// Checks each trial, and that the finding is consistent with the trials.
///
/// # Errors
/// Returns the first invalid trial, or the contradiction between the finding and the trials.
fn check(trials: &[Trial], finding: Option<&SearchResult>) -> Result<(), String> {
    for (nth, trial) in trials.iter().enumerate() {
        check_trial(trial).map_err(|why| format!("trial {}: {why}", nth + 1))?;
    }
    let Some(finding) = finding else {
        return Ok(());
    };
    if let Some(line) = finding.line_per_s {
        let shows = |trial: &Trial| trial.rate_per_s == line && trial.verdict == TrialVerdict::Met;
        if !trials.iter().any(shows) {
            return Err(format!(
                "the load line is {line}, and no trial at that rate met the objectives"
            ));
        }
        let is_below = finding.low_per_s.is_none_or(|low| low <= line);
        let is_above = finding.high_per_s.is_none_or(|high| high >= line);
        if !is_below || !is_above {
            return Err(format!("the load line {line} lies outside of its interval"));
        }
    } else if finding.confirmed {
        return Err("a load line is marked as confirmed, but there is none".to_owned());
    }
    Ok(())
}

fn check_trial(trial: &Trial) -> Result<(), String> {
    let is_negative = |time: f64| time < 0.0;
    for (name, number) in [
        ("rate_per_s", trial.rate_per_s),
        ("length_s", trial.length_s),
        ("took_s", trial.took_s),
        ("achieved_per_s", trial.achieved_per_s.unwrap_or(0.0)),
    ] {
        if is_negative(number) {
            return Err(format!("`{name}` is {number}, below 0"));
        }
    }
    match trial.errors_share {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            Err(format!("`errors_share` is {share}, and a share is 0 to 1"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::runs::run::SCHEMA_VERSION;
    use crate::search::{SearchStep, TrialPurpose, next_step};

    #[test]
    fn search_record_round_trips_and_is_validated() {
        let goal = SearchGoal::default();
        let trials = vec![Trial {
            purpose: TrialPurpose::Probe,
            rate_per_s: 100.0,
            length_s: 2.0,
            took_s: 2.5,
            verdict: TrialVerdict::Missed {
                objectives: vec!["p99 < 10ms".into()],
                errors: false,
            },
            achieved_per_s: Some(99.5),
            p50_us: Some(1.5),
            errors_share: Some(0.0),
            run: Some("001".into()),
            ..Trial::default()
        }];
        let short = SearchGoal {
            budget_s: 3.0,
            ..goal.clone()
        };
        let SearchStep::Done(finding) = next_step(&short, &trials) else {
            panic!("the budget is spent");
        };
        let record = SearchRecord {
            schema_version: SCHEMA_VERSION,
            name: "n".into(),
            target: "grpc://x:1".into(),
            tool_version: "0".into(),
            started_at: Timestamp::UNIX_EPOCH,
            conditions: None,
            objectives: vec!["p99 < 10ms".into()],
            implied_errors_share: Some(0.01),
            goal,
            trials,
            finding: Some(*finding),
            interrupted: false,
        };
        let dir = tempfile::tempdir().unwrap();
        assert!(!SearchRecord::exists_in(dir.path()));
        record.write(dir.path()).unwrap();
        assert_eq!(SearchRecord::load(dir.path()).unwrap(), record);
        let refused = |change: &dyn Fn(&mut SearchRecord), expected: &str| {
            let mut changed = record.clone();
            change(&mut changed);
            changed.write(dir.path()).unwrap();
            let error = SearchRecord::load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains(FILE_NAME), "{error}");
        };
        refused(&|r| r.trials[0].errors_share = Some(1.5), "trial 1");
        refused(&|r| r.trials[0].took_s = -1.0, "`took_s` is -1");
        refused(
            &|r| r.finding.as_mut().unwrap().line_per_s = Some(70.0),
            "no trial at that rate",
        );
        refused(
            &|r| r.finding.as_mut().unwrap().confirmed = true,
            "there is none",
        );
        record.write(dir.path()).unwrap();
        let path = dir.path().join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            text.replace("\"schema_version\": 2", "\"schema_version\": 9"),
        )
        .unwrap();
        let error = SearchRecord::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
    }
}
