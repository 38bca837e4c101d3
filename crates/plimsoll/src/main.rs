//! Plimsoll: finds the load line of a secure link, which is the highest rate that meets the objectives.
//!
//! The binary parses the command line into a plan, runs it, and turns the result into an exit code. Results go to
//! stdout, everything else to stderr.

mod command_line;
mod commands;
mod diagnosis;
mod failure;
mod ladder_run;
mod launching;
mod load;
mod proxies;
mod reporter;
mod screen;
mod settings;
mod shards;
mod system;
mod telemetry;
mod tracking;

use std::ffi::OsString;
use std::process::ExitCode;

use command_line::guide::GuideResult;
use failure::{Exit, Failure};
use plimsoll_engine::defect;
use settings::load_limits::LoadLimits;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    screen::defects::install_panic_hook();
    system::stopping::ignore_file_size_signal();
    plimsoll_protocols::registry::register_protocols();
    proxies::register_shipped_names();
    let settled = |exit| screen::console::sync_stdout().map(|()| exit);
    let exit = match defect::catch_panic(|| run().and_then(settled)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(failure)) => {
            screen::console::print_failure(&failure);
            failure.exit()
        }
        // After a panic, `screen::defects::final_exit` replaces this by `Exit::Defect`.
        Err(_) => Exit::Error,
    };
    screen::logging::report_suppressed();
    screen::defects::final_exit(exit).into()
}

fn run() -> Result<Exit, Failure> {
    let mut environment = settings::environment::Environment::load();
    let mut typed: Vec<OsString> = std::env::args_os().collect();
    if command_line::guide::can_start(&typed) {
        match command_line::guide::run_guide(typed[0].clone(), &environment) {
            GuideResult::Line(words) => typed = words,
            GuideResult::Help => {}
            GuideResult::Leave => return Ok(Exit::Done),
        }
    }
    let (cli, origins) = match command_line::arguments::parse(typed, &environment) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    if cli.messages.quiet {
        screen::console::set_quiet();
    }
    environment.plan_code = cli.command.plan_code();
    environment.limits = LoadLimits::from_environment()?;
    environment
        .rejection_messages()
        .for_each(screen::console::print_confirmation);
    // Log connections and decisions with --verbose, frames and TLS events with --trace.
    let level = match (cli.messages.trace, cli.messages.verbose) {
        (true, _) => LevelFilter::TRACE,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::WARN,
    };
    screen::logging::start(level, cli.messages.log_format);
    commands::execute(cli, &origins, &environment)
}
