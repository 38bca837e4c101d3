//! Runs scripts of frames: each user sends the frames over its own WebSocket, waiting for responses.

use std::ops::Range;
use std::time::Duration;

use plimsoll_engine::script::scenario::{Scenario, UserCall};
use plimsoll_model::{Outcome, Time};

use super::call::WebSocketCall;
use super::socket::{SocketDriver, SocketProtocol};

/// The scripts of a run's users.
pub struct FrameScripts {
    protocol: SocketProtocol,
    calls: Vec<ScriptedCall>,
}

/// One call of a user.
struct ScriptedCall {
    /// The indices of the frames that the call sends; only the last frame has a response.
    frames: Range<usize>,
    pace: Duration,
}

impl FrameScripts {
    /// Groups the frames of `socket` into calls.
    pub fn new(protocol: SocketProtocol, socket: &WebSocketCall) -> FrameScripts {
        let mut calls = Vec::new();
        let mut start = 0;
        for (nth, frame) in socket.script.iter().enumerate() {
            if frame.answer.is_some() {
                calls.push(ScriptedCall {
                    frames: start..nth + 1,
                    pace: socket.script[start].pace,
                });
                start = nth + 1;
            }
        }
        FrameScripts { protocol, calls }
    }
}

impl Scenario for FrameScripts {
    type Protocol = SocketProtocol;
    type UserState = ();

    fn protocol(&self) -> &SocketProtocol {
        &self.protocol
    }

    fn max_calls(&self) -> u32 {
        self.calls.len() as u32
    }

    fn pause_before(&self, call: u32) -> Duration {
        self.calls[call as usize].pace
    }

    fn replaces_lost_connections(&self) -> bool {
        // Sockets are kept: with a new socket, the user would lose its state at the server.
        false
    }

    fn prepare_call(
        &self,
        step: UserCall,
        _now: Time,
        (): &mut (),
        driver: &mut SocketDriver,
    ) -> Result<(), (Outcome, String)> {
        driver.set_next_frames(self.calls[step.call as usize].frames.clone());
        Ok(())
    }

    fn on_response_text(&self, _text: String, (): &mut ()) {}
}
