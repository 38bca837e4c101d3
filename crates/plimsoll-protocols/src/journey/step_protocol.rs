//! The interface between journeys and the protocols whose calls are their steps: each step is a request of its own, and
//! values are taken from the answers.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Driver, Protocol, Tracer};
use plimsoll_model::Time;
use plimsoll_model::template::TraceIds;

use super::cookies::{CookieJar, LinkSecurity};

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

/// The circumstances in which a step's request is prepared.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// `host:port` of the step's target.
    pub authority: &'a str,
    /// How the target is reached.
    pub security: LinkSecurity,
    /// The deadline of each call.
    pub deadline: Option<Duration>,
    /// Whether each call asks for its connection to be closed.
    pub closes: bool,
    /// What is kept of the step's answers.
    pub capture: AnswerCapture,
    /// The names of the values that answers give.
    pub taken: &'a [String],
}

/// A protocol with one step's request, whose drivers can be given the request of another step.
pub trait StepProtocol: Protocol {
    /// Makes `driver` send this protocol's request with its next call.
    ///
    /// # Errors
    /// Why a request with these values can't be sent.
    fn select(
        &self,
        driver: &mut Self::Driver,
        values: &Arc<TakenValues>,
        cookies: &CookieJar,
    ) -> Result<(), String>;

    /// Keeps the cookies that the last answer that `driver` received sets.
    fn keep(
        &self,
        _driver: &Self::Driver,
        _now: Time,
        _values: &TakenValues,
        _cookies: &mut CookieJar,
    ) {
    }

    /// Calls `f` with the last answer that `driver` received.
    fn with_answer(&self, driver: &Self::Driver, f: &mut dyn FnMut(CapturedResponse<'_>));
}

/// The driver of a connection that steps of one protocol share.
pub trait StepDriver: Driver + Any + Send {}

impl<D: Driver + Any + Send> StepDriver for D {}

/// A step's request, whatever its protocol.
pub trait StepCall: Send + Sync {
    /// [`Protocol::alpn`].
    fn alpn(&self) -> Option<&'static [u8]>;

    /// [`Protocol::set_clock_origin`].
    fn set_clock_origin(&self, unix_ns: u64);

    /// [`Protocol::trace_ids`].
    fn trace_ids(&self) -> Option<TraceIds>;

    /// [`Protocol::tracer`].
    fn tracer(&self) -> Option<Box<dyn Tracer>>;

    /// [`Protocol::driver`].
    fn driver(&self) -> Box<dyn StepDriver>;

    /// [`StepProtocol::select`]. `driver` was made by a step of the same protocol.
    ///
    /// # Errors
    /// Why a request with these values can't be sent.
    fn select(
        &self,
        driver: &mut dyn StepDriver,
        values: &Arc<TakenValues>,
        cookies: &CookieJar,
    ) -> Result<(), String>;

    /// [`StepProtocol::keep`].
    fn keep(
        &self,
        driver: &dyn StepDriver,
        now: Time,
        values: &TakenValues,
        cookies: &mut CookieJar,
    );

    /// [`StepProtocol::with_answer`].
    fn with_answer(&self, driver: &dyn StepDriver, f: &mut dyn FnMut(CapturedResponse<'_>));
}

impl<P: StepProtocol> StepCall for P
where
    P::Driver: Send + 'static,
{
    fn alpn(&self) -> Option<&'static [u8]> {
        Protocol::alpn(self)
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        Protocol::set_clock_origin(self, unix_ns);
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        Protocol::trace_ids(self)
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        Protocol::tracer(self)
    }

    fn driver(&self) -> Box<dyn StepDriver> {
        Box::new(Protocol::driver(self))
    }

    fn select(
        &self,
        driver: &mut dyn StepDriver,
        values: &Arc<TakenValues>,
        cookies: &CookieJar,
    ) -> Result<(), String> {
        let driver: &mut dyn Any = driver;
        match driver.downcast_mut() {
            Some(driver) => StepProtocol::select(self, driver, values, cookies),
            None => Err("its connection is of another protocol".to_owned()),
        }
    }

    fn keep(
        &self,
        driver: &dyn StepDriver,
        now: Time,
        values: &TakenValues,
        cookies: &mut CookieJar,
    ) {
        let driver: &dyn Any = driver;
        if let Some(driver) = driver.downcast_ref() {
            StepProtocol::keep(self, driver, now, values, cookies);
        }
    }

    fn with_answer(&self, driver: &dyn StepDriver, f: &mut dyn FnMut(CapturedResponse<'_>)) {
        let driver: &dyn Any = driver;
        if let Some(driver) = driver.downcast_ref() {
            StepProtocol::with_answer(self, driver, f);
        }
    }
}
