//! The services that protocols recognise at an address, with the calls to suggest to a user who gave only the address.
//! Each command ([`crate::registry`] lists the commands) probes for services of its protocol, and the binary lets the
//! user choose.

/// How much is known about a service, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OfferDetail {
    /// The service speaks the protocol.
    Protocol,
    /// The service also describes its calls.
    Calls,
    /// The purpose of the service is known, too.
    Purpose,
}

/// A service that a protocol has recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOffer {
    /// How much is known about the service.
    pub detail: OfferDetail,
    /// The description of the service that the user reads.
    pub service: String,
    /// Calls that the service answers, the most useful first; at least one.
    pub calls: Vec<OfferedCall>,
}

/// A call that a service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedCall {
    /// The name of the call, such as `GET URL` or a method.
    pub name: String,
    /// The arguments of the command that makes this call: the target, then flags.
    pub words: Vec<String>,
    /// The content of the request, for the user to fill in; `None`: the request has none.
    pub content: Option<OfferedContent>,
}

/// The content of an offered call's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedContent {
    /// The flag that sets the content.
    pub flag: &'static str,
    /// The content as JSON, with every field empty.
    pub blank: String,
}

/// Returns the URLs that `address` may stand for, plaintext first: `address` itself if it has one of the schemes, or
/// one URL for each scheme if it has none.
#[cfg(feature = "targets")]
pub(crate) fn candidate_urls(address: &str, schemes: [&str; 2]) -> Vec<String> {
    let address = address.trim();
    match address.split_once("://") {
        Some((scheme, _)) if schemes.contains(&scheme) => vec![address.to_owned()],
        Some(_) => Vec::new(),
        None => schemes.map(|scheme| format!("{scheme}://{address}")).into(),
    }
}

#[cfg(all(test, feature = "targets"))]
#[test]
fn addresses_without_scheme_may_have_either() {
    let urls = |address| candidate_urls(address, ["grpc", "grpcs"]);
    assert_eq!(urls("a:1"), ["grpc://a:1", "grpcs://a:1"]);
    assert_eq!(urls(" grpcs://a:1 "), ["grpcs://a:1"]);
    assert!(urls("http://a:1").is_empty());
}
