//! What holds for the whole process, whatever it carries out.

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

/// What holds for the whole process.
pub(crate) struct Process {
    /// How progress is shown.
    pub(crate) progress: Style,
    pub(crate) verbose: bool,
    pub(crate) trace: bool,
    /// The stop request that signals make.
    pub(crate) stop: Stop,
    /// What is to be reported when the command ends.
    pub(crate) made: Made,
    /// The origin of each flag's value.
    pub(crate) origins: Origins,
    pub(crate) environment: Environment,
}

/// What signals pull. `loads`: the command makes a load, which it stops.
///
/// # Errors
/// When signals can't be listened to.
pub(crate) fn stopped_by_signals(loads: bool) -> Result<Stop, Failure> {
    descriptors::raise_limit()?;
    let stop = Stop::new();
    let pulled = stop.clone();
    match loads {
        true => stopping::on_signal(move |_| pulled.request())?,
        // What goes on elsewhere does not stop by itself.
        false => stopping::on_signal_reported("", move |_| pulled.request())?,
    }
    Ok(stop)
}

impl Process {
    /// A load of `plan`, ready to be put on its target.
    ///
    /// # Errors
    /// As [`protocols::prepare`].
    pub(crate) fn prepare<'a>(&self, plan: &'a Plan) -> Result<protocols::Load<'a>, Failure> {
        let trace = self.trace;
        protocols::prepare(protocols::Asked { plan, trace })
    }
}
