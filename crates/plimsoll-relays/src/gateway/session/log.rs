//! Sends a client the frames that it missed, from its session's log, and handles the loss of a log.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use plimsoll_wire::websocket::code;
use tokio::time::{Instant, Sleep};

use super::SessionSocket;
use crate::bus::{Bus, FrameStamp, LogPosition, MAX_LOG_PAGE_FRAMES, RunStatus, new_epoch};

/// Delay before a failed read of the log is retried.
const LOG_RETRY_DELAY: Duration = Duration::from_millis(500);

impl SessionSocket {
    /// Reads a page of the log from the client's position on. A read that fails is retried; if
    /// frames are missing from the log, the client is notified and the session is closed.
    pub(super) async fn read_log(&mut self, timer: Pin<&mut Sleep>) {
        self.gateway.metrics.log_reads.inc();
        let bus = self.gateway.bus.clone();
        // Frame n is at index n − 1, or later if frames were posted twice.
        let mut position = self.delivery.last.unwrap_or(0);
        let mut from_the_start = position == 0;
        loop {
            let page = match bus.read_log_page(&self.session, position).await {
                Ok(page) => page,
                Err(_) => return timer.reset(Instant::now() + LOG_RETRY_DELAY),
            };
            let (before, mut delivery) = (self.delivery, self.delivery);
            let hole = delivery.replay_log(&page, |frame| self.send_frame(frame));
            self.delivery = delivery;
            if hole {
                if !from_the_start {
                    // Frames were lost from the log, so the rest moved towards its beginning.
                    from_the_start = true;
                    position = 0;
                    continue;
                }
                if std::mem::take(&mut self.is_unpositioned) && self.skip_lost_frames(&page) {
                    continue;
                }
                return self.close_because_of_gap();
            }
            if page.len() == MAX_LOG_PAGE_FRAMES {
                position += MAX_LOG_PAGE_FRAMES as u64;
                if self.delivery != before {
                    // The next page is read once this one has been written.
                    return;
                }
                continue;
            }
            if self.delivery == before {
                match self.locate_missing_frames(&bus).await {
                    MissingFrames::Gone => return self.close_because_of_gap(),
                    MissingFrames::Elsewhere if !from_the_start => {
                        from_the_start = true;
                        position = 0;
                        continue;
                    }
                    MissingFrames::Elsewhere | MissingFrames::Nothing => {}
                }
            }
            self.needs_log = false;
            self.has_missed_frames = false;
            return;
        }
    }

    /// Restores the session after the bus has lost its data, with the position that this socket
    /// knows. If the client missed frames the numbers start anew, so that it is notified of the
    /// gap.
    pub(super) async fn restore_if_lost(&mut self) {
        let losses = self.gateway.bus.data_losses();
        if losses == self.repaired_losses {
            return;
        }
        let begun = match (self.delivery.epoch, self.has_missed_frames) {
            (Some(epoch), false) => LogPosition {
                epoch,
                last: self.delivery.last.unwrap_or(0),
            },
            _ => LogPosition {
                epoch: new_epoch(),
                last: 0,
            },
        };
        let bus = &self.gateway.bus;
        // If the bus is down, this runs again when it is back, which wakes this task.
        if !self.open
            || bus
                .restore_session(&self.session, begun, RunStatus::Finished)
                .await
                .is_ok()
        {
            self.repaired_losses = losses;
        }
    }

    /// Skips the frames that the log has lost from its beginning; returns `false` if there are
    /// none.
    fn skip_lost_frames(&mut self, page: &[Bytes]) -> bool {
        let first = page.iter().find_map(|frame| FrameStamp::parse(frame).seq);
        let last = self.delivery.last.unwrap_or(0);
        let Some(first) = first.filter(|first| *first > last + 1) else {
            return false;
        };
        self.gateway.metrics.gone.inc_by(first - last - 1);
        self.delivery.last = Some(first - 1);
        true
    }

    fn close_because_of_gap(&mut self) {
        let after = self.delivery.last.unwrap_or(0);
        self.notify_resumed(false, after);
        self.closing = Some((code::HISTORY_UNAVAILABLE, "frames are missing from the log"));
    }

    /// Locates frames that the client should have, but that were not at their expected position in the log.
    async fn locate_missing_frames(&mut self, bus: &Bus) -> MissingFrames {
        let Ok(standing) = bus.session_status(&self.session).await else {
            return MissingFrames::Nothing;
        };
        let newest = standing.newest;
        let Some(seq) = newest.seq else {
            return MissingFrames::Nothing;
        };
        if newest.epoch.is_some()
            && self.delivery.epoch.is_some()
            && newest.epoch != self.delivery.epoch
        {
            let after = self.delivery.last.unwrap_or(0);
            self.delivery.begin_epoch(newest.epoch);
            self.notify_resumed(false, after);
            return MissingFrames::Elsewhere;
        }
        match seq > self.delivery.last.unwrap_or(0) {
            true if standing.log_lost => MissingFrames::Gone,
            true => MissingFrames::Elsewhere,
            false => MissingFrames::Nothing,
        }
    }
}

/// Where the frames are that were not at their expected position in the log.
enum MissingFrames {
    Nothing,
    /// The log was restarted: read it from the beginning.
    Elsewhere,
    /// The log was lost, with frames that the client does not have.
    Gone,
}
