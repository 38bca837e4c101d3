//! What to do when not one connection came up. Called where that ends a command.

use plimsoll_model::Outcome;
use plimsoll_model::spec::{is_socket, schemes_like};

/// The most likely remedy, in a sentence. `url`: the target's.
pub(crate) fn on_no_connection(outcome: Outcome, url: &str) -> String {
    let (plain, secured) = schemes_like(url);
    let socket = is_socket(url);
    let rest = if socket { "+unix:" } else { "://" };
    template(outcome, socket, plain.starts_with("http"))
        .replace("{plain}", &format!("{plain}{rest}"))
        .replace("{secured}", &format!("{secured}{rest}"))
}

/// With names in place of the schemes. `versions`: a flag chooses one of several.
fn template(outcome: Outcome, socket: bool, versions: bool) -> &'static str {
    match outcome {
        Outcome::TlsAlpn | Outcome::NotHttp2 if versions => {
            "the server does not speak the version of the protocol that was asked for: ask for another, such as --http-version 1.1"
        }
        Outcome::ConnectRefused | Outcome::ConnectFailed if socket => {
            "is the server running, and is the path right?"
        }
        Outcome::TlsNotTls if socket => {
            "a plaintext server? Then write the target without a secured scheme, and leave the TLS flags out"
        }
        Outcome::ConnectRefused => "is the server running, and are host and port right?",
        Outcome::ConnectTimeout => {
            "is it the right port, and {plain} (plaintext) or {secured} (TLS) as the server speaks? --connect-timeout gives a slow one more time"
        }
        Outcome::TlsUnknownCa => {
            "give the CA that signed the server's certificate, or a self-signed one itself, with --ca (tls.ca)"
        }
        Outcome::TlsCertificateExpired => {
            "renew the server's certificate; if it is valid, this machine's clock is wrong"
        }
        Outcome::TlsCertificateNotYetValid => {
            "wait until the server's certificate begins; if it has begun, this machine's clock is wrong"
        }
        Outcome::TlsCertificateRevoked => {
            "give the server a certificate that is not revoked; --crl (tls.crl) names the list that was checked"
        }
        Outcome::TlsNameMismatch => {
            "use a host name that the certificate is for in the URL, or give it with --server-name (tls.server_name)"
        }
        Outcome::TlsClientCertificateRequired => {
            "give a client certificate with --cert and --key (tls.cert, tls.key)"
        }
        Outcome::TlsClientCertificateRejected => {
            "give a client certificate of a CA that the server trusts, and that has not expired, with --cert and --key (tls.cert, tls.key)"
        }
        Outcome::TlsNotTls => "a plaintext server? Then write the target with {plain}",
        Outcome::TlsVersion => {
            "allow a version of TLS that the server speaks (--tls-version, tls.versions), or this one on the server"
        }
        Outcome::TlsNoCommonParameters => {
            "allow a cipher suite and a key-exchange group that both ends know (--suite, --group; tls.suites, tls.groups)"
        }
        Outcome::TlsAlpn => "the server must offer HTTP/2 (h2) by ALPN: is it a gRPC server?",
        Outcome::TlsBadCertificate | Outcome::TlsAlert | Outcome::TlsFailed => {
            "the server's log may say more; -v shows what was seen here"
        }
        Outcome::NotHttp2 => {
            "is it a gRPC server? If it speaks TLS, write the target with {secured}"
        }
        Outcome::NoDescriptors => "raise `ulimit -n`, or use fewer connections",
        Outcome::NoPorts => {
            "give more local addresses with --source (load.source_addresses), each of them one of this machine"
        }
        _ => {
            "is the server running, is the address right, and is it {plain} (plaintext) or {secured} (TLS)?"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_schemes_of_the_protocol_that_was_typed() {
        for (outcome, url, text) in [
            (
                Outcome::ConnectTimeout,
                "grpc://h:1",
                "grpc:// (plaintext) or grpcs:// (TLS)",
            ),
            (
                Outcome::ConnectTimeout,
                "http://h:1/x",
                "http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::Reset,
                "https://h:1",
                "is it http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::TlsNotTls,
                "https://h:1",
                "write the target with http://",
            ),
            (Outcome::NotHttp2, "http://h:1", "--http-version 1.1"),
            (
                Outcome::NotHttp2,
                "grpc://h:1",
                "write the target with grpcs://",
            ),
            (Outcome::TlsAlpn, "grpcs://h:1", "is it a gRPC server?"),
        ] {
            let advice = on_no_connection(outcome, url);
            assert!(advice.contains(text), "{outcome:?} {url}: {advice}");
        }
    }
}
