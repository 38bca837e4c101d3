//! Helpers of the sidecar tests: certificates, configuration, bounded waiting.

#![allow(dead_code, reason = "a test binary uses what it needs of this")]
#![allow(clippy::disallowed_methods, reason = "patience of a test")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_relays::sidecar::{Sidecar, SidecarConfig};
use plimsoll_stack::certificates::{CertificateOptions, make_certificates};

pub(crate) fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), &CertificateOptions::default()).unwrap();
    folder
}

pub(crate) fn sidecar(text: &str) -> (Sidecar, SocketAddr) {
    let failed = |error| panic!("the sidecar could not go on: {error}");
    let sidecar = Sidecar::start(&SidecarConfig::parse(text).unwrap(), failed).unwrap();
    let address = sidecar.listen_addresses()[0].1.tcp_address().unwrap();
    (sidecar, address)
}

pub(crate) fn route(protocol: &str, upstream: SocketAddr, more: &str) -> String {
    format!(
        "[[route]]\nname = \"r\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"{upstream}\"]\n{more}\n"
    )
}

pub(crate) fn files(key: &str, folder: &Path, who: &str) -> String {
    let folder = folder.display();
    let name = match key {
        "upstream_tls" => ", server_name = \"localhost\"",
        _ => "",
    };
    format!(
        "{key} = {{ ca = \"{folder}/ca.crt\", cert = \"{folder}/{who}.crt\", key = \"{folder}/{who}.key\"{name} }}"
    )
}

pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the head and body of a response of the admin page.
pub(crate) fn admin_page(sidecar: &Sidecar, path: &str) -> String {
    try_admin_page(sidecar, path).unwrap()
}

pub(crate) fn try_admin_page(sidecar: &Sidecar, path: &str) -> io::Result<String> {
    let mut admin = TcpStream::connect(sidecar.admin().unwrap())?;
    let wait = Some(Duration::from_secs(30));
    admin.set_read_timeout(wait)?;
    write!(admin, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut answer = String::new();
    admin.read_to_string(&mut answer)?;
    Ok(answer)
}
