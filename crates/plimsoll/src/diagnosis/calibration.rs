//! Runs two short loads that show how late the generator sends on this machine, and how much CPU time a call takes.

use std::io;
use std::path::Path;
use std::process::Command;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::formats::quantity::{exact_rate, rate, time};
use plimsoll_protocols::registry::CALIBRATION_SERVER;
use serde::Serialize;
use serde_json::Value;

use super::MachineFinding;
use crate::failure::{Exit, Failure};
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::screen::progress::ProgressStyle;
use crate::system::child::ServerProcess;

/// Rate of the load with a fixed rate, calls per second.
pub(crate) const FIXED_RATE_PER_S: f64 = 1_000.0;
/// Duration of each load, without warm-up.
const LOAD_LENGTH: &str = "3s";
const WARMUP_LENGTH: &str = "1s";
/// Maximum p99 lateness at which times of about a millisecond are accurate to two digits.
const MAX_PRECISE_LATENESS_US: f64 = 50.0;
/// Maximum p99 lateness at which percentiles of a few milliseconds still have narrow confidence
/// intervals.
const MAX_ACCEPTABLE_LATENESS_US: f64 = 500.0;

/// The figures measured by the two loads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CalibrationFigures {
    /// p99 of how late the calls of the fixed-rate load were sent.
    pub(crate) lateness_p99_us: f64,
    /// Maximum of how late the calls of the fixed-rate load were sent.
    lateness_max_us: f64,
    /// CPU time that the client uses per call, in the closed-loop load.
    client_cpu_us_per_call: f64,
}

impl CalibrationFigures {
    /// Returns how many calls per second one core can make.
    pub(crate) fn calls_per_core_second(&self) -> f64 {
        1e6 / self.client_cpu_us_per_call.max(0.01)
    }

    pub(crate) fn findings(&self) -> Vec<MachineFinding> {
        let pacing = format!(
            "at {}, 99 % of the calls left within {} of when they were due, and all within {}",
            exact_rate(FIXED_RATE_PER_S),
            time(self.lateness_p99_us),
            time(self.lateness_max_us)
        );
        let remedy = "a quieter machine, or one whose cores are not shared; --keep-awake and fewer --workers may help";
        let pacing = match self.lateness_p99_us {
            ..=MAX_PRECISE_LATENESS_US => MachineFinding::good("pacing", pacing),
            ..=MAX_ACCEPTABLE_LATENESS_US => MachineFinding::limit("pacing", pacing, remedy),
            _ => MachineFinding::distortion("pacing", pacing, remedy),
        };
        let cost = format!(
            "a call over HTTP/1.1 takes {} of the generator's CPU time: about {} a core",
            time(self.client_cpu_us_per_call),
            rate(self.calls_per_core_second())
        );
        vec![pacing, MachineFinding::good("generator", cost)]
    }
}

/// Starts a server and runs both loads against it.
///
/// # Errors
/// When the server or a load can't be started or fails, or the user interrupts the measurement.
pub(crate) fn measure(process: &ProcessContext) -> Result<CalibrationFigures, Failure> {
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        Failure::error(format_args!("can't make a load: {what}: {e}"))
    };
    let program = std::env::current_exe().map_err(|e| failed("this program is not found", &e))?;
    let mut command = Command::new(&program);
    command.args([
        "serve",
        CALIBRATION_SERVER.server,
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]);
    let (_server, line) = ServerProcess::start(&mut command, Command::spawn)
        .map_err(|e| failed("the server does not start", &e))?;
    let printed: Value = serde_json::from_str(&line)
        .map_err(|_| failed("the server does not start", &"it printed no address"))?;
    let address = printed["address"].as_str().unwrap_or_default();
    let url = format!("{}://{address}/", CALIBRATION_SERVER.scheme);
    let folder = tempfile::tempdir().map_err(|e| failed("no temporary folder", &e))?;
    let interrupted = || {
        let is_stopped = process.stop.level() != StopUrgency::Run;
        is_stopped.then(|| {
            Failure::with_exit_and_help(
                Exit::Interrupted,
                "interrupted before both loads had been made",
                "nothing is left running",
            )
        })
    };
    let load = |name: &str, flags: &[&str]| {
        if process.progress != ProgressStyle::None {
            console::print_notice(format_args!(
                "{name}, for {LOAD_LENGTH} on a server of our own"
            ));
        }
        let document = run_load(&program, &url, folder.path(), flags);
        // Ctrl-C also stops the load's process, which then prints figures of an incomplete load: discard them.
        match interrupted() {
            Some(failure) => Err(failure),
            None => document.map_err(|e| failed(&format!("the load failed ({name})"), &e)),
        }
    };
    let rate = format!("{FIXED_RATE_PER_S}/s");
    let paced = load(
        "calls at a fixed rate",
        &["--rate", &rate, "--connections", "4"],
    )?;
    let closed = load("as many calls as possible", &["--clients", "8"])?;
    let figure = |document: &Value, path: &str| {
        let value = document.pointer(&format!("/runs/0/total{path}"));
        let value = value.and_then(Value::as_f64);
        value.ok_or_else(|| failed("the load has no figure", &path))
    };
    Ok(CalibrationFigures {
        lateness_p99_us: figure(&paced, "/delivery/lateness_p99_us")?,
        lateness_max_us: figure(&paced, "/delivery/lateness_max_us")?,
        client_cpu_us_per_call: figure(&closed, "/client/cpu_us_per_call")?,
    })
}

/// Runs a load in a separate process, and returns the JSON that the process prints.
fn run_load(program: &Path, url: &str, folder: &Path, flags: &[&str]) -> io::Result<Value> {
    let mut command = Command::new(program);
    command
        .args([CALIBRATION_SERVER.command, url, "--json", "--quiet"])
        .args(["--duration", LOAD_LENGTH])
        .args(["--warmup", WARMUP_LENGTH, "--out", "run"])
        .args(flags)
        // An empty working directory has no `.env` file of the user and no earlier results.
        .current_dir(tempfile::tempdir_in(folder)?.keep());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PLIMSOLL_") {
            command.env_remove(name);
        }
    }
    let output = command.output()?;
    let document = serde_json::from_slice(&output.stdout).ok();
    document.filter(|_| output.status.success()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("{}: {}", output.status, said.trim()))
    })
}
