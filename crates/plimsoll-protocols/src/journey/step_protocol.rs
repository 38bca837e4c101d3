//! The interface between journeys and the protocols of their steps: each step sends its own request, and values are
//! taken from the response.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Driver, Protocol, Tracer};
use plimsoll_engine::script::scenario::ConnectionNeed;
use plimsoll_model::Time;
use plimsoll_model::rows::template::TraceIds;

use super::cookies::{ConnectionSecurity, CookieJar};

/// The part of a step's response that is kept so that values can be taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureLevel {
    /// The head.
    Head,
    /// The head and the body.
    Whole,
}

/// The values that a user has taken from responses, in the order of [`StepContext::taken`]; `None` if a name is not
/// bound.
pub type CapturedValues = Vec<Option<Box<[u8]>>>;

/// The parts of a response from which journeys take values.
#[derive(Debug)]
pub struct CapturedResponse<'a> {
    /// The header fields or metadata in order.
    pub fields: Vec<(&'a [u8], &'a [u8])>,
    /// The decoded body (converted to JSON if the protocol uses another encoding), or the reason why it is unknown.
    pub body: Result<Cow<'a, [u8]>, String>,
}

/// When a step is made, and its number, from which everything random in its request is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMoment {
    /// The number of the call in the run.
    pub number: u64,
    /// The time at which the request is prepared.
    pub now: Time,
}

/// Settings of the target and the load with which a step's request is prepared.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// `host:port` of the step's target.
    pub authority: &'a str,
    /// Whether the target is reached over TLS.
    pub security: ConnectionSecurity,
    /// The deadline of each call.
    pub deadline: Option<Duration>,
    /// Whether each call asks for its connection to be closed.
    pub closes: bool,
    /// The part of the step's responses that is kept.
    pub capture: CaptureLevel,
    /// The names to which values of responses are bound.
    pub taken: &'a [String],
}

/// A protocol that sends one step's request, and whose drivers can be switched to another step's request.
pub trait StepProtocol: Protocol {
    /// Returns which connection the step needs: any, a new one, or one that is open.
    fn connection_need(&self) -> ConnectionNeed {
        ConnectionNeed::Any
    }

    /// Makes `driver` send this protocol's request with its next call.
    ///
    /// # Errors
    /// Returns an error if a request with these values can't be sent.
    fn select_request(
        &self,
        driver: &mut Self::Driver,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        cookies: &CookieJar,
    ) -> Result<(), String>;

    /// Stores in `cookies` the cookies set by the last response that `driver` received.
    fn store_cookies(
        &self,
        _driver: &Self::Driver,
        _now: Time,
        _values: &CapturedValues,
        _cookies: &mut CookieJar,
    ) {
    }

    /// Calls `f` with the last response that `driver` received.
    fn inspect_response(&self, driver: &Self::Driver, f: &mut dyn FnMut(CapturedResponse<'_>));

    /// Gives back the memory of the last request and response, which are not needed while the user pauses.
    fn release_buffers(&self, driver: &mut Self::Driver);
}

/// The driver of a connection that steps of one protocol share.
pub trait StepDriver: Driver + Any + Send {}

impl<D: Driver + Any + Send> StepDriver for D {}

/// A step's request, with the type of its protocol erased.
pub trait StepCall: Send + Sync {
    /// Calls [`Protocol::alpn`].
    fn alpn(&self) -> Option<&'static [u8]>;

    /// Calls [`Protocol::set_clock_origin`].
    fn set_clock_origin(&self, unix_ns: u64);

    /// Calls [`Protocol::trace_ids`].
    fn trace_ids(&self) -> Option<TraceIds>;

    /// Calls [`Protocol::new_tracer`].
    fn tracer(&self) -> Option<Box<dyn Tracer>>;

    /// Calls [`Protocol::new_driver`].
    fn driver(&self) -> Box<dyn StepDriver>;

    /// Calls [`StepProtocol::connection_need`].
    fn connection_need(&self) -> ConnectionNeed;

    /// Calls [`StepProtocol::select_request`]. `driver` must come from [`StepCall::driver`] of a step with the same
    /// protocol.
    ///
    /// # Errors
    /// Returns an error if a request with these values can't be sent.
    fn select_request(
        &self,
        driver: &mut dyn StepDriver,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        cookies: &CookieJar,
    ) -> Result<(), String>;

    /// Calls [`StepProtocol::store_cookies`].
    fn store_cookies(
        &self,
        driver: &dyn StepDriver,
        now: Time,
        values: &CapturedValues,
        cookies: &mut CookieJar,
    );

    /// Calls [`StepProtocol::inspect_response`].
    fn inspect_response(&self, driver: &dyn StepDriver, f: &mut dyn FnMut(CapturedResponse<'_>));

    /// Calls [`StepProtocol::release_buffers`].
    fn release_buffers(&self, driver: &mut dyn StepDriver);
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
        Protocol::new_tracer(self)
    }

    fn driver(&self) -> Box<dyn StepDriver> {
        Box::new(Protocol::new_driver(self))
    }

    fn connection_need(&self) -> ConnectionNeed {
        StepProtocol::connection_need(self)
    }

    fn select_request(
        &self,
        driver: &mut dyn StepDriver,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        cookies: &CookieJar,
    ) -> Result<(), String> {
        let driver: &mut dyn Any = driver;
        match driver.downcast_mut() {
            Some(driver) => StepProtocol::select_request(self, driver, moment, values, cookies),
            None => Err("its connection is of another protocol".to_owned()),
        }
    }

    fn store_cookies(
        &self,
        driver: &dyn StepDriver,
        now: Time,
        values: &CapturedValues,
        cookies: &mut CookieJar,
    ) {
        let driver: &dyn Any = driver;
        if let Some(driver) = driver.downcast_ref() {
            StepProtocol::store_cookies(self, driver, now, values, cookies);
        }
    }

    fn inspect_response(&self, driver: &dyn StepDriver, f: &mut dyn FnMut(CapturedResponse<'_>)) {
        let driver: &dyn Any = driver;
        if let Some(driver) = driver.downcast_ref() {
            StepProtocol::inspect_response(self, driver, f);
        }
    }

    fn release_buffers(&self, driver: &mut dyn StepDriver) {
        let driver: &mut dyn Any = driver;
        if let Some(driver) = driver.downcast_mut() {
            StepProtocol::release_buffers(self, driver);
        }
    }
}
