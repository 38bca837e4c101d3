//! Entries of `load.resolve`, which replace the addresses to which a name resolves. They have the syntax of curl's
//! `--resolve`: `NAME:PORT:ADDRESS,ADDRESS`.

use std::net::IpAddr;

use crate::plan::Target;

/// An entry of `load.resolve`.
struct AddressOverride<'a> {
    host: &'a str,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl AddressOverride<'_> {
    fn matches_target(&self, target: &Target) -> bool {
        self.port == target.port && self.host.eq_ignore_ascii_case(&target.host)
    }
}

fn parse_entry(text: &str) -> Result<AddressOverride<'_>, String> {
    let wrong = |what: String| {
        format!(
            "`{text}` {what}: write NAME:PORT:ADDRESS, or several addresses with commas between them, such as \"api.test:443:127.0.0.1,[::1]\""
        )
    };
    let mut parts = text.splitn(3, ':');
    let (Some(host), Some(port), Some(addresses)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong("has no address".into()));
    };
    if host.is_empty() {
        return Err(wrong("has no name".into()));
    }
    let port = port
        .parse()
        .ok()
        .filter(|&p| p != 0)
        .ok_or_else(|| wrong(format!("has the invalid port `{port}`")))?;
    let mut found = Vec::new();
    for typed in addresses.split(',') {
        let bare = typed.trim();
        let bare = bare
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .unwrap_or(bare);
        let address = bare
            .parse()
            .map_err(|_| wrong(format!("has the invalid IP address `{typed}`")))?;
        if !found.contains(&address) {
            found.push(address);
        }
    }
    Ok(AddressOverride {
        host,
        port,
        addresses: found,
    })
}

/// Sets the addresses of those `targets` for which there is an entry.
///
/// # Errors
/// Returns the number of an entry that is invalid or applies to none of the targets, and its problem.
pub fn set_target_addresses(
    entries: &[String],
    targets: &mut [&mut Target],
) -> Result<(), (usize, String)> {
    for (number, text) in entries.iter().enumerate() {
        let given = parse_entry(text).map_err(|problem| (number, problem))?;
        let mut used = false;
        for target in targets
            .iter_mut()
            .filter(|target| given.matches_target(target))
        {
            target.addresses.clone_from(&given.addresses);
            used = true;
        }
        if !used {
            let known: Vec<String> = targets
                .iter()
                .map(|target| format!("{}:{}", target.host, target.port))
                .collect();
            return Err((
                number,
                format!(
                    "`{text}` is for {}:{}, and the target is {}",
                    given.host,
                    given.port,
                    known.join(" and ")
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse_target;

    #[test]
    fn target_gets_its_given_addresses() {
        let (mut target, _) = parse_target("grpc://Api.test:443").unwrap();
        let entries = ["api.test:443:127.0.0.1, [::1],::2,127.0.0.1".to_owned()];
        set_target_addresses(&entries, &mut [&mut target]).unwrap();
        let expected: Vec<IpAddr> = ["127.0.0.1", "::1", "::2"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(target.addresses, expected);
    }

    #[test]
    fn malformed_entry_errors_suggest_fix() {
        let (mut target, _) = parse_target("grpc://a:1").unwrap();
        for (entry, needle) in [
            ("a:1", "has no address: write NAME:PORT:ADDRESS"),
            ("a:x:::1", "has the invalid port `x`"),
            (":1:::1", "has no name"),
            ("a:1:", "has the invalid IP address ``"),
            ("a:1:127.0.0.1,b", "has the invalid IP address `b`"),
            ("b:1:127.0.0.1", "is for b:1, and the target is a:1"),
        ] {
            let (number, problem) =
                set_target_addresses(&[entry.to_owned()], &mut [&mut target]).expect_err(entry);
            assert_eq!(number, 0);
            assert!(problem.contains(needle), "{entry}: {problem}");
        }
    }
}
