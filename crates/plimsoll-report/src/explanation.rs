//! Explains a measurement in at most ten sentences: what was measured, what was found and how sure that is, what limits
//! it, and what to do next.

use std::path::Path;

use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict, judge_run};
use plimsoll_model::run::header::LoopKind;
use plimsoll_model::run::summary::ErrorSummary;
use plimsoll_model::run::{Run, TimesSummary};
use plimsoll_model::search::SearchRecord;

use crate::answer::{answer, figure};
use crate::quantity::{count, plural, rate, share, time};
use crate::terminal::{TerminalOptions, sentences, titles};
use crate::{errors, facts, ladder, measures, memory, search};

/// Maximum number of sentences.
const MAX_SENTENCES: usize = 10;
/// Maximum number of a protocol's own times.
const MAX_MEASURES: usize = 3;
/// Smallest share of a response time that calls spent before they were sent, from which it is worth a sentence.
const NOTABLE_WAIT: f64 = 0.05;
/// How far above the measured p99 a proposed objective is.
const PROPOSED_MARGIN: f64 = 1.25;
/// The share of a closed loop's rate at which an open loop is proposed: at the whole rate, calls would pile up.
const PROPOSED_RATE: f64 = 0.8;

/// Returns the sentences as a list for the terminal.
pub fn render(sentences_of: &[String], options: &TerminalOptions) -> String {
    let mut out = String::new();
    sentences(&mut out, sentences_of, options);
    out
}

/// Explains a run.
pub fn of_run(run: &Run) -> Vec<String> {
    let mut told = vec![measured(run)];
    let problems = &run.summary.health.problems;
    let limits: Vec<&str> = (problems.iter().filter(|problem| problem.invalidates))
        .map(|problem| problem.text.as_str())
        .collect();
    for title in titles(run) {
        let why = limits.first().copied().or(run.reason.as_deref());
        told.push(match why {
            Some(why) => format!(
                "{}: {}",
                title.split([':', '.']).next().unwrap_or(title),
                ended(why)
            ),
            None => ended(title),
        });
    }
    told.extend(answer(run).map(|answer| format!("Response times: {answer}")));
    told.extend(repeated(run));
    told.extend(of_protocol(run));
    told.extend(memory_of_connections(run));
    told.extend(waited(run));
    told.extend(failed(run));
    told.extend(judged(&judge_run(run)));
    told.extend(used(run));
    let noted = problems.iter().filter(|problem| !problem.invalidates);
    told.extend(noted.map(|problem| ended(&problem.text)));
    told.extend(closed_loop(run));
    concluded(told, next_for_run(run))
}

/// Explains a ladder, which is in `dir`.
pub fn of_ladder(record: &LadderRecord, dir: &Path) -> Vec<String> {
    let mut told = vec![format!("{}: {}.", record.name, ladder::how(record))];
    if record.is_generator_limited() {
        told.push(ladder::INVALID_NOTE.to_owned());
    }
    told.extend(ladder::answers(record).into_iter().map(|text| ended(&text)));
    told.push(ladder::confidence(record));
    told.extend(ladder::objectives(record).iter().map(|text| ended(text)));
    told.extend(ladder::notes(record).iter().map(|text| ended(text)));
    let dir = dir.display();
    let next = format!(
        "Next: `plimsoll report {dir}` has the whole bill, and {dir}/report.html its chart."
    );
    concluded(told, next)
}

/// Explains a search, which is in `dir`.
pub fn of_search(record: &SearchRecord, dir: &Path) -> Vec<String> {
    let trials = plural(record.trials.len() as u64, "trial");
    let mut told = vec![format!(
        "{}: the highest rate that meets {}, searched in {trials}.",
        record.name,
        record.objectives.join(", ")
    )];
    told.push(search::headline(record));
    let found = record.finding.as_ref();
    let why = found.map_or_else(Vec::new, |finding| search::explanation(record, finding));
    told.extend(why.iter().map(|text| ended(text)));
    let line = found.and_then(|finding| finding.line_per_s);
    let dir = dir.display();
    let next = match line {
        Some(line) => format!(
            "Next: stay below the line in service, such as at {}; `plimsoll run {dir}/plan.toml --rate {}/s --duration 10m` shows whether that holds for longer.",
            rate(line * PROPOSED_RATE),
            (line * PROPOSED_RATE).floor()
        ),
        None => {
            format!("Next: `plimsoll report {dir}` lists the trials, and what each of them missed.")
        }
    };
    concluded(told, next)
}

/// Returns the sentences with the advice as the last one, and the least important ones left out.
fn concluded(mut told: Vec<String>, next: String) -> Vec<String> {
    told.truncate(MAX_SENTENCES - 1);
    told.push(next);
    told
}

/// Returns the text as a sentence.
fn ended(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().collect::<String>());
    let mut sentence = first.unwrap_or_default() + letters.as_str();
    if !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

fn measured(run: &Run) -> String {
    let (total, header) = (&run.summary.total, &run.header);
    let what = facts::what(header).map_or_else(String::new, |what| format!(" of {what}"));
    let over = total
        .elapsed_us
        .map_or_else(String::new, |us| format!(" in {}", time(us as f64)));
    let how = facts::how(header);
    let how = if how.is_empty() {
        String::new()
    } else {
        format!(": {}", how.join(", "))
    };
    let achieved = total.achieved_per_s.map_or_else(String::new, |achieved| {
        format!(" ({} achieved)", rate(achieved))
    });
    ended(&format!(
        "{}{what} were due{over}{achieved}{how}",
        plural(total.due, "call")
    ))
}

/// Returns the first times that only the run's protocol has, such as those of tokens or of whole journeys.
fn of_protocol(run: &Run) -> Option<String> {
    let measures = run.summary.total.measures.as_ref()?;
    let told = measures::times(measures).into_iter().map(|(name, times)| {
        let at = |name: &str, us: Option<f64>, interval: Option<[f64; 2]>| {
            us.map(|us| format!(" {name} {}", figure(us, interval)))
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
    let told: Vec<String> = told.take(MAX_MEASURES).collect();
    (!told.is_empty()).then(|| ended(&told.join("; ")))
}

/// Returns what a connection at rest takes, where that was measured.
fn memory_of_connections(run: &Run) -> Option<String> {
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

/// Returns where the figures of another run like this one would lie.
fn repeated(run: &Run) -> Option<String> {
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

/// Returns which part of the response time passed before calls were sent, where that is much.
fn waited(run: &Run) -> Option<String> {
    // What the generator delayed is no wait of users.
    if run.summary.health.is_late() || !titles(run).is_empty() {
        return None;
    }
    let total = &run.summary.total;
    let (response, service) = (total.response?, total.service?);
    let p99 = |times: &TimesSummary| Some(("p99", times.p99_us?));
    let (name, whole) = p99(&response).or(Some(("p50", response.p50_us?)))?;
    let own = match name {
        "p99" => service.p99_us?,
        _ => service.p50_us?,
    };
    let wait = whole - own;
    (wait > NOTABLE_WAIT * whole).then(|| {
        format!(
            "Once sent, calls took {} at the {name}; the rest is the wait from when they were due until they were sent, which users would have had, too.",
            time(own)
        )
    })
}

fn failed(run: &Run) -> Option<String> {
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
    let said = errors::details(run, &errors::calls(run));
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

fn judged(objectives: &[ObjectiveResult]) -> Option<String> {
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

/// Returns what a call cost each end.
fn used(run: &Run) -> Option<String> {
    let total = &run.summary.total;
    let cost = |used: Option<plimsoll_model::run::summary::ResourcesSummary>| {
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

fn closed_loop(run: &Run) -> Option<String> {
    let is_closed = run.header.load_loop == Some(LoopKind::Closed);
    is_closed.then(|| {
        "It was a closed loop: a slow target gets fewer calls, so the response times are lower than those of users who don't wait for each other.".to_owned()
    })
}

/// Returns what to do next.
fn next_for_run(run: &Run) -> String {
    let total = &run.summary.total;
    let plan = run.dir.join("plan.toml");
    let plan = plan.display();
    let dir = run.dir.display();
    let p99 = total.response.and_then(|response| response.p99_us);
    if total.ok == 0 {
        return format!("Next: `plimsoll report {dir}` has all errors; mend these first.");
    }
    let is_late = run.summary.health.is_late() || !titles(run).is_empty();
    if is_late {
        return format!("Next: follow the advice above, and measure again: `plimsoll run {plan}`.");
    }
    if run.header.load_loop == Some(LoopKind::Closed) {
        let achieved = total.achieved_per_s.unwrap_or(0.0) * PROPOSED_RATE;
        return format!(
            "Next: measure at a fixed rate, as users arrive: the same command with `--rate {}/s` in place of --clients.",
            achieved.floor().max(1.0)
        );
    }
    match (judge_run(run).is_empty(), p99) {
        (true, Some(p99)) => {
            let limit = time(p99 * PROPOSED_MARGIN)
                .replace(' ', "")
                .replace('µ', "u");
            format!(
                "Next: say how slow is too slow, and scripts can tell by the exit code: `plimsoll run {plan} --objective 'p99 < {limit}'`."
            )
        }
        (true, None) => {
            format!("Next: a longer run knows more: `plimsoll run {plan} --duration 1m`.")
        }
        (false, _) => format!(
            "Next: find the highest rate that still meets the objectives: `plimsoll find {plan}`."
        ),
    }
}
