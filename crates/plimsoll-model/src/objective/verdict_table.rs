//! The table that determines every verdict: on the screen, in documents, in JUnit files and in the exit code.
//!
//! [`decide_verdict`] gives the verdict on one objective, and [`RunVerdict::from_results`] the verdict on all of them
//! together. `docs/objectives.md` contains the same table, and a test checks that they are equal.

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;

use super::ObjectiveResult;

/// The comparison of an objective's measured interval with its limit, independent of the run's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitCheck {
    /// Both ends of the interval are within the limit.
    Met,
    /// Both ends violate the limit: it would be missed even if the generator had never been late.
    Missed,
    /// The limit lies within the interval, or the rate is below its limit by no more than the generator may have
    /// lowered it.
    Within,
    /// There are too few calls or handshakes for a comparison.
    TooFew,
}

impl LimitCheck {
    /// Every value, in the order of the table.
    pub const ALL: [LimitCheck; 4] = [
        LimitCheck::Met,
        LimitCheck::Missed,
        LimitCheck::Within,
        LimitCheck::TooFew,
    ];
}

named! {
    /// Whether a run can be judged.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RunValidity by name {
        /// The run is complete and its figures describe the target.
        Sound "sound",
        /// The run ended early because an objective could no longer be met.
        Lost "ended early: an objective could no longer be met",
        /// The load differs from the plan: calls were not sent, connections are missing, or handshakes were full where
        /// the plan resumes sessions.
        OtherLoad "load differs from the plan",
        /// The run is incomplete, no call succeeded, or the counts don't add up.
        Unproven "incomplete, or without a success",
    }
}

named! {
    /// The verdict on one objective, with the words that follow it in a sentence: "p99 < 10ms: missed".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ObjectiveVerdict by words {
        /// The limit was kept.
        Met "met",
        /// The limit was not kept, and the generator can't be the cause.
        Missed "missed",
        /// The generator's lateness leaves it open on which side of the limit the value is, or the run proves nothing.
        CannotBeJudged "inconclusive",
        /// The run has too few calls or handshakes for a verdict.
        NotSupported "inconclusive",
    }
}

/// Returns the verdict on an objective in a run of this validity. `found`: how its measured interval compares with its
/// limit.
pub fn decide_verdict(validity: RunValidity, found: LimitCheck) -> ObjectiveVerdict {
    match (validity, found) {
        (RunValidity::Unproven, _) => ObjectiveVerdict::CannotBeJudged,
        (_, LimitCheck::TooFew) => ObjectiveVerdict::NotSupported,
        (_, LimitCheck::Within) => ObjectiveVerdict::CannotBeJudged,
        // A missed objective stays missed, whether or not the load was as planned or complete.
        (_, LimitCheck::Missed) => ObjectiveVerdict::Missed,
        // A lighter or burstier load than planned proves nothing.
        (RunValidity::OtherLoad, LimitCheck::Met) => ObjectiveVerdict::CannotBeJudged,
        (RunValidity::Sound | RunValidity::Lost, LimitCheck::Met) => ObjectiveVerdict::Met,
    }
}

named! {
    /// The verdict on a run with objectives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RunVerdict by name {
        /// Every objective was met.
        Pass "pass",
        /// At least one objective was missed, and the generator is not the cause.
        Fail "fail",
        /// No objective was certainly missed, and at least one is inconclusive.
        Invalid "inconclusive",
    }
}

impl RunVerdict {
    /// Returns the verdict on all objectives together; `None` where there are none.
    pub fn from_results(judged: &[ObjectiveResult]) -> Option<RunVerdict> {
        let any = |verdict| judged.iter().any(|j| j.verdict == verdict);
        if judged.is_empty() {
            None
        } else if any(ObjectiveVerdict::Missed) {
            Some(RunVerdict::Fail)
        } else if judged.iter().all(|j| j.verdict == ObjectiveVerdict::Met) {
            Some(RunVerdict::Pass)
        } else {
            Some(RunVerdict::Invalid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of the table under the page's heading `## name`, without header and rule.
    fn rows(page: &str, name: &str) -> Vec<Vec<String>> {
        let section = page.split("\n## ").find(|s| s.starts_with(name)).unwrap();
        let lines = section.lines().filter(|line| line.starts_with('|'));
        let cells = |line: &str| {
            let inner = line.trim_matches('|').split('|');
            inner.map(|cell| cell.trim().to_owned()).collect()
        };
        lines.skip(2).map(cells).collect()
    }

    #[test]
    fn verdict_table_matches_documentation() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/objectives.md");
        let page = std::fs::read_to_string(path).unwrap();
        let expected: Vec<Vec<String>> = RunValidity::ALL
            .into_iter()
            .map(|validity| {
                let verdicts = LimitCheck::ALL.map(|found| decide_verdict(validity, found).words());
                let mut row = vec![validity.name().to_owned()];
                row.extend(verdicts.map(str::to_owned));
                row
            })
            .collect();
        assert_eq!(rows(&page, "How an objective is judged"), expected);
    }

    #[test]
    fn missed_objective_fails_and_unjudged_blocks_pass() {
        use ObjectiveVerdict::{CannotBeJudged, Met, Missed, NotSupported};
        for (verdicts, conclusion) in [
            (&[] as &[ObjectiveVerdict], None),
            (&[Met, Met], Some(RunVerdict::Pass)),
            (&[Met, CannotBeJudged], Some(RunVerdict::Invalid)),
            (&[NotSupported, Met], Some(RunVerdict::Invalid)),
            (&[CannotBeJudged, Missed, Met], Some(RunVerdict::Fail)),
        ] {
            let judged: Vec<ObjectiveResult> = verdicts
                .iter()
                .map(|verdict| ObjectiveResult {
                    objective: String::new(),
                    verdict: *verdict,
                    measured: String::new(),
                    instrument_us: None,
                })
                .collect();
            assert_eq!(
                RunVerdict::from_results(&judged),
                conclusion,
                "{verdicts:?}"
            );
        }
    }
}
