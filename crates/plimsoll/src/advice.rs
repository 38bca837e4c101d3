//! What to do when not one connection came up. Called where that ends a command.

use plimsoll_model::Outcome;
use plimsoll_model::spec::{is_socket, schemes_like};

use crate::flag_names;

/// The server speaks another version of the protocol.
const NOT_SPOKEN: Outcome = Outcome::coded("NOT_HTTP2");

/// The versions of HTTP that a call speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// HTTP/1.1 alone.
    One,
    /// HTTP/2 alone.
    Two,
    /// The one that was chosen.
    Chosen,
    None,
}

/// The most likely remedy, in a sentence, with flags that the command at hand has. `url`: the target's.
pub(crate) fn on_no_connection(outcome: Outcome, url: &str, versions: Versions) -> String {
    let (plain, secured) = schemes_like(url);
    let socket = is_socket(url);
    let rest = if socket { "+unix:" } else { "://" };
    let text = template(outcome, socket, versions)
        .replace("{plain}", &format!("{plain}{rest}"))
        .replace("{secured}", &format!("{secured}{rest}"));
    flag_names::filled_in(&text)
}

/// With names in place of the schemes, and keys of a plan (`{tls.ca}`) in place of flags.
fn template(outcome: Outcome, socket: bool, versions: Versions) -> &'static str {
    match outcome {
        Outcome::TlsAlpn | NOT_SPOKEN if versions == Versions::Chosen => {
            "the server does not speak the version of the protocol that was asked for: choose another with {call.http.version}, such as 1.1"
        }
        Outcome::TlsAlpn if versions == Versions::One => {
            "the server must offer HTTP/1.1 by ALPN, the only version that such a load speaks"
        }
        Outcome::ConnectRefused | Outcome::ConnectFailed if socket => {
            "is the server running, and is the path right?"
        }
        Outcome::TlsNotTls if socket => {
            "a plaintext server? Then write the target without a secured scheme, and leave the TLS flags out"
        }
        Outcome::ConnectRefused => "is the server running, and are host and port right?",
        Outcome::ConnectTimeout => {
            "is it the right port, and {plain} (plaintext) or {secured} (TLS) as the server speaks? {load.connect_timeout} gives a slow one more time"
        }
        Outcome::TlsUnknownCa => {
            "give the CA that signed the server's certificate, or a self-signed one itself, with {tls.ca}"
        }
        Outcome::TlsCertificateExpired => {
            "renew the server's certificate; if it is valid, this machine's clock is wrong"
        }
        Outcome::TlsCertificateNotYetValid => {
            "wait until the server's certificate begins; if it has begun, this machine's clock is wrong"
        }
        Outcome::TlsCertificateRevoked => {
            "give the server a certificate that is not revoked; {tls.crl} names the list that was checked"
        }
        Outcome::TlsNameMismatch => {
            "use a host name that the certificate is for in the URL, or give it with {tls.server_name}"
        }
        Outcome::TlsClientCertificateRequired => {
            "give a client certificate with {tls.cert} and {tls.key}"
        }
        Outcome::TlsClientCertificateRejected => {
            "give a client certificate of a CA that the server trusts, and that has not expired, with {tls.cert} and {tls.key}"
        }
        Outcome::TlsNotTls => "a plaintext server? Then write the target with {plain}",
        Outcome::TlsVersion => {
            "allow a version of TLS that the server speaks with {tls.versions}, or allow this one on the server"
        }
        Outcome::TlsNoCommonParameters => {
            "allow a cipher suite and a key-exchange group that both ends know ({tls.suites}, {tls.groups})"
        }
        Outcome::TlsAlpn if versions == Versions::Two => {
            "the server must offer HTTP/2 (h2) by ALPN: are host and port those of the right server?"
        }
        Outcome::TlsBadCertificate | Outcome::TlsAlert | Outcome::TlsFailed => {
            "the server's log may say more; -v shows what was seen here"
        }
        NOT_SPOKEN => "is it a gRPC server? If it speaks TLS, write the target with {secured}",
        Outcome::NoDescriptors => "raise `ulimit -n`, or use fewer connections",
        Outcome::NoPorts => {
            "give more local addresses with {load.source_addresses}, each of them one of this machine"
        }
        _ => {
            "is the server running, is the address right, and is it {plain} (plaintext) or {secured} (TLS)?"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn advice_names_the_schemes_of_the_protocol_that_was_typed() {
        plimsoll_protocols::registry::register();
        for (outcome, url, versions, text) in [
            (
                Outcome::ConnectTimeout,
                "grpc://h:1",
                Versions::Two,
                "grpc:// (plaintext) or grpcs:// (TLS)",
            ),
            (
                Outcome::ConnectTimeout,
                "http://h:1/x",
                Versions::Chosen,
                "http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::Reset,
                "https://h:1",
                Versions::Chosen,
                "is it http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::TlsNotTls,
                "https://h:1",
                Versions::One,
                "write the target with http://",
            ),
            (
                NOT_SPOKEN,
                "http://h:1",
                Versions::Chosen,
                "--http-version (call.http.version), such as 1.1",
            ),
            (
                Outcome::TlsAlpn,
                "https://h:1",
                Versions::One,
                "offer HTTP/1.1 by ALPN",
            ),
            (
                NOT_SPOKEN,
                "grpc://h:1",
                Versions::Two,
                "write the target with grpcs://",
            ),
            (
                Outcome::TlsAlpn,
                "grpcs://h:1",
                Versions::Two,
                "are host and port those",
            ),
        ] {
            let advice = on_no_connection(outcome, url, versions);
            assert!(advice.contains(text), "{outcome:?} {url}: {advice}");
        }
    }

    /// Every key that advice names is one that has a flag, and where a command has it not, the key stands alone.
    #[test]
    fn advice_names_flags_that_commands_have() {
        let command = commands::command();
        for outcome in Outcome::all() {
            for versions in [
                Versions::One,
                Versions::Two,
                Versions::Chosen,
                Versions::None,
            ] {
                for socket in [false, true] {
                    let text = template(outcome, socket, versions)
                        .replace("{plain}", "")
                        .replace("{secured}", "");
                    for sub in command.get_subcommands() {
                        let has = |flag: &str| flag_names::is_of(sub, flag);
                        let advice = flag_names::filled_in_with(&text, has);
                        assert!(!advice.contains(['{', '}']), "{outcome:?}: {advice}");
                        for flag in flag_names::named_in(&advice) {
                            assert!(has(flag), "{} {outcome:?}: {advice}", sub.get_name());
                        }
                    }
                }
            }
        }
    }
}
