//! The two ends of a connection, as type parameters of [`super::Http2Connection`].

/// The role of the end of a connection that a value represents.
pub trait EndpointRole: Copy {
    /// Returns whether this is the end that connected and opens streams.
    fn is_client(self) -> bool;
}

/// The client: it connected and opens streams.
#[derive(Clone, Copy, Debug)]
pub struct ClientRole;

/// The server: it accepted the connection.
#[derive(Clone, Copy, Debug)]
pub struct ServerRole;

/// Either role, for types that must represent both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EitherRole {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl EndpointRole for ClientRole {
    #[inline(always)]
    fn is_client(self) -> bool {
        true
    }
}

impl EndpointRole for ServerRole {
    #[inline(always)]
    fn is_client(self) -> bool {
        false
    }
}

impl EndpointRole for EitherRole {
    #[inline(always)]
    fn is_client(self) -> bool {
        self == EitherRole::Client
    }
}
