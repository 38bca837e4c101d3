//! A certificate's fingerprint: SHA-256 of its DER encoding, as `openssl x509 -noout -fingerprint -sha256` prints it.

use std::fmt;
use std::str::FromStr;

/// The text form is `sha256:` and 64 hexadecimal digits; colons between bytes are accepted as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let bad = || {
            format!(
                "`{text}` is not a certificate's fingerprint: write sha256: and 64 hexadecimal digits, as `openssl x509 -noout -fingerprint -sha256 -in server.crt` prints them"
            )
        };
        let (algorithm, digits) = text.split_once(':').ok_or_else(bad)?;
        let digits: Vec<u8> = digits.bytes().filter(|b| *b != b':').collect();
        if !algorithm.eq_ignore_ascii_case("sha256") || digits.len() != 64 {
            return Err(bad());
        }
        let digit = |b: u8| char::from(b).to_digit(16);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or_else(bad)?;
            *byte = u8::try_from(high << 4 | low).map_err(|_| bad())?;
        }
        Ok(Fingerprint(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_parses_openssl_and_own_format() {
        let pairs: Vec<String> = (0..32).map(|n: u8| format!("{:02X}", n * 8)).collect();
        let printed = format!("SHA256:{}", pairs.join(":"));
        let read: Fingerprint = printed.parse().unwrap();
        assert_eq!(read.0[31], 248);
        assert_eq!(read.to_string().parse(), Ok(read));
        assert!(read.to_string().starts_with("sha256:0008101820"));
    }

    #[test]
    fn invalid_fingerprints_are_rejected() {
        let digits = "0".repeat(64);
        for text in [
            "",
            &digits,
            "sha256:",
            &format!("sha1:{digits}"),
            &format!("sha256:{digits}0"),
            &format!("sha256:{}g", &digits[1..]),
            &format!("sha256:{}é", &digits[2..]),
        ] {
            let said = text.parse::<Fingerprint>().unwrap_err().to_string();
            assert!(said.contains("64 hexadecimal digits"), "{said}");
        }
    }
}
