//! Sections for tests of what all sections have in common.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Value;

use super::{CallProtocol, CallSection, UrlSchemes};
use crate::plan::{Call, RequestFields};
use crate::rows::template::{MetadataField, RowOrder, VariationSettings};
use crate::spec::{
    FieldNameRules, MetadataSpec, OptionalPeriod, PlanRows, Problems, ResolveContext, Spec,
};

pub(in crate::spec) const ALL: [&CallProtocol; 2] = [
    &CallProtocol::new::<GrpcSpec>(),
    &CallProtocol::new::<HttpSpec>(),
];

const METADATA: FieldNameRules = FieldNameRules {
    key: "call.grpc.metadata",
    binary: true,
    check: |_| Ok(()),
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::spec) struct GrpcSpec {
    pub(in crate::spec) method: Option<String>,
    pub(in crate::spec) message: Option<Value>,
    pub(in crate::spec) deadline: Option<OptionalPeriod>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, MetadataSpec>,
}

#[derive(Debug, PartialEq)]
pub(in crate::spec) struct GrpcCall {
    method: String,
    metadata: RequestFields,
}

impl Call for GrpcCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        ("grpc", self.method.as_str().into())
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&self.metadata.constant, &[])
    }
}

impl CallSection for GrpcSpec {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "grpc",
        purpose: "for gRPC",
        plain: "grpc",
        secured: Some("grpcs"),
        aliases: None,
        foreign_schemes: &[],
        ports: None,
        with_path: false,
    };
    type Call = GrpcCall;

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.metadata)
    }

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        path.starts_with("metadata.").then(MetadataSpec::keys)
    }

    fn resolve(
        &self,
        _: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<GrpcCall> {
        let given = PlanRows::Nothing;
        let metadata = problems.resolve_metadata(&METADATA, &self.metadata, given, surroundings);
        let method = self.method.clone().ok_or_else(|| "missing".to_owned());
        Some(GrpcCall {
            method: problems.ok_or_report("call.grpc.method", method)?,
            metadata: metadata.into_request_fields(&VariationSettings::new(
                1,
                1,
                0,
                RowOrder::default(),
            )),
        })
    }

    fn with_defaults(self, _: &GrpcCall) -> GrpcSpec {
        GrpcSpec {
            deadline: None,
            ..self
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::spec) struct HttpSpec {
    path: Option<String>,
}

impl Call for HttpSpec {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        ("http", "".into())
    }
}

impl CallSection for HttpSpec {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "http",
        purpose: "for HTTP",
        plain: "http",
        secured: Some("https"),
        aliases: None,
        foreign_schemes: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    type Call = HttpSpec;

    fn resolve(&self, _: &Spec, _: &mut Problems, _: &dyn ResolveContext) -> Option<HttpSpec> {
        Some(self.clone())
    }

    fn with_defaults(self, _: &HttpSpec) -> HttpSpec {
        self
    }
}
