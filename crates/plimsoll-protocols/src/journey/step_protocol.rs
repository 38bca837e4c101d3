//! The interface between journeys and the protocols whose calls are their steps: each step is a request of its own, and
//! values are taken from the answers.

use std::borrow::Cow;
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
pub type TakenValues = Vec<Option<Box<[u8]>>>;

/// An answer, as far as journeys take values from it.
#[derive(Debug)]
pub struct CapturedResponse<'a> {
    /// The header fields or metadata in order.
    pub fields: Vec<(&'a [u8], &'a [u8])>,
    /// The decoded body, as JSON where the protocol's own encoding is another one; or why it is not known.
    pub body: Result<Cow<'a, [u8]>, String>,
}

/// A protocol with one step's request, whose drivers can be given the request of another step.
pub trait StepProtocol: Protocol {
    /// What a user keeps from step to step besides the values taken, such as cookies.
    type UserState: Default + Send;

    /// Makes `driver` send this protocol's request with its next call.
    ///
    /// # Errors
    /// Why a request with these values can't be sent.
    fn select(
        &self,
        driver: &mut Self::Driver,
        values: &Arc<TakenValues>,
        state: &Self::UserState,
    ) -> Result<(), String>;

    /// Keeps what the last answer that `driver` received sets for later steps.
    fn keep(
        &self,
        driver: &Self::Driver,
        now: Time,
        values: &TakenValues,
        state: &mut Self::UserState,
    );

    /// Calls `f` with the last answer that `driver` received.
    fn with_answer<R>(&self, driver: &Self::Driver, f: impl FnOnce(CapturedResponse<'_>) -> R)
    -> R;

    /// Returns the value of one of the user's cookies; `None`: it has none of this name.
    fn cookie(state: &Self::UserState, name: &str) -> Option<String>;
}
