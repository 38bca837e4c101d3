//! Settings from flags, variables and files: where each value came from, the limits on it, and the errors that name it.

pub(crate) mod credentials;
pub(crate) mod dotenv;
pub(crate) mod environment;
pub(crate) mod flag_names;
pub(crate) mod listening;
pub(crate) mod load_flags;
pub(crate) mod load_limits;
pub(crate) mod metrics_url;
pub(crate) mod origins;
pub(crate) mod problems;
