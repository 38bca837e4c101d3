//! How a run was made, in words: what every report states beside its figures.

use plimsoll_model::run::header::{Loop, RunHeader, Security};
use plimsoll_model::run::{Machine, Run, Timestamp};

use crate::quantity::{bytes, count, plural};

/// Who decided when calls start, over which connections and which link.
pub(crate) fn how(h: &RunHeader) -> Vec<String> {
    let mut parts = Vec::from_iter(issuing(h.load_loop, h.arrivals.as_deref(), h.clients));
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
    parts.extend(h.security.map(|security| link(h, security)));
    parts
}

/// Who decided when calls start.
pub(crate) fn issuing(
    load_loop: Option<Loop>,
    arrivals: Option<&str>,
    clients: Option<u32>,
) -> Option<String> {
    Some(match load_loop? {
        Loop::Open => format!("open loop, {} arrivals", arrivals.unwrap_or("")),
        Loop::Closed => {
            let clients = plural(u64::from(clients.unwrap_or(0)), "client");
            format!("closed loop, {clients}")
        }
    })
}

fn link(h: &RunHeader, security: Security) -> String {
    let name = match security {
        Security::Plaintext => "plaintext",
        Security::Tls => "TLS",
        Security::MutualTls => "mutual TLS",
    };
    let name = match h.insecure {
        true => format!("INSECURE {name}"),
        false => name.to_owned(),
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

/// The machine that made the load.
pub(crate) fn machine(m: &Machine) -> String {
    let parts = [
        m.cpu_model.clone(),
        m.cores.map(|n| plural(u64::from(n), "core")),
        m.memory_bytes.map(bytes),
        m.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        m.governor.as_ref().map(|name| format!("governor {name}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A moment to the second.
pub(crate) fn when(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// What became of the calls that were due, as a sum.
pub(crate) fn counts(run: &Run) -> String {
    let c = &run.summary.count_check;
    let mut sum = format!(
        "{} due = {} ok + {}",
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
