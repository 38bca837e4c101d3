//! Makes object-store requests without following redirects, which could send credentials and data to another host.

use std::time::Duration;

use object_store::client::{ClientOptions, HttpClient, HttpConnector};
use object_store::{ClientConfigKey, Error};
use reqwest::redirect::Policy;
use reqwest::{NoProxy, Proxy};

/// Timeout of connecting; equals the library's default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request; equals the library's default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Connector whose HTTP clients report redirects as errors. It supports the library options that are documented for
/// users: plaintext, unchecked certificates, and a proxy.
#[derive(Debug)]
pub(super) struct NoRedirectConnector;

impl HttpConnector for NoRedirectConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |e: reqwest::Error| Error::Generic {
            store: "HTTP",
            source: Box::new(e),
        };
        let value = |key: ClientConfigKey| options.get_config_value(&key);
        let is_set = |key| value(key).as_deref() == Some("true");
        let mut client = reqwest::Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .https_only(!is_set(ClientConfigKey::AllowHttp))
            .tls_danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates));
        if let Some(url) = value(ClientConfigKey::ProxyUrl) {
            let excluded = value(ClientConfigKey::ProxyExcludes);
            let excluded = excluded.as_deref().and_then(NoProxy::from_string);
            client = client.proxy(Proxy::all(url).map_err(failed)?.no_proxy(excluded));
        }
        client.build().map(HttpClient::new).map_err(failed)
    }
}
