//! Notes for readers of a ladder: its resolution (the smallest difference that it can detect), and the reasons why some
//! slices (short runs of one variant) are of limited value.

use plimsoll_model::comparisons::ladder::batches::MIN_REPLICATES;
use plimsoll_model::comparisons::ladder::{LadderMetric, LadderRecord, Rung, SliceResult};

use crate::quantity::{plural, time};

/// Returns notes on slices of limited value.
pub fn notes(ladder: &LadderRecord) -> Vec<String> {
    let mut notes: Vec<String> = describe_resolution(ladder).into_iter().collect();
    if let Some(turns) = ladder
        .batches
        .as_ref()
        .filter(|t| t.replicates < MIN_REPLICATES)
    {
        notes.push(format!(
            "{}: these intervals hold for the processes that were measured; others of the same programs may differ by some tenths of a microsecond more",
            plural(turns.replicates as u64, "replicate")
        ));
    }
    notes.extend(describe_libraries(ladder));
    notes.extend(describe_proxies(ladder));
    notes.extend(common_notes(ladder));
    for rung in &ladder.rungs {
        let full = rung.slices.iter().filter(|s| s.not_resumed).count();
        if full > 0 {
            notes.push(format!(
                "{}: full handshakes in {full} of {}, although resumption was requested",
                rung.name,
                plural(rung.slices.len() as u64, "slice")
            ));
        }
    }
    let has = |metric| ladder.rungs.iter().any(|r| r.median(metric).is_some());
    if has(LadderMetric::P50) && !has(LadderMetric::P99) {
        let what = match ladder.batches {
            Some(_) => {
                "not enough calls for a p99: make the run longer (--duration), or the rate higher"
            }
            None => {
                "a slice has not enough calls for a p99: make slices longer, or the rate higher"
            }
        };
        notes.push(what.to_owned());
    }
    notes
}

/// Lists the proxies with their versions.
fn describe_proxies(ladder: &LadderRecord) -> Option<String> {
    let mut all: Vec<&str> = Vec::new();
    for proxy in ladder.rungs.iter().filter_map(|rung| rung.proxy.as_deref()) {
        if !all.contains(&proxy) {
            all.push(proxy);
        }
    }
    (!all.is_empty()).then(|| format!("proxies: {}", all.join(", ")))
}

/// Names the TLS implementations and cryptography libraries of the rungs.
pub(crate) fn describe_libraries(ladder: &LadderRecord) -> Option<String> {
    let client = ladder.client_tls.as_deref()?;
    let mut servers: Vec<(&str, u64)> = Vec::new();
    for library in ladder.rungs.iter().filter_map(|r| r.server_tls.as_deref()) {
        match servers.iter_mut().find(|(known, _)| *known == library) {
            Some((_, rungs)) => *rungs += 1,
            None => servers.push((library, 1)),
        }
    }
    Some(match servers.as_slice() {
        [] => format!("TLS at the client is {client}"),
        [(library, _)] if *library == client => format!("TLS at client and server is {client}"),
        [(library, _)] => format!("TLS at the client is {client}, at the server {library}"),
        several => {
            let several: Vec<String> = several
                .iter()
                .map(|(library, rungs)| format!("{library} in {}", plural(*rungs, "rung")))
                .collect();
            format!(
                "TLS at the client is {client}, at the server {}",
                several.join(" and ")
            )
        }
    })
}

/// Returns those [`notes`] that apply to sweeps, too. A sweep has no rate, so it can't be late, and no p99 of bulk
/// transfers; it counts full handshakes itself.
pub(crate) fn common_notes(ladder: &LadderRecord) -> Vec<String> {
    let slices = || ladder.rungs.iter().flat_map(|r| &r.slices);
    let all = slices().count();
    let mut notes: Vec<String> = ladder
        .skipped
        .iter()
        .map(|s| format!("{} was not measured: {}", s.name, s.reason))
        .collect();
    let invalid = slices().filter(|s| s.is_generator_limited()).count();
    if invalid > 0 && ladder.batches.is_some() {
        let is_late = |rung: &&Rung| rung.slices.iter().any(SliceResult::is_generator_limited);
        notes.push(format!(
            "{} of {} generator-limited: generator delay is excluded from these figures, except in reading answers",
            ladder.rungs.iter().filter(is_late).count(),
            plural(ladder.rungs.len() as u64, "rung")
        ));
    } else if invalid > 0 {
        notes.push(format!(
            "{invalid} of {all} slices were generator-limited: give the generator an idle core, or a lower rate"
        ));
    }
    for rung in &ladder.rungs {
        let errors: u64 = rung.slices.iter().map(|s| s.errors).sum();
        if errors > 0 {
            notes.push(format!("{}: {} failed", rung.name, plural(errors, "call")));
        }
    }
    if ladder.interrupted {
        notes.push("interrupted: the rounds measured until then are shown".to_owned());
    }
    notes
}

/// Describes the resolution of a ladder whose rungs were measured in batches.
pub(crate) fn describe_resolution(ladder: &LadderRecord) -> Option<String> {
    let turns = ladder.batches.as_ref()?;
    let lasted = load_duration_s(ladder);
    let Some(resolution) = turns.resolution_us() else {
        return turns.wanted_us.map(|wanted| {
            format!(
                "RESOLUTION NOT REACHED: not enough rounds in {lasted} s in which every rung had calls that count, to detect p50 differences over ±{}",
                time(wanted)
            )
        });
    };
    // The width of an interval is inversely proportional to the square root of the time.
    let more = |wanted: f64| lasted * ((resolution / wanted).powi(2) - 1.0);
    let mut left_out = match turns.warmup_calls {
        0 => String::new(),
        n => format!(
            "; the first {} of each batch not counted",
            plural(u64::from(n), "call")
        ),
    };
    if turns.kept_awake {
        left_out.push_str("; cores kept awake");
    }
    let resolution = time(resolution);
    Some(match turns.wanted_us {
        Some(wanted) if !turns.has_reached_resolution() => format!(
            "RESOLUTION NOT REACHED: detects p50 differences over ±{resolution}, not ±{}, after {lasted} s: {}{left_out}",
            time(wanted),
            format_needed_time(more(wanted))
        ),
        Some(_) => {
            format!("detects p50 differences over ±{resolution}, after {lasted} s{left_out}")
        }
        None => format!(
            "detects p50 differences over ±{resolution}: a longer run (--duration) sees smaller ones{left_out}"
        ),
    })
}

/// Describes how much longer the ladder must run to reach the requested resolution, if that is feasible.
fn format_needed_time(more_s: f64) -> String {
    const DAY_S: f64 = 86_400.0;
    match more_s {
        s if s <= 600.0 => format!("needs about {} s more (--budget)", s.ceil()),
        s if s <= 7_200.0 => format!("needs about {} min more (--budget)", (s / 60.0).ceil()),
        s if s <= DAY_S => format!("needs about {} h more (--budget)", (s / 3_600.0).ceil()),
        // The time is infinite, or more than a day.
        _ => "can't be estimated: close other programs, or request a coarser resolution (--resolution)".to_owned(),
    }
}

/// Returns the duration of the load over all replicates and batches, in seconds without rounding noise.
pub(super) fn load_duration_s(ladder: &LadderRecord) -> f64 {
    let slices = ladder.rungs.first().map_or(1, |rung| rung.slices.len());
    (ladder.slice_s * slices as f64 * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use plimsoll_model::comparisons::ladder::batches::BatchesRecord;

    use super::{LadderRecord, describe_resolution, format_needed_time};

    /// If no call of a rung counts, the resolution is unknown: the report must say so.
    #[test]
    fn unknown_requested_resolution_is_reported() {
        let mut turns = BatchesRecord::from_measurements(&[], 0.05, 0, 1);
        let ladder = |turns| LadderRecord {
            slice_s: 5.0,
            batches: Some(turns),
            ..LadderRecord::default()
        };
        assert_eq!(describe_resolution(&ladder(turns.clone())), None);
        turns.wanted_us = Some(1.0);
        let said = describe_resolution(&ladder(turns)).unwrap();
        assert!(said.starts_with("RESOLUTION NOT REACHED"), "{said}");
        assert!(said.ends_with("±1.0 µs"), "{said}");
    }

    #[test]
    fn huge_time_is_not_estimated() {
        assert_eq!(format_needed_time(59.2), "needs about 60 s more (--budget)");
        assert_eq!(
            format_needed_time(1_000.0),
            "needs about 17 min more (--budget)"
        );
        assert_eq!(
            format_needed_time(22_000.0),
            "needs about 7 h more (--budget)"
        );
        for more_s in [22_774_290_755.0, f64::INFINITY, f64::NAN] {
            assert!(
                format_needed_time(more_s).starts_with("can't be estimated"),
                "{more_s}"
            );
        }
    }
}
