//! Checks that no sentence about a search contradicts the table of its trials: for searches over noisy servers, whose
//! trials and confirmations fail at random, and for random tables, most of which no search would produce.
//!
//! Each claim of a sentence is parsed and checked against the trials. An unknown sentence fails the test.
//!
//! This file is long because each kind of sentence is parsed and checked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::records;

use plimsoll_model::search::{
    BacklogGrowth, SearchGoal, SearchRecord, SearchResult, SearchStep, Trial, TrialPurpose,
    TrialVerdict, next_step, search_result,
};
use plimsoll_report::quantity::{exact_rate as rate, time};
use plimsoll_report::search::{explanation, headline, render};
use plimsoll_report::terminal::TerminalOptions;
use proptest::prelude::*;

// Some of them are equal when rounded.
const RATES: [f64; 8] = [
    100.0, 500.4, 500.6, 900.0, 1_000.0, 1_010.0, 1_200.0, 4_000.0,
];
const LENGTHS: [f64; 4] = [2.0, 5.0, 10.0, 15.0];

fn verdict() -> impl Strategy<Value = TrialVerdict> {
    let missed = |errors| TrialVerdict::Missed {
        objectives: vec!["p99 < 10ms".into()],
        errors,
    };
    prop_oneof![
        5 => Just(TrialVerdict::Met),
        2 => Just(missed(false)),
        1 => Just(missed(true)),
        2 => Just(TrialVerdict::Growing),
        2 => Just(TrialVerdict::GeneratorLimited { reason: "a late worker".into() }),
    ]
}

fn trial() -> impl Strategy<Value = Trial> {
    let purpose = prop_oneof![
        1 => Just(TrialPurpose::Curve),
        3 => Just(TrialPurpose::Probe),
        3 => Just(TrialPurpose::Narrow),
        2 => Just(TrialPurpose::Confirm),
    ];
    (0..RATES.len(), 0..LENGTHS.len(), purpose, verdict()).prop_map(
        |(rate, length, purpose, verdict)| Trial {
            purpose,
            rate_per_s: RATES[rate],
            length_s: LENGTHS[length],
            took_s: LENGTHS[length] + 1.5,
            verdict,
            p99_us: Some(1_000.0 * (rate * rate + length) as f64),
            ..Trial::default()
        },
    )
}

fn record() -> impl Strategy<Value = SearchRecord> {
    let trials = proptest::collection::vec(trial(), 0..14);
    (trials, 0..3_usize, any::<(bool, bool)>(), 0..3_usize).prop_map(
        |(trials, ends, (spent, interrupted), precision)| {
            let goal = SearchGoal {
                least_per_s: [1.0, 100.0, 900.0][ends],
                most_per_s: [10e6, 4_000.0, 1_010.0][ends],
                start_per_s: 1_000.0,
                precision: [0.005, 0.01, 0.2][precision],
                ..SearchGoal::default()
            };
            let trials: Vec<Trial> = trials
                .into_iter()
                .filter(|t| (goal.least_per_s..=goal.most_per_s).contains(&t.rate_per_s))
                .collect();
            SearchRecord {
                finding: Some(SearchResult {
                    budget_spent: spent,
                    ..search_result(&goal, &trials)
                }),
                goal,
                trials,
                interrupted,
                ..records::begun_search()
            }
        },
    )
}

/// Searches a server of about this capacity, above which the backlog grows, an objective is missed, or calls fail.
/// Trials are wrong with probability `noise`, so confirmations fail too; some are `hiccups`.
fn simulate_search(
    seed: u64,
    capacity: f64,
    (noise, hiccups): (f64, f64),
    budget_s: f64,
    kind: usize,
    ended_after: usize,
) -> SearchRecord {
    let goal = SearchGoal {
        budget_s,
        precision: 0.02,
        least_per_s: 2.0,
        most_per_s: 50_000.0,
        ..SearchGoal::default()
    };
    let mut random = seed;
    // Steele, Lea and Flood 2014: SplitMix64.
    let mut uniform = || {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut record = SearchRecord {
        goal,
        ..records::begun_search()
    };
    loop {
        let (purpose, rate_per_s, length_s) = match next_step(&record.goal, &record.trials) {
            SearchStep::Done(finding) => {
                record.finding = Some(*finding);
                return record;
            }
            SearchStep::Try { .. } if record.trials.len() >= ended_after => {
                record.finding = Some(SearchResult {
                    budget_spent: true,
                    ..search_result(&record.goal, &record.trials)
                });
                record.interrupted = true;
                return record;
            }
            SearchStep::Try {
                purpose,
                rate_per_s,
                length,
            } => (purpose, rate_per_s, length.as_secs_f64()),
        };
        let blur = noise * (5.0 / length_s).sqrt() * (uniform() + uniform() + uniform() - 1.5);
        let carries = capacity * (1.0 + 2.0 * blur);
        let objectives = vec!["p99 < 10ms".into()];
        let verdict = match (uniform() < hiccups, rate_per_s <= carries, kind) {
            (true, ..) => TrialVerdict::GeneratorLimited {
                reason: "a late worker".into(),
            },
            (_, true, _) => TrialVerdict::Met,
            (_, _, 0) => TrialVerdict::Growing,
            (.., kind) => TrialVerdict::Missed {
                objectives,
                errors: kind == 1,
            },
        };
        let growth = BacklogGrowth {
            per_s: (rate_per_s - carries).max(0.0),
            error_per_s: 1.0,
            increments: length_s as u32,
            first: 0.0,
        };
        record.trials.push(Trial {
            purpose,
            rate_per_s,
            length_s,
            took_s: length_s + 1.5,
            verdict,
            p99_us: Some(1_000.0 / (1.0 - (rate_per_s / 1.2 / carries).min(0.99))),
            growth: (kind == 0 && length_s >= 2.0).then_some(growth),
            ..Trial::default()
        });
    }
}

fn search() -> impl Strategy<Value = SearchRecord> {
    (
        any::<u64>(),
        0.3..4.0_f64,
        (0.0..0.1_f64, 0.0..0.15_f64),
        5.0..200.0_f64,
        0..3_usize,
        prop_oneof![1 => 0..12_usize, 3 => Just(usize::MAX)],
    )
        .prop_map(|(seed, capacity, noise, budget_s, kind, ended_after)| {
            simulate_search(
                seed,
                10_f64.powf(capacity),
                noise,
                budget_s,
                kind,
                ended_after,
            )
        })
}

/// A claim that the trials don't support.
type Contradiction = String;

/// The knowledge of a reader: the trials and the goal.
struct ClaimChecker<'a> {
    record: &'a SearchRecord,
    /// The line in the headline.
    line: Option<f64>,
}

impl ClaimChecker<'_> {
    fn trials(&self) -> &[Trial] {
        &self.record.trials
    }

    /// Parses a rate in a text, which must be that of a trial.
    fn trial_rate(&self, text: &str) -> Result<f64, Contradiction> {
        let named = |t: &&Trial| rate(t.rate_per_s) == text;
        let trial = self.trials().iter().find(named);
        trial
            .map(|t| t.rate_per_s)
            .ok_or(format!("no trial at {text}"))
    }

    fn count(&self, of: impl Fn(&Trial) -> bool) -> usize {
        self.trials().iter().filter(|t| of(t)).count()
    }

    fn any(&self, of: impl Fn(&Trial) -> bool, wrong: &str) -> Result<(), Contradiction> {
        match self.count(of) {
            0 => Err(wrong.to_owned()),
            _ => Ok(()),
        }
    }

    fn require_none(&self, of: impl Fn(&Trial) -> bool, wrong: &str) -> Result<(), Contradiction> {
        match self.count(of) {
            0 => Ok(()),
            n => Err(format!("{wrong}: {n}")),
        }
    }

    fn is_above(&self, trial: &Trial) -> bool {
        self.line.is_none_or(|line| trial.rate_per_s > line)
    }

    fn require_met(&self, at: f64) -> Result<(), Contradiction> {
        let met = |t: &Trial| t.rate_per_s == at && t.verdict == TrialVerdict::Met;
        self.any(met, "no trial there met the objectives")
    }

    /// Checks that the target failed at no rate above the line, up to `below`, or only in trials that are outnumbered
    /// at their rate.
    fn require_no_failures(&self, below: f64) -> Result<(), Contradiction> {
        // Considers the longest trials of the target at a rate.
        let outnumbered = |rate: f64| {
            let here = |t: &Trial| {
                let limited = matches!(t.verdict, TrialVerdict::GeneratorLimited { .. });
                t.rate_per_s == rate && t.purpose != TrialPurpose::Curve && !limited
            };
            let lengths = self.trials().iter().filter(|t| here(t));
            let longest = lengths.map(|t| t.length_s).fold(0.0, f64::max);
            let long = |t: &Trial| here(t) && t.length_s * 1.5 >= longest;
            self.count(|t| long(t) && t.verdict == TrialVerdict::Met)
                >= self.count(|t| long(t) && t.verdict.is_failure())
        };
        self.require_none(
            |t| {
                self.is_above(t)
                    && t.rate_per_s <= below
                    && t.purpose != TrialPurpose::Curve
                    && t.verdict.is_failure()
                    && !outnumbered(t.rate_per_s)
            },
            "the target failed at a higher rate",
        )
    }

    fn check_headline(&mut self, text: &str) -> Result<(), Contradiction> {
        let held = format!(" ({})", self.record.objectives.join(", "));
        let meets = format!("Meets {} up to ", self.record.objectives.join(", "));
        if let Some(rest) = text.strip_prefix(&meets) {
            let end = rest.find("/s").ok_or("no rate")? + 2;
            let (at, rest) = rest.split_at(end);
            let line = self.trial_rate(at)?;
            self.line = Some(line);
            self.require_met(line)?;
            let told_apart = rest.strip_prefix(", and fails at ");
            if let Some(rest) = told_apart {
                let between = "; between them the generator was too late to tell.";
                let at = rest.strip_suffix(between).ok_or("unknown")?;
                let failed = self.trial_rate(at)?;
                self.generators_limit().ok_or("no such trial")?;
                self.any(
                    |t| t.rate_per_s == failed && t.verdict.is_failure(),
                    "no trial there failed",
                )?;
                return self.require_none(
                    |t| t.rate_per_s >= failed && t.verdict == TrialVerdict::Met,
                    "trials there or higher met the objectives",
                );
            }
            return match rest {
                "; above it the generator was too late to tell." => {
                    let limit = self.generators_limit().ok_or("no such trial")?;
                    self.require_no_failures(limit)
                }
                ", the highest tried." => {
                    self.require_none(|t| t.rate_per_s > line, "higher rates were tried")
                }
                "." => self.require_no_failures(f64::INFINITY),
                _ => Err("unknown".to_owned()),
            };
        }
        if let Some((at, ".")) = text.split_once(&format!(" is the load line{held}")) {
            let line = self.trial_rate(at)?;
            self.line = Some(line);
            self.require_met(line)?;
            return self.any(
                |t| t.rate_per_s > line && t.verdict.is_failure(),
                "the target failed at no higher rate",
            );
        }
        let met = |t: &Trial| t.verdict == TrialVerdict::Met;
        let objectives = self.record.objectives.join(", ");
        match text {
            "No rate was found: the generator was too late to tell from the first trial on." => {
                self.generators_limit().ok_or("no such trial")?;
                self.require_none(met, "trials met the objectives")
            }
            "No trial was made." => self.require_none(|_| true, "trials"),
            "No rate was found: the generator was late in every trial." => self.require_none(
                |t| !matches!(t.verdict, TrialVerdict::GeneratorLimited { .. }),
                "other trials",
            ),
            _ if text == format!("No rate that was tried meets {objectives}.") => {
                self.any(|_| true, "no trial was made")?;
                self.require_none(met, "trials met the objectives")
            }
            _ if text
                == format!(
                    "No rate was found to meet {objectives}: where some trials met it, longer or more trials missed it."
                ) =>
            {
                self.any(met, "no trial met the objectives")
            }
            _ => Err("unknown".to_owned()),
        }
    }

    /// Returns the lowest rate above the line at which most trials were generator-limited: at least two, since one may
    /// be a hiccup.
    fn generators_limit(&self) -> Option<f64> {
        let limited = |t: &Trial| matches!(t.verdict, TrialVerdict::GeneratorLimited { .. });
        let rates = self.trials().iter().filter(|t| self.is_above(t));
        rates
            .map(|t| t.rate_per_s)
            .filter(|rate| {
                let here = self.count(|t| t.rate_per_s == *rate);
                let limited = self.count(|t| t.rate_per_s == *rate && limited(t));
                limited >= 2 && 2 * limited > here
            })
            .min_by(f64::total_cmp)
    }

    fn check_sentence(&self, text: &str) -> Result<(), Contradiction> {
        let finding = self.record.finding.as_ref().unwrap();
        let line = self.line;
        let above = |of: &dyn Fn(&Trial) -> bool, wrong: &str| {
            self.any(|t| self.is_above(t) && of(t), wrong)
        };
        if let Some(rest) = text.strip_prefix("it lies between ") {
            let (low, rest) = rest.split_once(" and ").ok_or("unknown")?;
            let (high, _) = rest.split_once(" (").ok_or("unknown")?;
            let (low, high) = (parse_rate(low)?, parse_rate(high)?);
            let line = line.ok_or("there is no line")?;
            return if low <= line && line <= high {
                Ok(())
            } else {
                Err("the line is not in it".to_owned())
            };
        }
        if let Some(rest) = text.strip_prefix("a trial of ") {
            let (s, rest) = rest.split_once(" s at the line").ok_or("unknown")?;
            let queue_known = match rest {
                " met every objective, and no calls piled up in it" => true,
                " met every objective" => false,
                _ => return Err("unknown".to_owned()),
            };
            let length: f64 = s.parse().map_err(|_| "no length")?;
            return self.any(
                |t| {
                    Some(t.rate_per_s) == line
                        && t.purpose == TrialPurpose::Confirm
                        && (t.length_s - length).abs() <= 0.051
                        && t.verdict == TrialVerdict::Met
                        && t.growth.is_some() == queue_known
                },
                "no such trial",
            );
        }
        if text.contains("above the line met every objective (up to")
            || text.contains("at the line or below it")
        {
            return self.check_exceptions(text);
        }
        if let Some(rest) = text.strip_prefix("the knee: up to about ") {
            let (at, p99) = rest.split_once(" the p99 stays near ").ok_or("unknown")?;
            return self.any(
                |t| rate(t.rate_per_s) == at && t.p99_us.map(time).as_deref() == Some(p99),
                "no such point",
            );
        }
        if let Some(rest) = text.strip_prefix("most trials at ") {
            let (at, _) = rest
                .split_once(" were generator-limited: a late worker")
                .ok_or("no reason")?;
            return if Some(self.trial_rate(at)?) == self.generators_limit() {
                Ok(())
            } else {
                Err("another rate".to_owned())
            };
        }
        if let Some((at, rest)) = text.split_once(" is the highest rate that was allowed") {
            assert_eq!(rest, ", and it meets every objective");
            let at = self.trial_rate(at)?;
            self.require_met(at)?;
            return if at == self.record.goal.most_per_s && Some(at) == line {
                Ok(())
            } else {
                Err("it isn't".to_owned())
            };
        }
        if let Some((at, "")) = text.split_once(" is the lowest rate that was allowed") {
            let at = self.trial_rate(at)?;
            self.any(
                |t| t.rate_per_s == at && t.verdict.is_failure(),
                "it failed in no trial",
            )?;
            return if at == self.record.goal.least_per_s && line.is_none() {
                Ok(())
            } else {
                Err("it isn't".to_owned())
            };
        }
        let budget = format!(
            "the budget of {} s was spent before ",
            self.record.goal.budget_s
        );
        if let Some(rest) = text.strip_prefix(&budget) {
            for missing in rest.split(" and ") {
                let is_so = match missing {
                    "a line was confirmed" => !finding.confirmed,
                    precision => {
                        let precision = precision
                            .strip_prefix("the precision of ")
                            .and_then(|p| p.strip_suffix(" % was reached"))
                            .ok_or("unknown")?;
                        let precision: f64 = precision.parse().map_err(|_| "no figure")?;
                        // From the line to the lowest rate above it that failed.
                        !self.trials().iter().any(|t| {
                            line.is_some_and(|line| {
                                t.rate_per_s > line
                                    && t.verdict.is_failure()
                                    && (t.rate_per_s - line) / t.rate_per_s <= precision / 100.0
                                    && finding.width == Some((t.rate_per_s - line) / t.rate_per_s)
                            })
                        })
                    }
                };
                if !is_so {
                    return Err(format!("not so: {missing}"));
                }
            }
            return Ok(());
        }
        let missed = |errors: bool| move |t: &Trial| matches!(t.verdict, TrialVerdict::Missed { errors: e, .. } if e == errors);
        if let Some((n, rest)) = text.split_once(" above the line failed, too few") {
            assert_eq!(rest, " to say that the line ends there");
            let (n, _) = n.split_once(' ').ok_or("no count")?;
            let failed = self.count(|t| self.is_above(t) && t.verdict.is_failure());
            return if n.parse() == Ok(failed) && line.is_some() {
                self.require_no_failures(f64::INFINITY)
            } else {
                Err(format!("{failed} did"))
            };
        }
        if let Some(rest) = text.strip_prefix("at ") {
            // Without a line: the lowest rate at which the target failed.
            let (at, what) = rest.split_once(' ').ok_or("unknown")?;
            let at_rate = self.trial_rate(at)?;
            let here = |t: &Trial| t.rate_per_s == at_rate;
            if line.is_some() {
                return Err(format!("there is a line, and not at {at}"));
            }
            return match what {
                "the target misses p99 < 10ms" => {
                    self.any(|t| here(t) && missed(false)(t), "no such trial")
                }
                "calls pile up for as long as the load lasts" => self.any(
                    |t| here(t) && t.verdict == TrialVerdict::Growing,
                    "no such trial",
                ),
                "the target answers with errors" => {
                    self.any(|t| here(t) && missed(true)(t), "no such trial")
                }
                _ => Err("unknown".to_owned()),
            };
        }
        if text.starts_with("above it") && line.is_none() {
            return Err("above what?".to_owned());
        }
        match text {
            "NOT CONFIRMED: no confirmation at the line met every objective" => self.require_none(
                |t| {
                    Some(t.rate_per_s) == line
                        && t.purpose == TrialPurpose::Confirm
                        && t.verdict == TrialVerdict::Met
                },
                "one did",
            ),
            "NOT CONFIRMED: a confirmation at the line met every objective, but as many trials there or more did not" =>
            {
                let met = |t: &Trial| Some(t.rate_per_s) == line && t.verdict == TrialVerdict::Met;
                self.any(|t| met(t) && t.purpose == TrialPurpose::Confirm, "none did")?;
                let failed = |t: &Trial| Some(t.rate_per_s) == line && t.verdict.is_failure();
                let longest = self
                    .trials()
                    .iter()
                    .filter(|t| failed(t))
                    .map(|t| t.length_s);
                let longest = longest.fold(0.0, f64::max);
                if self.count(failed) >= self.count(|t| met(t) && t.length_s * 1.5 >= longest) {
                    Ok(())
                } else {
                    Err("fewer failed".to_owned())
                }
            }
            "above it the target misses p99 < 10ms" => {
                above(&missed(false), "no higher rate missed it")
            }
            "above it calls pile up for as long as the load lasts: the target's capacity is reached" => {
                above(&|t| t.verdict == TrialVerdict::Growing, "they don't")
            }
            "above it the target answers with errors" => above(&missed(true), "it doesn't"),
            "no higher rate was found that misses an objective" => self.require_none(
                |t| self.is_above(t) && t.verdict.is_failure(),
                "a higher rate missed one",
            ),
            "the search was interrupted" if self.record.interrupted => Ok(()),
            _ => Err("unknown".to_owned()),
        }
    }

    /// Checks `2 trials above the line met every objective (…); 1 trial at the line or below it did not`.
    fn check_exceptions(&self, text: &str) -> Result<(), Contradiction> {
        let line = self.line.ok_or("there is no line")?;
        let higher = |t: &Trial| t.rate_per_s > line && t.verdict == TrialVerdict::Met;
        let lower = |t: &Trial| t.rate_per_s <= line && t.verdict.is_failure();
        let count = |part: &str| -> Result<usize, Contradiction> {
            let (n, _) = part.split_once(" trial").ok_or("no count")?;
            n.parse().map_err(|_| "no count".to_owned())
        };
        let (mut met, mut missed) = (0, 0);
        for part in text.split("; ") {
            if part.contains("above the line met every objective") {
                met = count(part)?;
                let (_, rest) = part.split_once("(up to ").ok_or("unknown")?;
                let (at, rest) = rest.split_once(" for ").ok_or("unknown")?;
                let (s, _) = rest.split_once(" s)").ok_or("unknown")?;
                let (at, s) = (
                    self.trial_rate(at)?,
                    s.parse::<f64>().map_err(|_| "no length")?,
                );
                self.any(
                    |t| higher(t) && t.rate_per_s == at && (t.length_s - s).abs() <= 0.051,
                    "no such trial",
                )?;
                self.require_none(|t| higher(t) && t.rate_per_s > at, "higher ones met")?;
                let failed = |t: &Trial| t.rate_per_s <= at && t.verdict.is_failure();
                match part.split_once(" s), ").map(|(_, why)| why) {
                    Some("but longer or more trials did not") => self.any(failed, "none failed")?,
                    Some("too few or too short to confirm it there") => {
                        self.require_none(failed, "failed")?
                    }
                    _ => return Err("unknown".to_owned()),
                }
            } else {
                missed = count(part)?;
            }
        }
        if (met, missed) == (self.count(higher), self.count(lower)) {
            Ok(())
        } else {
            Err(format!(
                "{} above met, {} below failed",
                self.count(higher),
                self.count(lower)
            ))
        }
    }
}

/// Parses the number of a text such as `1,234/s`.
fn parse_rate(text: &str) -> Result<f64, Contradiction> {
    let digits = text.trim_end_matches("/s").replace(',', "");
    digits.parse().map_err(|_| format!("no figure: {text}"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sentences_agree_with_random_table(record in record()) {
        read(&record)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sentences_agree_with_search_table(record in search()) {
        read(&record)?;
    }
}

/// Checks the sentences of a search against its table.
fn read(record: &SearchRecord) -> Result<(), TestCaseError> {
    let mut reader = ClaimChecker { record, line: None };
    let finding = record.finding.as_ref().unwrap();
    let first = headline(record);
    let sentences = explanation(record, finding);
    let table = render(record, &TerminalOptions::default());
    let said = format!("{first}\n  - {}\n{table}", sentences.join("\n  - "));
    let wrong = reader.check_headline(&first);
    prop_assert!(wrong.is_ok(), "{first} – {wrong:?}\n\n{said}");
    prop_assert_eq!(reader.line, finding.line_per_s, "{}", said);
    for sentence in &sentences {
        let wrong = reader.check_sentence(sentence);
        prop_assert!(wrong.is_ok(), "{sentence} – {wrong:?}\n\n{said}");
    }
    // Anything that a reader would find contradictory must be mentioned.
    let line = finding.line_per_s;
    let odd = |t: &Trial| {
        line.is_some_and(|line| {
            if t.rate_per_s > line {
                t.verdict == TrialVerdict::Met
            } else {
                t.verdict.is_failure()
            }
        })
    };
    let mentioned = sentences
        .iter()
        .any(|s| s.contains("the line or below it") || s.contains("above the line met"));
    prop_assert_eq!(mentioned, record.trials.iter().any(odd), "{}", said);
    Ok(())
}
