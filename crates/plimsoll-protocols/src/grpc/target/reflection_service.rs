//! Adds server reflection (grpc.reflection.v1) to a reference server's own service.
//!
//! The cost for a call of the server's own service is one comparison of the path's beginning.

use std::convert::Infallible;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic_reflection::server::Builder;

use super::generated::SERVICE_DESCRIPTORS;
use plimsoll_serving::ServeError;

type ResponseFuture = BoxFuture<Response<Body>, Infallible>;

/// Adds server reflection to `service`; `name` is its full name.
///
/// # Errors
/// Never fails in practice, because the services' descriptors are part of this program.
pub(super) fn with_reflection<S>(
    service: S,
    name: &str,
) -> Result<
    impl Service<
        Request<Incoming>,
        Response = Response<Body>,
        Error = Infallible,
        Future = ResponseFuture,
    > + Clone
    + Send
    + 'static,
    ServeError,
>
where
    S: Service<
            Request<Incoming>,
            Response = Response<Body>,
            Error = Infallible,
            Future = ResponseFuture,
        > + Clone
        + Send
        + 'static,
{
    let reflection = Builder::configure()
        .register_encoded_file_descriptor_set(SERVICE_DESCRIPTORS)
        .with_service_name(name)
        .with_service_name("grpc.reflection.v1.ServerReflection")
        .build_v1()
        .map_err(|e| ServeError::invalid_option("reflection", e.to_string()))?;
    Ok(ReflectionRouter {
        service,
        reflection,
    })
}

#[derive(Clone)]
struct ReflectionRouter<S, R> {
    service: S,
    reflection: R,
}

impl<S, R> Service<Request<Incoming>> for ReflectionRouter<S, R>
where
    S: Service<
            Request<Incoming>,
            Response = Response<Body>,
            Error = Infallible,
            Future = ResponseFuture,
        >,
    R: Service<
            Request<Incoming>,
            Response = Response<Body>,
            Error = Infallible,
            Future = ResponseFuture,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    /// Returns ready, because both services are always ready. [`plimsoll_serving::http2`] relies on this.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> ResponseFuture {
        if request.uri().path().starts_with("/grpc.reflection.") {
            self.reflection.call(request)
        } else {
            self.service.call(request)
        }
    }
}
