//! Measures of whole sessions, in addition to those of their queries.

use plimsoll_model::measure::{Count, TimeMeasure};

/// Sessions whose queries all succeeded, and that the API closed.
pub(crate) const SESSIONS_OK: Count = Count::keyed("sessions_ok");
/// Sessions that lost a query, or that the API did not close.
pub(crate) const SESSIONS_FAILED: Count = Count::keyed("sessions_failed");
/// Sessions that had to reconnect.
pub(crate) const SESSIONS_RECONNECTED: Count = Count::keyed("sessions_reconnected");
/// Time from the request that creates a session to its response.
pub(crate) const SESSION_CREATE: TimeMeasure = TimeMeasure::keyed("session_create");
