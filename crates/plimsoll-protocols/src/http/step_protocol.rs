//! The interface between journeys and the drivers of both versions of HTTP: each step is a request of its own, and
//! values are taken from the answers.

use std::sync::Arc;

use plimsoll_engine::driver::Protocol;
use plimsoll_model::Time;

/// What is kept of the answers to a step, for values to be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerCapture {
    /// The head.
    Head,
    /// The head and the body.
    Whole,
}

/// The values that a user has taken from answers, by the positions of their names; `None`: not bound.
pub(super) type TakenValues = Vec<Option<Box<[u8]>>>;

/// An answer, as far as journeys take values from it.
#[derive(Debug)]
pub struct CapturedResponse<'a> {
    /// The header fields in order.
    pub fields: Vec<(&'a [u8], &'a [u8])>,
    /// The decoded body; `None`: it is larger than what is kept.
    pub body: Option<&'a [u8]>,
}

/// What a step's request needs of its user.
#[derive(Clone, Debug, Default)]
pub struct StepValues {
    /// The values of names.
    pub taken: Arc<TakenValues>,
    /// The value of the `cookie` field; empty: none is sent.
    pub cookies: String,
}

/// A protocol with one step's request, whose drivers can be given the request of another step.
pub trait StepProtocol: Protocol {
    /// Makes `driver` send this protocol's request with its next call.
    fn select(&self, driver: &mut Self::Driver, values: StepValues);

    /// Calls `f` with the last answer that `driver` received.
    fn with_answer<R>(driver: &Self::Driver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R;

    /// Returns the time of day. Nanoseconds since 1970.
    fn unix_ns(driver: &Self::Driver, now: Time) -> u64;
}
