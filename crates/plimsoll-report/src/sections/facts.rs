//! Describes the settings of a run in words that all reports share.

use std::iter;
use std::path::Path;

use plimsoll_model::runs::run::file_name;
use plimsoll_model::runs::run::header::{ConnectionSecurity, LoopKind, RunHeader, TargetSecurity};
use plimsoll_model::runs::run::{Labels, MachineFacts, Run, RunOrigin, RunState, Timestamp};

use crate::history::sanitise;
use crate::quantity::{bytes, count, plural, time};

/// Describes the arrival model, the connections and their security.
pub(crate) fn describe_setup(h: &RunHeader) -> Vec<String> {
    let mut parts = Vec::from_iter(describe_arrivals(
        h.load_loop,
        h.arrivals.as_deref(),
        h.clients,
    ));
    if h.cold {
        parts.push("a new connection for every call".to_owned());
    } else if let Some(n) = h.connections {
        parts.push(plural(u64::from(n), "connection"));
    }
    parts.extend(
        h.processes
            .map(|n| format!("from {} processes", count(u64::from(n)))),
    );
    if !h.shards.is_empty() {
        parts.push(format!("from {} shards", count(h.shards.len() as u64)));
    }
    parts.extend(h.version.as_ref().map(|version| format!("HTTP/{version}")));
    parts.extend(h.security.map(|security| describe_security(h, security)));
    let warmup = h.warmup_length();
    if !warmup.is_zero() {
        let us = warmup.as_micros() as f64;
        parts.push(format!("after {} of warm-up", time(us)));
    }
    if h.source == RunOrigin::Imported {
        parts.push("imported: values that the file doesn't contain are unknown".to_owned());
    }
    parts
}

/// Returns the name of the call and the target.
pub(crate) fn describe_call(h: &RunHeader) -> Option<String> {
    let target = h.target.as_ref().map(|target| format!("at {target}"));
    let parts: Vec<&str> = [h.call.as_deref(), target.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Returns the labels of the run in the form in which users type them; empty if there are none.
pub(crate) fn format_labels(labels: &Labels) -> String {
    let typed = labels
        .iter()
        .map(|(name, value)| format!("{}={}", sanitise(name), sanitise(value)));
    typed.collect::<Vec<_>>().join(", ")
}

/// Returns notes on the run's settings.
pub(crate) fn notes(h: &RunHeader) -> impl Iterator<Item = &str> {
    let closed = (h.load_loop == Some(LoopKind::Closed))
        .then_some("closed loop: a slow target gets less load, so response times are understated");
    h.notes.iter().map(String::as_str).chain(closed)
}

/// Describes the end of a run that was not complete, with the reason. For a complete run, returns the remark on its
/// end, if there is one.
pub(crate) fn describe_end(run: &Run) -> Option<String> {
    let reason = run.reason.as_deref();
    match run.state {
        // The reason is already listed among the run's problems.
        RunState::Invalid => None,
        RunState::Complete => reason.map(str::to_owned),
        state => Some(match reason {
            Some(reason) => format!("{}: {reason}", state.name()),
            None => state.name().to_owned(),
        }),
    }
}

/// Describes the arrival model.
pub(crate) fn describe_arrivals(
    load_loop: Option<LoopKind>,
    arrivals: Option<&str>,
    clients: Option<u32>,
) -> Option<String> {
    Some(match load_loop? {
        LoopKind::Open => format!("open loop, {} arrivals", arrivals.unwrap_or("")),
        LoopKind::Closed => {
            let clients = plural(u64::from(clients.unwrap_or(0)), "client");
            format!("closed loop, {clients}")
        }
    })
}

/// Describes the security of connections: once if it is the same for all targets, or else for each of them.
fn describe_security(h: &RunHeader, own: ConnectionSecurity) -> String {
    let is_same = |other: &TargetSecurity| other.security == own;
    if h.links.other_targets.iter().all(is_same) {
        return describe_link_security(h, own);
    }
    let others = h.links.other_targets.iter();
    let others = others.map(|other| {
        let security = describe_link_security(h, other.security);
        format!("{security} to {}", other.target)
    });
    let own = format!("{} to the target", describe_link_security(h, own));
    let all: Vec<String> = iter::once(own).chain(others).collect();
    all.join(", ")
}

fn describe_link_security(h: &RunHeader, security: ConnectionSecurity) -> String {
    let name = match security {
        ConnectionSecurity::Plaintext => "plaintext",
        ConnectionSecurity::Tls => "TLS",
        ConnectionSecurity::MutualTls => "mutual TLS",
    };
    if security == ConnectionSecurity::Plaintext {
        return name.to_owned();
    }
    let name = if h.links.insecure {
        format!("INSECURE {name}")
    } else {
        name.to_owned()
    };
    match &h.tls {
        Some(tls) => {
            let agreed = [Some(&tls.suite), tls.group.as_ref()];
            let agreed: Vec<&str> = agreed.into_iter().flatten().map(String::as_str).collect();
            format!("{name} ({})", agreed.join(", "))
        }
        None => name,
    }
}

/// Describes the machine that generated the load.
pub(crate) fn describe_machine(m: &MachineFacts) -> String {
    let parts = [
        m.cpu_model.clone(),
        m.cores.map(|n| plural(u64::from(n), "core")),
        m.memory_bytes.map(bytes),
        m.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        m.governor.as_ref().map(|name| format!("governor {name}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats a time with a resolution of one second.
pub(crate) fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns a sentence that all calls are accounted for, with the numbers of calls that had not ended.
pub(crate) fn describe_count_check(run: &Run) -> String {
    let c = &run.summary.count_check;
    let mut text = "all calls accounted for".to_owned();
    for (n, what) in [(c.in_flight, "in flight"), (c.backlog, "waiting")] {
        if n > 0 {
            text += &format!(", {} {what}", count(n));
        }
    }
    text
}

/// Describes the counts of calls as an equation: scheduled calls and the sum of their results.
pub(crate) fn describe_counts(run: &Run) -> String {
    let c = &run.summary.count_check;
    let mut sum = format!(
        "{} scheduled = {} ok + {}",
        count(c.due),
        count(c.ok),
        plural(c.errors, "error")
    );
    for (n, what) in [
        (c.cut_off, "cut off"),
        (c.not_started, "not started"),
        (c.in_flight, "in flight"),
        (c.backlog, "waiting"),
    ] {
        if n > 0 {
            sum += &format!(" + {} {what}", count(n));
        }
    }
    if run.summary.stages.iter().any(|s| s.warmup) {
        sum.push_str(", warm-up included");
    }
    sum
}

/// Returns the command that repeats the measurement, to be run in the folder in which it was made.
pub(crate) fn rerun_command(command: &str, dir: &Path) -> String {
    let plan = dir.join(file_name::PLAN).display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@".contains(c);
    if plan.chars().all(plain) {
        format!("plimsoll {command} {plan}")
    } else {
        format!("plimsoll {command} '{}'", plan.replace('\'', r"'\''"))
    }
}
