//! Lines of other tools for gRPC: a file a tool.

mod ghz;
mod grpcurl;

use crate::foreign::lines::{Line, LineTool};

/// The tools whose lines become those of `plimsoll grpc`.
pub(super) static TOOLS: [&LineTool; 2] = [&ghz::TOOL, &grpcurl::TOOL];

/// Sets the target to `address`, over TLS unless it is plaintext.
fn set_target(line: &mut Line, address: &str, plaintext: &str) {
    let scheme = if line.has(plaintext) { "grpc" } else { "grpcs" };
    let target = match address.strip_prefix("unix:") {
        Some(socket) => format!("{scheme}+unix:{socket}"),
        None if address.contains("://") => address.to_owned(),
        None => format!("{scheme}://{address}"),
    };
    line.target = Some(target);
}

/// `package.Service/Method` of a method that is written with a dot, too.
fn our_method(method: &str) -> String {
    match method.rsplit_once('.') {
        Some((service, name)) if !method.contains('/') => format!("{service}/{name}"),
        _ => method.to_owned(),
    }
}

/// Adds `--import-path` for each of a list, and the other flags of descriptions.
fn add_descriptions(line: &mut Line) {
    for (name, flag) in [
        ("import-path", "--import-path"),
        ("proto", "--proto"),
        ("protoset", "--descriptor-set"),
    ] {
        for path in line.values(name).iter().flat_map(|list| list.split(',')) {
            line.add(flag, path);
        }
    }
}
