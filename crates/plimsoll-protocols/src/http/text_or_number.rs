//! Deserializes plan values that may be written with or without quotation marks.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserializer, de};

/// Deserializes a value that is written as a string, a number or a bool.
pub(super) fn deserialize_text_or_number<'de, D, T>(
    deserializer: D,
    expected: &'static str,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    struct FromStrVisitor<T>(&'static str, PhantomData<T>);
    impl<T: FromStr<Err = String>> de::Visitor<'_> for FromStrVisitor<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
        fn visit_bool<E: de::Error>(self, value: bool) -> Result<T, E> {
            self.visit_str(if value { "true" } else { "false" })
        }
        fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_any(FromStrVisitor(expected, PhantomData))
}
