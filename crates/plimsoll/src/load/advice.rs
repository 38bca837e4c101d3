//! Advises what to do when no connection could be opened; used in the error that ends the command.

use plimsoll_engine::ConnectFailure;
use plimsoll_model::Outcome;
use plimsoll_model::spec::{is_unix_socket, schemes_for_url};

use crate::settings::flag_names;

/// The advice for a failure of which nothing more is known.
const DEFAULT_ADVICE: &str = "is the server running, is the address right, and is it {plain} (plaintext) or {secured} (TLS)?";

/// Returns a sentence with the most likely remedy, which names flags of the current command. `url` is the target's URL;
/// `of_protocol` is advice from the target's protocol.
pub(crate) fn connect_failure_advice(
    failure: &ConnectFailure,
    url: &str,
    of_protocol: Option<&'static str>,
) -> String {
    let (plain, secured) = schemes_for_url(url);
    let socket = is_unix_socket(url);
    let rest = if socket { "+unix:" } else { "://" };
    let is_after_tls = failure.is_after_tls;
    // Once TLS is established, the scheme of the URL is right.
    let of_protocol = of_protocol.filter(|text| !is_after_tls || !text.contains("{secured}"));
    let text = match (of_protocol, is_after_tls) {
        _ if failure.is_at_proxy => proxy_template(failure.outcome),
        (Some(text), _) => text,
        (None, true) => after_tls_template(failure.outcome, socket),
        (None, false) => advice_template(failure.outcome, socket),
    };
    let text = text
        .replace("{plain}", &format!("{plain}{rest}"))
        .replace("{secured}", &format!("{secured}{rest}"));
    flag_names::fill_in_flags(&text)
}

/// Returns a sentence with the remedy for a host name that did not resolve: the target's, or that of the proxy.
pub(crate) fn unresolved_name_advice(is_proxy: bool) -> String {
    flag_names::fill_in_flags(if is_proxy {
        "check the host name of the proxy ({load.proxy})"
    } else {
        "check the host name of the target"
    })
}

/// Returns the advice for a failure of the proxy, with the placeholders of [`advice_template`].
fn proxy_template(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::ConnectRefused | Outcome::ConnectUnreachable => {
            "is the proxy running, and is its address right ({load.proxy})?"
        }
        Outcome::ConnectTimeout => {
            "is the proxy's address right ({load.proxy}), and can it reach the target? {load.connect_timeout} gives it more time"
        }
        _ => {
            "is this the right proxy, and does it need a user and a password ({load.proxy})? Its log may say more"
        }
    }
}

/// Returns the advice for a failure after the TLS handshake, with the placeholders of [`advice_template`].
fn after_tls_template(outcome: Outcome, socket: bool) -> &'static str {
    match (outcome, advice_template(outcome, socket)) {
        (Outcome::ConnectTimeout, _) => {
            "TLS was established: does this service speak the target's protocol? {load.connect_timeout} gives a slow server more time"
        }
        (_, text) if text == DEFAULT_ADVICE => {
            "TLS was established: does this service speak the target's protocol?"
        }
        (_, text) => text,
    }
}

/// Returns the advice, with placeholders for URL schemes (`{plain}`) and for the flags of plan keys (`{tls.ca}`).
fn advice_template(outcome: Outcome, socket: bool) -> &'static str {
    match outcome {
        Outcome::ConnectRefused | Outcome::ConnectFailed if socket => {
            "is the server running, and is the path right?"
        }
        Outcome::TlsNotTls if socket => {
            "a plaintext server? Then write the target without a secured scheme, and omit the TLS flags"
        }
        Outcome::ConnectRefused => "is the server running, and are host and port right?",
        Outcome::ConnectTimeout => {
            "is it the right port, and {plain} (plaintext) or {secured} (TLS) as the server speaks? {load.connect_timeout} gives a slow server more time"
        }
        Outcome::TlsUnknownCa => {
            "give the CA that signed the server's certificate, or a self-signed one itself, with {tls.ca}"
        }
        Outcome::TlsCertificateExpired => {
            "renew the server's certificate; if it is valid, this machine's clock is wrong"
        }
        Outcome::TlsCertificateNotYetValid => {
            "wait until the server's certificate becomes valid; if it already is, this machine's clock is wrong"
        }
        Outcome::TlsCertificateRevoked => {
            "give the server a certificate that is not revoked; {tls.crl} names the list that was checked"
        }
        Outcome::TlsNameMismatch => {
            "use a host name from the server's certificate in the URL, or give it with {tls.server_name}"
        }
        Outcome::TlsClientCertificateRequired => {
            "give a client certificate with {tls.cert} and {tls.key}"
        }
        Outcome::TlsClientCertificateRejected => {
            "give a client certificate of a CA that the server trusts, and that has not expired, with {tls.cert} and {tls.key}"
        }
        Outcome::TlsNotTls => "a plaintext server? Then write the target with {plain}",
        Outcome::TlsVersion => {
            "allow a TLS version that the server supports with {tls.versions}, or allow this one on the server"
        }
        Outcome::TlsNoCommonParameters => {
            "a server whose only key is RSA-PSS, Ed448 or DSA needs another key: these are not supported; otherwise allow a cipher suite and a key-exchange group that both ends support ({tls.suites}, {tls.groups})"
        }
        Outcome::TlsBadCertificate | Outcome::TlsAlert | Outcome::TlsFailed => {
            "the server's log may say more; -v shows what was seen here"
        }
        Outcome::NoDescriptors => "raise `ulimit -n`, or use fewer connections",
        Outcome::NoPorts => {
            "give more local addresses of this machine with {load.source_addresses}"
        }
        Outcome::NoSocket => {
            "fix the named problem of this machine; addresses in {load.source_addresses} must belong to it"
        }
        _ => DEFAULT_ADVICE,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::Plan;
    use plimsoll_model::spec;
    use plimsoll_protocols::registry;

    use super::*;
    use crate::commands;
    use crate::load::planning;
    use crate::settings::environment::Environment;
    use crate::settings::problems::PlanSource;

    /// Returns a plan with this target and call.
    fn plan(target: &str, call: &str) -> Plan {
        registry::register_protocols();
        let load = "[load]\nclients = 1\ncalls = 1\n";
        let spec = spec::read(&format!("target = \"{target}\"\n{call}\n{load}"));
        planning::resolve_plan(
            &spec.expect("a plan"),
            &Environment::default(),
            &PlanSource::Flags,
        )
        .expect("resolved")
    }

    fn grpc() -> Plan {
        plan(
            "grpc://h:1",
            "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"",
        )
    }

    fn http() -> Plan {
        plan("http://h:1/x", "[call.http]")
    }

    fn session() -> Plan {
        plan("session://h:1", "[call.session]\nsocket = \"ws://h:2\"")
    }

    /// Outcome of a server that speaks another HTTP version.
    const NOT_SPOKEN: Outcome = Outcome::coded("NOT_HTTP2");

    #[test]
    fn advice_uses_schemes_of_target_protocol() {
        for (outcome, url, plan, text) in [
            (
                Outcome::ConnectTimeout,
                "grpc://h:1",
                grpc(),
                "grpc:// (plaintext) or grpcs:// (TLS)",
            ),
            (
                Outcome::ConnectTimeout,
                "http://h:1/x",
                http(),
                "http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::Reset,
                "https://h:1",
                http(),
                "is it http:// (plaintext) or https:// (TLS)",
            ),
            (
                Outcome::TlsNotTls,
                "https://h:1",
                session(),
                "write the target with http://",
            ),
            (
                NOT_SPOKEN,
                "http://h:1",
                http(),
                "--http-version (call.http.version), such as 1.1",
            ),
            (
                Outcome::TlsAlpn,
                "https://h:1",
                session(),
                "offer HTTP/1.1 by ALPN",
            ),
            (
                NOT_SPOKEN,
                "grpc://h:1",
                grpc(),
                "write the target with grpcs://",
            ),
            (
                Outcome::TlsAlpn,
                "grpcs://h:1",
                grpc(),
                "are host and port those",
            ),
        ] {
            let advice = advice_for(outcome, url, &plan, TlsProgress::Unknown);
            assert!(advice.contains(text), "{outcome:?} {url}: {advice}");
        }
    }

    /// Whether TLS was established before a failure.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum TlsProgress {
        Unknown,
        Complete,
    }

    fn advice_for(outcome: Outcome, url: &str, plan: &Plan, tls: TlsProgress) -> String {
        let failure = ConnectFailure {
            outcome,
            detail: String::new(),
            is_after_tls: tls == TlsProgress::Complete,
            is_at_proxy: false,
        };
        connect_failure_advice(&failure, url, registry::connect_advice(plan, outcome))
    }

    #[test]
    fn failures_of_proxy_have_advice_about_it() {
        for outcome in [
            Outcome::ConnectRefused,
            Outcome::ConnectTimeout,
            Outcome::ConnectUnreachable,
            Outcome::ConnectFailed,
            Outcome::Reset,
        ] {
            let failure = ConnectFailure {
                is_at_proxy: true,
                ..ConnectFailure::new(outcome, "")
            };
            for (url, plan) in [("grpc://h:1", grpc()), ("http://h:1", http())] {
                let of_protocol = registry::connect_advice(&plan, outcome);
                let advice = connect_failure_advice(&failure, url, of_protocol);
                assert!(advice.contains("proxy"), "{outcome:?}: {advice}");
                assert!(!advice.contains("server"), "{outcome:?}: {advice}");
            }
        }
        assert!(unresolved_name_advice(true).contains("of the proxy"));
    }

    #[test]
    fn established_tls_settles_the_scheme() {
        for outcome in [
            Outcome::ConnectTimeout,
            Outcome::Reset,
            Outcome::ConnectionClosed,
            Outcome::ProtocolError,
            NOT_SPOKEN,
        ] {
            let advice = advice_for(outcome, "grpcs://h:1", &grpc(), TlsProgress::Complete);
            assert!(
                advice.contains("TLS was established"),
                "{outcome:?}: {advice}"
            );
            assert!(!advice.contains("://"), "{outcome:?}: {advice}");
        }
        let advice = advice_for(NOT_SPOKEN, "https://h:1", &http(), TlsProgress::Complete);
        assert!(advice.contains("--http-version"), "{advice}");
    }

    #[test]
    fn unsupported_server_keys_come_before_suites() {
        let outcome = Outcome::TlsNoCommonParameters;
        let advice = advice_for(outcome, "https://h:1", &http(), TlsProgress::Unknown);
        assert!(
            advice.starts_with("a server whose only key is RSA-PSS"),
            "{advice}"
        );
    }

    /// Every key named in advice has a flag; for commands without that flag the key is shown alone.
    #[test]
    fn advice_mentions_only_existing_flags() {
        let command = commands::command();
        let plans = [grpc(), http(), session()];
        for outcome in Outcome::all() {
            let of_protocols = plans
                .iter()
                .map(|plan| registry::connect_advice(plan, outcome));
            let of_all = [false, true].map(|socket| advice_template(outcome, socket));
            let after_tls = after_tls_template(outcome, false);
            for text in of_protocols.flatten().chain(of_all).chain([after_tls]) {
                let text = text.replace("{plain}", "").replace("{secured}", "");
                for sub in command.get_subcommands() {
                    let has = |flag: &str| flag_names::is_of(sub, flag);
                    let advice = flag_names::fill_in_flags_with(&text, has);
                    assert!(!advice.contains(['{', '}']), "{outcome:?}: {advice}");
                    for flag in flag_names::mentioned_flags(&advice) {
                        assert!(has(flag), "{} {outcome:?}: {advice}", sub.get_name());
                    }
                }
            }
        }
    }
}
