//! Settings of a rung (one variant in a ladder) that are not keys of the plan: its security, its network and its TLS
//! library.

use super::{LadderSpec, RungSpec, file_section_name, generated_file_size};
use crate::formats::named_enum::named;

named! {
    /// The security of a rung's connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum RungSecurity by name {
        /// Plaintext.
        Off "off",
        /// TLS with a server certificate.
        Server "server",
        /// TLS with certificates of server and client.
        Mutual "mutual",
    }
}

named! {
    /// The network between the load and Plimsoll's own server.
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
        /// Rustls, in Plimsoll's own server.
        #[default]
        Rustls "rustls",
        /// OpenSSL: the `s_server` of the `openssl` on PATH replaces Plimsoll's server.
        OpenSsl "openssl",
    }
}

impl RungSpec {
    /// Checks that `s_server` can serve the rung: it only sends files, serves one connection after another, and sends
    /// one file per connection.
    pub(super) fn check_openssl_support(&self, ladder: &LadderSpec) -> Result<(), String> {
        let words = self.serve.as_ref().or(ladder.serve.as_ref());
        let serves = words.and_then(|words| words.first());
        let Some((path, size)) = self.spec.fetched_file() else {
            return Err(format!(
                "openssl serves files: it needs [call.{}]",
                file_section_name()
            ));
        };
        let made = generated_file_size(path);
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
