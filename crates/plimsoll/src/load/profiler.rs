//! Samples the processes of a run with `perf`, and writes their profile into the run directory.
//!
//! The kernel's own tool, `perf`, samples and symbolises ([why](../../../docs/decisions/0012-profiles-by-perf.md)). It
//! is attached to every process before the first call and then enabled over its control pipe, so if sampling is not
//! possible, the run fails before any load is sent. Samples of the warm-up are excluded by their timestamps. If a
//! sampler ends early, the run continues and only the rest of the profile is missing.
//!
//! Invariant: no sampler outlives this program, and the raw data is deleted when the [`Profiler`] is dropped.

mod collapse;
mod permission;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use plimsoll_engine::host::resources::{WatchedProcesses, find_server_processes};
use plimsoll_engine::{Clock, Observation};
use plimsoll_model::Plan;
use plimsoll_model::plan::{ProfilePlan, ProfiledEnd, StackUnwinding, WatchedProcess};
use plimsoll_model::runs::profile::{FoldedStacks, ProfileRecord, RunProfile, SampledEndRecord};
use tempfile::TempDir;

use crate::failure::{Failure, message_with_causes};
use crate::proxies;
use crate::reporter::Reporter;
use crate::screen::console;
use crate::system::child::{PipedChild, ServerProcess};
use permission::{KernelRules, start_failure};

/// The event that is sampled: a timer that runs while a thread runs. Unlike the processor's counters, it is available
/// in every virtual machine and container.
const SAMPLED_EVENT: &str = "cpu-clock";

/// Maximum size of a sampler's raw data. At 99 Hz with frame pointers, a busy core produces about 50 kB/s.
const MAX_RAW_DATA_SIZE: &str = "256M";

/// Number of bytes of the stack copied with each sample for unwinding by DWARF.
const COPIED_STACK_BYTES: &str = "16384";

/// Maximum time for perf to attach to all threads.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// Help text for concurrent loads whose profile samples can't be told apart.
const SEPARATE_LOADS_HELP: &str = "give each a server of its own, or measure one at a time: rungs of a ladder with --slice 2s, the calls of a lane in a run of their own";

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of polls for the exit of a sampler, [`POLL_INTERVAL`] apart, before it is killed.
const MAX_EXIT_POLLS: u32 = 1_000;

/// Profiler of the processes of one run.
pub(crate) struct Profiler {
    plan: ProfilePlan,
    rules: KernelRules,
    samplers: Vec<Sampler>,
    /// Length of the load's warm-up.
    warmup: Duration,
    /// End of the warm-up, in nanoseconds of `CLOCK_MONOTONIC`; earlier samples are not counted. `None` before the load
    /// starts.
    counts_from_ns: Option<u64>,
    /// The temporary folder with the raw data.
    folder: TempDir,
}

impl Profiler {
    /// Attaches samplers to the processes that the plan wants profiled; `None` if the plan requests no profile.
    ///
    /// # Errors
    /// When perf is missing, the processes can't be found, or the kernel does not permit sampling them.
    pub(crate) fn start(plan: &Plan) -> Result<Option<Profiler>, Failure> {
        let Some(profile) = &plan.profile else {
            return Ok(None);
        };
        if plan.watch == WatchedProcess::Started && profile.ends.contains(&ProfiledEnd::Server) {
            return Err(Failure::usage(
                "watch.profile (--profile): the processes of a stack are not profiled together",
                "name the one to profile: --pid PID (`plimsoll stack status` lists them)",
            ));
        }
        let folder = tempfile::Builder::new()
            .prefix("plimsoll-profile-")
            .tempdir();
        let folder = folder.map_err(|e| {
            let text = format!("watch.profile: there is no folder for the samples: {e}");
            Failure::error_with_help(
                text,
                "set TMPDIR to a writable folder with 256 MB of free space",
            )
        })?;
        let rules = KernelRules::read();
        let mut samplers = Vec::new();
        for end in &profile.ends {
            let pids = match end {
                ProfiledEnd::Server => require_server_pids(plan, profile)?,
                ProfiledEnd::Client => WatchedProcesses::this_process().pids().to_vec(),
            };
            samplers.push(Sampler::start(*end, pids, profile, folder.path(), &rules)?);
        }
        let stages = plan.load.stages.iter().take_while(|stage| stage.warmup);
        Ok(Some(Profiler {
            plan: profile.clone(),
            rules,
            samplers,
            warmup: stages.filter_map(|stage| stage.duration).sum(),
            counts_from_ns: None,
            folder,
        }))
    }

    /// Ends sampling and writes the profile into the run directory `dir`; writes nothing if the load never started.
    /// Problems are printed and noted in the profile, and don't make the run fail.
    pub(crate) fn finish(self, dir: &Path) {
        let Some(counts_from_ns) = self.counts_from_ns else {
            return;
        };
        // Stop all samplers before the first of them symbolises its samples, which takes a long time.
        let stopped = self.samplers.into_iter().map(|sampler| {
            let (end, pids, data) = (sampler.end, sampler.pids.clone(), sampler.data.clone());
            (end, pids, data, sampler.stop())
        });
        let mut profile = RunProfile {
            record: ProfileRecord::new(&self.plan, SAMPLED_EVENT),
            stacks: [].into(),
        };
        for (end, pids, data, (sampler_cpu_us, mut notes)) in stopped.collect::<Vec<_>>() {
            notes.extend(self.rules.notes());
            let mut stacks = FoldedStacks::default();
            if let Err(problem) = read_samples(&data, counts_from_ns, &mut stacks) {
                notes.push(match stacks.sample_count() {
                    0 => format!("the samples can't be read: {problem}"),
                    _ => format!("not all samples could be read: {problem}"),
                });
            }
            let _ = fs::remove_file(&data);
            for note in &notes {
                console::print_notice(format_args!("profile of {}: {note}", end.words()));
            }
            let record = SampledEndRecord {
                pids,
                samples: stacks.sample_count(),
                sampler_cpu_us,
                notes,
            };
            profile.record.ends.insert(end, record);
            profile.stacks.insert(end, stacks);
        }
        if let Err(e) = profile.write(dir) {
            console::print_notice(format_args!(
                "the profile can't be written: {}",
                message_with_causes(&e)
            ));
        }
        drop(self.folder);
    }
}

impl Reporter for Profiler {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        if let Observation::Started { lead, .. } = event {
            let skipped = if self.warmup.is_zero() {
                Duration::ZERO
            } else {
                *lead + self.warmup
            };
            let skipped_ns = u64::try_from(skipped.as_nanos()).unwrap_or(u64::MAX);
            let now_ns = Clock::from_origin(0).now().0;
            self.counts_from_ns = Some(now_ns.saturating_add(skipped_ns));
        }
        None
    }
}

/// Returns the error for a plan that requests a profile of a run on several machines.
pub(crate) fn multi_machine_profile_failure() -> Failure {
    Failure::usage(
        "watch.profile (--profile): a load of several machines is not profiled",
        "profile a load of one machine, which runs the server",
    )
}

/// Checks that samples can be attributed to one of several concurrent loads: the processes sampled for one plan must
/// not serve another plan at the same time.
///
/// # Errors
/// When two plans have a process in common, or when a plan wants the client sampled, because one client runs all loads.
pub(crate) fn check_attribution<'a>(
    loads: impl IntoIterator<Item = (&'a str, &'a Plan)>,
) -> Result<(), Failure> {
    let loads: Vec<(&str, &Plan)> = loads.into_iter().collect();
    if loads.len() < 2 || loads.iter().all(|(_, plan)| plan.profile.is_none()) {
        return Ok(());
    }
    let served: Vec<BTreeSet<i32>> = loads
        .iter()
        .map(|(_, plan)| find_server_pids(plan).unwrap_or_default())
        .collect();
    for (nth, (name, plan)) in loads.iter().enumerate() {
        let Some(profile) = &plan.profile else {
            continue;
        };
        if profile.ends.contains(&ProfiledEnd::Client) {
            return Err(Failure::usage(
                "watch.profile (--profile): one process makes all loads at once, so the samples of the load generator can't be told apart",
                SEPARATE_LOADS_HELP,
            ));
        }
        for (other, (of_other, _)) in loads.iter().enumerate().filter(|(other, _)| *other != nth) {
            if let Some(pid) = served[nth].intersection(&served[other]).next() {
                return Err(Failure::usage(
                    format_args!(
                        "watch.profile (--profile): \"{name}\" and \"{of_other}\" are served by the same process ({pid}) at the same time, so its samples can't be told apart"
                    ),
                    SEPARATE_LOADS_HELP,
                ));
            }
        }
    }
    Ok(())
}

/// Returns the ids of the processes that serve the plan's target, with their children and proxies; `None` if no process
/// can be found.
fn find_server_pids(plan: &Plan) -> Option<BTreeSet<i32>> {
    let addresses = plimsoll_engine::resolve(&plan.target).ok()?;
    let watched = find_server_processes(&plan.watch, &addresses)?;
    let proxies = plan.profile.iter().flat_map(|profile| &profile.proxy_pids);
    let found = watched
        .pids()
        .iter()
        .filter_map(|pid| u32::try_from(*pid).ok());
    let with_children = found
        .chain(proxies.copied())
        .map(WatchedProcesses::process_tree);
    let pids: BTreeSet<i32> = with_children.flat_map(|one| one.pids().to_vec()).collect();
    Some(pids)
}

fn require_server_pids(plan: &Plan, profile: &ProfilePlan) -> Result<Vec<i32>, Failure> {
    let mut pids = find_server_pids(plan).unwrap_or_default();
    if !profile.ends.contains(&ProfiledEnd::Client) {
        // Exclude this process: samples of a server inside it could not be told from samples of the load generator.
        pids.retain(|pid| !WatchedProcesses::this_process().pids().contains(pid));
    }
    if pids.is_empty() {
        return Err(Failure::error_with_help(
            format_args!(
                "watch.profile (--profile): no process on this machine listens at {}, or this user may not inspect it",
                plan.target.url
            ),
            "start the server on this machine first, and name its process: --pid PID, --watch PORT or --watch cgroup:NAME",
        ));
    }
    Ok(pids.into_iter().collect())
}

/// A running `perf record`.
struct Sampler {
    end: ProfiledEnd,
    pids: Vec<i32>,
    perf: PipedChild,
    /// The file of raw samples.
    data: PathBuf,
    /// The file of perf's messages.
    messages: PathBuf,
    /// Process that stops perf when this program ends.
    _watchdog: ServerProcess,
}

impl Sampler {
    /// Attaches perf to the processes and enables it.
    ///
    /// # Errors
    /// When perf can't be started, exits, or does not answer in time.
    fn start(
        end: ProfiledEnd,
        pids: Vec<i32>,
        plan: &ProfilePlan,
        folder: &Path,
        rules: &KernelRules,
    ) -> Result<Sampler, Failure> {
        let data = folder.join(format!("{}.data", end.name()));
        let messages = folder.join(format!("{}.log", end.name()));
        let list: Vec<String> = pids.iter().map(i32::to_string).collect();
        let (call_graph, buffer) = match plan.unwinding {
            StackUnwinding::FramePointers => ("fp".to_owned(), "128K"),
            // Use a larger ring buffer, because each sample contains a copy of the stack.
            StackUnwinding::Dwarf => (format!("dwarf,{COPIED_STACK_BYTES}"), "1M"),
        };
        let mut command = perf_command("record");
        command
            .args([
                "--event",
                SAMPLED_EVENT,
                "--freq",
                &plan.frequency_hz.to_string(),
            ])
            .args(["--call-graph", &call_graph, "--mmap-pages", buffer])
            .args([
                "--clockid",
                "CLOCK_MONOTONIC",
                "--max-size",
                MAX_RAW_DATA_SIZE,
            ])
            .args(["--no-buildid-cache", "--delay=-1", "--control=fd:0,1"])
            .args(["--pid", &list.join(",")])
            .arg("--output")
            .arg(&data);
        let failed = |e: &io::Error| start_failure(&e.to_string(), e.kind(), &pids, rules);
        let log = File::create(&messages).map_err(|e| failed(&e))?;
        command.stderr(log);
        let (sender, answers) = mpsc::channel();
        let mut perf = PipedChild::start(&mut command, move |line| {
            let is_open = matches!(line, Some(Ok(_)));
            sender.send(is_open).is_ok() && is_open
        })
        .map_err(|e| failed(&e))?;
        let watchdog = proxies::process::start_watchdog(perf.id()).map_err(|e| failed(&e))?;
        let asked = perf
            .stdin
            .as_mut()
            .map(|stdin| stdin.write_all(b"enable\n"));
        if !matches!(asked, Some(Ok(()))) || !wait_until_enabled(&answers) {
            perf.kill();
            let said = fs::read_to_string(&messages).unwrap_or_default();
            return Err(start_failure(&said, io::ErrorKind::Other, &pids, rules));
        }
        Ok(Sampler {
            end,
            pids,
            perf,
            data,
            messages,
            _watchdog: watchdog,
        })
    }

    /// Ends sampling. Returns perf's CPU time in µs, and notes on what is missing from the profile.
    fn stop(mut self) -> (Option<u64>, Vec<String>) {
        let mut notes = Vec::new();
        let usage = WatchedProcesses::process_tree(self.perf.id()).usage();
        match self.perf.exit_status() {
            Some(status) if status.success() => notes.push(format!(
                "sampling ended early, with {MAX_RAW_DATA_SIZE} of samples: use a lower watch.profile_hz"
            )),
            Some(status) => {
                let said = fs::read_to_string(&self.messages).unwrap_or_default();
                let said = said.lines().last().unwrap_or_default();
                notes.push(format!("the sampler ended early ({status}) {said}"));
            }
            None => {
                self.perf.interrupt();
                let mut polls = 0;
                while self.perf.exit_status().is_none() && polls < MAX_EXIT_POLLS {
                    thread::sleep(POLL_INTERVAL);
                    polls += 1;
                }
                if polls == MAX_EXIT_POLLS {
                    self.perf.kill();
                    notes.push("the sampler did not end when asked to, and was killed".to_owned());
                }
            }
        }
        (usage.map(|usage| usage.cpu_ns / 1000), notes)
    }
}

/// Waits until perf confirms that sampling is enabled; returns false if perf exits or the wait times out.
fn wait_until_enabled(answers: &Receiver<bool>) -> bool {
    answers.recv_timeout(ATTACH_TIMEOUT).unwrap_or(false)
}

/// Returns the command that runs a subcommand of perf. The user's perf settings are not used, because they could change
/// the sampling, and symbols are not fetched over the network.
fn perf_command(subcommand: &str) -> Command {
    let mut command = Command::new("perf");
    command.arg(subcommand);
    command
        .env("PERF_CONFIG", "/dev/null")
        .env("LC_ALL", "C")
        .env_remove("DEBUGINFOD_URLS");
    command
}

/// Symbolises the samples with timestamps from `from_ns` on, and folds their stacks into `stacks`.
///
/// # Errors
/// When perf can't read all of its data; the error is perf's message.
fn read_samples(data: &Path, from_ns: u64, stacks: &mut FoldedStacks) -> Result<(), String> {
    let mut command = perf_command("script");
    command
        .arg("--input")
        .arg(data)
        // Don't resolve inlined functions, which takes minutes for programs with debug information.
        .args([
            "--no-inline",
            "--fields",
            "comm,pid,tid,time,event,ip,sym,dso",
        ])
        .arg("--time")
        .arg(format!(
            "{}.{:09},",
            from_ns / 1_000_000_000,
            from_ns % 1_000_000_000
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let messages = tempfile::tempfile().map_err(|e| e.to_string())?;
    let mut said = messages.try_clone().map_err(|e| e.to_string())?;
    command.stderr(messages);
    let mut reader = ServerProcess(command.spawn().map_err(|e| e.to_string())?);
    let Some(output) = reader.0.stdout.take() else {
        return Err("it has no output".to_owned());
    };
    *stacks = collapse::fold_stacks(BufReader::new(output)).map_err(|e| e.to_string())?;
    let status = reader.0.wait().map_err(|e| e.to_string())?;
    if status.success() {
        return Ok(());
    }
    let text = permission::read_messages(&mut said);
    Err(format!("perf script ended with {status}: {}", text.trim()))
}
