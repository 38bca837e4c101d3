//! The behaviour of users: the interface between users and the protocols that determine their calls.
//!
//! [`super::user`] calls a scenario before each call, after each successful answer, and after the end of each call.

use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::LinkId;
use crate::driver::Protocol;

/// The definition of the sequence of a user's calls.
pub trait Scenario: Send + Sync + 'static {
    /// The protocol of the calls.
    type Protocol: Protocol;
    /// State that a user keeps between calls.
    type UserState: Default + Send;

    /// Returns the protocol, which creates a driver for each connection.
    fn protocol(&self) -> &Self::Protocol;

    /// Creates a driver for a new connection of the user.
    fn new_driver(
        &self,
        _link: LinkId,
        _memory: &Self::UserState,
    ) -> <Self::Protocol as Protocol>::Driver {
        self.protocol().new_driver()
    }

    /// Returns the number of the user's connection over which the current call is made.
    fn current_link(&self, _memory: &Self::UserState) -> LinkId {
        LinkId(0)
    }

    /// Returns which connection the user's current call needs: any, a new one, or one that is already open.
    fn connection_need(&self, _memory: &Self::UserState) -> ConnectionNeed {
        ConnectionNeed::Any
    }

    /// Returns the outcome and the error message of a call that needs an open connection ([`ConnectionNeed::Open`])
    /// when there is none.
    fn missing_connection_failure(&self, _memory: &Self::UserState) -> (Outcome, String) {
        (
            Outcome::ConnectionClosed,
            "no connection is open".to_owned(),
        )
    }

    /// Returns the number of calls of a user, at least 1; the maximum if users differ.
    fn max_calls(&self) -> u32;

    /// Returns the names of a journey's steps, which are recorded separately; empty if calls are not steps of a
    /// journey.
    fn step_names(&self) -> &[String] {
        &[]
    }

    /// Chooses the first call of a user whose position in the schedule is `number`.
    fn choose_first_call(&self, _number: u64, _memory: &mut Self::UserState) {}

    /// Returns the step of the user's current call.
    fn current_step(&self, _memory: &Self::UserState) -> usize {
        0
    }

    /// Checks an answer that the driver considers successful, and stores the parts that later calls need.
    ///
    /// # Errors
    /// Returns the call's outcome and an error message if the check fails.
    fn check_answer(
        &self,
        _memory: &mut Self::UserState,
        _driver: &mut <Self::Protocol as Protocol>::Driver,
        _now: Time,
    ) -> Result<(), (Outcome, String)> {
        Ok(())
    }

    /// Decides what the user does after a call that has ended.
    fn next_action(&self, ended: EndedCall, _memory: &mut Self::UserState) -> NextAction {
        if !ended.outcome.is_ok() {
            return NextAction::Abort;
        }
        if ended.calls_made >= self.max_calls() {
            return NextAction::Finish { is_ok: true };
        }
        NextAction::CallAfter(self.pause_before(ended.calls_made))
    }

    /// Returns the pause between the end of the previous call and the due time of `call`, an index that is never 0
    /// here.
    fn pause_before(&self, call: u32) -> Duration;

    /// Returns whether a lost connection is replaced for the next call. Otherwise, losing it makes the user fail.
    fn replaces_lost_connections(&self) -> bool;

    /// Prepares the driver for the user's `call`.
    ///
    /// # Errors
    /// Returns the call's outcome and an error message if the call cannot be sent.
    fn prepare_call(
        &self,
        call: UserCall,
        now: Time,
        memory: &mut Self::UserState,
        driver: &mut <Self::Protocol as Protocol>::Driver,
    ) -> Result<(), (Outcome, String)>;

    /// Called with the text of the answer to the user's last call, if the driver reports it.
    fn on_response_text(&self, text: String, memory: &mut Self::UserState);
}

/// The kind of connection that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionNeed {
    /// The user's connection, which is established if there is none.
    Any,
    /// A new connection; an existing one is closed first.
    New,
    /// The connection that an earlier call has opened; if there is none, the call fails.
    Open,
}

/// One of a user's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserCall {
    /// The call's index among the user's calls, from 0.
    pub call: u32,
    /// The call's number in the run.
    pub number: u64,
    /// Whether the call was prepared before and is sent again because the server did not process it.
    pub is_retry: bool,
}

/// A call that has ended, as passed to [`Scenario::next_action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// The call's outcome.
    pub outcome: Outcome,
    /// The number of calls that the user has made, including this one.
    pub calls_made: u32,
    /// The user's position in the run's schedule, which seeds everything random.
    pub number: u64,
}

/// The user's action after one of its calls has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// The user makes another call, which is due after this pause.
    CallAfter(Duration),
    /// The user has made all of its calls.
    Finish {
        /// Whether the user succeeded.
        is_ok: bool,
    },
    /// The user ends, and its remaining calls are recorded as broken off.
    Abort,
}
