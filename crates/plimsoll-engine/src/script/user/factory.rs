//! The factory of a run's users, with the settings that they share.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::{GoodputBounds, LoadPlan, Target};
use plimsoll_model::rows::template::TraceIds;

use super::{User, UserLink};
use crate::driver::{Protocol, RefusalRetries};
use crate::script::scenario::Scenario;
use crate::script::{LinkId, ScriptFactory, ScriptStart};
use crate::tls::TlsClient;

/// A factory of the users of a run.
pub struct UserScripts<C> {
    shared: Arc<UserSettings<C>>,
    numbers_by_client: bool,
}

pub(super) struct UserSettings<C> {
    pub(super) scenario: C,
    /// The targets of the links, with the TLS settings; `None` for plaintext.
    pub(super) links: Vec<(Target, Option<TlsClient>)>,
    pub(super) deadline: Option<Duration>,
    /// Whether calls that the server did not process are retried once.
    pub(super) retries_unprocessed: bool,
    /// How often calls that the server refuses for now are sent again.
    pub(super) refusal_retries: RefusalRetries,
    pub(super) goodput: GoodputBounds,
}

impl<C: Scenario> UserScripts<C> {
    /// Creates a factory of users with one connection each, in plaintext if `tls` is `None`. `load` determines the
    /// deadline of each call, counted from when it is due, and whether unprocessed calls are retried.
    pub fn new(
        scenario: C,
        target: &Target,
        tls: Option<TlsClient>,
        load: &LoadPlan,
    ) -> UserScripts<C> {
        UserScripts::with_links(scenario, vec![(target.clone(), tls)], load)
    }

    /// Creates a factory of users with one connection to each of the targets of `links`, established only if their
    /// calls need it. A target without TLS settings is reached in plaintext.
    pub fn with_links(
        scenario: C,
        links: Vec<(Target, Option<TlsClient>)>,
        load: &LoadPlan,
    ) -> UserScripts<C> {
        let (deadline, retries) = (load.deadline.or(load.stall_timeout), load.retry);
        let goodput = scenario.protocol().goodput_bounds();
        let refusal_retries = scenario.protocol().refusal_retries();
        UserScripts {
            shared: Arc::new(UserSettings {
                scenario,
                links,
                deadline,
                retries_unprocessed: retries,
                refusal_retries,
                goodput,
            }),
            numbers_by_client: false,
        }
    }

    /// Gives the users of each client of a closed loop numbers of that client
    /// ([`ScriptFactory::numbers_users_by_client`]).
    #[must_use]
    pub fn with_numbers_by_client(self) -> UserScripts<C> {
        UserScripts {
            numbers_by_client: true,
            ..self
        }
    }
}

impl<C: Scenario> ScriptFactory for UserScripts<C>
where
    <C::Protocol as Protocol>::Driver: Send,
{
    type Script = User<C>;

    fn new_script(&self, origin: ScriptStart) -> User<C> {
        let mut memory = C::UserState::default();
        self.shared
            .scenario
            .choose_first_call(origin.number, &mut memory);
        User {
            shared: Arc::clone(&self.shared),
            origin,
            due: Time::NEVER,
            link: LinkId(0),
            links: (self.shared.links.iter())
                .map(|_| UserLink::default())
                .collect(),
            memory,
            calls_begun: 0,
            call: None,
            next_at: Time::NEVER,
            waits_for_remainder: false,
            has_failed: false,
            events: Vec::new(),
        }
    }

    fn targets(&self) -> Vec<&Target> {
        let links = self.shared.links.iter();
        links.map(|(target, _)| target).collect()
    }

    fn tls(&self, link: LinkId) -> Option<&TlsClient> {
        self.shared.links[usize::from(link.0)].1.as_ref()
    }

    fn numbers_users_by_client(&self) -> bool {
        self.numbers_by_client
    }

    fn calls_per_script(&self) -> u32 {
        // Journeys differ in their number of calls, so a journey counts as one.
        let scenario = &self.shared.scenario;
        if scenario.step_names().is_empty() {
            scenario.max_calls()
        } else {
            1
        }
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.shared.scenario.protocol().trace_ids()
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.shared.scenario.protocol().set_clock_origin(unix_ns);
    }
}
