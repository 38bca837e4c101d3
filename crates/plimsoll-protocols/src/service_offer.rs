//! What answers at an address, as far as a protocol recognises it: calls to propose to somebody who gives only the
//! address. Each command looks for the services of its protocol ([`crate::registry`] lists them), and the binary asks.

/// How much is known about a service; the more, the better is the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OfferDetail {
    /// It speaks the protocol.
    Protocol,
    /// It describes its calls.
    Calls,
    /// It is known what it is for.
    Purpose,
}

/// A service that a protocol has recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceOffer {
    /// How much is known.
    pub detail: OfferDetail,
    /// What it is, for people.
    pub service: String,
    /// Calls that it answers, the most useful first; at least one.
    pub calls: Vec<OfferedCall>,
}

/// A call that a service answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedCall {
    /// The name of what is called.
    pub name: String,
    /// The arguments of the command that makes this call: the target, then flags.
    pub words: Vec<String>,
    /// What the call sends, for somebody to fill in; `None`: it sends nothing.
    pub content: Option<OfferedContent>,
}

/// What a call sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedContent {
    /// The flag that takes it.
    pub flag: &'static str,
    /// It as JSON, with every field empty.
    pub blank: String,
}

/// Returns the URLs by which `address` may mean a service with these schemes, plaintext first: itself if it has one of
/// the schemes, both if it has none.
#[cfg(feature = "targets")]
pub(crate) fn urls_of(address: &str, schemes: [&str; 2]) -> Vec<String> {
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
    let urls = |address| urls_of(address, ["grpc", "grpcs"]);
    assert_eq!(urls("a:1"), ["grpc://a:1", "grpcs://a:1"]);
    assert_eq!(urls(" grpcs://a:1 "), ["grpcs://a:1"]);
    assert!(urls("http://a:1").is_empty());
}
