//! How a call ended: a closed list of outcomes with stable text codes. Each failure also has a source.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::formats::named_enum::named;
use crate::metrics::codes::codes;

named! {
    /// The source of a failure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum FailureSource by name {
        /// Plimsoll or the machine it runs on.
        Client "client",
        /// The connection between Plimsoll and the service: name resolution, TCP, TLS, framing.
        Link "link",
        /// The service under load.
        Target "target",
    }
}

macro_rules! outcomes {
    ($($name:tt $code:literal $blame:ident $text:literal;)*) => {
        codes! {
            /// How a call ended. [`Outcome::Ok`] is the only success.
            Outcome(coded, code, from_code):
            Ok "OK" "the call succeeded";
            $($name $code $text;)*
        }

        const FAILURE_SOURCES: &[Option<FailureSource>] = &[None, $(Some(FailureSource::$blame),)*];
    };
}

outcomes! {
    // gRPC status codes by name (gRPC core, doc/statuscodes.md), at the positions of their numbers.
    Cancelled "CANCELLED" Target "the server cancelled the call";
    Unknown "UNKNOWN" Target "the server answered with gRPC status UNKNOWN";
    InvalidArgument "INVALID_ARGUMENT" Target "the server found the request invalid";
    DeadlineExceeded "DEADLINE_EXCEEDED" Target "no answer within the call's deadline";
    NotFound "NOT_FOUND" Target "the server found no such entity";
    AlreadyExists "ALREADY_EXISTS" Target "the server says the entity exists already";
    PermissionDenied "PERMISSION_DENIED" Target "the server denied permission";
    ResourceExhausted "RESOURCE_EXHAUSTED" Target "the server ran out of a resource, or a message was over the size limit";
    FailedPrecondition "FAILED_PRECONDITION" Target "the server says the system is not in the state the call needs";
    Aborted "ABORTED" Target "the server aborted the operation";
    OutOfRange "OUT_OF_RANGE" Target "the server says the request is out of range";
    Unimplemented "UNIMPLEMENTED" Target "the server has no such method";
    Internal "INTERNAL" Target "the server answered with gRPC status INTERNAL";
    Unavailable "UNAVAILABLE" Target "the server answered with gRPC status UNAVAILABLE";
    DataLoss "DATA_LOSS" Target "the server answered with gRPC status DATA_LOSS";
    Unauthenticated "UNAUTHENTICATED" Target "the server requires valid credentials";
    // Failures to establish a connection.
    ResolveFailed "RESOLVE_FAILED" Link "the target's host name could not be resolved";
    ConnectRefused "CONNECT_REFUSED" Link "nothing listens on the target's port";
    ConnectTimeout "CONNECT_TIMEOUT" Link "the connection, its TLS handshake or its protocol's greeting took longer than the connect timeout";
    ConnectUnreachable "CONNECT_UNREACHABLE" Link "no route to the target's host";
    ConnectFailed "CONNECT_FAILED" Link "the TCP connection could not be made";
    NoDescriptors "NO_DESCRIPTORS" Client "this process ran out of file descriptors";
    NoPorts "NO_PORTS" Client "this machine ran out of ports for the address pair";
    NoSocket "NO_SOCKET" Client "this machine lacks the memory, the address or the permission for the connection";
    TlsUnknownCa "TLS_UNKNOWN_CA" Link "the server's certificate is not signed by a trusted CA";
    TlsCertificateExpired "TLS_CERTIFICATE_EXPIRED" Link "the server's certificate has expired";
    TlsCertificateNotYetValid "TLS_CERTIFICATE_NOT_YET_VALID" Link "the server's certificate is not yet valid";
    TlsCertificateRevoked "TLS_CERTIFICATE_REVOKED" Link "the server's certificate, or one above it, is revoked";
    TlsNameMismatch "TLS_NAME_MISMATCH" Link "the server's certificate is for another host name";
    TlsBadCertificate "TLS_BAD_CERTIFICATE" Link "the server's certificate is not acceptable";
    TlsClientCertificateRequired "TLS_CLIENT_CERTIFICATE_REQUIRED" Link "the server requires a client certificate";
    TlsClientCertificateRejected "TLS_CLIENT_CERTIFICATE_REJECTED" Link "the server rejected the client certificate";
    TlsVersion "TLS_VERSION" Link "the server does not speak a TLS version that the plan allows";
    TlsNoCommonParameters "TLS_NO_COMMON_PARAMETERS" Link "no cipher suite, key-exchange group or kind of key in common with the server";
    TlsAlpn "TLS_ALPN" Link "the server does not support the protocol requested by ALPN";
    TlsNotTls "TLS_NOT_TLS" Link "the server answered a TLS handshake with something that is not TLS";
    TlsAlert "TLS_ALERT" Link "the server ended the TLS handshake with an alert";
    TlsFailed "TLS_FAILED" Link "the TLS layer failed";

    // Lost connections, and invalid data on them.
    Reset "RESET" Link "the connection was reset with the call in flight";
    ConnectionClosed "CONNECTION_CLOSED" Link "the server closed the connection with the call in flight";
    IdleClosed "IDLE_CLOSED" Link "the server closed an idle connection as the call's request left";
    LinkTimeout "LINK_TIMEOUT" Link "the target's machine did not acknowledge what was sent, for as long as TCP tries";
    Truncated "TRUNCATED" Link "the connection ended without TLS close_notify in the middle of an answer";
    StreamReset "STREAM_RESET" Target "the server reset the call's stream";
    StreamRefused "STREAM_REFUSED" Target "the server refused the stream before doing any work";
    Goaway "GOAWAY" Target "the server closed the connection to new calls (GOAWAY) before it processed this one";
    ProtocolError "PROTOCOL_ERROR" Target "the server broke the protocol";
    _ "NOT_HTTP2" Target "the server does not speak HTTP/2 (an HTTP/1.1 server, or a TLS port spoken to in plaintext)";
    _ "HTTP_STATUS" Target "the server answered with an HTTP status other than 200";
    BadAnswer "BAD_ANSWER" Target "the answer is malformed";
    MessageTooLarge "MESSAGE_TOO_LARGE" Target "the answer's message is over the size limit";
    HeadTooLarge "HEAD_TOO_LARGE" Target "the answer's head is over the plan's limit, which can be raised";
    MissingStatus "MISSING_STATUS" Target "the stream ended without a gRPC status";
    StreamShort "STREAM_SHORT" Target "the stream ended without an error, but before all its messages were exchanged";
    StreamLong "STREAM_LONG" Target "the stream brought more messages than the plan expects";
    CompressionUnsupported "COMPRESSION_UNSUPPORTED" Target "the answer is compressed in a way that was not offered";
    BodyLength "BODY_LENGTH" Target "the body is not as long as the server promised, or as the plan asks for";
    // SOFABolt's statuses by name (com.alipay.remoting.ResponseStatus).
    _ "BOLT_ERROR" Target "the server answered with Bolt status ERROR";
    _ "BOLT_SERVER_EXCEPTION" Target "the server's handler threw an exception, or the class has no handler";
    _ "BOLT_UNKNOWN" Target "the server answered with Bolt status UNKNOWN, or with one that does not exist";
    _ "BOLT_SERVER_THREADPOOL_BUSY" Target "the server's thread pool and its queue were full";
    _ "BOLT_ERROR_COMM" Target "the server answered with Bolt status ERROR_COMM";
    _ "BOLT_NO_PROCESSOR" Target "the server has no processor for the request";
    _ "BOLT_TIMEOUT" Target "a proxy or the server gave up waiting";
    _ "BOLT_CLIENT_SEND_ERROR" Target "a proxy could not send the request on";
    _ "BOLT_CODEC_EXCEPTION" Target "the server could not decode the frame";
    _ "BOLT_CONNECTION_CLOSED" Target "a proxy lost its connection to the server";
    _ "BOLT_SERVER_SERIAL_EXCEPTION" Target "the server could not serialise its answer";
    _ "BOLT_SERVER_DESERIAL_EXCEPTION" Target "the server could not deserialise the request";
    _ "SOFA_ERROR" Target "the answer's header says that the SOFARPC call failed";
    // Failure statuses that a codec plugin finds in answers, and failures of the plugin itself.
    AnswerStatus "ANSWER_STATUS" Target "the answer's status, as the codec plugin reads it, is a failure";
    _ "PLUGIN_FAILED" Client "the codec plugin failed, or returned an invalid result";

    // Failures of sessions, in which users send queries whose answers are streamed.
    _ "SESSION_REFUSED" Target "the API did not create the session";
    SocketRefused "SOCKET_REFUSED" Target "the WebSocket was not opened: the answer to the upgrade was not 101";
    SocketDenied "SOCKET_DENIED" Target "the session's token was refused (401 or 403); not tried again";
    SocketClosed "SOCKET_CLOSED" Target "the WebSocket was closed and could not be opened again";
    RunRefused "RUN_REFUSED" Target "the API did not start the query's run";
    RunFailed "RUN_FAILED" Target "the run reported an error";
    TokensLost "TOKENS_LOST" Target "the query ended, but tokens were missing, repeated or out of order";
    TokensShort "TOKENS_SHORT" Target "the query ended with fewer tokens than the service or the plan announced";
    BrokenOff "SESSION_BROKEN" Target "an earlier query ended the session, so this one was never sent";

    // HTTP: statuses that the plan does not expect, and answers with unexpected content.
    _ "TAKE_MISSING" Target "the answer lacks what a later step of the journey needs of it";
    _ "HTTP_2XX" Target "the server answered with a success that the plan does not expect";
    _ "HTTP_3XX" Target "the server answered with a 3xx status that has no outcome of its own";
    _ "HTTP_301" Target "the server redirects: 301 Moved Permanently; redirects are not followed";
    _ "HTTP_302" Target "the server redirects: 302 Found; redirects are not followed";
    _ "HTTP_303" Target "the server redirects: 303 See Other; redirects are not followed";
    _ "HTTP_304" Target "the server answered 304 Not Modified";
    _ "HTTP_307" Target "the server redirects: 307 Temporary Redirect; redirects are not followed";
    _ "HTTP_308" Target "the server redirects: 308 Permanent Redirect; redirects are not followed";
    _ "HTTP_4XX" Target "the server answered with a 4xx status that has no outcome of its own";
    _ "HTTP_400" Target "the server answered 400 Bad Request";
    _ "HTTP_401" Target "the server answered 401 Unauthorized: it requires valid credentials";
    _ "HTTP_403" Target "the server answered 403 Forbidden";
    _ "HTTP_404" Target "the server answered 404 Not Found";
    _ "HTTP_405" Target "the server answered 405 Method Not Allowed";
    _ "HTTP_408" Target "the server answered 408 Request Timeout";
    _ "HTTP_409" Target "the server answered 409 Conflict";
    _ "HTTP_410" Target "the server answered 410 Gone";
    _ "HTTP_413" Target "the server answered 413 Content Too Large";
    _ "HTTP_415" Target "the server answered 415 Unsupported Media Type";
    _ "HTTP_422" Target "the server answered 422 Unprocessable Content";
    _ "HTTP_429" Target "the server answered 429 Too Many Requests";
    _ "HTTP_429_RETRY_AFTER" Target "the server answered 429 Too Many Requests, with Retry-After";
    _ "HTTP_5XX" Target "the server answered with a 5xx status that has no outcome of its own";
    _ "HTTP_500" Target "the server answered 500 Internal Server Error";
    _ "HTTP_501" Target "the server answered 501 Not Implemented";
    _ "HTTP_502" Target "a gateway answered 502 Bad Gateway";
    _ "HTTP_503" Target "the server answered 503 Service Unavailable";
    _ "HTTP_503_RETRY_AFTER" Target "the server answered 503 Service Unavailable, with Retry-After";
    _ "HTTP_504" Target "a gateway answered 504 Gateway Timeout";
    _ "HTTP_HEADER" Target "the answer lacks a header field that the plan expects, or it has another value";
    _ "HTTP_BODY" Target "the answer's body does not hold the text that the plan expects";
    _ "MESSAGE_MISMATCH" Target "the answer's message lacks what the plan expects, or has another value";
    _ "FILE_MISSING" Target "the server has no such file, and says so with status 200, as openssl s_server does";
    EventError "EVENT_ERROR" Target "an event of the answer's stream reports an error";

    // Calls beyond the plan's limit of calls in flight.
    NotSent "NOT_SENT" Target "the limit of calls in flight (max_in_flight) was reached, so this call was shed";

    // Calls that had no answer when the server fell silent, or when the run ended.
    NoAnswer "NO_ANSWER" Target "the server stopped answering, heartbeats included";
    CutOff "CUT_OFF" Client "the run's drain time ended with the call in flight";
    Interrupted "INTERRUPTED" Client "the run was interrupted with the call in flight";
}

impl Outcome {
    /// Returns the source of the failure; `None` for [`Outcome::Ok`].
    pub fn failure_source(self) -> Option<FailureSource> {
        FAILURE_SOURCES[self.index()]
    }

    /// Returns whether the call succeeded.
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Outcome::Ok
    }

    /// Returns whether the call was abandoned because the run ended, which says nothing about the target.
    #[inline]
    pub fn is_abandoned(self) -> bool {
        matches!(self, Outcome::CutOff | Outcome::Interrupted)
    }

    /// Returns whether the call failed. An abandoned call did not fail.
    #[inline]
    pub fn is_error(self) -> bool {
        !self.is_ok() && !self.is_abandoned()
    }

    /// Returns whether the call exceeded its deadline. The duration of a call that timed out depends on when the clock
    /// was read.
    pub fn is_timeout(self) -> bool {
        matches!(self, Outcome::DeadlineExceeded | Outcome::ConnectTimeout)
    }

    /// Returns the outcome of gRPC status `number` (0–16, gRPC core, doc/statuscodes.md); any other number gives
    /// `UNKNOWN`, as that document requires of clients.
    #[inline]
    pub fn from_grpc_status(number: u32) -> Outcome {
        match number {
            0..=16 => Outcome(number as u8),
            _ => Outcome::Unknown,
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Outcome {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Outcome, D::Error> {
        let code = String::deserialize(from)?;
        let unknown = || de::Error::custom(format!("{code:?} is not the code of an outcome"));
        Outcome::from_code(&code).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_codes_round_trip_uniquely() {
        for (i, outcome) in Outcome::all().enumerate() {
            assert_eq!(outcome.index(), i);
            assert_eq!(Outcome::from_code(outcome.code()), Some(outcome));
            assert_eq!(Outcome::coded(outcome.code()), outcome);
        }
    }

    #[test]
    fn status_numbers_map_to_first_outcomes() {
        assert_eq!(Outcome::from_grpc_status(0), Outcome::Ok);
        assert_eq!(Outcome::from_grpc_status(4), Outcome::DeadlineExceeded);
        assert_eq!(Outcome::from_grpc_status(12), Outcome::Unimplemented);
        assert_eq!(Outcome::from_grpc_status(16), Outcome::Unauthenticated);
        assert_eq!(Outcome::from_grpc_status(17), Outcome::Unknown);
    }
}
