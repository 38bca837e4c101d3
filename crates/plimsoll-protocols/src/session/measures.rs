//! Measures of whole sessions, in addition to those of their queries.

use plimsoll_model::metrics::measure::{Count, TimeMeasure};

/// Sessions whose queries all succeeded, and whose close request succeeded.
pub(crate) const SESSIONS_OK: Count = Count::keyed("sessions_ok");
/// Sessions with a failed query or a failed close request.
pub(crate) const SESSIONS_FAILED: Count = Count::keyed("sessions_failed");
/// Sessions that had to reconnect.
pub(crate) const SESSIONS_RECONNECTED: Count = Count::keyed("sessions_reconnected");
/// Time from the request that creates a session to its response.
pub(crate) const SESSION_CREATE: TimeMeasure = TimeMeasure::keyed("session_create");
