//! Resolves the arrival model and the stages of `[load]`.

use std::time::Duration;

use super::{ArrivalsSpec, LoadSpec, Problem, Problems, RampSpec, RateSpec, Spec, StepSpec};
use crate::formats::units::Period;
use crate::plan::{ArrivalModel, ArrivalSpacing, LoadStage};
use crate::rows::recording::Recording;

/// Advice for an invalid table of arrivals.
pub(super) const ARRIVALS_TABLE_HELP: &str =
    "write one of { gamma = 0.25 } and { file = \"times.txt\" }";

impl Problems {
    /// Resolves the arrival model and the stages, of which the warm-up comes first.
    pub(super) fn resolve_arrivals(
        &mut self,
        spec: &Spec,
        recording: Option<&Recording>,
    ) -> (Option<ArrivalModel>, Vec<LoadStage>) {
        let load = &spec.load;
        let is_recorded = load.recording_key().is_some();
        let users = spec.call.calls_per_user().is_some();
        let spacing = if is_recorded {
            ArrivalSpacing::Recorded
        } else {
            self.resolve_spacing(load)
        };
        let positive = |period: &Option<Period>| period.map(|p| p.0).filter(|d| !d.is_zero());
        if load.duration.is_some_and(|p| p.0.is_zero()) {
            self.add(
                "load.duration",
                "0 measures nothing: use a duration such as \"30s\"",
            );
        }
        let duration = positive(&load.duration);
        let warmup = positive(&load.warmup);
        let given: Vec<&str> = [
            (
                load.recording_key().map_or("replay", |key| &key[5..]),
                is_recorded,
            ),
            ("rate", load.rate.is_some()),
            ("steps", load.steps.is_some()),
            ("clients", load.clients.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, given)| given.then_some(key))
        .collect();
        if let [first, second, ..] = given.as_slice() {
            self.0.push(
                Problem::new(format!("load.{second}"), format!("can't be combined with load.{first}: use one of the two"))
                    .help("`rate`, `steps` and `replay` are an open loop (calls are due whatever the target does), `clients` a closed one (a client waits for its answer); `max_in_flight` limits the calls in flight of an open loop"),
            );
            return (None, Vec::new());
        }
        // Think time is also valid for arriving users, who pause between their calls.
        if load.clients.is_none() && load.think.is_some() && !users {
            self.add(
                "load.think",
                "a pause between a client's calls, so it needs load.clients",
            );
        }
        if is_recorded {
            let stages =
                recording.map(|recording| self.resolve_replay_stages(load, recording, warmup));
            return (
                Some(ArrivalModel::Open(spacing)),
                stages.unwrap_or_default(),
            );
        }
        match (load.clients, &load.rate, &load.steps) {
            (Some(clients), ..) => self.resolve_closed_loop(load, clients, duration, warmup),
            (None, None, None) => {
                self.add("load", "neither a rate nor clients: write rate = \"1000/s\" (open loop) or clients = 100 (closed loop)");
                (None, Vec::new())
            }
            (None, rate, steps) => {
                let mut stages = Vec::new();
                match rate {
                    Some(RateSpec::Steady(rate)) => {
                        let steady = self.constant_rate_stage(load, rate.0, duration, spacing);
                        stages.push(match steady {
                            Some(stage) => stage,
                            None => return (None, stages),
                        });
                    }
                    Some(RateSpec::Ramp(ramp)) => self.add_ramp(ramp, duration, &mut stages),
                    None => self.add_step_stages(
                        load,
                        steps.as_deref().unwrap_or_default(),
                        &mut stages,
                    ),
                }
                if let Some(length) = warmup {
                    // Use the first rate above 0, because a warm-up at rate 0 would have no effect.
                    let mut rates = stages.iter().flat_map(|s| [s.rate_from, s.rate_to]);
                    let rate = rates.find(|rate| *rate > 0.0).unwrap_or(0.0);
                    stages.insert(0, warmup_stage(length, rate));
                }
                (Some(ArrivalModel::Open(spacing)), stages)
            }
        }
    }

    /// Resolves a closed loop, in which clients start calls.
    fn resolve_closed_loop(
        &mut self,
        load: &LoadSpec,
        clients: u32,
        duration: Option<Duration>,
        warmup: Option<Duration>,
    ) -> (Option<ArrivalModel>, Vec<LoadStage>) {
        self.report_failed_checks([
            (
                clients == 0,
                "load.clients",
                "0 clients send nothing: use 1 or more",
            ),
            (
                load.arrivals.is_some(),
                "load.arrivals",
                "only for an open loop (load.rate): with load.clients each client decides when to send",
            ),
        ]);
        if load.calls.is_none() && load.duration.is_none() {
            self.report_missing_end();
        }
        let own = LoadStage {
            duration,
            ..LoadStage::constant_rate("clients", Duration::ZERO, 0.0)
        };
        let stages = warmup.map(|length| warmup_stage(length, 0.0)).into_iter();
        let think = load.think.map_or(Duration::ZERO, |p| p.0);
        let arrivals = ArrivalModel::Closed { clients, think };
        (Some(arrivals), stages.chain([own]).collect())
    }

    fn constant_rate_stage(
        &mut self,
        load: &LoadSpec,
        rate: f64,
        duration: Option<Duration>,
        spacing: ArrivalSpacing,
    ) -> Option<LoadStage> {
        if rate <= 0.0 {
            self.add(
                "load.rate",
                "a rate of 0 sends nothing: use \"1000/s\" or the like",
            );
            return None;
        }
        let of_calls = || {
            load.calls
                .map(|calls| open_loop_duration(calls, rate, spacing))
        };
        let length = duration.or_else(of_calls);
        if length.is_none() && load.duration.is_none() {
            self.report_missing_end();
        }
        Some(LoadStage::constant_rate("steady", length?, rate))
    }

    fn add_ramp(
        &mut self,
        ramp: &RampSpec,
        duration: Option<Duration>,
        stages: &mut Vec<LoadStage>,
    ) {
        let over = ramp.over.0;
        self.report_failed_checks([
            (
                over.is_zero(),
                "load.rate.over",
                "a ramp needs time: use a duration such as \"30s\"",
            ),
            (
                ramp.from.0 <= 0.0 && ramp.to.0 <= 0.0,
                "load.rate",
                "a ramp from 0 to 0 sends nothing: use \"1000/s\" or the like",
            ),
        ]);
        stages.push(LoadStage {
            rate_to: ramp.to.0,
            ..LoadStage::constant_rate("ramp", over, ramp.from.0)
        });
        match duration {
            Some(length) if length < over => {
                let problem = format!(
                    "{} is shorter than the ramp ({})",
                    Period(length),
                    ramp.over
                );
                self.add("load.duration", problem);
            }
            Some(length) if length > over => {
                stages.push(LoadStage::constant_rate("hold", length - over, ramp.to.0));
            }
            _ => {}
        }
    }

    /// Resolves the spacing of open-loop arrivals.
    pub fn resolve_spacing(&mut self, load: &LoadSpec) -> ArrivalSpacing {
        const ARRIVALS_KEY: &str = "load.arrivals";
        match &load.arrivals {
            None => ArrivalSpacing::Constant,
            Some(ArrivalsSpec::Named(name)) => {
                let named = [ArrivalSpacing::Constant, ArrivalSpacing::Poisson];
                self.resolve_choice(
                    ARRIVALS_KEY,
                    Some(name.as_str()),
                    &named,
                    ArrivalSpacing::name,
                )
            }
            Some(ArrivalsSpec::Table(table)) => match (table.gamma, &table.file) {
                (Some(shape), None) => {
                    if !ArrivalSpacing::GAMMA_SHAPE_RANGE.contains(&shape) {
                        let problem = format!(
                            "{shape} is not a useful shape of a gamma distribution: use 0.01 to 100, such as 0.25"
                        );
                        self.add(ARRIVALS_KEY, problem);
                    }
                    ArrivalSpacing::Gamma(shape)
                }
                (None, Some(_)) => ArrivalSpacing::Recorded,
                _ => {
                    self.add(ARRIVALS_KEY, ARRIVALS_TABLE_HELP);
                    ArrivalSpacing::Constant
                }
            },
        }
    }

    fn report_missing_end(&mut self) {
        self.add(
            "load.duration",
            "missing: write duration = \"30s\", or calls = 100000",
        );
    }

    fn add_step_stages(
        &mut self,
        load: &LoadSpec,
        steps: &[StepSpec],
        stages: &mut Vec<LoadStage>,
    ) {
        if load.duration.is_some() {
            self.add(
                "load.duration",
                "not used with load.steps, where each step says `for` how long",
            );
        }
        if steps.is_empty() {
            self.add(
                "load.steps",
                "no step: write steps = [{ rate = \"500/s\", for = \"10s\" }]",
            );
        }
        if steps.len() > 250 {
            self.add(
                "load.steps",
                format!("{} steps are too many: at most 250", steps.len()),
            );
        }
        let mut highest = 0.0f64;
        for (i, step) in steps.iter().enumerate() {
            let key = format!("load.steps.{i}");
            let (from, to) = match (step.rate, step.from, step.to) {
                (Some(rate), None, None) => (rate.0, rate.0),
                (None, Some(from), Some(to)) => (from.0, to.0),
                _ => {
                    self.add(&*key, "a step has either a `rate`, or both `from` and `to`");
                    continue;
                }
            };
            let Some(length) = step.length.filter(|p| !p.0.is_zero()) else {
                self.add(&*key, "a step says `for` how long: for = \"10s\"");
                continue;
            };
            highest = highest.max(from).max(to);
            let name = step
                .name
                .clone()
                .unwrap_or_else(|| format!("step {}", i + 1));
            if name.trim().is_empty() || stages.iter().any(|s| s.name == name) {
                self.add(
                    format!("{key}.name"),
                    format!("`{name}` is empty or already used: give every step a unique name"),
                );
            }
            stages.push(LoadStage {
                rate_to: to,
                ..LoadStage::constant_rate(&name, length.0, from)
            });
        }
        if !steps.is_empty() && stages.len() == steps.len() && highest <= 0.0 {
            self.add(
                "load.steps",
                "a rate of 0 in every step sends nothing: use \"1000/s\" or the like",
            );
        }
    }
}

fn warmup_stage(length: Duration, rate: f64) -> LoadStage {
    LoadStage {
        warmup: true,
        ..LoadStage::constant_rate("warmup", length, rate)
    }
}

/// Returns how long an open loop takes to issue `calls` arrivals.
fn open_loop_duration(calls: u64, rate: f64, spacing: ArrivalSpacing) -> Duration {
    let arrivals = match spacing {
        ArrivalSpacing::Constant | ArrivalSpacing::Recorded => calls as f64,
        // Long enough that only one run in a billion does not reach the number of calls, at which the load ends.
        ArrivalSpacing::Poisson => calls as f64 + 6.0 * (calls as f64).sqrt() + 20.0,
        ArrivalSpacing::Gamma(shape) => max_gap_sum(calls as f64, shape),
    };
    Duration::from_nanos((arrivals / rate * 1e9).ceil() as u64)
}

/// Returns an upper bound of the sum of `gaps` gaps of a gamma distribution of mean 1, exceeded only once in a billion
/// times.
fn max_gap_sum(gaps: f64, shape: f64) -> f64 {
    // The negative natural logarithm of one in a billion, rounded up.
    const NEG_LN_MISS_PROBABILITY: f64 = 21.0;
    // The gap in which the run starts has a shape that is higher by at most 1, so the sum has at most this shape. The
    // bound is Chernoff's for a gamma distribution.
    let whole = gaps * shape + 1.0;
    (whole + (2.0 * whole * NEG_LN_MISS_PROBABILITY).sqrt() + NEG_LN_MISS_PROBABILITY) / shape
}
