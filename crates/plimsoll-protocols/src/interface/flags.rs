//! Flags that the commands of several protocols share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_model::spec::{GoodputSpec, MetadataSpec};
use serde::Serialize;

use crate::interface::protocol_module::UsageError;

/// Flags of every command whose calls have header fields or metadata.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct CredentialFlags {
    /// A header field or metadata entry whose value a shell command prints: 'authorization: CMD'; repeatable.
    #[arg(
        long,
        visible_alias = "metadata-from-command",
        value_name = "NAME: CMD",
        help_heading = "Call"
    )]
    header_from_command: Vec<String>,

    /// Interval at which the commands of --header-from-command run again; later calls use the new value [default:
    /// never].
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_seconds,
        requires = "header_from_command",
        help_heading = "Call"
    )]
    refresh: Option<Period>,
}

impl CredentialFlags {
    /// Adds the header fields whose values commands print.
    ///
    /// # Errors
    /// When a value has no colon.
    pub fn add_to(&self, fields: &mut BTreeMap<String, MetadataSpec>) -> Result<(), UsageError> {
        for typed in &self.header_from_command {
            let example = "authorization: printf \"Bearer %s\" \"$(cat token)\"";
            let (name, command) = split_name_value("--header-from-command", typed, example)?;
            let value = MetadataSpec::Command {
                command: command.to_owned(),
                refresh: self.refresh,
            };
            push_field(fields, name, value);
        }
        Ok(())
    }
}

/// The flag of every command whose calls are requests over HTTP.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct BasicAuthFlags {
    /// Basic authentication: a field authorization with user and password; $NAME as the password is taken from the
    /// environment ($$ is a plain $).
    #[arg(short = 'u', long, value_name = "USER:PASSWORD", help_heading = "Call")]
    user: Option<String>,
}

impl BasicAuthFlags {
    /// Adds the field `authorization`, if the flag is given.
    ///
    /// # Errors
    /// When the value has no colon, or when a field `authorization` is given, too.
    pub fn add_to(&self, fields: &mut BTreeMap<String, MetadataSpec>) -> Result<(), UsageError> {
        let Some(pair) = &self.user else {
            return Ok(());
        };
        if !pair.contains(':') {
            return Err(UsageError::new(
                "--user: no colon in the value",
                "write --user USER:PASSWORD, or --user 'USER:$NAME' for a password of the environment",
            ));
        }
        let mut names = fields.keys();
        if names.any(|name| name.eq_ignore_ascii_case("authorization")) {
            return Err(UsageError::new(
                "--user can't be combined with a field `authorization`",
                "use one of the two",
            ));
        }
        fields.insert(
            "authorization".to_owned(),
            MetadataSpec::Basic(pair.clone()),
        );
        Ok(())
    }
}

/// Flags of every command that connects to a server, for the authentication of server and client. The fields have the
/// names of a `TlsSpec`'s keys.
#[derive(Debug, Default, Args, Serialize)]
pub struct TlsFlags {
    /// Trusted CA certificates (PEM or DER), or the server's own [default: the system's].
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    ca: Option<PathBuf>,

    /// Accept the server certificate with this fingerprint, sha256:…, whatever its name and issuer; repeatable.
    /// Replaces --ca.
    #[arg(long, value_name = "FINGERPRINT", help_heading = "TLS")]
    pin: Option<Vec<String>>,

    /// Accept any server certificate. Every report of the run says so.
    #[arg(short = 'k', long, help_heading = "TLS")]
    insecure: bool,

    /// Reject a server certificate that these revocation lists (CRL, PEM or DER) contain; give one for each issuer in
    /// its chain.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    crl: Option<PathBuf>,

    /// Client certificate (PEM), for mutual TLS.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    cert: Option<PathBuf>,

    /// Private key (PEM) of --cert.
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    key: Option<PathBuf>,

    /// The name to check the certificate against [default: the target's host].
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    server_name: Option<String>,
}

/// Parses the values of `flag` (`--metadata` or `--header`): all values of a name, in order.
///
/// # Errors
/// Returns the errors of [`split_name_value`].
pub fn parse_fields(
    flag: &str,
    typed: &[String],
) -> Result<BTreeMap<String, MetadataSpec>, UsageError> {
    let mut fields = BTreeMap::new();
    for typed in typed {
        let (name, value) = parse_entry(flag, typed)?;
        push_field(&mut fields, name, value);
    }
    Ok(fields)
}

/// Parses the values of `flag` as a map with one value for each name; names are case-sensitive.
///
/// # Errors
/// Returns the errors of [`split_name_value`], and an error when a name is given twice.
pub fn parse_map_entries(
    flag: &str,
    typed: &[String],
) -> Result<BTreeMap<String, MetadataSpec>, UsageError> {
    let mut entries = BTreeMap::new();
    for typed in typed {
        let (name, value) = parse_entry(flag, typed)?;
        if entries.insert(name.to_owned(), value).is_some() {
            return Err(UsageError::new(
                format_args!("{flag}: `{name}` is set twice, but has only one value"),
                "remove one of the two",
            ));
        }
    }
    Ok(entries)
}

fn parse_entry<'a>(flag: &str, typed: &'a str) -> Result<(&'a str, MetadataSpec), UsageError> {
    let (name, value) = split_name_value(flag, typed, "x-tenant: 7")?;
    Ok((name, MetadataSpec::from_flag(value)))
}

/// Adds a value after earlier values of the same name, ignoring the name's case (RFC 9110 §5.1).
fn push_field(fields: &mut BTreeMap<String, MetadataSpec>, name: &str, value: MetadataSpec) {
    let mut known = fields.iter_mut();
    match known.find(|(known, _)| known.eq_ignore_ascii_case(name)) {
        Some((_, before)) => before.push(value),
        None => {
            fields.insert(name.to_owned(), value);
        }
    }
}

/// Splits `NAME: VALUE`.
///
/// # Errors
/// When there is no colon. The message does not repeat the value, which may be secret.
pub fn split_name_value<'a>(
    flag: &str,
    typed: &'a str,
    example: &str,
) -> Result<(&'a str, &'a str), UsageError> {
    let (name, value) = typed.split_once(':').ok_or_else(|| {
        UsageError::new(
            format_args!("{flag}: no colon in the value"),
            &format!("write, for example, {flag} '{example}'"),
        )
    })?;
    Ok((name.trim(), value.trim()))
}

/// One bound of goodput, as the user writes it: `KEY=TIME`.
#[derive(Clone, Copy, Debug)]
pub struct GoodputBound(GoodputFieldSelector, Period);

/// A function that returns the plan field that a bound is stored in.
type GoodputFieldSelector = fn(&mut GoodputSpec) -> &mut Option<Period>;

impl FromStr for GoodputBound {
    type Err = String;

    fn from_str(typed: &str) -> Result<GoodputBound, String> {
        let (key, time) = typed
            .split_once('=')
            .ok_or("write KEY=TIME, such as first_token=500ms")?;
        let place: GoodputFieldSelector = match key {
            "first_token" | "ttft" => |spec| &mut spec.first_token,
            "time_per_token" | "tpot" => |spec| &mut spec.time_per_token,
            "query" | "e2e" => |spec| &mut spec.query,
            other => {
                return Err(format!(
                    "`{other}` is not one of first_token (ttft), time_per_token (tpot), query (e2e)"
                ));
            }
        };
        let time = time.parse::<Period>().map_err(|e| e.to_string())?;
        Ok(GoodputBound(place, time))
    }
}

/// Combines all bounds into the plan's section; `None` if there are no bounds.
pub fn combine_goodput_bounds(bounds: &[GoodputBound]) -> Option<GoodputSpec> {
    if bounds.is_empty() {
        return None;
    }
    let mut spec = GoodputSpec::default();
    for GoodputBound(place, time) in bounds {
        *place(&mut spec) = Some(*time);
    }
    Some(spec)
}
