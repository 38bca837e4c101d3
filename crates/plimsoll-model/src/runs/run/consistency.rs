//! Checks that the numbers of intervals can be added without overflow. A run directory or a shard's data may come from
//! an untrusted source, and numbers that wrap would silently give wrong figures.

use std::time::Duration;

use super::encoded_times::MAX_COUNT;
use super::interval::{IntervalRecord, ResourceUsage};
use crate::records::record::{
    AddressCounts, MessageCounts, STEP_TIMES_BY_KEY, StageRecord, TIMES_BY_KEY,
};

/// Maximum of a gauge at an interval's end. Gauges are added up over shards.
const MAX_GAUGE_VALUE: u64 = 1 << 48;

/// Maximum sum of all counts of a run.
const MAX_COUNT_SUM: u64 = 1 << 60;

/// The sum of all counts of the intervals so far. As long as it is within bounds, every partial sum is, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountSum(u64);

impl CountSum {
    /// Adds the counts of one more interval.
    ///
    /// # Errors
    /// Returns the name of a number that is larger than any real measurement, or says that the sum is.
    pub fn add(&mut self, interval: &IntervalRecord) -> Result<(), String> {
        let mut sum = self.0;
        check_gauges(interval)?;
        try_for_each_count(interval, |name, number| {
            check_limit(name, number, MAX_COUNT)?;
            sum += number;
            if sum > MAX_COUNT_SUM {
                Err(format!("with `{name}`, counts add up to more than 2^60"))
            } else {
                Ok(())
            }
        })?;
        self.0 = sum;
        Ok(())
    }
}

/// The place of the latest interval in the order of a run's intervals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IntervalOrder {
    last: Option<(u64, Duration)>,
}

impl IntervalOrder {
    /// Checks that an interval comes after all earlier ones, so that none is counted twice.
    ///
    /// # Errors
    /// Returns which number does not increase.
    pub(super) fn check(&mut self, interval: &IntervalRecord) -> Result<(), String> {
        let (index, start) = (interval.index, interval.start_offset);
        if let Some((before, began)) = self.last.replace((index, start)) {
            if index <= before {
                return Err(format!("interval {index} comes after interval {before}"));
            }
            // An interval may be empty, so the next one may start at the same time.
            if start < began {
                return Err(format!(
                    "`start_us` is {}, and that of the interval before is {}",
                    start.as_micros(),
                    began.as_micros()
                ));
            }
        }
        Ok(())
    }
}

/// Checks that the stages of an interval are among the planned ones. A run may have no plan.
///
/// # Errors
/// Returns which stage is not planned.
pub fn check_stage_numbers(interval: &IntervalRecord, planned: usize) -> Result<(), String> {
    let is_unplanned = |(stage, _): &&(u8, StageRecord)| usize::from(*stage) >= planned;
    match interval.stages.iter().find(is_unplanned) {
        Some((stage, _)) if planned > 0 => Err(format!(
            "stage {stage} is not planned: the run has {planned}, from 0"
        )),
        _ => Ok(()),
    }
}

fn check_limit(name: &str, number: u64, most: u64) -> Result<(), String> {
    if number > most {
        Err(format!(
            "`{name}` is {number}, more than 2^{}",
            most.ilog2()
        ))
    } else {
        Ok(())
    }
}

/// Checks numbers that are not added up over intervals. The numbers of [`IntervalRecord::batches`] are not checked,
/// because only the ladder that wrote them reads them.
fn check_gauges(interval: &IntervalRecord) -> Result<(), String> {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    check_limit("index", interval.index, MAX_COUNT)?;
    check_limit("start_us", us(interval.start_offset), MAX_COUNT)?;
    check_limit("length_us", us(interval.length), MAX_COUNT)?;
    let level = |name, number| check_limit(name, number, MAX_GAUGE_VALUE);
    level("in_flight", interval.in_flight)?;
    level("backlog", interval.backlog)?;
    level("connections_open", interval.connections_open)?;
    if let Some(users) = &interval.users {
        level("users.in_flight", users.in_flight)?;
        level("users.waiting", users.waiting)?;
        level("users.in_flight_max", users.in_flight_max)?;
        level("users.waiting_max", users.waiting_max)?;
        check_limit("users.in_flight_us", users.in_flight_us, MAX_COUNT)?;
        check_limit("users.waiting_us", users.waiting_us, MAX_COUNT)?;
    }
    for used in interval.client.iter().chain(&interval.server) {
        let ResourceUsage {
            cpu_user_us: _,
            cpu_system_us: _,
            rss_bytes,
            rss_bytes_before,
            descriptors,
            threads,
        } = *used;
        level("rss_bytes", rss_bytes)?;
        level("rss_bytes_before", rss_bytes_before.unwrap_or(0))?;
        level("descriptors", descriptors)?;
        level("threads", threads)?;
    }
    for reading in &interval.memory {
        level("connections", reading.connections)?;
        for process in reading.client.iter().chain(&reading.server) {
            level("rss_bytes", process.rss_bytes)?;
            level("pss_bytes", process.pss_bytes)?;
            level("private_bytes", process.private_bytes)?;
        }
        if let Some(kernel) = &reading.kernel {
            level("tcp_sockets", kernel.tcp_sockets)?;
            level("tcp_buffer_bytes", kernel.tcp_buffer_bytes)?;
            level("slab_bytes", kernel.slab_bytes)?;
        }
    }
    Ok(())
}

/// Calls `check` with the name and value of every number that is added up.
fn try_for_each_count(
    interval: &IntervalRecord,
    mut check: impl FnMut(&str, u64) -> Result<(), String>,
) -> Result<(), String> {
    for used in interval.client.iter().chain(&interval.server) {
        check("cpu_user_us", used.cpu_user_us)?;
        check("cpu_system_us", used.cpu_system_us.unwrap_or(0))?;
    }
    if let Some(machine) = &interval.machine {
        check("stolen_us", machine.stolen_us)?;
        check("waited_us", machine.waited_us)?;
        check("cpu_us", machine.busiest.as_ref().map_or(0, |p| p.cpu_us))?;
    }
    for (_, record) in &interval.stages {
        try_for_each_stage_count(record, &mut check)?;
    }
    Ok(())
}

/// Calls `check` with the name and value of every number of a stage that is added up.
fn try_for_each_stage_count(
    record: &StageRecord,
    check: &mut impl FnMut(&str, u64) -> Result<(), String>,
) -> Result<(), String> {
    let StageRecord {
        due,
        not_started,
        expired_unsent,
        waited_for_stream,
        waited_for_connection,
        late,
        outcomes,
        connections_full,
        connections_resumed,
        connections_first,
        connections_retried,
        certificates_replaced,
        connections_lost,
        connections_unused,
        connections_idle_closed,
        connect_failures,
        addresses,
        slowest: _,
        // This is a maximum, which is not added up.
        longest_journey: _,
        sampled: _,
        bytes_sent,
        bytes_received,
        messages,
        steps,
        // The counts of these histograms are checked below, by name.
        response: _,
        response_low: _,
        service: _,
        first_byte: _,
        failed: _,
        lag: _,
        pacing: _,
        delayed: _,
        cut_off: _,
        measures,
        one_times,
    } = record;
    for (name, number) in [
        ("due", due),
        ("not_started", not_started),
        ("expired_unsent", expired_unsent),
        ("waited_for_stream", waited_for_stream),
        ("waited_for_connection", waited_for_connection),
        ("late", late),
        ("connections_full", connections_full),
        ("connections_resumed", connections_resumed),
        ("connections_first", connections_first),
        ("connections_retried", connections_retried),
        ("certificates_replaced", certificates_replaced),
        ("connections_lost", connections_lost),
        ("connections_unused", connections_unused),
        ("connections_idle_closed", connections_idle_closed),
        ("bytes_sent", bytes_sent),
        ("bytes_received", bytes_received),
    ] {
        check(name, *number)?;
    }
    for (outcome, number) in outcomes.iter().chain(connect_failures.iter()) {
        check(outcome.code(), number)?;
    }
    for counts in addresses.values() {
        let AddressCounts {
            calls,
            errors,
            connections,
            connect_failures,
        } = *counts;
        check("calls", calls)?;
        check("errors", errors)?;
        check("connections", connections)?;
        check("connect_failures", connect_failures)?;
    }
    for step in steps {
        check("due", step.due)?;
        for (outcome, number) in step.outcomes.iter() {
            check(outcome.code(), number)?;
        }
        for (key, of, _) in STEP_TIMES_BY_KEY {
            check(key, of(step).len())?;
        }
    }
    let MessageCounts { sent, received } = messages.unwrap_or_default();
    check("messages_sent", sent)?;
    check("messages_received", received)?;
    for (key, of, _) in TIMES_BY_KEY {
        check(key, of(record).len())?;
    }
    check("one_times", one_times.len())?;
    measures.try_for_each_count(check)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn interval(alter: impl FnOnce(&mut IntervalRecord, &mut StageRecord)) -> IntervalRecord {
        let (mut interval, mut record) = (IntervalRecord::default(), StageRecord::default());
        alter(&mut interval, &mut record);
        interval.stages.push((0, record));
        interval
    }

    #[test]
    fn out_of_range_counts_are_named() {
        let mut sum = CountSum::default();
        for (altered, name) in [
            (interval(|i, _| i.in_flight = u64::MAX), "in_flight"),
            (interval(|_, r| r.due = u64::MAX), "due"),
            (interval(|_, r| r.outcomes.add(Outcome::Ok, 1 << 54)), "OK"),
            (interval(|i, _| i.index = u64::MAX), "index"),
        ] {
            let problem = sum.add(&altered).unwrap_err();
            assert!(problem.starts_with(&format!("`{name}` is ")), "{problem}");
        }
        assert_eq!(sum.add(&interval(|_, r| r.due = MAX_COUNT)), Ok(()));
    }

    #[test]
    fn repeated_intervals_are_rejected() {
        let at = |index: u64, second: u64| {
            interval(|i, _| (i.index, i.start_offset) = (index, Duration::from_secs(second)))
        };
        for (intervals, problem) in [
            (
                vec![at(0, 0), at(0, 0)],
                "interval 0 comes after interval 0",
            ),
            (
                vec![at(0, 0), at(1, 1), at(0, 0)],
                "interval 0 comes after interval 1",
            ),
            (
                vec![at(0, 1), at(1, 0)],
                "`start_us` is 0, and that of the interval before is 1000000",
            ),
        ] {
            let mut order = IntervalOrder::default();
            let (last, earlier) = intervals.split_last().unwrap();
            for interval in earlier {
                assert_eq!(order.check(interval), Ok(()));
            }
            assert_eq!(order.check(last), Err(problem.to_owned()));
        }
        // Numbers may be left out, and an interval may be empty.
        let mut order = IntervalOrder::default();
        for interval in [at(3, 1), at(7, 1), at(8, 2)] {
            assert_eq!(order.check(&interval), Ok(()));
        }
    }

    #[test]
    fn unplanned_stages_are_rejected() {
        let mut altered = interval(|_, _| {});
        assert_eq!(check_stage_numbers(&altered, 1), Ok(()));
        altered.stages.push((7, StageRecord::default()));
        assert_eq!(
            check_stage_numbers(&altered, 2).unwrap_err(),
            "stage 7 is not planned: the run has 2, from 0"
        );
        assert_eq!(check_stage_numbers(&altered, 0), Ok(()));
    }

    #[test]
    fn overflowing_sums_are_rejected() {
        let mut sum = CountSum::default();
        let large = interval(|_, r| r.bytes_sent = MAX_COUNT);
        let added = (0..1_000).take_while(|_| sum.add(&large).is_ok()).count();
        assert_eq!(added as u64, MAX_COUNT_SUM / MAX_COUNT);
        assert!(sum.add(&large).unwrap_err().contains("bytes_sent"));
    }
}
