//! The files that a plan refers to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Problems, ResolveContext, Spec};

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

    /// Returns those of [`Spec::data_files`] that are data, whose checksums a saved plan has. Codec plugins are compiled
    /// on each machine, so they may differ.
    fn checked_files(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.data_files().into_iter();
        let data = files.filter(|(key, _)| !key.ends_with(".codec"));
        data.map(|(_, path)| path)
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

impl Problems {
    /// Returns the checksums of the files that the calls are made of, by path. Reports files that have changed since the
    /// plan was saved.
    pub(super) fn resolve_checksums(
        &mut self,
        spec: &Spec,
        surroundings: &dyn ResolveContext,
    ) -> BTreeMap<String, String> {
        let mut checksums = BTreeMap::new();
        for path in spec.checked_files() {
            let (Some(name), Some(checksum)) = (path.to_str(), surroundings.file_checksum(&path))
            else {
                continue;
            };
            let saved = spec.call.checksums.get(name);
            if let Some(saved) = saved.filter(|saved| **saved != checksum)
                && !checksums.contains_key(name)
            {
                self.add(
                    "call.checksums",
                    format!(
                        "{name} has changed since the plan was saved (checksum {saved}, now {checksum}): remove its line to use it anyway"
                    ),
                );
            }
            checksums.insert(name.to_owned(), checksum);
        }
        checksums
    }
}
