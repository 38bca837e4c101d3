//! What distinguishes a rung from others besides keys of the plan: its security, its network and its TLS library.

use super::{LadderSpec, RungSpec, files, made_by_server};
use crate::named::named;

named! {
    /// The security of a rung's connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum RungSecurity by name {
        /// Plaintext.
        Off "off",
        /// TLS with a server certificate.
        Server "server",
        /// TLS with certificates of both ends.
        Mutual "mutual",
    }
}

named! {
    /// The network between the load and a server of this program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum RungNetwork by name {
        /// The loopback device.
        Localhost "localhost",
        /// A network namespace for the server, connected by a pair of virtual Ethernet devices.
        Namespaces "namespaces",
    }
}

named! {
    /// The TLS implementation of a rung's server, where the ladder starts it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum TlsLibrary by name {
        /// The one of this program's own server.
        #[default]
        Rustls "rustls",
        /// The `openssl` on PATH: its `s_server`, in place of this program's server.
        OpenSsl "openssl",
    }
}

impl RungSpec {
    /// Checks the limits of `s_server`: it sends files, one connection after another, one file on each.
    pub(super) fn check_library(&self, ladder: &LadderSpec) -> Result<(), String> {
        let words = self.serve.as_ref().or(ladder.serve.as_ref());
        let serves = words.and_then(|words| words.first());
        let Some((path, size)) = self.spec.file() else {
            return Err(format!("openssl serves files: it needs [call.{}]", files()));
        };
        let made = made_by_server(path);
        if serves.is_none_or(|word| word != "files") {
            return Err(
                "openssl replaces Plimsoll's own file server: write serve = [\"files\"]".to_owned(),
            );
        }
        if self.security == RungSecurity::Off {
            return Err(format!(
                "rung \"{}\" is plaintext: write tls = \"server\" or \"mutual\"",
                self.name
            ));
        }
        if made.is_none() || made != size {
            return Err(
                "openssl serves only files generated for it: write size = [\"1KiB\"] in [ladder], or the like"
                    .to_owned(),
            );
        }
        if self.spec.load.reuse.as_deref() != Some("never") {
            return Err(
                "openssl closes each connection after a file: write connection = [\"new\"], [\"resumed\"] or both"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
