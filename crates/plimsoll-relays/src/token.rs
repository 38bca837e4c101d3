//! The token that lets a client open its session's WebSocket: a JWT (RFC 7519) signed with HS256,
//! with the claims `session_id` and `iat`.
//!
//! Gateways verify it without asking a server. The algorithm is pinned, so a token that names
//! another one (or `none`) is rejected. Tokens are never logged.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Deserializer};
use serde_json::json;

/// Minimum length of a secret in bytes: the length of the hash (RFC 7518 §3.2).
pub const MIN_SECRET_BYTES: usize = 32;

/// A secret that is too short for HS256; the value is its length in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret of {0} bytes: HS256 needs at least {MIN_SECRET_BYTES}")]
pub struct SecretTooShort(pub usize);

/// The claims of a token whose signature was verified.
#[derive(Deserialize)]
struct SessionClaims {
    session_id: String,
    /// A NumericDate (RFC 7519 §2), possibly with a fraction. It is not checked, because clocks
    /// differ.
    #[serde(rename = "iat")]
    _iat: f64,
    /// The expiry is checked here as well, because the library rounds it.
    #[serde(default, deserialize_with = "deserialize_numeric_date")]
    exp: Option<f64>,
}

/// Reads a claim that must be a number if it is present: `null` is an error.
fn deserialize_numeric_date<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    f64::deserialize(deserializer).map(Some)
}

/// Why a token is refused. The messages contain nothing from the token.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not a token signed with HS256 and a known secret")]
    NotGenuine,
    #[error("an expired token")]
    Expired,
    #[error("a token without the claims it needs")]
    InvalidClaims,
    #[error("a token of another session")]
    WrongSession,
}

/// The secrets in use. Replacing them affects every clone.
#[derive(Clone)]
pub struct TokenKeys(Arc<RwLock<Arc<ActiveKeys>>>);

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} secrets)", self.active_keys().verifying.len())
    }
}

struct ActiveKeys {
    signing: EncodingKey,
    verifying: Vec<DecodingKey>,
    validation: Validation,
}

impl ActiveKeys {
    fn new(secrets: &[Vec<u8>]) -> Result<Arc<ActiveKeys>, SecretTooShort> {
        let first = secrets.first().ok_or(SecretTooShort(0))?;
        if let Some(short) = secrets.iter().find(|s| s.len() < MIN_SECRET_BYTES) {
            return Err(SecretTooShort(short.len()));
        }
        let mut validation = Validation::new(Algorithm::HS256);
        // `exp` is enforced if present. `iat` is not checked, because clocks differ.
        validation.required_spec_claims.clear();
        validation.validate_exp = true;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.leeway = 0;
        let checking = secrets.iter().map(|s| DecodingKey::from_secret(s));
        Ok(Arc::new(ActiveKeys {
            signing: EncodingKey::from_secret(first),
            verifying: checking.collect(),
            validation,
        }))
    }
}

impl TokenKeys {
    /// Creates keys that sign with the first secret and accept tokens signed with any: during a
    /// rotation the old secret stays valid.
    ///
    /// # Errors
    /// When a secret has fewer than 32 bytes, or there is none.
    pub fn new(secrets: &[Vec<u8>]) -> Result<TokenKeys, SecretTooShort> {
        Ok(TokenKeys(Arc::new(RwLock::new(ActiveKeys::new(secrets)?))))
    }

    /// Replaces the secrets, for every clone.
    ///
    /// # Errors
    /// Returns the errors of [`TokenKeys::new`]; the old secrets then stay in use.
    pub fn replace(&self, secrets: &[Vec<u8>]) -> Result<(), SecretTooShort> {
        let replaced = ActiveKeys::new(secrets)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = replaced;
        Ok(())
    }

    fn active_keys(&self) -> Arc<ActiveKeys> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Signs a token for a session, issued now and without expiry.
    ///
    /// # Errors
    /// When the crypto library fails.
    pub fn sign(&self, session: &str) -> Result<String, jsonwebtoken::errors::Error> {
        let claims = json!({ "session_id": session, "iat": Timestamp::now().as_second() });
        let header = Header::new(Algorithm::HS256);
        encode(&header, &claims, &self.active_keys().signing)
    }

    /// Verifies that the token opens this session.
    ///
    /// # Errors
    /// Returns the reason why the token is refused.
    pub fn verify(&self, token: &str, session: &str) -> Result<(), TokenError> {
        use jsonwebtoken::errors::ErrorKind;
        // The header is unreadable or names an algorithm that the library does not support (`none`).
        if jsonwebtoken::decode_header(token).is_err() {
            return Err(TokenError::NotGenuine);
        }
        let mut refusal = TokenError::NotGenuine;
        let in_use = self.active_keys();
        let now = Timestamp::now().as_millisecond() as f64 / 1000.0;
        for key in &in_use.verifying {
            match decode::<SessionClaims>(token, key, &in_use.validation) {
                // A token is expired from the moment `exp` on (RFC 7519 §4.1.4).
                Ok(checked) if checked.claims.exp.is_some_and(|exp| exp <= now) => {
                    return Err(TokenError::Expired);
                }
                Ok(checked) if checked.claims.session_id == session => return Ok(()),
                Ok(_) => return Err(TokenError::WrongSession),
                Err(e) => match e.kind() {
                    ErrorKind::ExpiredSignature => refusal = TokenError::Expired,
                    ErrorKind::Json(_)
                    | ErrorKind::MissingRequiredClaim(_)
                    | ErrorKind::InvalidClaimFormat(_)
                    | ErrorKind::ImmatureSignature => refusal = TokenError::InvalidClaims,
                    _ => {}
                },
            }
        }
        Err(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const ONE: &[u8] = b"0123456789abcdef0123456789abcdef";
    const TWO: &[u8] = b"another secret of enough bytes, really";

    fn keys(secrets: &[&[u8]]) -> TokenKeys {
        let secrets: Vec<Vec<u8>> = secrets.iter().map(|s| s.to_vec()).collect();
        TokenKeys::new(&secrets).unwrap()
    }

    fn token(algorithm: Algorithm, secret: &[u8], claims: &Value) -> String {
        let key = EncodingKey::from_secret(secret);
        encode(&Header::new(algorithm), claims, &key).unwrap()
    }

    #[test]
    fn token_opens_only_its_session() {
        let token = keys(&[ONE]).sign("s1").unwrap();
        let keys = keys(&[ONE]);
        assert_eq!(keys.verify(&token, "s1"), Ok(()));
        assert_eq!(keys.verify(&token, "s2"), Err(TokenError::WrongSession));
    }

    #[test]
    fn rotation_accepts_both_secrets_only() {
        let old = keys(&[ONE]).sign("s").unwrap();
        let new = keys(&[TWO]).sign("s").unwrap();
        let rotating = keys(&[TWO, ONE]);
        assert_eq!(rotating.verify(&old, "s"), Ok(()));
        assert_eq!(rotating.verify(&new, "s"), Ok(()));
        assert_eq!(keys(&[TWO]).verify(&old, "s"), Err(TokenError::NotGenuine));
    }

    #[test]
    fn invalid_tokens_are_rejected() {
        let claims = json!({ "session_id": "s", "iat": 1 });
        let good = token(Algorithm::HS256, ONE, &claims);
        let (head_and_claims, signature) = good.rsplit_once('.').unwrap();
        let unsigned = format!(
            "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.",
            head_and_claims.split_once('.').unwrap().1
        );
        let past = json!({ "session_id": "s", "iat": 1, "exp": 2 });
        let undated = json!({ "session_id": "s" });
        let worded = json!({ "session_id": "s", "iat": "2026-11-22" });
        let null = json!({ "session_id": "s", "iat": null });
        let finely = json!({ "session_id": "s", "iat": 1_763_700_000.25 });
        let numbered = json!({ "session_id": 5, "iat": 1 });
        let now = Timestamp::now().as_second();
        let this_second = json!({ "session_id": "s", "iat": 1, "exp": now });
        let moment = json!({ "session_id": "s", "iat": 1, "exp": now as f64 - 0.001 });
        let soon = json!({ "session_id": "s", "iat": 1, "exp": now + 3600 });
        let nothing = json!({ "session_id": "s", "iat": 1, "exp": null });
        let strange = json!({ "session_id": "s", "iat": 1, "exp": "never" });
        let future = json!({ "session_id": "s", "iat": 1, "exp": 9_999_999_999u64 });
        let keys = keys(&[ONE]);
        for (name, token, expected) in [
            ("good", good.clone(), Ok(())),
            ("not expired", token(Algorithm::HS256, ONE, &future), Ok(())),
            ("alg none", unsigned, Err(TokenError::NotGenuine)),
            (
                "alg HS512",
                token(Algorithm::HS512, ONE, &claims),
                Err(TokenError::NotGenuine),
            ),
            (
                "expired",
                token(Algorithm::HS256, ONE, &past),
                Err(TokenError::Expired),
            ),
            (
                "exp now",
                token(Algorithm::HS256, ONE, &this_second),
                Err(TokenError::Expired),
            ),
            (
                "exp a moment ago",
                token(Algorithm::HS256, ONE, &moment),
                Err(TokenError::Expired),
            ),
            ("exp soon", token(Algorithm::HS256, ONE, &soon), Ok(())),
            (
                "exp null",
                token(Algorithm::HS256, ONE, &nothing),
                Err(TokenError::InvalidClaims),
            ),
            (
                "exp no number",
                token(Algorithm::HS256, ONE, &strange),
                Err(TokenError::InvalidClaims),
            ),
            (
                "no iat",
                token(Algorithm::HS256, ONE, &undated),
                Err(TokenError::InvalidClaims),
            ),
            (
                "iat no number",
                token(Algorithm::HS256, ONE, &worded),
                Err(TokenError::InvalidClaims),
            ),
            (
                "iat null",
                token(Algorithm::HS256, ONE, &null),
                Err(TokenError::InvalidClaims),
            ),
            (
                "iat with a fraction",
                token(Algorithm::HS256, ONE, &finely),
                Ok(()),
            ),
            (
                "session no text",
                token(Algorithm::HS256, ONE, &numbered),
                Err(TokenError::InvalidClaims),
            ),
            (
                "no session",
                token(Algorithm::HS256, ONE, &json!({ "iat": 1 })),
                Err(TokenError::InvalidClaims),
            ),
            (
                "cut",
                head_and_claims.to_owned(),
                Err(TokenError::NotGenuine),
            ),
            (
                "signature only",
                signature.to_owned(),
                Err(TokenError::NotGenuine),
            ),
            ("empty", String::new(), Err(TokenError::NotGenuine)),
        ] {
            assert_eq!(keys.verify(&token, "s"), expected, "{name}");
        }
    }

    #[test]
    fn valid_replacement_secrets_reach_all_clones() {
        let ours = keys(&[ONE]);
        let (of_another, old) = (ours.clone(), ours.sign("s").unwrap());
        ours.replace(&[TWO.to_vec(), ONE.to_vec()]).unwrap();
        let new = of_another.sign("s").unwrap();
        assert_eq!(keys(&[TWO]).verify(&new, "s"), Ok(()));
        for token in [&old, &new] {
            assert_eq!(of_another.verify(token, "s"), Ok(()));
        }
        assert_eq!(ours.replace(&[vec![1; 3]]), Err(SecretTooShort(3)));
        assert_eq!(ours.replace(&[]), Err(SecretTooShort(0)));
        assert_eq!(ours.verify(&new, "s"), Ok(()));
    }

    #[test]
    fn short_secrets_are_refused() {
        let refused = |secrets: &[Vec<u8>]| TokenKeys::new(secrets).unwrap_err();
        assert_eq!(refused(&[ONE[..31].to_vec()]), SecretTooShort(31));
        assert_eq!(refused(&[ONE.to_vec(), vec![1; 3]]), SecretTooShort(3));
    }
}
