//! A run's intervals as columns over time: at most [`MAX_COLUMNS`], even for a long run.

use plimsoll_model::records::record::TimeHistogram;
use plimsoll_model::runs::run::IntervalRecord;

/// Maximum number of columns. Neighbouring columns are merged, because a day of seconds would need too much memory.
const MAX_COLUMNS: usize = 300;

/// The records of a period of time.
#[derive(Clone, Debug)]
pub(super) struct TimelineColumn {
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    pub(super) due: u64,
    pub(super) ended: u64,
    pub(super) errors: u64,
    pub(super) response: TimeHistogram,
}

impl TimelineColumn {
    fn from_interval(interval: &IntervalRecord) -> TimelineColumn {
        let mut column = TimelineColumn {
            from_s: interval.start_offset.as_secs_f64(),
            to_s: interval.end_offset().as_secs_f64(),
            due: 0,
            ended: 0,
            errors: 0,
            response: TimeHistogram::default(),
        };
        for (_, record) in &interval.stages {
            column.due += record.due;
            column.ended += record.ended_calls();
            column.errors += record.errors();
            column.response.merge(&record.response);
        }
        column
    }

    fn merge(&mut self, later: &TimelineColumn) {
        self.to_s = later.to_s;
        self.due += later.due;
        self.ended += later.ended;
        self.errors += later.errors;
        self.response.merge(&later.response);
    }

    pub(super) fn per_second(&self, n: u64) -> f64 {
        n as f64 / (self.to_s - self.from_s).max(1e-3)
    }
}

/// The columns of a run, and further data from its intervals.
#[derive(Clone, Debug, Default)]
pub(super) struct RunTimeline {
    columns: Vec<TimelineColumn>,
    /// The number of intervals in a column.
    intervals_per_column: usize,
    intervals_in_last: usize,
    /// The highest share of a core that the busiest worker used in any interval.
    pub(super) busiest_worker: f64,
}

impl RunTimeline {
    /// Adds the next interval.
    pub(super) fn add(&mut self, interval: &IntervalRecord) {
        self.busiest_worker = self.busiest_worker.max(interval.busiest_worker_ratio);
        let column = TimelineColumn::from_interval(interval);
        if column.to_s <= column.from_s {
            return;
        }
        self.intervals_per_column = self.intervals_per_column.max(1);
        match self.columns.last_mut() {
            Some(last) if self.intervals_in_last < self.intervals_per_column => {
                last.merge(&column);
                self.intervals_in_last += 1;
            }
            _ => {
                if self.columns.len() == MAX_COLUMNS {
                    self.columns = merge_columns(&self.columns, 2);
                    self.intervals_per_column *= 2;
                }
                self.columns.push(column);
                self.intervals_in_last = 1;
            }
        }
    }

    /// Returns at most `most` columns, each of which merges the same number of neighbours.
    pub(super) fn columns(&self, most: usize) -> Vec<TimelineColumn> {
        merge_columns(&self.columns, self.columns.len().div_ceil(most).max(1))
    }
}

/// Merges each group of `group` neighbouring columns.
fn merge_columns(columns: &[TimelineColumn], group: usize) -> Vec<TimelineColumn> {
    columns
        .chunks(group)
        .filter_map(|chunk| {
            let (first, rest) = chunk.split_first()?;
            let mut column = first.clone();
            rest.iter().for_each(|later| column.merge(later));
            Some(column)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_model::Outcome;
    use plimsoll_model::records::record::StageRecord;

    use super::*;

    #[test]
    fn abandoned_calls_are_not_errors() {
        let mut record = StageRecord {
            not_started: 5,
            ..StageRecord::default()
        };
        record.outcomes.add(Outcome::Interrupted, 3);
        record.outcomes.add(Outcome::CutOff, 2);
        record.outcomes.add(Outcome::Reset, 1);
        let column = TimelineColumn::from_interval(&IntervalRecord {
            length: Duration::from_secs(1),
            stages: vec![(0, record)],
            ..IntervalRecord::default()
        });
        assert_eq!(column.errors, 1);
    }

    #[test]
    fn long_run_columns_merge_losslessly() {
        let mut timeline = RunTimeline::default();
        for index in 0..5_000_u64 {
            let mut record = StageRecord {
                due: 2,
                ..StageRecord::default()
            };
            if index % 100 == 0 {
                record.response.record(1_000 + index);
            }
            timeline.add(&IntervalRecord {
                index,
                start_offset: Duration::from_secs(index),
                length: Duration::from_secs(1),
                stages: vec![(0, record)],
                ..IntervalRecord::default()
            });
        }
        assert!(timeline.columns.len() <= MAX_COLUMNS);
        for most in [1, 7, 150, 10_000] {
            let columns = timeline.columns(most);
            assert!(columns.len() <= most);
            assert_eq!(columns.iter().map(|c| c.due).sum::<u64>(), 10_000);
            let calls: u64 = columns.iter().map(|c| c.response.len()).sum();
            assert_eq!(calls, 50);
            assert_eq!(columns[0].from_s, 0.0);
            assert_eq!(columns.last().map(|c| c.to_s), Some(5_000.0));
            assert!(columns.windows(2).all(|w| w[0].to_s == w[1].from_s));
        }
    }
}
