//! Translates OpenSSL's names of cipher suites, which many tools use, to the names of the standards.

/// The suites of TLS 1.2 that are supported, by OpenSSL's names.
const OPENSSL_SUITES: [(&str, &str); 6] = [
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
    (
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
];

/// Returns the standards' name of a suite for OpenSSL's name of it; `None` if the suite is not supported, or the name
/// is not one of OpenSSL.
pub fn suite_from_openssl(name: &str) -> Option<&'static str> {
    let mut known = OPENSSL_SUITES.iter();
    let found = known.find(|(theirs, _)| theirs.eq_ignore_ascii_case(name));
    found.map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssl_names_are_translated() {
        let ours = suite_from_openssl("ecdhe-rsa-aes128-gcm-sha256");
        assert_eq!(ours, Some("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"));
        assert_eq!(suite_from_openssl("AES128-SHA"), None);
    }
}
