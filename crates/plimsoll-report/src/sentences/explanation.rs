//! Explains a measurement in at most ten sentences: what was measured, the result and how certain it is, what limits
//! it, and what to do next.

use std::path::Path;

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict, judge_run};
use plimsoll_model::runs::run::header::LoopKind;
use plimsoll_model::runs::run::summary::ErrorSummary;
use plimsoll_model::runs::run::{Run, RunOrigin};
use plimsoll_model::search::{SearchRecord, SearchVariable};

use crate::quantity::{count, plural, rate, share, time};
use crate::sections::facts::rerun_command;
use crate::sections::headline::{describe_latency, format_value_or_interval};
use crate::terminal::{TerminalOptions, early_end_title, warning_titles, write_list};
use crate::{
    ladder, search, sections::errors, sections::facts, sections::memory,
    sections::protocol_measures,
};

/// Maximum number of sentences.
const MAX_SENTENCES: usize = 10;
/// Maximum number of protocol-specific timings to mention.
const MAX_PROTOCOL_TIMES: usize = 3;
/// The wait before calls are sent is mentioned if it is more than this share of the response time.
const MIN_NOTABLE_WAIT_SHARE: f64 = 0.05;
/// Factor between the measured p99 and the limit of a proposed objective.
const PROPOSED_OBJECTIVE_FACTOR: f64 = 1.25;
/// Factor between a closed loop's rate and the rate that is proposed for an open loop. At the full rate, calls would
/// pile up.
const PROPOSED_RATE_FACTOR: f64 = 0.8;

/// Returns the sentences as a list for the terminal.
pub fn render(sentences_of: &[String], options: &TerminalOptions) -> String {
    let mut out = String::new();
    write_list(&mut out, sentences_of, options);
    out
}

/// Explains a run.
pub fn explain_run(run: &Run) -> Vec<String> {
    let mut told = vec![describe_load(run)];
    let problems = &run.summary.health.problems;
    let limits: Vec<&str> = (problems.iter().filter(|problem| problem.invalidates))
        .map(|problem| problem.text.as_str())
        .collect();
    for title in warning_titles(run) {
        let why = if Some(title) == early_end_title(run) {
            run.reason.as_deref()
        } else {
            limits.first().copied()
        };
        told.push(match why {
            Some(why) => format!(
                "{}: {}",
                title.split([':', '.']).next().unwrap_or(title),
                to_sentence(why)
            ),
            None => to_sentence(title),
        });
    }
    told.extend(describe_latency(run).map(|answer| format!("Response times: {answer}")));
    told.extend(describe_repetition(run));
    told.extend(describe_protocol_times(run));
    told.extend(describe_memory(run));
    told.extend(describe_wait(run));
    told.extend(describe_errors(run));
    told.extend(describe_objectives(&judge_run(run)));
    told.extend(describe_costs(run));
    let noted = problems.iter().filter(|problem| !problem.invalidates);
    told.extend(noted.map(|problem| to_sentence(&problem.text)));
    told.extend(describe_closed_loop(run));
    limit_sentences(told, advise(run))
}

/// Explains the ladder in `dir`.
pub fn explain_ladder(record: &LadderRecord, dir: &Path) -> Vec<String> {
    let mut told = vec![format!(
        "{}: {}.",
        record.name,
        ladder::describe_setup(record)
    )];
    if record.is_generator_limited() {
        told.push(ladder::INVALID_NOTE.to_owned());
    }
    told.extend(
        ladder::summarise_costs(record)
            .into_iter()
            .map(|text| to_sentence(&text)),
    );
    told.push(ladder::describe_confidence(record));
    told.extend(
        ladder::objective_lines(record)
            .iter()
            .map(|text| to_sentence(text)),
    );
    told.extend(ladder::notes(record).iter().map(|text| to_sentence(text)));
    let dir = dir.display();
    let next = format!(
        "Next: `plimsoll report {dir}` has the whole bill, and {dir}/report.html its chart."
    );
    limit_sentences(told, next)
}

/// Explains the search in `dir`.
pub fn explain_search(record: &SearchRecord, dir: &Path) -> Vec<String> {
    let trials = plural(record.trials.len() as u64, "trial");
    let mut told = vec![format!(
        "{}: the highest {} that meets {}, searched in {trials}.",
        record.name,
        search::searched_quantity(&record.goal),
        record.objectives.join(", ")
    )];
    told.push(search::headline(record));
    let found = record.finding.as_ref();
    let why = found.map_or_else(Vec::new, |finding| search::explanation(record, finding));
    told.extend(why.iter().map(|text| to_sentence(text)));
    let line = found.and_then(|finding| finding.line_per_s);
    let next = match line {
        Some(line) if record.goal.variable == SearchVariable::Users => format!(
            "Next: stay below the line in service; `{} --clients {} --duration 10m` shows whether that holds for longer.",
            rerun_command("run", dir),
            (line * PROPOSED_RATE_FACTOR).floor().max(1.0)
        ),
        Some(line) => format!(
            "Next: stay below the line in service; `{} --rate {}/s --duration 10m` shows whether that holds for longer.",
            rerun_command("run", dir),
            round_rate_down(line * PROPOSED_RATE_FACTOR)
        ),
        None => {
            let dir = dir.display();
            format!("Next: `plimsoll report {dir}` lists the trials, and what each of them missed.")
        }
    };
    limit_sentences(told, next)
}

/// Returns the sentences with the advice as the last one. If there are too many, the last ones before the advice are
/// left out.
fn limit_sentences(mut told: Vec<String>, next: String) -> Vec<String> {
    told.truncate(MAX_SENTENCES - 1);
    told.push(next);
    told
}

/// Returns the text as a sentence, with a capital letter and a full stop.
fn to_sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().collect::<String>());
    let mut sentence = first.unwrap_or_default() + letters.as_str();
    if !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

fn describe_load(run: &Run) -> String {
    let (total, header) = (&run.summary.total, &run.header);
    let what = facts::describe_call(header).map_or_else(String::new, |what| format!(" of {what}"));
    let over = total
        .elapsed_us
        .map_or_else(String::new, |us| format!(" in {}", time(us as f64)));
    let how = facts::describe_setup(header);
    let how = if how.is_empty() {
        String::new()
    } else {
        format!(": {}", how.join(", "))
    };
    let achieved = total.achieved_per_s.map_or_else(String::new, |achieved| {
        format!(" ({} achieved)", rate(achieved))
    });
    to_sentence(&format!(
        "{}{what} were due{over}{achieved}{how}",
        plural(total.due, "call")
    ))
}

/// Describes the first protocol-specific timings, such as the times of tokens, or of whole journeys (a user's requests
/// in sequence).
fn describe_protocol_times(run: &Run) -> Option<String> {
    let measures = run.summary.total.measures.as_ref()?;
    let told = protocol_measures::protocol_times(measures)
        .into_iter()
        .map(|(name, times)| {
            let at = |name: &str, us: Option<f64>, interval: Option<[f64; 2]>| {
                us.map(|us| format!(" {name} {}", format_value_or_interval(us, interval)))
            };
            let instrument = times.instrument;
            let p50 = at("p50", times.p50_us, instrument.and_then(|i| i.p50_us));
            let p99 = at("p99", times.p99_us, instrument.and_then(|i| i.p99_us));
            let known: Vec<String> = [p50, p99].into_iter().flatten().collect();
            let known = if known.is_empty() {
                format!(" mean {}", time(times.mean_us))
            } else {
                known.join(",")
            };
            format!("{name}:{known}")
        });
    let told: Vec<String> = told.take(MAX_PROTOCOL_TIMES).collect();
    (!told.is_empty()).then(|| to_sentence(&told.join("; ")))
}

/// Returns how much memory an idle connection holds, if that was measured.
fn describe_memory(run: &Run) -> Option<String> {
    let memory = run.summary.memory.as_ref()?;
    let rows = memory::table(memory).rows.into_iter();
    let told = rows.filter_map(|row| {
        let [kind, _, _, each, ..] = &row[..] else {
            return None;
        };
        let is_main = kind.ends_with("resident") || kind.starts_with("kernel");
        (is_main && each != "–").then(|| format!("{each} ({kind})"))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("A connection at rest takes {}.", told.join(", ")))
}

/// Returns the range in which the figures of a repetition of this run would lie.
fn describe_repetition(run: &Run) -> Option<String> {
    let sampling = run.summary.total.response?.sampling?;
    let named = [("p50", sampling.p50_us), ("p99", sampling.p99_us)];
    let known = named.into_iter().filter_map(|(name, interval)| {
        let [low, high] = interval?;
        Some(format!("a {name} between {} and {}", time(low), time(high)))
    });
    let known: Vec<String> = known.collect();
    (!known.is_empty()).then(|| {
        format!(
            "Another run like this one would have {} (95 % confidence).",
            known.join(" and ")
        )
    })
}

/// Returns which share of the response time passed before calls were sent, if that share is large.
fn describe_wait(run: &Run) -> Option<String> {
    // Users do not wait because of the generator's own delay, so a run whose generator was late gets no such sentence.
    if run.summary.health.is_late() || !warning_titles(run).is_empty() {
        return None;
    }
    let total = &run.summary.total;
    let (response, service) = (total.response?, total.service?);
    let (name, due, sent) = match (response.p99_us, service.p99_us) {
        (Some(due), Some(sent)) => ("p99", due, sent),
        _ => ("p50", response.p50_us?, service.p50_us?),
    };
    (due - sent > MIN_NOTABLE_WAIT_SHARE * due).then(|| {
        format!(
            "Calls waited before they were sent: the {name} is {} from when they were sent, and {} from when they were due, as users see it.",
            time(sent),
            time(due)
        )
    })
}

fn describe_errors(run: &Run) -> Option<String> {
    let total = &run.summary.total;
    let most: &ErrorSummary = total.errors_by_code.first()?;
    let of = match total.errors_by_code.len() {
        1 => String::new(),
        _ => format!(
            " in {} of {}",
            count(most.count),
            plural(total.errors, "failed call")
        ),
    };
    let said = errors::error_messages(run, &errors::call_errors(run));
    let said = said.iter().find(|detail| detail.starts_with(&most.code));
    let said = said.map_or_else(String::new, |detail| {
        let (_, text) = detail.split_once(": ").unwrap_or(("", detail));
        format!(" (\"{text}\")")
    });
    Some(format!(
        "{} failed ({}): {}{of}, {}{said}.",
        plural(total.errors, "call"),
        share(total.errors, total.ok + total.errors),
        most.code,
        most.explanation
    ))
}

fn describe_objectives(objectives: &[ObjectiveResult]) -> Option<String> {
    if objectives.is_empty() {
        return None;
    }
    let of = |verdicts: &[ObjectiveVerdict]| -> Vec<String> {
        let all = objectives
            .iter()
            .filter(|one| verdicts.contains(&one.verdict));
        all.map(|one| format!("{} ({})", one.objective, one.measured))
            .collect()
    };
    let groups = [
        ("missed", of(&[ObjectiveVerdict::Missed])),
        (
            "can't be judged",
            of(&[
                ObjectiveVerdict::CannotBeJudged,
                ObjectiveVerdict::NotSupported,
            ]),
        ),
        ("met", of(&[ObjectiveVerdict::Met])),
    ];
    let told = groups.into_iter().filter(|(_, all)| !all.is_empty());
    let told: Vec<String> = told
        .map(|(word, all)| format!("{word}: {}", all.join(", ")))
        .collect();
    Some(format!("Objectives {}.", told.join("; ")))
}

/// Returns the CPU time of a call at client and server.
fn describe_costs(run: &Run) -> Option<String> {
    let total = &run.summary.total;
    let cost = |used: Option<plimsoll_model::runs::run::summary::ResourcesSummary>| {
        used.and_then(|used| used.cpu_us_per_call).map(time)
    };
    match (cost(total.client), cost(total.server)) {
        (Some(client), Some(server)) => Some(format!(
            "A call cost the server {server} of CPU time, and this client {client}."
        )),
        (Some(client), None) => Some(format!(
            "A call cost this client {client} of CPU time; the server's is not known."
        )),
        _ => None,
    }
}

fn describe_closed_loop(run: &Run) -> Option<String> {
    let is_closed = run.header.load_loop == Some(LoopKind::Closed);
    is_closed.then(|| {
        "It was a closed loop: a slow target gets fewer calls, so the response times are lower than those of users who don't wait for each other.".to_owned()
    })
}

/// Returns advice on what to do next.
fn advise(run: &Run) -> String {
    let (total, header) = (&run.summary.total, &run.header);
    let dir = run.dir.display();
    if header.source == RunOrigin::Imported || run.plan.trim().is_empty() {
        return format!("Next: compare it with another run: `plimsoll compare {dir} ANOTHER_RUN`.");
    }
    let again = rerun_command("run", &run.dir);
    if total.ok == 0 && total.errors > 0 {
        return format!("Next: `plimsoll report {dir}` has all errors; mend these first.");
    }
    if early_end_title(run).is_some() {
        return format!("Next: measure again, to the end: `{again}`.");
    }
    if run.summary.health.is_late() || !warning_titles(run).is_empty() {
        return format!("Next: follow the advice above, and measure again: `{again}`.");
    }
    if header.load_loop == Some(LoopKind::Closed) {
        let achieved = total
            .achieved_per_s
            .filter(|_| protocol_measures::arriving_callers(run).is_none());
        let rate = achieved.map_or("--rate".to_owned(), |achieved| {
            format!(
                "--rate {}/s",
                round_rate_down(achieved * PROPOSED_RATE_FACTOR)
            )
        });
        return format!(
            "Next: measure at a fixed rate, as users arrive: the same load with `{rate}` in place of --clients."
        );
    }
    let objectives = judge_run(run);
    match total.response.and_then(|response| response.p99_us) {
        Some(p99) if objectives.is_empty() => {
            let limit = time(p99 * PROPOSED_OBJECTIVE_FACTOR)
                .replace(' ', "")
                .replace('µ', "u");
            format!(
                "Next: say how slow is too slow, and scripts can tell by the exit code: `{again} --objective 'p99 < {limit}'`."
            )
        }
        None if objectives.is_empty() => {
            "Next: more calls show more percentiles: a higher rate, or a longer run.".to_owned()
        }
        _ if is_searchable(run) => format!(
            "Next: find the highest rate that still meets the objectives: `{}`.",
            rerun_command("find", &run.dir)
        ),
        _ => format!("Next: see whether that stays so: `plimsoll compare {dir} ANOTHER_RUN`."),
    }
}

/// Returns whether `plimsoll find` can search the rate of the run's plan, which must have a single stage of arrivals at
/// random or regular times.
fn is_searchable(run: &Run) -> bool {
    let header = &run.header;
    let stages = header.planned_stages.iter().filter(|stage| !stage.warmup);
    let is_by_law = header
        .arrivals
        .as_deref()
        .is_some_and(|arrivals| ["constant", "poisson"].contains(&arrivals));
    is_by_law && stages.count() == 1 && run.summary.memory.is_none()
}

/// Formats a rate with two significant digits, rounded down, without a unit.
fn round_rate_down(rate_per_s: f64) -> String {
    if rate_per_s <= 0.0 {
        return "0.1".to_owned();
    }
    let step = 10_f64.powf(rate_per_s.log10().floor() - 1.0);
    let steps = (rate_per_s / step + 1e-9).floor();
    let decimals = (-step.log10().round()).max(0.0) as usize;
    format!("{:.decimals$}", steps * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposed_rates_are_rounded_down() {
        for (rate, expected) in [
            (3_185.0, "3100"),
            (1.0, "1.0"),
            (0.32, "0.32"),
            (0.0479, "0.047"),
            (15_999.0, "15000"),
        ] {
            assert_eq!(round_rate_down(rate), expected);
        }
    }
}
