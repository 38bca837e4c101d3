//! Sections for the tests of what all sections have in common.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Problems, Schemes, Section, Spec, Surroundings};
use crate::plan::Call;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpSpec {
    path: Option<String>,
}

impl Call for HttpSpec {
    fn names(&self) -> (&'static str, Cow<'_, str>) {
        ("http", "".into())
    }
}

impl Section for HttpSpec {
    const SCHEMES: Schemes = Schemes {
        section: "http",
        purpose: "for HTTP",
        plain: "http",
        secured: Some("https"),
        elsewhere: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    type Call = HttpSpec;

    fn resolve(&self, _: &Spec, _: &mut Problems, _: &dyn Surroundings) -> Option<HttpSpec> {
        Some(self.clone())
    }

    fn filled_in(self, _: &HttpSpec) -> HttpSpec {
        self
    }
}
