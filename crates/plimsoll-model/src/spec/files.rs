//! The files that a plan names.

use std::path::PathBuf;

use super::{BinarySource, Spec};

impl Spec {
    /// The files that decide what a call is, by the keys that name them: two runs of
    /// a plan are the same only where these are. Folders that imports are
    /// looked for in are left out, since what is imported stands in the calls' bytes; TLS keys and certificates are none of them, since
    /// each machine may have its own.
    pub fn data_files(&self) -> Vec<(String, PathBuf)> {
        let mut files = Vec::new();
        let mut add = |key: &str, path: &Option<PathBuf>| {
            if let Some(path) = path {
                files.push((key.to_owned(), path.clone()));
            }
        };
        if let Some(rows) = &self.rows {
            add("rows.file", &rows.file);
        }
        if let Some(http) = &self.call.http {
            add("call.http.body_file", &http.body_file);
            let script = http
                .websocket
                .as_ref()
                .and_then(|socket| socket.script.as_ref());
            for frame in script.into_iter().flatten() {
                add("call.http.websocket.script", &frame.body_file);
            }
        }
        for (protocol, section) in self.call.registered() {
            for (key, path) in protocol.files(section) {
                let key = format!("call.{}.{key}", protocol.schemes().section);
                add(&key, &Some(path));
            }
        }
        if let Some(grpc) = &self.call.grpc {
            add("call.grpc.descriptor_set", &grpc.descriptor_set);
            add("call.grpc.message_file", &grpc.message_file);
            for path in grpc.proto.iter().flatten() {
                add("call.grpc.proto", &Some(path.clone()));
            }
            for source in grpc.message_binary.iter().flat_map(|binary| &binary.0) {
                match source {
                    BinarySource::File(path) | BinarySource::Delimited(path) => {
                        add("call.grpc.message_binary", &Some(path.clone()));
                    }
                    BinarySource::Base64(_) => {}
                }
            }
        }
        files
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
