//! `[watch]`: the server process whose CPU and memory are read, the metrics that the server publishes itself, and the
//! settings of CPU profiling.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::problem::Problems;
use crate::formats::redaction::mask_urls;
use crate::plan::{
    DEFAULT_SAMPLING_HZ, MAX_SAMPLING_HZ, MetricsSource, Plan, ProfilePlan, ProfiledEnd,
    StackUnwinding, UnixSocket, WatchedProcess,
};

/// The value of `server_metrics` that means the path `/metrics` of the target.
const TARGET_METRICS: &str = "auto";

/// The server process to watch. Default: the one that listens on the target's port.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WatchSpec {
    /// The process with this id.
    #[arg(skip)]
    pub pid: Option<u32>,
    /// The process that listens on this port of this machine.
    #[arg(skip)]
    pub port: Option<u16>,
    /// The control group (version 2) of a container or a unit of this machine: its path, a unit's name such as `nginx`,
    /// or a container's id.
    #[arg(skip)]
    pub cgroup: Option<String>,
    /// Watch nothing.
    #[arg(skip)]
    pub off: Option<bool>,
    /// Sample where the CPU time of server, client (the load generator) or both is spent [default: server].
    ///
    /// The functions and a flame graph are in the report. Default: nothing is sampled.
    #[arg(
        long,
        value_name = "END",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "server",
        help_heading = "Run"
    )]
    pub profile: Option<String>,
    /// Samples per second of CPU time. Default 99.
    #[arg(skip)]
    pub profile_hz: Option<u32>,
    /// Find the callers of sampled functions by frame-pointers or dwarf [default: frame-pointers].
    ///
    /// `"dwarf"` is for programs compiled without frame pointers, and costs more.
    #[arg(long, value_name = "HOW", help_heading = "Run")]
    pub unwind: Option<String>,
    /// Read the metrics that a model's server publishes (Prometheus) from this URL once a second; auto: from /metrics
    /// at the target's host and port.
    ///
    /// Those of vLLM, SGLang, TGI and llama.cpp are known. Default: they are not read.
    #[arg(long, value_name = "URL", help_heading = "Run")]
    pub server_metrics: Option<String>,
}

impl WatchSpec {
    /// Resolves the process to watch, and reports contradictions.
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

    /// Resolves what is sampled for a profile, and reports contradictions. `None`: nothing is sampled.
    pub(super) fn resolve_profile(
        watch: Option<&WatchSpec>,
        problems: &mut Problems,
    ) -> Option<ProfilePlan> {
        let watch = watch?;
        let Some(typed) = &watch.profile else {
            for (key, is_given) in [
                ("watch.profile_hz", watch.profile_hz.is_some()),
                ("watch.unwind", watch.unwind.is_some()),
            ] {
                if is_given {
                    problems.add(key, "nothing is sampled: add profile (--profile)");
                }
            }
            return None;
        };
        let ends = match typed.as_str() {
            "server" => vec![ProfiledEnd::Server],
            "client" => vec![ProfiledEnd::Client],
            "both" => vec![ProfiledEnd::Server, ProfiledEnd::Client],
            other => {
                let text = format!("`{other}` is not an end: use server, client or both");
                problems.add("watch.profile", text);
                Vec::new()
            }
        };
        if ends.contains(&ProfiledEnd::Server) && watch.off == Some(true) {
            problems.add(
                "watch.profile",
                "the server is not watched (off = true): name its process, or use client",
            );
        }
        let frequency_hz = watch.profile_hz.unwrap_or(DEFAULT_SAMPLING_HZ);
        if !(1..=MAX_SAMPLING_HZ).contains(&frequency_hz) {
            problems.add(
                "watch.profile_hz",
                format!("{frequency_hz}: use 1 to {MAX_SAMPLING_HZ}"),
            );
        }
        let unwinding = watch.unwind.as_deref().map(|typed| {
            let known = StackUnwinding::ALL.into_iter();
            let found = known.clone().find(|one| one.name() == typed);
            if found.is_none() {
                let text = format!("`{typed}`: use frame-pointers or dwarf");
                problems.add("watch.unwind", text);
            }
            found.unwrap_or_default()
        });
        Some(ProfilePlan {
            ends,
            frequency_hz,
            unwinding: unwinding.unwrap_or_default(),
            proxy_pids: Vec::new(),
        })
    }

    /// Resolves where the server publishes its own metrics, and reports what is no URL. `socket`: the target's Unix
    /// socket. `None`: the metrics are not read.
    pub(super) fn resolve_metrics_source(
        watch: Option<&WatchSpec>,
        socket: Option<&UnixSocket>,
        problems: &mut Problems,
    ) -> Option<MetricsSource> {
        const KEY: &str = "watch.server_metrics";
        let typed = watch?.server_metrics.as_deref()?;
        if typed == TARGET_METRICS {
            if socket.is_some() {
                problems.add(
                    KEY,
                    "a target on a Unix socket has no port to read them from: write the whole URL",
                );
            }
            return Some(MetricsSource::Target);
        }
        if !typed.contains("://") {
            let masked = mask_urls(typed);
            problems.add(
                KEY,
                format!("`{masked}` is not a URL: write the whole URL, or auto"),
            );
        } else if mask_urls(typed) != typed {
            problems.add(
                KEY,
                "the URL has a password or a key, which the run directory would show: use one without",
            );
        }
        Some(MetricsSource::Url(typed.to_owned()))
    }

    /// Returns the same profile settings for the process `pid`; `None`: no process is watched.
    #[must_use]
    pub fn with_process(&self, pid: Option<u32>) -> WatchSpec {
        WatchSpec {
            pid,
            port: None,
            cgroup: None,
            off: pid.is_none().then_some(true),
            ..self.clone()
        }
    }

    /// Returns whether the settings select a process.
    pub fn selects_process(&self) -> bool {
        self.pid.is_some() || self.port.is_some() || self.cgroup.is_some() || self.off.is_some()
    }

    /// Returns the settings for a saved plan, with which a later run watches the same process as `plan`.
    pub(super) fn from_plan(plan: &Plan) -> WatchSpec {
        let mut watch = WatchSpec::default();
        match &plan.watch {
            // The default finds the process by the target's socket.
            WatchedProcess::TargetPort | WatchedProcess::Started
                if plan.target.socket.is_some() => {}
            // A later run of the saved plan does not start the process, so it finds the process by its port.
            WatchedProcess::TargetPort | WatchedProcess::Started => {
                watch.port = Some(plan.target.port)
            }
            WatchedProcess::Port(port) => watch.port = Some(*port),
            WatchedProcess::Pid(pid) => watch.pid = Some(*pid),
            WatchedProcess::Group(name) => watch.cgroup = Some(name.clone()),
            WatchedProcess::Nothing => watch.off = Some(true),
        }
        if let Some(profile) = &plan.profile {
            let end = match profile.ends[..] {
                [one] => one.name(),
                _ => "both",
            };
            watch.profile = Some(end.to_owned());
            watch.profile_hz = Some(profile.frequency_hz);
            watch.unwind = Some(profile.unwinding.name().to_owned());
        }
        watch.server_metrics = plan.server_metrics.as_ref().map(|source| match source {
            MetricsSource::Target => TARGET_METRICS.to_owned(),
            MetricsSource::Url(url) => url.clone(),
        });
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

    #[test]
    fn profile_resolves_with_defaults() {
        let of = |watch: WatchSpec| {
            let mut problems = Problems::default();
            let plan = WatchSpec::resolve_profile(Some(&watch), &mut problems);
            let said: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            (plan, said.join(" "))
        };
        let typed = |text: &str| WatchSpec {
            profile: Some(text.to_owned()),
            ..WatchSpec::default()
        };
        let (plan, said) = of(typed("both"));
        let plan = plan.unwrap();
        assert_eq!(plan.ends, [ProfiledEnd::Server, ProfiledEnd::Client]);
        assert_eq!(
            (plan.frequency_hz, plan.unwinding, said.as_str()),
            (99, StackUnwinding::FramePointers, "")
        );
        for (watch, problem) in [
            (typed("all"), "use server, client or both"),
            (
                WatchSpec {
                    unwind: Some("lbr".to_owned()),
                    ..typed("server")
                },
                "use frame-pointers or dwarf",
            ),
            (
                WatchSpec {
                    profile_hz: Some(0),
                    ..typed("server")
                },
                "use 1 to 4999",
            ),
            (
                WatchSpec {
                    off: Some(true),
                    ..typed("server")
                },
                "the server is not watched",
            ),
            (
                WatchSpec {
                    profile_hz: Some(9),
                    ..WatchSpec::default()
                },
                "add profile",
            ),
        ] {
            let (_, said) = of(watch);
            assert!(said.contains(problem), "{said}");
        }
        assert_eq!(of(WatchSpec::default()), (None, String::new()));
    }

    #[test]
    fn metrics_source_is_url_or_target() {
        let of = |typed: &str, socket: Option<&UnixSocket>| {
            let watch = WatchSpec {
                server_metrics: Some(typed.to_owned()),
                ..WatchSpec::default()
            };
            let mut problems = Problems::default();
            let found = WatchSpec::resolve_metrics_source(Some(&watch), socket, &mut problems);
            let said: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            (found, said.join(" "))
        };
        let url = "http://127.0.0.1:9/metrics";
        assert_eq!(
            of(url, None),
            (Some(MetricsSource::Url(url.to_owned())), String::new())
        );
        assert_eq!(
            of("auto", None),
            (Some(MetricsSource::Target), String::new())
        );
        let socket = UnixSocket::Path("s".into());
        for (typed, socket, problem) in [
            ("auto", Some(&socket), "has no port"),
            ("127.0.0.1:9", None, "write the whole URL, or auto"),
            ("http://a:hush@127.0.0.1:9/", None, "has a password"),
        ] {
            let (_, said) = of(typed, socket);
            assert!(said.contains(problem), "{typed}: {said}");
            assert!(!said.contains("hush"), "{said}");
        }
    }
}
