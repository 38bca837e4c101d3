//! A value model of Hessian 2 in the dialect of SOFARPC (Caucho's draft of 2006, as version 3.x of Alipay's
//! library writes it).
//!
//! Values are decoded from untrusted bytes: depth and size are bounded, and no memory is reserved for a
//! length before its bytes have arrived. Encoding a decoded value gives the same bytes again if its sender
//! used the shortest forms, as the Java library does.

mod decode;
mod encode;
mod json;
mod to_json;

use std::sync::Arc;

pub use decode::{HessianDecoder, HessianError, decode};
pub use encode::{HessianEncoder, encode};
pub use json::from_json;
pub use to_json::to_json;

/// A class definition as it is encoded: its name and the names of its fields, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct HessianClass {
    /// The class's name with its package, as in Java.
    pub name: String,
    /// The fields' names, in the order of an object's values.
    pub fields: Vec<String>,
}

/// A Hessian value.
#[derive(Clone, Debug, PartialEq)]
pub enum HessianValue {
    /// A null of any type.
    Null,
    /// `java.lang.Boolean`.
    Bool(bool),
    /// `java.lang.Integer`.
    Int(i32),
    /// `java.lang.Long`.
    Long(i64),
    /// `java.lang.Double`.
    Double(f64),
    /// Milliseconds since 1970-01-01T00:00:00Z.
    Date(i64),
    /// `java.lang.String`.
    String(String),
    /// `byte[]`.
    Bytes(Vec<u8>),
    /// `java.util.List`, or an array.
    List {
        /// `None`: an untyped list.
        class: Option<String>,
        /// The items, in order.
        items: Vec<HessianValue>,
    },
    /// `java.util.Map`.
    Map {
        /// `None`: an untyped map.
        class: Option<String>,
        /// Keys and values, in order.
        entries: Vec<(HessianValue, HessianValue)>,
    },
    /// An object of a class with fields.
    Object {
        /// The class, shared by the objects of one stream.
        class: Arc<HessianClass>,
        /// The values of the class's fields.
        fields: Vec<HessianValue>,
    },
    /// A reference to an earlier list, map or object, numbered from 0 in the order in which they begin.
    Ref(u32),
}

impl HessianValue {
    /// Returns the Java class of the value, as a method's signature names it.
    pub fn class_name(&self) -> &str {
        match self {
            HessianValue::Null | HessianValue::Ref(_) => "java.lang.Object",
            HessianValue::Bool(_) => "boolean",
            HessianValue::Int(_) => "int",
            HessianValue::Long(_) => "long",
            HessianValue::Double(_) => "double",
            HessianValue::Date(_) => "java.util.Date",
            HessianValue::String(_) => "java.lang.String",
            HessianValue::Bytes(_) => "[B",
            HessianValue::List { class, .. } => class.as_deref().unwrap_or("java.util.List"),
            HessianValue::Map { class, .. } => class.as_deref().unwrap_or("java.util.Map"),
            HessianValue::Object { class, .. } => &class.name,
        }
    }

    /// Returns the text, if the value is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            HessianValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an object's field by its name.
    pub fn field(&self, name: &str) -> Option<&HessianValue> {
        let HessianValue::Object { class, fields } = self else {
            return None;
        };
        let at = class.fields.iter().position(|field| field == name)?;
        fields.get(at)
    }
}

impl From<&str> for HessianValue {
    fn from(text: &str) -> HessianValue {
        HessianValue::String(text.to_owned())
    }
}
