//! Decides which frames a client gets: every frame once and in order, or a notice that some are
//! missing.
//!
//! Both live frames, which were just published, and frames of the log pass through here. A live frame with the next
//! number is sent, one with an earlier number is dropped, and a later one means that the log must be read first.

use bytes::Bytes;

use crate::bus::FrameStamp;

/// The action for a live frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameAction {
    Send,
    Drop,
    /// Frames before this one are missing: read the log.
    ReadLog,
    /// The frame belongs to a new log: notify the client, then decide again.
    NewEpoch,
}

/// A client's position in its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeliveryPosition {
    /// The number of the last frame sent; `None` until the first frame sets it.
    pub(super) last: Option<u64>,
    pub(super) epoch: Option<u64>,
}

impl DeliveryPosition {
    /// Decides what to do with a live frame.
    pub(super) fn on_live_frame(&mut self, stamp: FrameStamp) -> FrameAction {
        // Frames without numbers are passed on in the order in which they arrive.
        let Some(seq) = stamp.seq else {
            return FrameAction::Send;
        };
        match (self.epoch, stamp.epoch) {
            (Some(ours), Some(theirs)) if ours != theirs => return FrameAction::NewEpoch,
            (None, Some(theirs)) => self.epoch = Some(theirs),
            _ => {}
        }
        match self.last {
            Some(last) if seq <= last => FrameAction::Drop,
            Some(last) if seq > last + 1 => FrameAction::ReadLog,
            _ => {
                self.last = Some(seq);
                FrameAction::Send
            }
        }
    }

    /// Records a live frame of a session without a log, which is always sent; returns how many
    /// frames before it are lost.
    pub(super) fn on_unlogged_frame(&mut self, stamp: FrameStamp) -> u64 {
        let Some(seq) = stamp.seq else {
            return 0;
        };
        let next = self.last.unwrap_or(0) + 1;
        // A lower number means that numbering has restarted.
        self.last = Some(seq);
        seq.saturating_sub(next)
    }

    /// Switches to the beginning of another epoch's log.
    pub(super) fn begin_epoch(&mut self, epoch: Option<u64>) {
        self.epoch = epoch;
        self.last = Some(0);
    }

    /// Passes the frames that follow the client's position to `send`; stops and returns `true` at a gap.
    pub(super) fn replay_log(&mut self, frames: &[Bytes], mut send: impl FnMut(&Bytes)) -> bool {
        for frame in frames {
            let stamp = FrameStamp::parse(frame);
            let Some(seq) = stamp.seq else {
                continue;
            };
            if self.epoch.is_some() && stamp.epoch.is_some() && self.epoch != stamp.epoch {
                continue;
            }
            self.epoch = self.epoch.or(stamp.epoch);
            let last = self.last.unwrap_or(0);
            if seq == last + 1 {
                self.last = Some(seq);
                send(frame);
            } else if seq > last + 1 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(seq: u64, epoch: u64) -> FrameStamp {
        FrameStamp {
            seq: Some(seq),
            epoch: Some(epoch),
        }
    }

    fn frame(seq: u64) -> Bytes {
        Bytes::from(format!(r#"{{"seq":{seq},"epoch":1}}"#))
    }

    #[test]
    fn duplicates_drop_and_gaps_read_log() {
        let mut delivery = DeliveryPosition {
            last: Some(3),
            epoch: None,
        };
        assert_eq!(delivery.on_live_frame(stamp(4, 1)), FrameAction::Send);
        assert_eq!(delivery.on_live_frame(stamp(4, 1)), FrameAction::Drop);
        assert_eq!(delivery.on_live_frame(stamp(7, 1)), FrameAction::ReadLog);
        let mut sent = Vec::new();
        // Some frames are posted twice, as after a lost connection.
        let log: Vec<Bytes> = [1, 2, 3, 4, 5, 4, 5, 6, 7].map(frame).to_vec();
        assert!(!delivery.replay_log(&log, |f| sent.push(f.clone())));
        assert_eq!(sent, [5, 6, 7].map(frame));
        assert_eq!(delivery.on_live_frame(stamp(7, 1)), FrameAction::Drop);
        assert_eq!(delivery.on_live_frame(stamp(8, 2)), FrameAction::NewEpoch);
        delivery.begin_epoch(Some(2));
        assert_eq!(delivery.on_live_frame(stamp(1, 2)), FrameAction::Send);
    }

    #[test]
    fn unlogged_frame_gaps_are_counted() {
        let mut delivery = DeliveryPosition::default();
        let of = |seq| FrameStamp { seq, epoch: None };
        let gone = [None, Some(3), Some(4), Some(9), Some(1), None, Some(2)];
        let gone = gone.map(|seq| delivery.on_unlogged_frame(of(seq)));
        assert_eq!(gone, [0, 2, 0, 4, 0, 0, 0]);
    }

    #[test]
    fn log_gap_is_reported() {
        let mut delivery = DeliveryPosition {
            last: Some(3),
            epoch: Some(1),
        };
        let mut sent = 0;
        assert!(delivery.replay_log(&[4, 6, 7].map(frame), |_| sent += 1));
        assert_eq!((sent, delivery.last), (1, Some(4)));
    }

    #[test]
    fn first_frame_sets_unknown_position() {
        let mut delivery = DeliveryPosition {
            last: None,
            epoch: None,
        };
        assert_eq!(
            delivery.on_live_frame(FrameStamp::default()),
            FrameAction::Send
        );
        assert_eq!(delivery.on_live_frame(stamp(9, 1)), FrameAction::Send);
        assert_eq!(delivery.on_live_frame(stamp(11, 1)), FrameAction::ReadLog);
    }
}
