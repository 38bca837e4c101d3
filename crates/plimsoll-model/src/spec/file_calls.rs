//! Calls that fetch files. A ladder can vary the file size.

use toml::Value;

use super::target::call_path;
use super::{Spec, protocol};
use crate::formats::units::ByteSize;

/// Maximum bytes in flight in a ladder that varies the file size. It limits the number of clients: a server that sends
/// sixteen files of 512 MiB at once finishes none of them in time.
const MAX_IN_FLIGHT_BYTES: u64 = 64 << 20;

/// Returns the section of calls that fetch files, to which an axis of sizes applies.
pub(super) fn file_section_name() -> &'static str {
    let fetching = protocol::all().find(|protocol| protocol.fetches_files);
    let schemes = fetching.map_or(protocol::default_url_schemes(), |protocol| protocol.schemes);
    schemes.section
}

impl Spec {
    /// Returns the path of the file that the calls fetch, and its size if the plan contains it; `None`: calls fetch no
    /// file.
    pub fn fetched_file(&self) -> Option<(&str, Option<u64>)> {
        let section = self.call.sections.get(file_section_name())?;
        let text = |key: &str| section.get(key).and_then(Value::as_str);
        let size = text("size").and_then(|size| size.parse().ok());
        Some((
            text("path").unwrap_or_default(),
            size.map(|size: ByteSize| size.0),
        ))
    }

    /// Replaces the plan's file with one of this size, which Plimsoll's own server generates.
    pub(super) fn set_file_size(&mut self, text: &str) -> Result<(), String> {
        let size: ByteSize = text.parse()?;
        let section = self.call.sections.get_mut(file_section_name());
        let section = section
            .ok_or_else(|| format!("an axis of files: it needs [call.{}]", file_section_name()))?;
        section.insert("size".to_owned(), size.to_string().into());
        section.insert("path".to_owned(), format!("/bytes/{}", size.0).into());
        if let Some(target) = &mut self.target
            && let Some(path) = call_path(target).map(str::len)
        {
            target.truncate(target.len() - path);
        }
        let most = u32::try_from(MAX_IN_FLIGHT_BYTES / size.0.max(1))
            .unwrap_or(u32::MAX)
            .max(1);
        self.load.clients = self.load.clients.map(|clients| clients.min(most));
        self.load.connections = self.load.connections.map(|n| n.min(most));
        Ok(())
    }
}

/// Returns the size of a generated file from its path `/bytes/SIZE`.
pub fn generated_file_size(path: &str) -> Option<u64> {
    let size = path.strip_prefix("/bytes/")?;
    let bytes = size.parse().ok();
    bytes.or_else(|| Some(size.parse::<ByteSize>().ok()?.0))
}
