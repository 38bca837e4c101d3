//! The objectives of runs as JUnit XML, for continuous integration: a suite a run, a test case
//! an objective, and one for the run's validity, so that no suite is ever empty.

use std::fmt::Write as _;

use plimsoll_model::objective::{Conclusion, Judged, Verdict, judge_run};
use plimsoll_model::run::{Run, State};

/// The document.
pub fn render(runs: &[Run]) -> String {
    let suites: Vec<Suite> = runs.iter().map(Suite::of).collect();
    let sum = |of: fn(&Suite) -> usize| suites.iter().map(of).sum::<usize>();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuites name=\"plimsoll\" tests=\"{}\" failures=\"{}\" errors=\"{}\">",
        sum(|s| s.cases.len()),
        sum(|s| s.count("failure")),
        sum(|s| s.count("error"))
    );
    for suite in &suites {
        suite.write(&mut xml);
    }
    xml += "</testsuites>\n";
    xml
}

struct Case {
    name: String,
    /// `failure` or `error`, and why; `None`: passed.
    problem: Option<(&'static str, String)>,
}

struct Suite {
    name: String,
    timestamp: String,
    seconds: f64,
    cases: Vec<Case>,
}

impl Suite {
    fn of(run: &Run) -> Suite {
        let judged = judge_run(run);
        let mut cases = vec![validity(run, &judged)];
        cases.extend(judged.into_iter().map(objective));
        Suite {
            name: run.header.name.clone(),
            timestamp: run
                .header
                .started_at
                .strftime("%Y-%m-%dT%H:%M:%S")
                .to_string(),
            seconds: run.summary.elapsed_us.unwrap_or(0) as f64 / 1e6,
            cases,
        }
    }

    fn count(&self, kind: &str) -> usize {
        let is = |c: &&Case| c.problem.as_ref().is_some_and(|p| p.0 == kind);
        self.cases.iter().filter(is).count()
    }

    fn write(&self, xml: &mut String) {
        let name = escape(&self.name);
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"0\" timestamp=\"{}\" time=\"{:.3}\">",
            self.cases.len(),
            self.count("failure"),
            self.count("error"),
            self.timestamp,
            self.seconds
        );
        for case in &self.cases {
            let _ = write!(
                xml,
                "    <testcase classname=\"{name}\" name=\"{}\" time=\"{:.3}\"",
                escape(&case.name),
                self.seconds
            );
            match &case.problem {
                None => *xml += "/>\n",
                Some((kind, why)) => {
                    let _ = writeln!(
                        xml,
                        ">\n      <{kind} type=\"{kind}\" message=\"{}\"/>\n    </testcase>",
                        escape(why)
                    );
                }
            }
        }
        *xml += "  </testsuite>\n";
    }
}

/// The figures describe the target, all of the run, and more than failures.
fn validity(run: &Run, judged: &[Judged]) -> Case {
    let problem = match run.state {
        // Lost, or missed whatever the generator did: that is a failure, and a proof.
        _ if Conclusion::of(judged) == Some(Conclusion::Fail) => None,
        State::Complete if run.summary.total.ok == 0 => Some("not one call succeeded".to_owned()),
        State::Complete => None,
        _ => Some(
            run.reason
                .clone()
                .unwrap_or_else(|| run.state.name().to_owned()),
        ),
    };
    Case {
        name: "the run is valid".to_owned(),
        problem: problem.map(|why| ("error", why)),
    }
}

fn objective(judged: Judged) -> Case {
    let problem = match judged.verdict {
        Verdict::Met => None,
        Verdict::Missed => Some(("failure", format!("measured {}", judged.measured))),
        Verdict::CannotBeJudged | Verdict::NotSupported => {
            let why = format!("{}: {}", judged.verdict.words(), judged.measured);
            Some(("error", why))
        }
    };
    Case {
        name: judged.objective,
        problem,
    }
}

/// Text for an attribute; what XML 1.0 (2.2) can't hold at all is left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_the_document() {
        assert_eq!(
            escape("a<b> & \"c\"\n\u{1}d"),
            "a&lt;b&gt; &amp; &quot;c&quot; d"
        );
    }
}
