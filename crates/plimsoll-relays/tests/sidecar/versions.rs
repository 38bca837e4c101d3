//! Versions of TLS between two sidecars.

use super::{BoltClient, certificates, echo_server, eventually, files, request, route, sidecar};
use plimsoll_protocols::bolt::FrameLayout;

/// [`files`], with versions.
fn tls(folder: &std::path::Path, key: &str, who: &str, versions: &str) -> String {
    let files = files(key, folder, who);
    match versions {
        "" => files,
        versions => files.replace(" }", &format!(", versions = [{versions}] }}")),
    }
}

#[test]
fn sidecars_negotiate_common_tls_version() {
    let folder = certificates();
    for (ours, theirs, is_fine) in [
        ("", "", true),
        ("", "\"1.2\"", true),
        ("\"1.2\"", "", true),
        ("\"1.3\"", "", true),
        ("", "\"1.3\"", true),
        ("\"1.2\"", "\"1.2\", \"1.3\"", true),
        ("\"1.2\"", "\"1.3\"", false),
        ("\"1.3\"", "\"1.2\"", false),
    ] {
        let listen = tls(folder.path(), "listen_tls", "server", theirs);
        let (server, middle) = sidecar(&route("bolt", echo_server(), &listen));
        let upstream = tls(folder.path(), "upstream_tls", "client", ours);
        let (client, outside) = sidecar(&route("bolt", middle, &upstream));
        let mut caller = BoltClient::connect(outside);
        caller.send(request(FrameLayout::V1, 1, b"\x01x"));
        let status = caller.next_answer().2;
        assert_eq!(status == 0, is_fine, "{ours} and {theirs}: {status}");
        if !is_fine {
            eventually("the failure is counted", || {
                server.counter_value("r", "handshakes_failed_total") > Some(0)
            });
        }
        client.stop();
        server.stop();
    }
}
