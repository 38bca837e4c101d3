//! The files that a plan names.

use std::path::PathBuf;

use super::Spec;

impl Spec {
    /// The files that decide what a call is, by the keys that name them: two runs of
    /// a plan are the same only where these are. Folders that imports are
    /// looked for in are left out, since what is imported stands in the calls' bytes; TLS keys and certificates are none of them, since
    /// each machine may have its own.
    pub fn data_files(&self) -> Vec<(String, PathBuf)> {
        let rows = self.rows.iter().filter_map(|rows| rows.file.clone());
        let rows = rows.map(|path| ("rows.file".to_owned(), path));
        let called = self.call.protocols().flat_map(|(protocol, section)| {
            let files = (protocol.files)(section).into_iter();
            let section = protocol.schemes.section;
            files.map(move |(key, path)| (format!("call.{section}.{key}"), path))
        });
        rows.chain(called).collect()
    }

    /// The files of the link's security, by their keys.
    pub fn tls_files(&self) -> Vec<(String, PathBuf)> {
        let Some(tls) = &self.tls else {
            return Vec::new();
        };
        let named = [
            ("tls.ca", &tls.ca),
            ("tls.crl", &tls.crl),
            ("tls.cert", &tls.cert),
            ("tls.key", &tls.key),
        ];
        let named = named.into_iter();
        named
            .filter_map(|(key, path)| Some((key.to_owned(), path.clone()?)))
            .collect()
    }
}
