//! What is measured of sessions besides their queries.

use plimsoll_model::measure::{Count, TimeMeasure};

/// Sessions whose every query succeeded, and that were closed.
pub(crate) const SESSIONS_OK: Count = Count::keyed("sessions_ok");
/// Those that lost a query, or that the API did not close.
pub(crate) const SESSIONS_FAILED: Count = Count::keyed("sessions_failed");
/// Those that had to reconnect.
pub(crate) const SESSIONS_RECONNECTED: Count = Count::keyed("sessions_reconnected");
/// From the request of a session's creation to the answer.
pub(crate) const SESSION_CREATE: TimeMeasure = TimeMeasure::keyed("session_create");
