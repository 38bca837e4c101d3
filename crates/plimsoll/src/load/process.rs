//! Settings and state of the whole process.

use plimsoll_engine::StopFlag;
use plimsoll_model::Plan;

use crate::failure::Failure;
use crate::load::documents::OutputDirs;
use crate::load::protocols;
use crate::screen::progress::ProgressStyle;
use crate::settings::environment::Environment;
use crate::settings::origins::FlagOrigins;
use crate::system::descriptors;
use crate::system::stopping;

/// Settings and state that all commands of the process share.
pub(crate) struct ProcessContext {
    /// How progress is shown.
    pub(crate) progress: ProgressStyle,
    pub(crate) verbose: bool,
    pub(crate) trace: bool,
    /// The stop flag that signal handlers set.
    pub(crate) stop: StopFlag,
    /// Directories whose documents are written when the command ends.
    pub(crate) output_dirs: OutputDirs,
    /// The origin of each flag's value.
    pub(crate) origins: FlagOrigins,
    pub(crate) environment: Environment,
}

/// Installs signal handlers, and returns the stop flag that they set. `loads` is true if this process runs the load.
///
/// # Errors
/// When signal handlers can't be installed.
pub(crate) fn stop_on_signals(loads: bool) -> Result<StopFlag, Failure> {
    descriptors::raise_limit()?;
    let stop = StopFlag::new();
    let pulled = stop.clone();
    match loads {
        true => stopping::on_signal(move |_| pulled.request())?,
        // Don't print that the load stops, because a load that runs elsewhere does not stop with this process.
        false => stopping::on_signal_with_notice("", move |_| pulled.request())?,
    }
    Ok(stop)
}

impl ProcessContext {
    /// Prepares the load of `plan`.
    ///
    /// # Errors
    /// As for [`protocols::prepare`].
    pub(crate) fn prepare<'a>(
        &self,
        plan: &'a Plan,
    ) -> Result<protocols::PreparedLoad<'a>, Failure> {
        let trace = self.trace;
        protocols::prepare(protocols::PrepareRequest { plan, trace })
    }
}
