//! `[watch]`: the server process whose CPU and memory are read.

use serde::{Deserialize, Serialize};

use super::problem::Problems;
use crate::plan::{Plan, WatchedProcess};

/// The server process to watch. Default: the one that listens on the target's port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchSpec {
    /// The process with this id.
    pub pid: Option<u32>,
    /// The process that listens on this port of this machine.
    pub port: Option<u16>,
    /// The control group (version 2) of a container or a unit of this machine: its path, a unit's name such as `nginx`,
    /// or a container's id.
    pub cgroup: Option<String>,
    /// Watch nothing.
    pub off: Option<bool>,
}

impl WatchSpec {
    /// Resolves what a plan says; reports contradictions.
    pub(super) fn resolve(watch: Option<&WatchSpec>, problems: &mut Problems) -> WatchedProcess {
        let Some(watch) = watch else {
            return WatchedProcess::default();
        };
        let is_off = watch.off.unwrap_or(false);
        match (watch.pid, watch.port, &watch.cgroup, is_off) {
            (None, None, None, false) => WatchedProcess::default(),
            (None, None, Some(name), false) => WatchedProcess::Group(name.clone()),
            (Some(0), None, None, false) => {
                problems.add("watch.pid", "0 is not a process: use its id, or off = true");
                WatchedProcess::Nothing
            }
            (Some(pid), None, None, false) => WatchedProcess::Pid(pid),
            (None, Some(port), None, false) => WatchedProcess::Port(port),
            (None, None, None, true) => WatchedProcess::Nothing,
            _ => {
                problems.add(
                    "watch",
                    "more than one of `pid`, `port`, `cgroup` and `off`: use one",
                );
                WatchedProcess::Nothing
            }
        }
    }

    /// Returns what a saved plan says, so that a later run of it watches the same.
    pub(super) fn saved(plan: &Plan) -> WatchSpec {
        let mut watch = WatchSpec::default();
        match &plan.watch {
            // The process is found by the socket again.
            WatchedProcess::TargetPort | WatchedProcess::Started
                if plan.target.socket.is_some() => {}
            // A later run of this plan has not started the process itself.
            WatchedProcess::TargetPort | WatchedProcess::Started => {
                watch.port = Some(plan.target.port)
            }
            WatchedProcess::Port(port) => watch.port = Some(*port),
            WatchedProcess::Pid(pid) => watch.pid = Some(*pid),
            WatchedProcess::Group(name) => watch.cgroup = Some(name.clone()),
            WatchedProcess::Nothing => watch.off = Some(true),
        }
        watch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(watch: WatchSpec) -> (WatchedProcess, Vec<String>) {
        let mut problems = Problems::default();
        let found = WatchSpec::resolve(Some(&watch), &mut problems);
        let said = problems.0.iter().map(ToString::to_string).collect();
        (found, said)
    }

    #[test]
    fn control_group_is_watched_alone() {
        let group = WatchSpec {
            cgroup: Some("nginx".to_owned()),
            ..WatchSpec::default()
        };
        let (found, said) = resolved(group.clone());
        assert_eq!(found, WatchedProcess::Group("nginx".to_owned()));
        assert!(said.is_empty(), "{said:?}");
        let (_, said) = resolved(WatchSpec {
            port: Some(99),
            ..group
        });
        assert!(
            said[0].contains("more than one of `pid`, `port`, `cgroup` and `off`"),
            "{said:?}"
        );
    }
}
