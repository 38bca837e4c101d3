//! Compares a run's figures and intervals with the true values that the server recorded in its envelope.

use std::time::Duration;

use plimsoll_model::formats::quantity::plural;
use plimsoll_model::objective::{ObjectiveVerdict, judge_run};
use plimsoll_model::plan::{Metric, Objective, Statistic, TimeMetric};
use plimsoll_model::runs::run::{Run, RunState};
use plimsoll_model::spec;
use plimsoll_serving::envelope::{Envelope, ServedRequest};

use super::bounds::TimeBounds;
use super::schedule;
use crate::failure::{Exit, message_with_causes};

/// Relative error of a histogram's value: three significant digits.
const HISTOGRAM_PRECISION: f64 = 0.001;

/// The moment at which a call's true time starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TruthBasis {
    /// When each call was due, as if it had been sent and its answer read without delay.
    Schedule,
    /// When each request arrived at the server.
    Arrivals,
}

/// A figure of the run and its true value.
#[derive(Clone, Debug)]
pub(super) struct FigureCheck {
    pub(super) name: &'static str,
    pub(super) printed_us: f64,
    /// The run's interval, µs; `None` if it has none.
    pub(super) interval_us: Option<[f64; 2]>,
    pub(super) true_us: [f64; 2],
    /// Whether the interval covers the true value; `None` without an interval.
    pub(super) holds: Option<bool>,
}

impl FigureCheck {
    /// Returns the interval's width relative to the true value.
    pub(super) fn relative_width(&self) -> Option<f64> {
        let [low, high] = self.interval_us?;
        Some((high - low) / self.middle_us())
    }

    /// Returns the relative error of the printed figure.
    pub(super) fn relative_error(&self) -> f64 {
        let [low, high] = self.true_us;
        let nearest = self.printed_us.clamp(low, high);
        (self.printed_us - nearest) / self.middle_us()
    }

    fn middle_us(&self) -> f64 {
        ((self.true_us[0] + self.true_us[1]) / 2.0).max(f64::MIN_POSITIVE)
    }
}

/// An objective's verdict in the run, and whether the true value meets it.
#[derive(Clone, Debug)]
pub(super) struct ObjectiveCheck {
    pub(super) text: String,
    pub(super) verdict: ObjectiveVerdict,
    /// Whether the true value meets the objective; `None` if it is too close to the limit to tell.
    pub(super) was_met: Option<bool>,
}

impl ObjectiveCheck {
    /// Returns whether the verdict was wrong.
    pub(super) fn is_wrong(&self) -> bool {
        matches!(
            (self.verdict, self.was_met),
            (ObjectiveVerdict::Met, Some(false)) | (ObjectiveVerdict::Missed, Some(true))
        )
    }
}

/// The comparison of a run with the true values.
#[derive(Debug)]
pub(super) struct Assay {
    pub(super) run: String,
    pub(super) commitment: String,
    pub(super) law: String,
    pub(super) seed: u64,
    pub(super) path: Duration,
    /// Number of requests that the server received; `calls` is the number of calls of the run. Both include the
    /// warm-up.
    pub(super) requests: u64,
    pub(super) calls: u64,
    /// Number of measured calls, which are compared.
    pub(super) compared_calls: u64,
    pub(super) basis: TruthBasis,
    /// Why not all calls of the run can be compared, one sentence per reason.
    pub(super) disagreements: Vec<String>,
    /// Whether the run claims to be valid.
    pub(super) claims_validity: bool,
    pub(super) figures: Vec<FigureCheck>,
    pub(super) objectives: Vec<ObjectiveCheck>,
    /// How late the server wrote its answers: p50 and maximum, µs.
    pub(super) server_late_us: [f64; 2],
}

impl Assay {
    /// Compares `run` with the record of the server, `envelope`. `path` is the maximum network round-trip time between
    /// client and server.
    ///
    /// # Errors
    /// When run and envelope have no figure in common, or the run's calls can't be read.
    pub(super) fn compare(run: &Run, envelope: &Envelope, path: Duration) -> Result<Assay, String> {
        let check = &run.summary.count_check;
        let total = &run.summary.total;
        let warmup = check.due.saturating_sub(total.due);
        let requests = &envelope.requests;
        let disagreements = find_disagreements(run, requests);
        let due = if disagreements.is_empty() {
            schedule::due_times_ns(run).map_err(|e| message_with_causes(&e))?
        } else {
            None
        };
        let warmup_requests = usize::try_from(warmup)
            .unwrap_or(usize::MAX)
            .min(requests.len());
        let (basis, truth) = match due.filter(|due| due.len() == requests.len()) {
            Some(due) => (
                TruthBasis::Schedule,
                scheduled_time_bounds(envelope, &due, path)?,
            ),
            None => (
                TruthBasis::Arrivals,
                requests.iter().filter_map(served_time_bounds).collect(),
            ),
        };
        let truth = TimeBounds::from_times(truth.into_iter().skip(warmup_requests));
        let figures = check_figures(run, &truth, path);
        if figures.is_empty() {
            return Err(format!(
                "{} and the envelope have no figure in common: the run has {} answers, and the server answered {} requests",
                run.dir.display(),
                total.ok,
                requests.len()
            ));
        }
        let late = requests.iter().filter_map(|request| {
            let [began, ended] = request.written_ns?;
            Some([began, ended].map(|written| written.saturating_sub(request.due_ns)))
        });
        let late = TimeBounds::from_times(late);
        let late_at = |percent| late.percentile(percent).map_or(0.0, |[_, high]| high);
        Ok(Assay {
            run: run.dir.display().to_string(),
            commitment: envelope.commitment.clone(),
            law: envelope.opening.law.clone(),
            seed: envelope.opening.seed,
            path,
            requests: requests.len() as u64,
            calls: check.due,
            compared_calls: truth.len(),
            basis,
            disagreements,
            claims_validity: run.state == RunState::Complete && run.summary.health.valid,
            figures,
            objectives: check_objectives(run, &truth, path),
            server_late_us: [late_at(50.0), late_at(100.0)],
        })
    }

    /// Returns how many intervals cover the true value, and the number of intervals.
    pub(super) fn coverage(&self) -> (usize, usize) {
        let judged = self.figures.iter().filter_map(|figure| figure.holds);
        let held = judged.clone().filter(|holds| *holds).count();
        (held, judged.count())
    }

    /// Returns whether the run claims to be valid although an interval misses the true value.
    pub(super) fn is_falsely_valid(&self) -> bool {
        let (held, of) = self.coverage();
        self.claims_validity && held < of
    }

    pub(super) fn exit_code(&self) -> Exit {
        let (held, of) = self.coverage();
        if held < of || self.objectives.iter().any(ObjectiveCheck::is_wrong) {
            Exit::ObjectiveMissed
        } else if of == 0 || !self.disagreements.is_empty() {
            Exit::Invalid
        } else {
            Exit::Done
        }
    }
}

/// Returns why the run's calls and the server's requests don't match one to one.
fn find_disagreements(run: &Run, requests: &[ServedRequest]) -> Vec<String> {
    let check = &run.summary.count_check;
    let served = requests.len() as u64;
    let mut found = Vec::new();
    if check.due != served {
        found.push(format!(
            "the run has {}, and the server had {}: other clients called it, or calls did not reach it",
            plural(check.due, "call"),
            plural(served, "request")
        ));
    }
    let unanswered = requests.iter().filter(|r| r.written_ns.is_none()).count();
    if unanswered > 0 {
        found.push(format!(
            "the server did not answer {}",
            plural(unanswered as u64, "request")
        ));
    }
    let lost = check.due.saturating_sub(check.ok);
    if lost > 0 {
        let whose = if lost == 1 {
            "its time is"
        } else {
            "their times are"
        };
        found.push(format!(
            "{} of the run did not end ok, and {whose} not among its response times",
            plural(lost, "call")
        ));
    }
    found
}

/// Returns bounds of a request's time as a client that reads without delay sees it, ns; `None` without an answer.
fn served_time_bounds(request: &ServedRequest) -> Option<[u64; 2]> {
    let [began, ended] = request.written_ns?;
    let first = request.arrived_after_ns.unwrap_or(request.arrived_ns);
    Some([
        began.saturating_sub(request.arrived_ns),
        ended.saturating_sub(first),
    ])
}

/// Returns bounds of each call's time in nanoseconds, as a client that sends and reads without delay would see it. The
/// time is the delay that the server's law assigns to a request arriving when the call was due, plus the server's own
/// lateness in answering that request. A call takes up to `path` to arrive, so if it then meets a stall that it would
/// have missed at once, or the other way round, the bounds include both delays.
fn scheduled_time_bounds(
    envelope: &Envelope,
    due: &[u64],
    path: Duration,
) -> Result<Vec<[u64; 2]>, String> {
    let requests = &envelope.requests;
    // Calls are never sent early, so the smallest difference between arrival and due time gives the start of the
    // schedule.
    let offsets = requests.iter().zip(due);
    let offsets = offsets.map(|(request, due)| i128::from(request.arrived_ns) - i128::from(*due));
    let begins = offsets.min().unwrap_or_default().max(0);
    let path_ns = u64::try_from(path.as_nanos()).unwrap_or(u64::MAX);
    let mut delays = envelope.delays().map_err(|e| e.to_string())?;
    let mut delays_after_path = envelope.delays().map_err(|e| e.to_string())?;
    let times = requests.iter().zip(due).map(|(request, due)| {
        let due = u64::try_from(begins + i128::from(*due)).unwrap_or(u64::MAX);
        let arrival = due.saturating_add(path_ns);
        let takes = delays.next(due).saturating_sub(due);
        let takes_after_path = delays_after_path.next(arrival).saturating_sub(due);
        let least = takes.min(takes_after_path);
        let greatest = takes.max(takes_after_path.saturating_sub(path_ns));
        let [began, ended] = request.written_ns.unwrap_or([request.due_ns; 2]);
        let first = request.arrived_after_ns.unwrap_or(request.arrived_ns);
        let late = ended.saturating_sub(request.due_ns) + request.arrived_ns.saturating_sub(first);
        [
            least + began.saturating_sub(request.due_ns),
            greatest + late,
        ]
    });
    Ok(times.collect())
}

fn check_figures(run: &Run, truth: &TimeBounds, path: Duration) -> Vec<FigureCheck> {
    let Some(times) = &run.summary.total.response else {
        return Vec::new();
    };
    // In a closed loop the generator's delays also postpone the next call, so the intervals are not bounds.
    let instrument = times.instrument.filter(|_| run.header.is_open_loop());
    let interval_of = |name: &str| {
        let instrument = instrument.as_ref()?;
        let all = instrument.percentiles();
        let found = all.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, interval)| *interval)
    };
    let percent = |name: &str| {
        name.strip_prefix('p')
            .and_then(|digits| digits.parse().ok())
    };
    let percentiles = times
        .percentiles()
        .into_iter()
        .filter_map(|(name, printed)| {
            let true_us = truth.percentile(percent(name)?)?;
            Some(check_figure(
                name,
                printed?,
                interval_of(name),
                true_us,
                path,
            ))
        });
    let mean = truth.mean().map(|true_us| {
        let interval = instrument.as_ref().map(|all| all.mean_us);
        check_figure("mean", times.mean_us, interval, true_us, path)
    });
    let max = truth.percentile(100.0).map(|true_us| {
        let interval = instrument.as_ref().map(|all| all.max_us);
        check_figure("max", times.max_us, interval, true_us, path)
    });
    mean.into_iter().chain(percentiles).chain(max).collect()
}

fn check_figure(
    name: &'static str,
    printed_us: f64,
    interval_us: Option<[f64; 2]>,
    true_us: [f64; 2],
    path: Duration,
) -> FigureCheck {
    let holds = interval_us.map(|[low, high]| {
        let [true_low, true_high] = true_us;
        let path_us = path.as_secs_f64() * 1e6;
        low <= (true_high + path_us) * (1.0 + HISTOGRAM_PRECISION)
            && high >= true_low * (1.0 - HISTOGRAM_PRECISION)
    });
    FigureCheck {
        name,
        printed_us,
        interval_us,
        true_us,
        holds,
    }
}

fn check_objectives(run: &Run, truth: &TimeBounds, path: Duration) -> Vec<ObjectiveCheck> {
    let objectives = spec::read(&run.plan).map(|spec| spec.objectives());
    let objectives = objectives.unwrap_or_default();
    let judged = judge_run(run);
    let pairs = objectives.iter().zip(judged);
    let promises = pairs.filter_map(|(objective, judged)| {
        let true_us = true_value(objective, truth)?;
        let [low, high] = [true_us[0], true_us[1] + path.as_secs_f64() * 1e6];
        let limit_us = objective.limit / 1e3;
        let is_above = if low > limit_us {
            Some(true)
        } else {
            (high <= limit_us).then_some(false)
        };
        Some(ObjectiveCheck {
            text: judged.objective,
            verdict: judged.verdict,
            was_met: is_above.map(|above| above != objective.is_upper),
        })
    });
    promises.collect()
}

/// Returns the true value of the figure that an objective limits, µs; `None` if the envelope does not determine it.
fn true_value(objective: &Objective, truth: &TimeBounds) -> Option<[f64; 2]> {
    match objective.metric {
        _ if objective.stage.is_some() || objective.step.is_some() => None,
        Metric::Time(TimeMetric::Response, Statistic::Percentile(percent)) => {
            truth.percentile(percent)
        }
        Metric::Time(TimeMetric::Response, Statistic::Mean) => truth.mean(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::law::ServerDelays;
    use plimsoll_serving::envelope::CommitmentOpening;

    use super::*;

    const LAW: &str =
        "law = 'stalls'\nevery = '50ms'\nlength = '30ms'\nof = { law = 'constant', delay = '1ms' }";
    const MS: u64 = 1_000_000;

    /// Returns the envelope of a server that is never late, with requests that arrive at these times, ns.
    fn envelope(arrivals: &[u64]) -> Envelope {
        let mut delays = ServerDelays::new(LAW, 7).unwrap();
        let requests = (0..).zip(arrivals).map(|(number, &arrived_ns)| {
            let due_ns = delays.next(arrived_ns);
            ServedRequest {
                number,
                arrived_ns,
                arrived_after_ns: None,
                due_ns,
                written_ns: Some([due_ns; 2]),
            }
        });
        Envelope {
            commitment: String::new(),
            opening: CommitmentOpening {
                seed: 7,
                nonce: String::new(),
                law: LAW.to_owned(),
                requests: arrivals.len() as u64,
                requests_sha256: String::new(),
            },
            requests: requests.collect(),
        }
    }

    #[test]
    fn late_first_call_leaves_stalls_in_place() {
        let due: Vec<u64> = (0..1000).map(|n| n * MS).collect();
        // The generator was stalled for the first 8 ms.
        let begins = 5_000 * MS;
        let arrivals: Vec<u64> = due.iter().map(|due| begins + due.max(&(8 * MS))).collect();
        let envelope = envelope(&arrivals);
        let truth = scheduled_time_bounds(&envelope, &due, Duration::ZERO).unwrap();
        for ((request, due), truth) in envelope.requests.iter().zip(&due).zip(truth).skip(8) {
            assert_eq!(truth, [request.due_ns - begins - due; 2], "{request:?}");
        }
    }

    #[test]
    fn call_before_stall_may_meet_it() {
        let due: Vec<u64> = (0..1000).map(|n| n * MS).collect();
        let envelope = envelope(&due.iter().map(|due| 5_000 * MS + due).collect::<Vec<_>>());
        let exact = scheduled_time_bounds(&envelope, &due, Duration::ZERO).unwrap();
        let within = scheduled_time_bounds(&envelope, &due, Duration::from_millis(1)).unwrap();
        let wider = exact
            .iter()
            .zip(&within)
            .filter(|(exact, within)| exact != within);
        let wider: Vec<_> = wider.collect();
        assert!((1..40).contains(&wider.len()), "{wider:?}");
        for (exact, [low, high]) in wider {
            assert_eq!(exact[0], *low);
            assert!(high - low > 20 * MS, "{low} to {high}");
        }
    }
}
