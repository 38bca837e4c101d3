//! Steps of journeys over HTTP: a user's values and cookies for the next request, and the interface by which drivers of
//! HTTP/1.1 and HTTP/2 switch between requests.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_model::Time;
use plimsoll_model::formats::redaction;
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::{Template, TraceIds};

use super::call::HttpCall;
use super::checks::to_printable;
use super::is_valid_in_path;
pub(super) use crate::journey::{CaptureLevel, CapturedResponse};
use crate::journey::{CapturedValues, ConnectionSecurity, CookieJar, StepMoment, StepProtocol};

/// The name of the header field with a user's cookies.
const COOKIE_FIELD: &str = "cookie";

/// The state of a user that a step's request depends on.
#[derive(Clone, Debug, Default)]
pub struct StepValues {
    /// The values taken from earlier responses.
    pub taken: Arc<CapturedValues>,
    /// The value of the `cookie` field; if empty, the field is not sent.
    pub cookies: String,
}

/// A version of HTTP with one prepared request, whose drivers can be switched to another request.
pub trait SwitchableProtocol: Protocol {
    /// Makes `driver` send this protocol's request with its next call.
    fn select_request(&self, driver: &mut Self::Driver, values: StepValues);

    /// Calls `f` with the last response that `driver` received.
    fn inspect_response<R>(driver: &Self::Driver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R;

    /// Returns the wall-clock time, in nanoseconds since the Unix epoch.
    fn unix_ns(driver: &Self::Driver, now: Time) -> u64;

    /// Gives back the memory of the last request and response.
    fn release_buffers(driver: &mut Self::Driver);
}

/// The path of a step's request, and the rules for the cookies that belong to this path.
#[derive(Clone, Debug)]
pub(super) struct StepCookieScope {
    /// The path as the user typed it.
    path: String,
    /// The index and the name of the taken value with which the path begins, if any.
    path_name: Option<(usize, String)>,
    /// Whether the plan sets the `cookie` field, which replaces the user's cookies.
    has_own_cookies: bool,
    security: ConnectionSecurity,
}

impl StepCookieScope {
    /// Creates the rules for `call`. `taken`: the names of the values that the journey takes from responses.
    pub(super) fn new(
        call: &HttpCall,
        taken: &[String],
        security: ConnectionSecurity,
    ) -> StepCookieScope {
        let varying = call.varying.as_ref();
        let leading = varying.and_then(|all| all.path.as_ref()?.leading_captured_index());
        let constant = call.headers.iter().map(|(name, _)| name);
        let varying = varying.iter().flat_map(|all| &all.headers);
        let mut names = constant.chain(varying.map(|field| &field.name));
        StepCookieScope {
            path: call.path.clone(),
            path_name: leading.and_then(|index| {
                let index = usize::from(index);
                Some((index, taken.get(index)?.clone()))
            }),
            has_own_cookies: names.any(|name| name == COOKIE_FIELD),
            security,
        }
    }

    /// Returns the path, without the query, against which the paths of cookies are matched. If the typed path begins
    /// with a taken value, that value is used.
    fn cookie_path<'a>(&'a self, values: &'a CapturedValues) -> &'a str {
        let value = (self.path_name.as_ref()).and_then(|(name, _)| values[*name].as_deref());
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        let path = value.unwrap_or(&self.path).split(['?', '#']).next();
        path.unwrap_or_default()
    }

    /// Returns the value of the request's `cookie` field. If it is empty, the request has no such field.
    ///
    /// # Errors
    /// Returns an error if the taken value at the start of the path is not a valid path.
    pub(super) fn cookie_field(
        &self,
        values: &CapturedValues,
        cookies: &CookieJar,
    ) -> Result<String, String> {
        if let Some((index, name)) = &self.path_name {
            let value = values[*index].as_deref().unwrap_or_default();
            let text = std::str::from_utf8(value).unwrap_or_default();
            if !text.starts_with('/') || !is_valid_in_path(text) {
                let shown = to_printable(value);
                return Err(format!(
                    "`{name}` is not a path: {}",
                    redaction::mask_urls(&shown)
                ));
            }
        }
        Ok(if self.has_own_cookies {
            String::new()
        } else {
            cookies.cookie_header(self.cookie_path(values), self.security)
        })
    }

    /// Stores the cookies that the header fields of a response set. `unix_ns`: the current time, in nanoseconds since
    /// the Unix epoch.
    pub(super) fn store_set_cookies<'a>(
        &self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        unix_ns: u64,
        values: &CapturedValues,
        cookies: &mut CookieJar,
    ) {
        let unix_s = (unix_ns / 1_000_000_000) as i64;
        let path = self.cookie_path(values);
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"set-cookie") {
                cookies.set(value, path, unix_s);
            }
        }
    }
}

/// A journey's step: a request, and the user's cookies that belong to its path.
#[derive(Clone, Debug)]
pub struct HttpStepProtocol<P> {
    protocol: P,
    cookie_scope: StepCookieScope,
}

impl<P: SwitchableProtocol> HttpStepProtocol<P> {
    /// Creates the step of `call`, which `protocol` sends. `taken`: the names of the journey's values.
    pub fn new(
        protocol: P,
        call: &HttpCall,
        taken: &[String],
        security: ConnectionSecurity,
    ) -> HttpStepProtocol<P> {
        HttpStepProtocol {
            protocol,
            cookie_scope: StepCookieScope::new(call, taken, security),
        }
    }
}

impl<P: SwitchableProtocol> Protocol for HttpStepProtocol<P> {
    type Driver = P::Driver;

    fn alpn(&self) -> Option<&'static [u8]> {
        self.protocol.alpn()
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.protocol.set_clock_origin(unix_ns);
    }

    fn new_driver(&self) -> P::Driver {
        self.protocol.new_driver()
    }

    fn goodput_bounds(&self) -> GoodputBounds {
        self.protocol.goodput_bounds()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.protocol.trace_ids()
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        self.protocol.new_tracer()
    }
}

impl<P: SwitchableProtocol> StepProtocol for HttpStepProtocol<P> {
    fn select_request(
        &self,
        driver: &mut P::Driver,
        _moment: StepMoment,
        values: &Arc<CapturedValues>,
        cookies: &CookieJar,
    ) -> Result<(), String> {
        let cookies = self.cookie_scope.cookie_field(values, cookies)?;
        let taken = Arc::clone(values);
        self.protocol
            .select_request(driver, StepValues { taken, cookies });
        Ok(())
    }

    fn store_cookies(
        &self,
        driver: &P::Driver,
        now: Time,
        values: &CapturedValues,
        cookies: &mut CookieJar,
    ) {
        let unix_ns = P::unix_ns(driver, now);
        P::inspect_response(driver, |answer| {
            let fields = answer.fields.iter().copied();
            self.cookie_scope
                .store_set_cookies(fields, unix_ns, values, cookies);
        });
    }

    fn inspect_response(&self, driver: &P::Driver, f: &mut dyn FnMut(CapturedResponse<'_>)) {
        P::inspect_response(driver, f);
    }

    fn release_buffers(&self, driver: &mut P::Driver) {
        P::release_buffers(driver);
    }
}

/// Returns the body from which a journey takes values. `kept`: the decoded body; `None` if it was too large to keep.
pub(super) fn captured_body(kept: Option<&[u8]>) -> Result<Cow<'_, [u8]>, String> {
    let kept = kept.map(Cow::Borrowed);
    kept.ok_or_else(|| {
        "its body is larger than 1 MiB, and values are looked for in no more".to_owned()
    })
}

/// Returns the templates of a request.
pub(super) fn request_templates(call: &HttpCall) -> impl Iterator<Item = &Template> {
    call.varying.iter().flat_map(|varying| {
        let headers = varying.headers.iter().map(|field| &field.template);
        let body = varying.body.iter().map(|body| &body.template);
        let expected = varying.expectations.iter();
        let expected = expected.flat_map(|expected| expected.templates());
        headers.chain(body).chain(&varying.path).chain(expected)
    })
}
