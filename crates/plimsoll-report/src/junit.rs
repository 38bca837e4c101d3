//! The objectives of runs as JUnit XML, for continuous integration: a suite for each run with a test case for each
//! objective, and one for the run's validity, so that no suite is empty. For a ladder, each rung (variant) is a suite,
//! and a further suite contains its gates (limits on the costs that rungs add). A search is one suite, with a test case
//! for its result.

use std::collections::HashSet;
use std::fmt::Write as _;

use plimsoll_model::comparisons::ladder::{GateOutcome, LadderRecord, Rung, SliceResult};
use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict, RunVerdict, judge_run};
use plimsoll_model::runs::run::{Run, RunState, Timestamp};
use plimsoll_model::search::{LimitingFactor, SearchRecord};

use crate::ladder as rungs;
use crate::search as words;

/// Returns the document of runs.
pub fn render_runs(runs: &[Run]) -> String {
    render_document(runs.iter().map(TestSuite::from_run).collect())
}

/// Returns the document of a ladder: a suite for each rung, and one for the gates and the resolution (the smallest
/// difference that the ladder can detect).
pub fn render_ladder(record: &LadderRecord) -> String {
    let rungs = record.rungs.iter().map(|r| TestSuite::from_rung(record, r));
    render_document(rungs.chain(TestSuite::from_gates(record)).collect())
}

/// Returns the document of a search.
pub fn render_search(record: &SearchRecord) -> String {
    let headline = || words::headline(record);
    let found_case = TestCase {
        name: format!(
            "a {} meets {}",
            words::searched_quantity(&record.goal),
            record.objectives.join(", ")
        ),
        problem: match record.finding.as_ref().map(|f| (f.line_per_s, &f.limit)) {
            Some((Some(_), _)) => None,
            Some((None, LimitingFactor::LeastRate)) => Some(("failure", headline())),
            _ => Some(("error", headline())),
        },
    };
    let confirmed_case = TestCase {
        name: "the load line is confirmed".to_owned(),
        problem: match record.finding.as_ref() {
            _ if record.interrupted => Some(("error", "the search was interrupted".to_owned())),
            Some(f) if f.confirmed && !matches!(f.limit, LimitingFactor::Generator { .. }) => None,
            Some(f) => Some(("error", words::explanation(record, f).join("; "))),
            None => Some(("error", headline())),
        },
    };
    render_document(vec![TestSuite {
        name: record.name.clone(),
        timestamp: format_timestamp(record.started_at),
        seconds: record.trials.iter().map(|t| t.took_s).sum(),
        insecure: false,
        cases: vec![found_case, confirmed_case],
    }])
}

fn format_timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

/// Appends numbers to repeated names: many readers show only one of several test cases with the same class name and
/// name. Plans without a name have the same default name if they call the same method.
fn number_equal_names<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut known = HashSet::new();
    for name in names {
        // Names that differ only in omitted characters are equal.
        name.retain(is_xml_char);
        let mut unique = name.clone();
        let mut number = 1;
        while !known.insert(unique.clone()) {
            number += 1;
            unique = format!("{name} ({number})");
        }
        *name = unique;
    }
}

fn render_document(mut suites: Vec<TestSuite>) -> String {
    number_equal_names(suites.iter_mut().map(|suite| &mut suite.name));
    for suite in &mut suites {
        number_equal_names(suite.cases.iter_mut().map(|case| &mut case.name));
    }
    let sum = |of: fn(&TestSuite) -> usize| suites.iter().map(of).sum::<usize>();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuites name=\"plimsoll\" tests=\"{}\" failures=\"{}\" errors=\"{}\">",
        sum(|s| s.cases.len()),
        sum(|s| s.count_problems("failure")),
        sum(|s| s.count_problems("error"))
    );
    for suite in &suites {
        suite.write(&mut xml);
    }
    xml += "</testsuites>\n";
    xml
}

struct TestCase {
    name: String,
    /// The element `failure` or `error`, and its message; `None` if the case has passed.
    problem: Option<(&'static str, String)>,
}

struct TestSuite {
    name: String,
    timestamp: String,
    seconds: f64,
    /// Whether the server's certificate was not verified.
    insecure: bool,
    cases: Vec<TestCase>,
}

impl TestSuite {
    fn from_run(run: &Run) -> TestSuite {
        let judged = judge_run(run);
        let mut cases = vec![validity_case(run, &judged)];
        cases.extend(judged.into_iter().map(objective_case));
        TestSuite {
            name: run.header.name.clone(),
            timestamp: format_timestamp(run.header.started_at),
            seconds: run.summary.elapsed_us.unwrap_or(0) as f64 / 1e6,
            insecure: run.header.links.insecure,
            cases,
        }
    }

    /// Returns the suite of a rung. An objective is missed if any slice (short run) of the rung missed it.
    fn from_rung(record: &LadderRecord, rung: &Rung) -> TestSuite {
        let unsure = rung
            .slices
            .iter()
            .filter(|s| s.is_generator_limited())
            // In batches, lateness affects all rungs alike and cancels out in differences, so it matters only if there
            // are objectives.
            .filter(|s| record.batches.is_none() || !s.objectives.is_empty())
            .count();
        let missed = rung
            .slices
            .iter()
            .any(|s| s.conclusion == Some(RunVerdict::Fail));
        let problem = match rung.slices.len() {
            0 => Some("no slice was measured".to_owned()),
            all if unsure > 0 && !missed => Some(format!(
                "{unsure} of {all} slices are generator-limited, or incomplete"
            )),
            _ => None,
        };
        let mut cases = vec![TestCase {
            name: "the rung is valid".to_owned(),
            problem: problem.map(|why| ("error", why)),
        }];
        let of = |name: &str, verdicts: &[ObjectiveVerdict]| {
            let all = rung.slices.iter().flat_map(|s| &s.objectives);
            let one = all.filter(|j| j.objective == name && verdicts.contains(&j.verdict));
            let measured: Vec<&str> = one.map(|j| j.measured.as_str()).collect();
            let n = measured.len();
            let share = || format!("in {n} of {} slices ({})", rung.slices.len(), measured[0]);
            (n > 0).then(share)
        };
        let names = rung
            .slices
            .first()
            .map_or(&[] as &[ObjectiveResult], |s| &s.objectives);
        cases.extend(names.iter().map(|judged| {
            let name = &judged.objective;
            let unjudged = [
                ObjectiveVerdict::CannotBeJudged,
                ObjectiveVerdict::NotSupported,
            ];
            let problem = match (of(name, &[ObjectiveVerdict::Missed]), of(name, &unjudged)) {
                (Some(missed), _) => Some(("failure", format!("missed {missed}"))),
                (None, Some(share)) => Some(("error", format!("inconclusive {share}"))),
                (None, None) => None,
            };
            TestCase {
                name: name.clone(),
                problem,
            }
        }));
        TestSuite {
            name: format!("{}: {}", record.name, rung.name),
            timestamp: format_timestamp(record.started_at),
            seconds: {
                // The slices of a sweep may be divided into batches.
                let length =
                    |s: &SliceResult| s.volume.as_ref().map_or(record.slice_s, |v| v.elapsed_s);
                rung.slices.iter().map(length).sum()
            },
            insecure: false,
            cases,
        }
    }

    /// Returns the suite of gates and resolution; `None` if neither was requested and the ladder was completed.
    fn from_gates(record: &LadderRecord) -> Option<TestSuite> {
        let mut cases: Vec<TestCase> = record
            .evaluate_gates()
            .iter()
            .map(|gated| TestCase {
                name: format!("{}: {}", record.rungs[gated.rung].name, gated.gate),
                problem: match gated.outcome {
                    GateOutcome::Within => None,
                    GateOutcome::Beyond => Some(("failure", rungs::describe_gate(record, gated))),
                    GateOutcome::Undecided => Some(("error", rungs::describe_gate(record, gated))),
                },
            })
            .collect();
        let wanted = record.batches.as_ref().filter(|t| t.wanted_us.is_some());
        cases.extend(wanted.map(|turns| TestCase {
            name: "differences are resolved".to_owned(),
            problem: if turns.has_reached_resolution() {
                None
            } else {
                Some((
                    "error",
                    rungs::describe_resolution(record)
                        .unwrap_or_else(|| "no batch was measured".to_owned()),
                ))
            },
        }));
        if record.interrupted {
            cases.push(TestCase {
                name: "the ladder came to its end".to_owned(),
                problem: Some(("error", "it was interrupted".to_owned())),
            });
        }
        (!cases.is_empty()).then(|| TestSuite {
            name: format!("{}: differences", record.name),
            timestamp: format_timestamp(record.started_at),
            seconds: 0.0,
            insecure: false,
            cases,
        })
    }

    fn count_problems(&self, kind: &str) -> usize {
        let is = |c: &&TestCase| c.problem.as_ref().is_some_and(|p| p.0 == kind);
        self.cases.iter().filter(is).count()
    }

    fn write(&self, xml: &mut String) {
        let name = escape_attribute(&self.name);
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"0\" timestamp=\"{}\" time=\"{:.3}\">",
            self.cases.len(),
            self.count_problems("failure"),
            self.count_problems("error"),
            self.timestamp,
            self.seconds
        );
        if self.insecure {
            *xml += "    <properties>\n      <property name=\"tls.insecure\" value=\"true\"/>\n    </properties>\n";
        }
        for case in &self.cases {
            let _ = write!(
                xml,
                "    <testcase classname=\"{name}\" name=\"{}\" time=\"{:.3}\"",
                escape_attribute(&case.name),
                self.seconds
            );
            match &case.problem {
                None => *xml += "/>\n",
                Some((kind, why)) => {
                    let _ = writeln!(
                        xml,
                        ">\n      <{kind} type=\"{kind}\" message=\"{}\"/>\n    </testcase>",
                        escape_attribute(why)
                    );
                }
            }
        }
        *xml += "  </testsuite>\n";
    }
}

/// Returns the test case of validity: the run is complete, its figures describe the target, and some calls succeeded.
fn validity_case(run: &Run, judged: &[ObjectiveResult]) -> TestCase {
    let problem = match run.state {
        // An objective is reported as missed only if the generator is ruled out as the cause, so the miss counts even
        // in an invalid run, and the objectives alone report it.
        _ if RunVerdict::from_results(judged) == Some(RunVerdict::Fail) => None,
        RunState::Complete if run.summary.total.ok == 0 => {
            Some("not one call succeeded".to_owned())
        }
        RunState::Complete => None,
        _ => Some(
            run.reason
                .clone()
                .unwrap_or_else(|| run.state.name().to_owned()),
        ),
    };
    TestCase {
        name: "the run is valid".to_owned(),
        problem: problem.map(|why| ("error", why)),
    }
}

fn objective_case(judged: ObjectiveResult) -> TestCase {
    let problem = match judged.verdict {
        ObjectiveVerdict::Met => None,
        ObjectiveVerdict::Missed => Some(("failure", format!("measured {}", judged.measured))),
        ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => {
            let why = format!("{}: {}", judged.verdict.words(), judged.measured);
            Some(("error", why))
        }
    };
    TestCase {
        name: judged.objective,
        problem,
    }
}

/// Returns whether XML 1.0 (2.2) allows a character.
fn is_xml_char(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\t') || !c.is_control() && !('\u{fffe}'..='\u{ffff}').contains(&c)
}

/// Escapes text for an attribute. Characters that XML 1.0 (2.2) does not allow are left out.
fn escape_attribute(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // A parser would convert literal line breaks and tabs to blanks (XML 1.0, 3.3.3).
            '\n' => out += "&#10;",
            '\r' => out += "&#13;",
            '\t' => out += "&#9;",
            c if is_xml_char(c) => out.push(c),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_numbered() {
        let mut names = ["a", "b", "a", "a (2)", "a"].map(str::to_owned);
        number_equal_names(names.iter_mut());
        assert_eq!(names, ["a", "b", "a (2)", "a (2) (2)", "a (3)"]);
        let mut names = ["a", "a\u{1}"].map(str::to_owned);
        number_equal_names(names.iter_mut());
        assert_eq!(names, ["a", "a (2)"]);
    }

    #[test]
    fn junit_escapes_any_text() {
        assert_eq!(
            escape_attribute("a<b> & \"c\"\n\u{1}d"),
            "a&lt;b&gt; &amp; &quot;c&quot;&#10;d"
        );
    }
}
