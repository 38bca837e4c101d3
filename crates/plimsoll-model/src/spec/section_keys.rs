//! Gets the keys of a section from its Rust type, so that the list of keys always matches the type.

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Returns the keys of a struct, as its derived `Deserialize` lists them.
pub fn struct_keys<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct KeyCollector<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for KeyCollector<'_> {
        type Error = de::value::Error;
        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(de::Error::custom("only asked for its keys"))
        }
        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }
        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
            option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut keys: &'static [&'static str] = &[];
    let refused = T::deserialize(KeyCollector(&mut keys)).is_err();
    debug_assert!(refused);
    keys
}
