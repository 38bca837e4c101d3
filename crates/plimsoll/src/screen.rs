//! Output for a person while a command runs: messages and results, logs, progress lines and the live view.

pub(crate) mod console;
pub(crate) mod defects;
pub(crate) mod live;
pub(crate) mod logging;
pub(crate) mod progress;
pub(crate) mod remaining;
