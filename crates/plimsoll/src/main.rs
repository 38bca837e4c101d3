//! Plimsoll: finds the load line of a secure link, the highest rate within objectives.
//!
//! The binary parses the command line into a plan, runs it, and turns the result into an exit code. Results go to
//! stdout, everything else to stderr.

mod abort;
mod advice;
mod arguments;
mod barrier;
mod child;
mod commands;
mod console;
mod credentials;
mod defects;
mod descriptors;
mod diagnosis;
mod documents;
mod dotenv;
mod environment;
mod execution;
mod failure;
mod flag_names;
mod foreign_lines;
mod foreign_readings;
mod foreign_words;
mod guided;
mod help;
mod ladder_run;
mod lanes;
mod launching;
mod listening;
mod live;
mod load_flags;
mod load_limits;
mod logging;
mod misread_flags;
mod multiprocess;
mod origins;
mod parallel_loads;
mod piped_report;
mod planning;
mod precision;
mod presentation;
mod problems;
mod process;
mod processor;
mod profiler;
mod progress;
mod protocols;
mod proxies;
mod remaining;
mod reporter;
mod run_folders;
mod shards;
mod single_dash;
mod stopping;
mod synonyms;
mod telemetry;
mod threads;
mod tracking;
mod variables;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use failure::{Exit, Failure};
use guided::GuideEnd;
use load_limits::LoadLimits;
use plimsoll_engine::defect;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    defects::install_panic_hook();
    stopping::ignore_file_size_signal();
    plimsoll_protocols::registry::register();
    proxies::register();
    let settled = |exit| console::sync_stdout().map(|()| exit);
    let exit = match defect::catch_panic(|| run().and_then(settled)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(failure)) => {
            console::failure(&failure);
            failure.exit()
        }
        // After a panic, `defects::final_exit` replaces this by `Exit::Defect`.
        Err(_) => Exit::Error,
    };
    logging::report_suppressed();
    defects::final_exit(exit).into()
}

fn run() -> Result<Exit, Failure> {
    let mut environment = environment::Environment::load();
    let mut typed: Vec<OsString> = std::env::args_os().collect();
    if guided::can_start(&typed) {
        match guided::run_guide(typed[0].clone(), &environment) {
            GuideEnd::Line(words) => typed = words,
            GuideEnd::Help => {}
            GuideEnd::Leave => return Ok(Exit::Done),
        }
    }
    let (cli, origins) = match arguments::parse(typed, &environment) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    if cli.messages.quiet {
        console::set_quiet();
    }
    environment.plan_code = cli.command.plan_code();
    environment.limits = LoadLimits::from_environment()?;
    environment.rejection_messages().for_each(console::confirmation);
    // Log connections and decisions with --verbose, frames and TLS events with --trace.
    let level = match (cli.messages.trace, cli.messages.verbose) {
        (true, _) => LevelFilter::TRACE,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::WARN,
    };
    logging::start(level, cli.messages.log_format);
    commands::execute(cli, &origins, &environment)
}
