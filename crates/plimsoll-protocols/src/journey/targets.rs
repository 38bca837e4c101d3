//! The targets of a journey, and the files that its calls read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_engine::script::MAX_LINKS;
use plimsoll_model::plan::Target;
use plimsoll_model::spec::{Problems, Spec, resolve_target_url};
use toml::Table;

use super::keys::STEPS_KEY;
use super::step_module::{self, StepModule};
use super::step_spec::StepSpec;

/// Returns the files that the calls of the steps read, with their keys. `section`: the section of the plan's own
/// target.
pub(crate) fn step_files(section: &str, steps: &[StepSpec]) -> Vec<(&'static str, PathBuf)> {
    let of_step = |step: &StepSpec| {
        let module = match step.flow.target.as_deref() {
            Some(url) => step_module::find_module_for_url(url)?,
            None => step_module::find_module(section)?,
        };
        Some((module.files)(&step.call))
    };
    steps.iter().filter_map(of_step).flatten().collect()
}

/// Returns whether the target of some step is reached over TLS.
pub(crate) fn has_secured_target(steps: &[StepSpec], spec: &Spec) -> bool {
    let mut urls = steps.iter().filter_map(|step| step.flow.target.as_deref());
    urls.any(|url| resolve_target_url(url, spec).is_ok_and(|(_, is_secured)| is_secured))
}

/// The targets of a journey. Links 1 and up lead to the others, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JourneyTargets {
    /// Whether the plan's own target is reached over TLS.
    own_is_secured: bool,
    /// The targets besides the plan's own.
    pub(crate) others: Vec<OtherTarget>,
    /// The number of the cookie jar of each link.
    jars: Vec<usize>,
}

/// A target besides the plan's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherTarget {
    pub(crate) target: Target,
    /// Whether it is reached over TLS.
    pub(crate) is_secured: bool,
}

impl JourneyTargets {
    /// Returns whether a link's target is reached over TLS.
    pub(super) fn is_secured(&self, link: u8) -> bool {
        match usize::from(link).checked_sub(1) {
            None => self.own_is_secured,
            Some(other) => (self.others.get(other)).is_some_and(|other| other.is_secured),
        }
    }

    /// Returns the number of the jar that holds the cookies of a link's target. Targets with the same host share one,
    /// since cookies do not depend on ports (RFC 6265, 8.5).
    pub(super) fn cookie_jar_index(&self, link: u8) -> usize {
        self.jars.get(usize::from(link)).copied().unwrap_or(0)
    }

    /// Returns the number of jars of a user.
    pub(super) fn cookie_jars(&self) -> usize {
        self.jars.iter().max().map_or(1, |last| last + 1)
    }
}

/// A target as it tells links apart: its protocol's section, address, Unix socket, and whether it is reached over TLS.
type LinkOrigin = (&'static str, String, Option<String>, bool);

fn link_origin(module: &StepModule, target: &Target, is_secured: bool) -> LinkOrigin {
    let socket = target.socket.as_ref().map(ToString::to_string);
    (
        module.schemes.section,
        target.authority(),
        socket,
        is_secured,
    )
}

/// Returns the targets of a journey, and the link of each step. `own_module`: the protocol of the plan's own target.
pub(super) fn resolve_targets(
    problems: &mut Problems,
    spec: &Spec,
    own_module: &StepModule,
    steps: &[StepSpec],
) -> (JourneyTargets, Vec<u8>) {
    let own = spec.target.as_deref();
    let own = own.and_then(|url| resolve_target_url(url, spec).ok());
    let own_is_secured = own.as_ref().is_some_and(|(_, is_secured)| *is_secured);
    // The plan's own target is reported elsewhere if its URL is wrong.
    let mut hosts = vec![
        own.as_ref()
            .map(|(target, _)| target.host_without_zone().to_owned()),
    ];
    let mut origins = vec![own.map(|(target, secured)| link_origin(own_module, &target, secured))];
    let mut jars = vec![0];
    let mut others = Vec::new();
    let links = (0..).zip(steps).map(|(index, step)| {
        let Some(url) = step.flow.target.as_deref() else {
            return 0;
        };
        // URLs of other kinds are reported with the step.
        let Some(module) = step_module::find_module_for_url(url) else {
            return 0;
        };
        let key = format!("{STEPS_KEY}.{index}.target");
        let resolved = problems.ok_or_report(&key, resolve_target_url(url, spec));
        let Some((target, is_secured)) = resolved else {
            return 0;
        };
        let origin = Some(link_origin(module, &target, is_secured));
        if let Some(known) = origins.iter().position(|known| *known == origin) {
            return known as u8;
        }
        if origins.len() == MAX_LINKS {
            let problem = format!("too many targets: the steps of a user have at most {MAX_LINKS}");
            problems.add(key, problem);
            return 0;
        }
        let host = Some(target.host_without_zone().to_owned());
        let jar = hosts.iter().position(|known| *known == host);
        let jar = jar.unwrap_or_else(|| {
            hosts.push(host);
            hosts.len() - 1
        });
        jars.push(jar);
        origins.push(origin);
        others.push(OtherTarget { target, is_secured });
        others.len() as u8
    });
    let links = links.collect();
    let targets = JourneyTargets {
        own_is_secured,
        others,
        jars,
    };
    (targets, links)
}

/// The values of the keys that all steps to a target share, by link.
#[derive(Default)]
pub(super) struct SharedKeys(BTreeMap<u8, Table>);

impl SharedKeys {
    /// Sets the keys of the plan's own target, which `section` has.
    pub(super) fn set_own(&mut self, module: &StepModule, section: &Table) {
        self.0.insert(0, shared_keys(module, section));
    }

    /// Reports keys of a step with a `target` that differ from those of other steps to that target.
    pub(super) fn check(
        &mut self,
        problems: &mut Problems,
        module: &StepModule,
        link: u8,
        call: &Table,
    ) {
        let section = module.schemes.section;
        (module.check_journey)(call, problems);
        if call.contains_key(DEADLINE_KEY) {
            problems.add(
                format!("call.{section}.{DEADLINE_KEY}"),
                "the same for all steps: write it as load.deadline",
            );
        }
        let shared = shared_keys(module, call);
        let first = self.0.entry(link).or_insert_with(|| shared.clone());
        let differs = |key: &&&str| first.get(**key) != shared.get(**key);
        for key in module.shared_keys.iter().filter(differs) {
            let whose = if link == 0 {
                format!(
                    "the same for all steps to the plan's target: write what [call.{section}] has"
                )
            } else {
                "the same for all steps to a target: write it in each of them".to_owned()
            };
            problems.add(format!("call.{section}.{key}"), whose);
        }
    }
}

const DEADLINE_KEY: &str = "deadline";

fn shared_keys(module: &StepModule, call: &Table) -> Table {
    let is_shared = |key: &str| key != DEADLINE_KEY && module.shared_keys.contains(&key);
    let shared = call.iter().filter(|(key, _)| is_shared(key));
    shared
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
