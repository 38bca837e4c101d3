//! Translates command lines of other gRPC tools to those of `plimsoll grpc`; there is a module for each tool.

mod ghz;
mod grpcurl;
mod schedules;

use crate::interface::foreign::command_lines::{LineBuilder, LineTool};

/// The tools whose command lines are translated.
pub(super) static LINE_TOOLS: [&LineTool; 2] = [&ghz::TOOL, &grpcurl::TOOL];

/// Plimsoll's flags that only a connection over TLS has.
const TLS_FLAGS: [&str; 5] = ["--ca", "--cert", "--key", "--server-name", "--insecure"];

/// Sets the target to `address`, over TLS unless it is plaintext. If the tool was only guessed, an address without a
/// scheme is plaintext unless there are flags for TLS, as it is behind Plimsoll's own command.
fn set_target(line: &mut LineBuilder, address: &str, plaintext: &str) {
    let has_tls_flags = (line.our_flags.iter()).any(|word| TLS_FLAGS.contains(&word.as_str()));
    let is_guessed_plaintext = line.is_guessed && !has_tls_flags && !address.ends_with(":443");
    let scheme = if line.is_set(plaintext) || is_guessed_plaintext {
        "grpc"
    } else {
        "grpcs"
    };
    let target = match address.strip_prefix("unix:") {
        Some(socket) => format!("{scheme}+unix:{socket}"),
        None if address.contains("://") => address.to_owned(),
        None => format!("{scheme}://{address}"),
    };
    line.target = Some(target);
}

/// Returns a method as `package.Service/Method`; converts `package.Service.Method`.
fn method_with_slash(method: &str) -> String {
    match method.rsplit_once('.') {
        Some((service, name)) if !method.contains('/') => format!("{service}/{name}"),
        _ => method.to_owned(),
    }
}

/// Adds the flags for service descriptions, once for each path of a comma-separated list.
fn add_descriptions(line: &mut LineBuilder) {
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
