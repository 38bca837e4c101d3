//! Executes runs: posts the tokens of a run at their pace, then its `done` frame, and makes sure that all frames reach
//! the bus.
//!
//! The frames of a run are kept until its end has reached the bus. When the bus may have lost some,
//! all are posted again, and readers drop duplicates. A run that its instance cannot finish is
//! offered to the others; the one that takes it continues after the log's last frame.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::LlmService;
use super::frames::RunOutcome;
use crate::bus::{
    BeginError, Bus, BusError, ChannelDirection, FramePosition, FrameStamp, LOCK_RENEWAL_INTERVAL,
    LogPosition, MAX_LOG_PAGE_FRAMES, MessageSink, RunOffer, RunStatus, Subscription,
};

/// How long the delivery of a run's last frame is retried while the bus is down.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of queued offers; further offers are ignored, and the offering instances keep their runs.
const MAX_QUEUED_OFFERS: usize = 100_000;

/// Begins a run, which then continues in a separate task.
pub(super) async fn begin_run(
    llm: &Arc<LlmService>,
    session: String,
) -> Result<LogPosition, BeginError> {
    let cancel = CancelSubscription::listen(&llm.bus, &session).await?;
    let begun = llm.bus.begin_run(&session).await?;
    llm.metrics.runs.inc();
    let (running, tokens) = (RunGuard::new(llm), llm.text.len());
    let posted = PostedFrames::new(llm, session, begun, Vec::new());
    tokio::spawn(post_tokens(running, posted, tokens, cancel));
    Ok(begun)
}

/// Takes over runs that other instances offer, until the returned subscription is dropped. Returns `None` if there are
/// no other instances or the bus is down.
pub(super) async fn adopt_offered_runs(llm: &Arc<LlmService>) -> Option<Subscription> {
    let (sender, mut offers) = mpsc::channel(MAX_QUEUED_OFFERS);
    let shared = llm.bus.as_redis()?;
    let listening = match shared
        .subscribe_to_offers(Arc::new(OfferSink(sender)))
        .await
    {
        Ok(listening) => listening,
        Err(e) => {
            tracing::warn!("runs of other instances can't be taken over: {e}");
            return None;
        }
    };
    let llm = Arc::clone(llm);
    tokio::spawn(async move {
        while let Some(offer) = offers.recv().await {
            if llm.is_in_lame_duck() {
                return;
            }
            let running = RunGuard::new(&llm);
            tokio::spawn(async move {
                let session = offer.session.clone();
                if let Err(e) = adopt_run(running, offer).await {
                    tracing::warn!(session, "taking a run over: {e}");
                }
            });
        }
    });
    Some(listening)
}

/// Continues a run that another instance has offered, unless a third instance takes it first.
async fn adopt_run(running: RunGuard, offer: RunOffer) -> Result<(), BusError> {
    let llm = Arc::clone(&running.0);
    let cancel = CancelSubscription::listen(&llm.bus, &offer.session).await?;
    match llm.bus.as_redis() {
        Some(shared) if shared.take_offer(&offer).await? => {}
        _ => return Ok(()),
    }
    tracing::info!(
        session = offer.session,
        "continuing a run of another instance"
    );
    let (begun, tokens) = (offer.begun, offer.tokens);
    let frames = read_run_frames(&llm.bus, &offer.session, begun).await;
    let posted = PostedFrames::new(&llm, offer.session, begun, frames);
    post_tokens(running, posted, tokens, cancel).await;
    Ok(())
}

/// Returns the frames of a run that are in the log. This instance already owns the run, so no other instance adds
/// frames to it.
async fn read_run_frames(bus: &Bus, session: &str, begun: LogPosition) -> Vec<Bytes> {
    let give_up = Instant::now() + FINISH_TIMEOUT;
    let mut frames = Vec::new();
    let mut position = begun.last;
    loop {
        let page = match bus.read_log_page(session, position).await {
            Ok(page) => page,
            Err(_) if Instant::now() < give_up => {
                sleep(Duration::from_millis(200)).await;
                continue;
            }
            Err(_) => return frames,
        };
        for frame in &page {
            let stamp = FrameStamp::parse(frame);
            let next = begun.run_id() + frames.len() as u64;
            if stamp.seq == Some(next) && stamp.epoch == Some(begun.epoch) {
                frames.push(frame.clone());
            }
        }
        if page.len() < MAX_LOG_PAGE_FRAMES {
            return frames;
        }
        position += MAX_LOG_PAGE_FRAMES as u64;
    }
}

/// Receives the offers of other instances.
struct OfferSink(mpsc::Sender<RunOffer>);

impl MessageSink for OfferSink {
    fn on_message(&self, payload: &Bytes) {
        if let Ok(offer) = serde_json::from_slice(payload) {
            let _ = self.0.try_send(offer);
        }
    }

    fn resync(&self) {}
}

/// Counts the run as in progress until dropped.
pub(super) struct RunGuard(Arc<LlmService>);

impl RunGuard {
    pub(super) fn new(llm: &Arc<LlmService>) -> RunGuard {
        llm.running.send_modify(|running| *running += 1);
        RunGuard(Arc::clone(llm))
    }

    pub(super) fn llm(&self) -> &Arc<LlmService> {
        &self.0
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

async fn post_tokens(
    running: RunGuard,
    mut posted: PostedFrames,
    tokens: usize,
    mut cancel: CancelSubscription,
) {
    let (llm, run) = (&running.0, posted.begun);
    let begun = Instant::now();
    let mut renewed = begun;
    let mut halt = llm.halt.subscribe();
    let mut finish = RunOutcome::Stop;
    let first = posted.frames.len();
    let mut sent = first;
    while sent < tokens {
        // Each due time is computed from the beginning of the run, so that delays do not accumulate.
        let due = begun + llm.options.token_delay * ((sent - first) as u32 + 1);
        let due = add_jitter(due, llm.options.jitter);
        tokio::select! {
            biased;
            _ = cancel.is_cancelled.wait_for(|asked| *asked) => finish = RunOutcome::Cancelled,
            _ = halt.wait_for(|halt| *halt) => finish = RunOutcome::Error,
            () = sleep_until(due) => {}
        }
        if finish != RunOutcome::Stop {
            break;
        }
        posted.add(run.token_frame(&llm.text, sent), false);
        // A failed restore is retried with the next token.
        posted.restore_if_lost().await;
        sent += 1;
        if renewed.elapsed() >= LOCK_RENEWAL_INTERVAL {
            renewed = Instant::now();
            llm.bus.renew_lock(&posted.session);
        }
    }
    llm.metrics.tokens.inc_by((sent - first) as u64);
    if finish == RunOutcome::Error && posted.offer_to_other_instances(tokens).await {
        llm.metrics.handed_over.inc();
        return;
    }
    posted.add(run.done_frame(sent, finish), true);
    let whole = posted.finish().await;
    if !whole || finish == RunOutcome::Error {
        llm.metrics.unfinished.inc();
    }
    if !whole {
        tracing::error!(
            session = posted.session,
            "the end of a run did not reach the bus"
        );
    }
}

/// Shifts a time by a uniform random amount of at most `jitter` in either direction.
pub(super) fn add_jitter(due: Instant, jitter: Duration) -> Instant {
    due.checked_sub(jitter).unwrap_or(due) + jitter.mul_f64(2.0 * fastrand::f64())
}

/// The frames of a run that were posted so far.
struct PostedFrames {
    bus: Bus,
    session: String,
    frames: Vec<Bytes>,
    begun: LogPosition,
    /// The run's last frame was posted.
    ended: bool,
    generation: u64,
    losses: u64,
}

impl PostedFrames {
    fn new(
        llm: &LlmService,
        session: String,
        begun: LogPosition,
        frames: Vec<Bytes>,
    ) -> PostedFrames {
        PostedFrames {
            bus: llm.bus.clone(),
            session,
            frames,
            begun,
            ended: false,
            generation: llm.bus.possible_post_losses(),
            losses: llm.bus.data_losses(),
        }
    }

    /// Offers the run to other instances; returns whether one has taken it.
    async fn offer_to_other_instances(&mut self, tokens: usize) -> bool {
        // Another instance can only continue a run whose frames are in the log.
        let logged = self.frames.is_empty() || self.bus.confirm_posts(&self.session).await.is_ok();
        if !logged || self.repost_if_lost() {
            return false;
        }
        match self.bus.as_redis() {
            Some(shared) => {
                (shared.offer_run(&self.session, self.begun, tokens).await).unwrap_or(false)
            }
            None => false,
        }
    }

    fn add(&mut self, frame: Bytes, last: bool) {
        self.frames.push(frame);
        self.ended = last;
        if !self.repost_if_lost() {
            self.post(self.frames.len() - 1);
        }
    }

    fn post(&self, index: usize) {
        let part = match index {
            _ if self.ended && index + 1 == self.frames.len() => FramePosition::Last,
            0 => FramePosition::First,
            _ => FramePosition::Middle,
        };
        self.bus.post(&self.session, &self.frames[index], part);
    }

    /// Posts all frames again if some may be lost.
    fn repost_if_lost(&mut self) -> bool {
        let generation = self.bus.possible_post_losses();
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        for index in 0..self.frames.len() {
            self.post(index);
        }
        true
    }

    /// Restores the session if the bus has lost its data; returns whether the bus knows the
    /// session.
    async fn restore_if_lost(&mut self) -> bool {
        let losses = self.bus.data_losses();
        if losses == self.losses {
            return true;
        }
        let run = if self.ended {
            RunStatus::Finished
        } else {
            RunStatus::Active
        };
        let restoring = self.bus.restore_session(&self.session, self.begun, run);
        let is_restored = restoring.await.is_ok();
        if is_restored {
            self.losses = losses;
        }
        is_restored
    }

    /// Waits until the whole run has reached the bus; returns whether it has.
    async fn finish(&mut self) -> bool {
        let give_up = Instant::now() + FINISH_TIMEOUT;
        let mut pause = Duration::from_millis(20);
        loop {
            let before = self.generation;
            let confirmed = self.bus.confirm_posts(&self.session).await;
            // The bus may have lost its data and recovered while the confirmation was in flight.
            if confirmed.is_ok()
                && self.restore_if_lost().await
                && self.bus.possible_post_losses() == before
            {
                return true;
            }
            if Instant::now() > give_up {
                return false;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            self.repost_if_lost();
        }
    }
}

/// A subscription to the messages of a run's client.
struct CancelSubscription {
    /// Becomes true when the client cancels the run.
    is_cancelled: watch::Receiver<bool>,
    _listening: Subscription,
}

impl CancelSubscription {
    async fn listen(bus: &Bus, session: &str) -> Result<CancelSubscription, BusError> {
        let (cancel, asked) = watch::channel(false);
        let sink = Arc::new(CancelSink(cancel));
        Ok(CancelSubscription {
            is_cancelled: asked,
            _listening: bus.listen(session, ChannelDirection::Up, sink).await?,
        })
    }
}

struct CancelSink(watch::Sender<bool>);

impl MessageSink for CancelSink {
    fn on_message(&self, payload: &Bytes) {
        #[derive(Deserialize)]
        struct ClientMessage<'a> {
            #[serde(rename = "type", borrow)]
            kind: std::borrow::Cow<'a, str>,
        }
        let cancels = serde_json::from_slice::<ClientMessage<'_>>(payload)
            .is_ok_and(|up| up.kind == "cancel");
        if cancels {
            self.0.send_replace(true);
        }
    }

    fn resync(&self) {}
}
