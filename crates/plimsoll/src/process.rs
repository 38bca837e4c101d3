//! Settings of the whole process.

use plimsoll_engine::Stop;
use plimsoll_model::Plan;

use crate::descriptors;
use crate::documents::Made;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::origins::Origins;
use crate::progress::Style;
use crate::protocols;
use crate::stopping;

/// Settings and state that all commands of the process share.
pub(crate) struct Process {
    /// How progress is shown.
    pub(crate) progress: Style,
    pub(crate) verbose: bool,
    pub(crate) trace: bool,
    /// The stop request that signals make.
    pub(crate) stop: Stop,
    /// Directories whose documents are written when the command ends.
    pub(crate) made: Made,
    /// The origin of each flag's value.
    pub(crate) origins: Origins,
    pub(crate) environment: Environment,
}

/// Installs signal handlers and returns the stop request they set. `loads` says that the command makes a load itself.
///
/// # Errors
/// When signal handlers can't be installed.
pub(crate) fn stopped_by_signals(loads: bool) -> Result<Stop, Failure> {
    descriptors::raise_limit()?;
    let stop = Stop::new();
    let pulled = stop.clone();
    match loads {
        true => stopping::on_signal(move |_| pulled.request())?,
        // A load made elsewhere does not stop with this process, so don't announce that.
        false => stopping::on_signal_reported("", move |_| pulled.request())?,
    }
    Ok(stop)
}

impl Process {
    /// Returns a load of `plan` that is ready to run.
    ///
    /// # Errors
    /// Those of [`protocols::prepare`].
    pub(crate) fn prepare<'a>(&self, plan: &'a Plan) -> Result<protocols::Load<'a>, Failure> {
        let trace = self.trace;
        protocols::prepare(protocols::Asked { plan, trace })
    }
}
