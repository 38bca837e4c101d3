//! The files that a plan refers to.

use std::path::PathBuf;

use super::Spec;

impl Spec {
    /// Returns the files that determine the calls, with the plan keys that name them: two runs of a plan are comparable
    /// only if these files are equal. Import folders are not included, since the imported definitions determine the
    /// calls' bytes, which are compared. TLS keys and certificates are not included either, since each machine may have
    /// its own.
    pub fn data_files(&self) -> Vec<(String, PathBuf)> {
        let rows = self.rows.iter().filter_map(|rows| rows.file.clone());
        let rows = rows.map(|path| ("rows.file".to_owned(), path));
        let called = self
            .call
            .present_sections()
            .flat_map(|(protocol, section)| {
                let files = (protocol.files)(section).into_iter();
                let section = protocol.schemes.section;
                files.map(move |(key, path)| (format!("call.{section}.{key}"), path))
            });
        rows.chain(called).collect()
    }

    /// Returns the files of the TLS settings, with the plan keys that name them.
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
