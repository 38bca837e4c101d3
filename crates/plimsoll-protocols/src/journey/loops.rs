//! The loops of a journey over several steps.

use plimsoll_model::spec::Problems;

use super::conditions::resolve_repeat;
use super::keys::STEPS_KEY;
use super::plan::{JourneyStep, StepLoop};
use super::step_spec::{LoopSpec, RepeatSpec, StepControlSpec, StepSpec};

/// The loops found so far, while the steps are resolved in order.
#[derive(Default)]
pub(super) struct JourneyLoops(Vec<FoundLoop>);

/// A loop of which at least the first step has been found.
struct FoundLoop {
    name: String,
    first: usize,
    /// The index after its last step so far.
    end: usize,
    repeat: RepeatSpec,
    /// The number of names that the steps up to its last one bind.
    bound_names: usize,
}

impl JourneyLoops {
    /// Returns the number of the loop that the step at `index` belongs to.
    ///
    /// # Errors
    /// Returns an error if the step neither begins a loop nor continues the one of the step before it.
    pub(super) fn assign_loop(
        &mut self,
        index: usize,
        flow: &StepControlSpec,
    ) -> Result<Option<usize>, String> {
        let Some(given) = &flow.in_loop else {
            return Ok(None);
        };
        let name = given.name();
        if name.trim().is_empty() || name.chars().any(char::is_control) {
            return Err("not a name: use printable characters".to_owned());
        }
        let known = self.0.iter().position(|found| found.name == name);
        match (given, known) {
            (LoopSpec::Begin(table), None) => {
                self.0.push(FoundLoop {
                    name: name.to_owned(),
                    first: index,
                    end: index + 1,
                    repeat: table.repeat.clone(),
                    bound_names: 0,
                });
                Ok(Some(self.0.len() - 1))
            }
            (LoopSpec::Begin(_), Some(_)) => Err(format!(
                "`{name}` begins at an earlier step: write loop = \"{name}\" here, or another name"
            )),
            (LoopSpec::Name(_), None) => Err(format!(
                "`{name}`: the first step of a loop says how often: loop = {{ name = \"{name}\", repeat = 10 }}"
            )),
            (LoopSpec::Name(_), Some(number)) => {
                let found = &mut self.0[number];
                if found.end != index {
                    return Err(format!("`{name}`: the steps of a loop follow each other"));
                }
                found.end = index + 1;
                Ok(Some(number))
            }
        }
    }

    /// Stores the number of names that the steps up to the one at `index` bind.
    pub(super) fn set_bound_names(&mut self, index: usize, bound_names: usize) {
        if let Some(last) = self.0.last_mut().filter(|last| last.end == index + 1) {
            last.bound_names = bound_names;
        }
    }

    /// Returns the loops, and reports repeats that refer to names which no step binds, and branches that begin within
    /// a loop and end outside of it. `taken`: the names that the steps bind, in order.
    pub(super) fn finish(
        self,
        problems: &mut Problems,
        steps: &[JourneyStep],
        taken: &[String],
    ) -> Vec<StepLoop> {
        let loops = self.0.into_iter().filter_map(|found| {
            let key = format!("{STEPS_KEY}.{}.loop", found.first);
            let bound = &taken[..found.bound_names.min(taken.len())];
            let repeat = resolve_repeat(bound, Some(&found.repeat));
            let repeat = problems.ok_or_report(&format!("{key}.repeat"), repeat);
            let has_forks = has_forks(steps, found.first..found.end);
            let has_forks = has_forks.map_err(|problem| format!("`{}`: {problem}", found.name));
            Some(StepLoop {
                first: found.first,
                end: found.end,
                has_forks: problems.ok_or_report(&key, has_forks)?,
                repeat: repeat?,
            })
        });
        loops.collect()
    }
}

/// Returns whether a fork begins in the loop of the steps at `range`.
fn has_forks(steps: &[JourneyStep], range: std::ops::Range<usize>) -> Result<bool, &'static str> {
    let within = &steps[range];
    let place = |step: &JourneyStep| Some((step.branch?.fork, step.branch?.branch));
    let mut has_forks = false;
    for (fork, _) in within.iter().filter_map(place) {
        let of_fork = |step: &&JourneyStep| place(step).is_some_and(|(other, _)| other == fork);
        let is_whole =
            within.iter().filter(of_fork).count() == steps.iter().filter(of_fork).count();
        has_forks |= is_whole;
        let first = within.first().and_then(place);
        let is_in_branch = first.is_some() && within.iter().all(|step| place(step) == first);
        if !is_whole && !is_in_branch {
            return Err("a loop has all branches of a choice, or is a part of one branch");
        }
    }
    Ok(has_forks)
}

/// Returns for each step how often its loop is repeated; `None`: it belongs to no loop.
pub(super) fn loop_repeats(steps: &[StepSpec]) -> impl Iterator<Item = Option<&RepeatSpec>> {
    let mut current: Option<(&str, &RepeatSpec)> = None;
    steps.iter().map(move |step| {
        current = match (&step.flow.in_loop, current) {
            (Some(LoopSpec::Begin(table)), _) => Some((&table.name, &table.repeat)),
            (Some(LoopSpec::Name(name)), Some(before)) if before.0 == name => Some(before),
            _ => None,
        };
        current.map(|(_, repeat)| repeat)
    })
}

/// Returns the steps of the same loop that follow the first of `steps`.
pub(super) fn later_steps_of_loop(steps: &[StepSpec]) -> &[StepSpec] {
    let name = |step: &StepSpec| {
        step.flow
            .in_loop
            .as_ref()
            .map(LoopSpec::name)
            .map(str::to_owned)
    };
    let Some((first, later)) = steps.split_first() else {
        return &[];
    };
    let is_later = |step: &&StepSpec| name(first).is_some() && name(step) == name(first);
    &later[..later.iter().take_while(is_later).count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(loops: &[&str]) -> Vec<StepSpec> {
        let of_step = |text: &&str| toml::from_str(text).expect("a step");
        loops.iter().map(of_step).collect()
    }

    #[test]
    fn loops_are_steps_that_follow_each_other() {
        let begin = "loop = { name = \"a\", repeat = 3 }";
        let numbers = |texts: &[&str]| -> Result<Vec<Option<usize>>, String> {
            let mut loops = JourneyLoops::default();
            let steps = steps(texts);
            let each = (0..).zip(&steps);
            each.map(|(index, step)| loops.assign_loop(index, &step.flow))
                .collect()
        };
        let other = "loop = { name = \"b\", repeat = \"while x\" }";
        assert_eq!(
            numbers(&["", begin, "loop = \"a\"", other, "", ""]),
            Ok(vec![None, Some(0), Some(0), Some(1), None, None])
        );
        for (wrong, problem) in [
            (&["loop = \"a\""][..], "the first step of a loop"),
            (&[begin, "", "loop = \"a\""], "follow each other"),
            (&[begin, begin], "begins at an earlier step"),
            (&["loop = { name = \"\", repeat = 3 }"], "not a name"),
        ] {
            let refused = numbers(wrong).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }

    #[test]
    fn all_loop_steps_repeat() {
        let steps = steps(&[
            "",
            "loop = { name = \"a\", repeat = 3 }",
            "loop = \"a\"",
            "",
        ]);
        let times: Vec<Option<&RepeatSpec>> = loop_repeats(&steps).collect();
        let three = RepeatSpec::Times(3);
        assert_eq!(times, [None, Some(&three), Some(&three), None]);
        assert_eq!(later_steps_of_loop(&steps[1..]).len(), 1);
        assert_eq!(later_steps_of_loop(&steps).len(), 0);
    }
}
