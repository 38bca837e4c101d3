//! Checks that the numbers of a ladder's document are consistent when it is loaded: the document may come from an
//! untrusted source, and sums that overflow or contradict their parts would silently give wrong figures.

use super::throughput::ThroughputSample;
use super::{ALPHA, LadderRecord, Rung, SliceResult, SliceThroughput, TcpTraffic};

/// Maximum sum of all counts of a ladder.
const MAX_COUNT_SUM: u64 = 1 << 60;

/// Maximum error probability of the intervals of differences. With a higher one, an interval could contain no value.
const MAX_ALPHA: f64 = 0.5;

/// The sum of all counts so far. As long as it is within bounds, every partial sum is, too.
#[derive(Default)]
struct CountSum(u64);

impl CountSum {
    fn add(&mut self, name: &str, number: u64) -> Result<(), String> {
        let sum = self
            .0
            .checked_add(number)
            .filter(|sum| *sum <= MAX_COUNT_SUM);
        self.0 = sum.ok_or_else(|| format!("with `{name}`, counts add up to more than 2^60"))?;
        Ok(())
    }
}

/// Checks the numbers that are added up, and that sums match their parts.
///
/// # Errors
/// Returns what is wrong with the first invalid rung or difference.
pub(super) fn check(record: &LadderRecord) -> Result<(), String> {
    let mut sum = CountSum::default();
    for rung in &record.rungs {
        check_rung(rung, &mut sum).map_err(|why| format!("rung `{}`: {why}", rung.name))?;
    }
    let alpha = record
        .batches
        .as_ref()
        .map_or(ALPHA, |batches| batches.alpha);
    if !(alpha > 0.0 && alpha <= MAX_ALPHA) {
        return Err(format!(
            "`alpha` is {alpha}, and an error probability is more than 0 and at most {MAX_ALPHA}"
        ));
    }
    let turns = record.batches.iter().flat_map(|turns| &turns.differences);
    for difference in turns {
        let (of, to, rungs) = (difference.of, difference.to, record.rungs.len());
        if of >= rungs || to >= of {
            return Err(format!(
                "a difference between rungs {of} and {to}, but there are {rungs} rungs, numbered from 0"
            ));
        }
    }
    Ok(())
}

fn check_rung(rung: &Rung, sum: &mut CountSum) -> Result<(), String> {
    let parts = rung.parts.values();
    for (nth, slice) in (rung.slices.iter().chain(parts.flatten())).enumerate() {
        check_slice(slice, sum).map_err(|why| format!("slice {}: {why}", nth + 1))?;
    }
    Ok(())
}

fn check_slice(slice: &SliceResult, sum: &mut CountSum) -> Result<(), String> {
    sum.add("ok", slice.ok.unwrap_or(0))?;
    sum.add("errors", slice.errors)?;
    if let Some(carried) = &slice.carried {
        let TcpTraffic {
            bytes,
            calls,
            connections,
        } = *carried;
        sum.add("bytes", bytes)?;
        sum.add("calls", calls)?;
        sum.add("connections", connections)?;
        if slice.errors > calls {
            let errors = slice.errors;
            return Err(format!("{errors} of {calls} calls ended with an error"));
        }
    }
    match &slice.volume {
        Some(volume) => check_throughput(volume, sum),
        None => Ok(()),
    }
}

fn check_throughput(volume: &SliceThroughput, sum: &mut CountSum) -> Result<(), String> {
    let counts = [
        ("ok", volume.ok),
        ("bytes_received", volume.bytes_received),
        ("connections_full", volume.connections_full),
        ("connections_resumed", volume.connections_resumed),
    ];
    for (name, number) in counts {
        sum.add(name, number)?;
    }
    for turn in &volume.turns {
        sum.add("ok", turn.ok)?;
        sum.add("bytes_received", turn.bytes_received)?;
    }
    if volume.turns.is_empty() {
        return Ok(());
    }
    let of_turns = |of: fn(&ThroughputSample) -> u64| volume.turns.iter().map(of).sum::<u64>();
    for (name, total, parts) in [
        ("ok", volume.ok, of_turns(|turn| turn.ok)),
        (
            "bytes_received",
            volume.bytes_received,
            of_turns(|turn| turn.bytes_received),
        ),
    ] {
        if total != parts {
            return Err(format!(
                "`{name}` is {total}, and its batches add up to {parts}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::batches::BatchesRecord;
    use super::*;

    fn piece(ok: u64) -> ThroughputSample {
        ThroughputSample {
            elapsed_s: 0.1,
            ok,
            bytes_received: 10 * ok,
            client_cpu_us: None,
            server_cpu_us: None,
            overran: false,
        }
    }

    /// A ladder of one rung with one slice, whose batches had 3 and 4 calls.
    fn ladder(change: impl Fn(&mut SliceResult, &mut SliceThroughput)) -> LadderRecord {
        let mut volume = SliceThroughput {
            elapsed_s: 0.0,
            ok: 0,
            connections_full: 1,
            connections_resumed: 0,
            bytes_received: 0,
            client_cpu_us: None,
            server_cpu_us: None,
            suite: None,
            group: None,
            client_floor_us: None,
            server_floor_us: None,
            turns: Vec::new(),
        };
        volume.set_batches(vec![piece(3), piece(4)]);
        let mut slice = SliceResult {
            carried: Some(TcpTraffic {
                bytes: 1_000,
                calls: 7,
                connections: 1,
            }),
            ..SliceResult::default()
        };
        change(&mut slice, &mut volume);
        slice.volume = Some(volume);
        LadderRecord {
            rungs: vec![Rung {
                name: "tls off".to_owned(),
                slices: vec![slice],
                ..Rung::default()
            }],
            ..LadderRecord::default()
        }
    }

    #[test]
    fn consistent_ladder_counts_are_accepted() {
        assert_eq!(check(&ladder(|_, _| {})), Ok(()));
        assert_eq!(check(&LadderRecord::default()), Ok(()));
    }

    #[test]
    fn impossible_error_probabilities_are_refused() {
        for alpha in [0.0, 0.6, 100.0, f64::NAN] {
            let mut record = ladder(|_, _| {});
            let mut batches = BatchesRecord::from_measurements(&[], ALPHA, 0, 1);
            batches.alpha = alpha;
            record.batches = Some(batches);
            let problem = check(&record).unwrap_err();
            assert!(problem.starts_with("`alpha` is "), "{problem}");
        }
    }

    #[test]
    fn contradictory_ladder_counts_are_named() {
        type Change = fn(&mut SliceResult, &mut SliceThroughput);
        let cases: [(Change, &str); 5] = [
            (|_, volume| volume.ok = 8, "`ok` is 8"),
            (
                |_, volume| volume.turns[1].bytes_received = 1,
                "`bytes_received` is 70, and its batches add up to 31",
            ),
            (|slice, _| slice.errors = 8, "8 of 7 calls"),
            (
                |_, volume| volume.turns[0].ok = u64::MAX,
                "with `ok`, counts add up to more than 2^60",
            ),
            (
                |slice, _| slice.carried.as_mut().unwrap().bytes = u64::MAX,
                "with `bytes`",
            ),
        ];
        for (change, expected) in cases {
            let problem = check(&ladder(change)).unwrap_err();
            assert!(
                problem.starts_with("rung `tls off`: slice 1: "),
                "{problem}"
            );
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
