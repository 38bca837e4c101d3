//! Reads a run's logs from the store in a process that is not one of the run's shards: during the run (`plimsoll
//! watch`) or afterwards (`plimsoll merge`).

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::{IntervalRecord, RunEnding, RunError, RunWriter};

use super::identity::MAX_SHARDS;
use super::leader::format_shards;
use super::member::LEADER_TIMEOUT;
use super::merging::LogMerger;
use super::objects::{
    self, ARRIVALS_FOLDER, Arrival, HEAD_OBJECT, ORDERS_OBJECT, Orders, RunManifest,
    STOP_REQUEST_OBJECT, StopRequest, from_json,
};
use super::store::{RendezvousAccess, RendezvousStore, ShardRole, StoreRequest, StoreResponse};
use crate::failure::{Exit, Failure};
use crate::load::documents::{OutputDirs, StdoutContent};
use crate::load::execution;
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::screen::progress::Progress;
use crate::system::threads;
use std::io::IsTerminal as _;
use std::path::Path;

/// Maximum number of logs to read concurrently.
const MAX_CONCURRENT_READS: usize = 64;

/// Maximum number of consecutive failed reads of a log part; one more is an error.
const MAX_FAILURES: u32 = 5;

/// How often to poll for new log parts.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Flags that name a run in a rendezvous, which is the folder or object store that its shards share.
#[derive(Debug, Args)]
pub(crate) struct RunFlags {
    /// The value of --rendezvous that the shards were started with.
    #[arg(value_name = "URL")]
    pub(crate) rendezvous: String,

    /// The run's name in the rendezvous [default: the only run].
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,

    #[command(flatten)]
    pub(crate) access: RendezvousAccess,
}

/// Returns the ID of the run: `given`, or else the ID of the only run in the rendezvous.
///
/// # Errors
/// When `given` is invalid; without it, when the rendezvous has no run or several.
fn resolve_run_id(
    store: &RendezvousStore,
    url: &str,
    given: Option<&str>,
) -> Result<String, Failure> {
    if let Some(id) = given {
        // The ID may be RUN-ID/NUMBER, which names a trial of a search.
        id.splitn(2, '/')
            .try_for_each(super::identity::check_run_id)?;
        return Ok(id.to_owned());
    }
    let mut names: Vec<String> = match store.send_and_wait(&StoreRequest::List(String::new()))? {
        StoreResponse::Names(names) => names
            .iter()
            .filter_map(|name| Some(name.rsplit('/').next()?.to_owned()))
            .collect(),
        _ => Vec::new(),
    };
    names.sort();
    match &names[..] {
        [one] => Ok(one.clone()),
        [] => Err(Failure::error_with_help(
            format_args!("rendezvous `{url}`: no runs found"),
            "give the --rendezvous that the shards have",
        )),
        several => Err(Failure::usage(
            format_args!("rendezvous `{url}`: {} runs found", several.len()),
            &format!(
                "name one with --run-id: the last by name are {}",
                several[several.len().saturating_sub(5)..].join(", ")
            ),
        )),
    }
}

/// Reader that merges the logs of a run in a store.
struct LogReader {
    store: RendezvousStore,
    manifest: RunManifest,
    merger: LogMerger,
    /// Number of the next part to read, by shard.
    next_parts: Vec<u64>,
    /// Number of consecutive failed reads, by shard.
    failures: Vec<u32>,
    orders: Orders,
}

impl LogReader {
    /// Opens the run.
    ///
    /// # Errors
    /// When there is no such run, or its format version is not supported.
    fn open(run: &RunFlags) -> Result<LogReader, Failure> {
        let url = &run.rendezvous;
        let store = RendezvousStore::open(url, &run.access, ShardRole::Member)?;
        let id = resolve_run_id(&store, url, run.run_id.as_deref())?;
        let store = store.subfolder(&id);
        let StoreResponse::Bytes { bytes, .. } =
            store.send_and_wait(&StoreRequest::Get(HEAD_OBJECT.to_owned()))?
        else {
            let help = match store.send_and_wait(&StoreRequest::List(String::new()))? {
                StoreResponse::Names(names) => names
                    .iter()
                    .filter_map(|n| objects::parse_load_folder_name(n))
                    .max(),
                _ => None,
            };
            let help = match help {
                None => "give the --run-id that the shards have".to_owned(),
                Some(latest) => format!(
                    "it is a search: name one of its trials, the latest with --run-id {id}/{}",
                    objects::load_folder_name(latest)
                ),
            };
            return Err(Failure::error_with_help(
                format_args!(
                    "rendezvous `{url}`: there is no run {id}, or its shard 0 has not joined"
                ),
                &help,
            ));
        };
        let head: RunManifest = from_json(HEAD_OBJECT, &bytes).map_err(Failure::error)?;
        if !(objects::OLDEST_READABLE_VERSION..=objects::FORMAT_VERSION).contains(&head.version) {
            return Err(Failure::error_with_help(
                format_args!(
                    "rendezvous `{url}`: run {id} was written by another version of plimsoll"
                ),
                "use the version that its shards had",
            ));
        }
        if !(1..=MAX_SHARDS).contains(&head.of) {
            return Err(Failure::error_with_help(
                format_args!(
                    "rendezvous `{url}`: {HEAD_OBJECT} of run {id} counts {} shards, and a run has 1 to {MAX_SHARDS}",
                    head.of
                ),
                "shard 0 did not write this number: the object was changed afterwards",
            ));
        }
        Ok(LogReader {
            merger: LogMerger::new(&head),
            next_parts: vec![0; head.of as usize],
            failures: vec![0; head.of as usize],
            orders: Orders::default(),
            store,
            manifest: head,
        })
    }

    fn refresh_orders(&mut self) -> Result<(), Failure> {
        if let StoreResponse::Bytes { bytes, .. } = self
            .store
            .send_and_wait(&StoreRequest::Get(ORDERS_OBJECT.to_owned()))?
        {
            self.orders = from_json(ORDERS_OBJECT, &bytes).map_err(Failure::error)?;
        }
        Ok(())
    }

    /// Reads the next part of every log; returns how many parts were read or must be read again.
    fn read_next_parts(&mut self) -> Result<usize, Failure> {
        let wanted: Vec<u32> = (0..self.manifest.of)
            .filter(|shard| !self.merger.has_ended(*shard))
            .collect();
        let mut parts = 0;
        for some in wanted.chunks(MAX_CONCURRENT_READS) {
            let (sender, answers) = mpsc::channel();
            for &shard in some {
                let sender = sender.clone();
                let name = objects::log_part_object_name(shard, self.next_parts[shard as usize]);
                self.store.send(StoreRequest::Get(name), move |answer| {
                    let _ = sender.send((shard, answer));
                });
            }
            drop(sender);
            for (shard, answer) in answers {
                let failures = &mut self.failures[shard as usize];
                match answer {
                    StoreResponse::Bytes { bytes, .. } => {
                        parts += 1;
                        *failures = 0;
                        self.next_parts[shard as usize] += 1;
                        for message in objects::read_log_part(&bytes) {
                            self.merger.add_message(shard, message, &self.orders);
                        }
                    }
                    StoreResponse::Failed { problem, for_good }
                        if for_good || *failures >= MAX_FAILURES =>
                    {
                        let part =
                            objects::log_part_object_name(shard, self.next_parts[shard as usize]);
                        return Err(Failure::error(format_args!(
                            "rendezvous: {part}: {problem}"
                        )));
                    }
                    // Read the part again at the next poll.
                    StoreResponse::Failed { .. } => {
                        parts += 1;
                        *failures += 1;
                    }
                    _ => {}
                }
            }
        }
        Ok(parts)
    }

    fn next_interval(&mut self) -> Option<(IntervalRecord, Vec<RequestRecord>)> {
        self.merger.aggregator.intervals.next(None)
    }

    /// Writes the intervals that all shards have completed.
    fn write_complete_intervals(&mut self, writer: &mut RunWriter) -> Result<(), RunError> {
        while let Some((interval, requests)) = self.next_interval() {
            writer.add_interval(&interval, &requests)?;
        }
        Ok(())
    }

    /// Returns the shards whose logs are incomplete.
    fn unfinished_shards(&self) -> Vec<u32> {
        let shards = 0..self.manifest.of;
        shards.filter(|s| !self.merger.has_ended(*s)).collect()
    }
}

/// Checks that the load of the run has begun, so that there is something to merge.
///
/// # Errors
/// When shard 0 aborted the run before its load; the error has shard 0's reason.
fn check_load_began(url: &str, orders: &Orders) -> Result<(), Failure> {
    match &orders.abort {
        Some(reason) if orders.begin_unix_ns.is_none() => Err(Failure::error_with_help(
            format_args!(
                "rendezvous `{url}`: shard 0 aborted the run before its load began: {reason}"
            ),
            "there is nothing to merge: start the shards again, with another --run-id",
        )),
        _ => Ok(()),
    }
}

/// Checks that the arrivals of shards belong to the run of `head`. An arrival that is missing is no error.
///
/// # Errors
/// When an arrival is not of a shard of this run, or the store can't be read.
fn check_arrivals(store: &RendezvousStore, url: &str, head: &RunManifest) -> Result<(), Failure> {
    let request = StoreRequest::List(ARRIVALS_FOLDER.to_owned());
    let StoreResponse::Names(names) = store.send_and_wait(&request)? else {
        return Ok(());
    };
    let listed = names
        .iter()
        .filter_map(|name| objects::shard_from_arrival_name(name));
    let listed: Vec<u32> = listed.take(MAX_SHARDS as usize).collect();
    for some in listed.chunks(MAX_CONCURRENT_READS) {
        let (sender, answers) = mpsc::channel();
        for &shard in some {
            let sender = sender.clone();
            let name = objects::arrival_object_name(shard);
            store.send(StoreRequest::Get(name), move |answer| {
                let _ = sender.send((shard, answer));
            });
        }
        drop(sender);
        for (shard, answer) in answers {
            let StoreResponse::Bytes { bytes, .. } = answer else {
                continue;
            };
            let name = objects::arrival_object_name(shard);
            let found: Arrival = from_json(&name, &bytes).map_err(Failure::error)?;
            if (found.shard, found.of, found.version) != (shard, head.of, head.version) {
                return Err(Failure::error_with_help(
                    format_args!(
                        "rendezvous `{url}`: {name} is of shard {} of {} (version {}), but {HEAD_OBJECT} counts {} shards (version {})",
                        found.shard, found.of, found.version, head.of, head.version
                    ),
                    "shards of different runs do not start together: one of these objects was changed afterwards",
                ));
            }
        }
    }
    Ok(())
}

/// Writes a run directory from the logs of the run's shards.
///
/// # Errors
/// When there is no such run, its load never began, or the directory can't be written.
pub(crate) fn merge(
    run: &RunFlags,
    out: Option<&Path>,
    screen: StdoutContent,
    made: &OutputDirs,
) -> Result<Exit, Failure> {
    let mut reading = LogReader::open(run)?;
    reading.refresh_orders()?;
    // An arrival that does not belong to the run may be why it was aborted.
    check_load_began(&run.rendezvous, &reading.orders)?;
    check_arrivals(&reading.store, &run.rendezvous, &reading.manifest)?;
    let dir = execution::dir_or_default(out, &reading.manifest.header.name);
    let RunManifest {
        header,
        plan_toml,
        keep_requests,
        ..
    } = reading.manifest.clone();
    let unsaved = |e: &RunError| execution::save_failure(e, &dir);
    let mut writer = RunWriter::create(&dir, header, &plan_toml)
        .and_then(|writer| writer.with_request_log(keep_requests))
        .map_err(|e| unsaved(&e))?;
    let mut more = true;
    while more {
        more = reading.read_next_parts()? > 0;
        reading
            .write_complete_intervals(&mut writer)
            .map_err(|e| unsaved(&e))?;
    }
    let missing = reading.unfinished_shards();
    for &shard in &missing {
        let why = "its log is incomplete; what it did after the last entry is unknown";
        reading.merger.mark_lost(shard, why.to_owned());
    }
    reading
        .write_complete_intervals(&mut writer)
        .map_err(|e| unsaved(&e))?;
    let problem = (0..reading.manifest.of).find_map(|shard| {
        let problem = reading.merger.incomplete_reason(shard)?;
        Some(format!(
            "shard {shard} of {}: {problem}",
            reading.manifest.of
        ))
    });
    let ending = match (missing.len(), problem) {
        (2.., _) => RunEnding::partial(format!(
            "{} of {}: their logs are incomplete",
            format_shards(&missing),
            reading.manifest.of
        )),
        (_, Some(problem)) => RunEnding::partial(problem),
        (_, None) if reading.orders.stop > 0 => RunEnding::aborted("stopped early"),
        (_, None) => RunEnding::complete(),
    };
    writer.set_shards(reading.merger.shard_figures());
    if let Some(tls) = reading.merger.aggregator.negotiated_tls() {
        writer.set_negotiated_tls(tls);
    }
    let merged = writer.finish(ending).map_err(|e| unsaved(&e.error))?;
    execution::report_merged_run(&merged, &dir, screen, made)
}

/// Whether `plimsoll watch` only shows a run, or also requests it to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchMode {
    Observe,
    /// Requests the run to stop, and watches it until it has ended.
    RequestStop,
}

/// Shows a run's progress until it has ended.
///
/// # Errors
/// When there is no such run, when it was aborted, or when its coordinator (shard 0) has stopped writing.
pub(crate) fn watch(
    run: &RunFlags,
    watching: WatchMode,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let mut reading = LogReader::open(run)?;
    let mut progress = Progress::for_external_run(&reading.manifest.header, process.progress);
    let mut silence = Duration::ZERO;
    if watching == WatchMode::RequestStop {
        put_stop_request(&reading.store)?;
    }
    loop {
        let before = reading.orders.beat;
        reading.refresh_orders()?;
        let parts = reading.read_next_parts()?;
        while let Some((interval, _)) = reading.next_interval() {
            progress.show_interval(&interval);
        }
        let orders = &reading.orders;
        if let Some(reason) = &orders.abort {
            return Err(Failure::error(reason));
        }
        if parts == 0
            && let Some(ended) = &orders.ended
        {
            console::print_notice("the run has ended; shard 0 has written it");
            return Ok(Exit::from_code(ended.exit));
        }
        silence = if orders.beat == before {
            silence + POLL_INTERVAL
        } else {
            Duration::ZERO
        };
        if silence >= LEADER_TIMEOUT {
            return Err(Failure::error_with_help(
                format_args!(
                    "shard 0, which leads the run, has not responded for {} s",
                    silence.as_secs()
                ),
                "recover what is in the rendezvous with `plimsoll merge`",
            ));
        }
        if process.stop.level() != StopUrgency::Run {
            if ask_whether_to_stop(process) {
                put_stop_request(&reading.store)?;
                console::print_notice("asked the run to stop");
            }
            console::print_notice("no longer watching; the same plimsoll watch command resumes it");
            return Ok(Exit::Interrupted);
        }
        if parts == 0 {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Asks the user, who has pressed Ctrl-C, whether to stop the run. Returns false if there is no terminal to ask on, or
/// if Ctrl-C is pressed again.
fn ask_whether_to_stop(process: &ProcessContext) -> bool {
    const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);
    if !std::io::stdin().is_terminal() {
        return false;
    }
    console::print_notice("stop the run? y: stop it; anything else: only stop watching");
    let (sender, answered) = mpsc::channel();
    let asking = threads::start("answer", move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        let _ = sender.send(read.is_ok() && matches!(line.trim(), "y" | "yes"));
    });
    if asking.is_err() {
        return false;
    }
    loop {
        match answered.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(answer) => return answer,
            Err(mpsc::RecvTimeoutError::Timeout) if process.stop.level() != StopUrgency::Now => {}
            Err(_) => return false,
        }
    }
}

/// Writes a stop request into a run's store.
///
/// # Errors
/// When the request can't be written.
pub(crate) fn request_run_stop(url: &str, id: &str) -> Result<(), Failure> {
    put_stop_request(
        &RendezvousStore::open(url, &RendezvousAccess::default(), ShardRole::Member)?.subfolder(id),
    )
}

fn put_stop_request(store: &RendezvousStore) -> Result<(), Failure> {
    let ask = StoreRequest::put_json_request(STOP_REQUEST_OBJECT, &StopRequest { stop: 1 });
    store.send_and_wait(&ask).map(drop)
}
