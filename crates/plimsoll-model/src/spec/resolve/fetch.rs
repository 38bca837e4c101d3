//! `[call.fetch]` → plan.

use super::{Problems, is_visible};
use crate::plan::{CallPlan, FetchCall};
use crate::spec::target::path_of;
use crate::spec::{FetchSpec, Spec};
use crate::units::Size;

/// Bodies are counted in 32 bits a call.
const MAX_BYTES: u64 = u32::MAX as u64;

impl Problems {
    pub(super) fn fetch_call(&mut self, spec: &Spec, call: &FetchSpec) -> Option<CallPlan> {
        let before = self.0.len();
        let in_url = spec.target.as_deref().and_then(path_of);
        let path = match (call.path.as_deref(), in_url) {
            (Some(path), Some(other)) if path != other && other != "/" => {
                self.add(
                    "call.fetch.path",
                    format!(
                        "`{path}` is another path than the target's `{other}`: use one of the two"
                    ),
                );
                return None;
            }
            (Some(path), _) | (None, Some(path)) => path,
            (None, None) => "/",
        };
        if !path.starts_with('/') || !is_visible(path) || path.contains('#') {
            self.add(
                "call.fetch.path",
                format!("`{path}` is not a path: begin with `/`, and write blanks and `#` as %20 and %23"),
            );
        }
        if let Some(host) = &call.host
            && !is_visible(host)
        {
            self.add(
                "call.fetch.host",
                format!("`{host}` is not a host or host:port"),
            );
        }
        if call.per_connection == Some(0) {
            self.add(
                "call.fetch.per_connection",
                "0 files a connection fetch nothing: use 1 or more, or leave it out",
            );
        }
        let size = match call.size {
            Some(size) => Some(size.0),
            None => generated_size(path),
        };
        if size.is_some_and(|size| size > MAX_BYTES) {
            self.add("call.fetch.size", "too large: at most 4294967295B");
        }
        (self.0.len() == before).then(|| {
            CallPlan::Fetch(FetchCall {
                path: path.to_owned(),
                host: call.host.clone(),
                size,
                per_connection: call.per_connection,
            })
        })
    }
}

/// The size that a path `/bytes/SIZE` of our own file server asks for.
fn generated_size(path: &str) -> Option<u64> {
    let size = path.strip_prefix("/bytes/")?;
    match size.parse::<u64>() {
        Ok(bytes) => Some(bytes),
        Err(_) => size.parse::<Size>().ok().map(|size| size.0),
    }
}
