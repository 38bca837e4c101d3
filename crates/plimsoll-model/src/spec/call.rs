//! `[call]`: the sections that say what one call is.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use toml::Table;

use super::protocol::{self, Protocol, Section};
use super::{GrpcSpec, HttpSpec, Limit, SessionSpec, target};

/// What one call is: one section, named after its protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSpec>,
    /// Those of protocols that are registered ([`super::register`]), by their names.
    #[serde(flatten)]
    pub sections: BTreeMap<&'static str, Table>,
}

impl<'de> Deserialize<'de> for CallSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallSpec, D::Error> {
        struct Sections;
        impl<'de> Visitor<'de> for Sections {
            type Value = CallSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sections, such as [call.grpc]")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CallSpec, M::Error> {
                let mut call = CallSpec::default();
                while let Some(section) = map.next_key::<String>()? {
                    match section.as_str() {
                        "grpc" => call.grpc = map.next_value()?,
                        "http" => call.http = map.next_value()?,
                        "session" => call.session = map.next_value()?,
                        other => {
                            let unknown =
                                || de::Error::custom(format!("unknown section `{other}`"));
                            let protocol = protocol::named(other).ok_or_else(unknown)?;
                            call.sections
                                .insert(protocol.schemes().section, map.next_value()?);
                        }
                    }
                }
                Ok(call)
            }
        }
        deserializer.deserialize_map(Sections)
    }
}

impl CallSpec {
    /// A call of `section` alone.
    pub fn of<S: Section>(section: &S) -> CallSpec {
        let sections = [(S::SCHEMES.section, protocol::table_of(section))];
        CallSpec {
            sections: sections.into(),
            ..CallSpec::default()
        }
    }

    /// The names of all sections that there are.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        let registered = protocol::registered().map(|protocol| protocol.schemes().section);
        let known = ["grpc", "http", "session"];
        known.into_iter().chain(registered)
    }

    /// The names of the sections that are given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let known = [
            ("grpc", self.grpc.is_some()),
            ("http", self.http.is_some()),
            ("session", self.session.is_some()),
        ];
        let known = known
            .into_iter()
            .filter_map(|(name, given)| given.then_some(name));
        known.chain(self.sections.keys().copied()).collect()
    }

    /// The sections of registered protocols, each with its own.
    pub(crate) fn registered(&self) -> impl Iterator<Item = (&'static dyn Protocol, &Table)> {
        let sections = self.sections.iter();
        sections.filter_map(|(name, section)| Some((protocol::named(name)?, section)))
    }

    /// Calls can run before those that count.
    pub fn has_warmup(&self) -> bool {
        let mut registered = self.registered();
        !registered.any(|(protocol, _)| protocol.schedules_itself())
    }

    /// Its calls are due as the protocol has it, not as the load has it: no rate and no clients of a plan
    /// deal them out.
    pub fn schedules_itself(&self) -> bool {
        self.calls_in_a_row().is_some() || !self.has_warmup()
    }

    /// As [`crate::plan::CallPlan::calls_in_a_row`]: as far as that is known before it is resolved.
    pub fn calls_in_a_row(&self) -> Option<u32> {
        let queries = self.session.as_ref().map(|call| call.queries.unwrap_or(1));
        queries.or_else(|| self.http.as_ref()?.calls_in_a_row())
    }

    /// The section's name, and the deadline that it gives itself.
    pub fn deadline(&self) -> (&'static str, Option<Limit>) {
        let own = match self.section() {
            "http" => self.http.as_ref().and_then(|call| call.deadline),
            "grpc" => self.grpc.as_ref().and_then(|call| call.deadline),
            other => {
                let deadline = self.sections.get(other).and_then(|s| s.get("deadline"));
                deadline.and_then(|typed| typed.clone().try_into().ok())
            }
        };
        (self.section(), own)
    }

    /// Takes the deadline out that a section gives itself.
    pub fn forget_deadline(&mut self) {
        let deadlines = [
            self.grpc.as_mut().map(|call| &mut call.deadline),
            self.http.as_mut().map(|call| &mut call.deadline),
        ];
        for deadline in deadlines.into_iter().flatten() {
            *deadline = None;
        }
        for section in self.sections.values_mut() {
            section.remove("deadline");
        }
    }

    /// The section that says what to call; gRPC where there is none yet.
    fn section(&self) -> &'static str {
        self.given().first().copied().unwrap_or("grpc")
    }

    /// The scheme of a target for this call, plaintext or secured.
    pub fn scheme(&self, secured: bool) -> &'static str {
        target::scheme_for(self.section(), secured)
    }
}
