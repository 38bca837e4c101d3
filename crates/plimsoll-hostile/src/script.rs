//! The scripts of behaviours, and their interpreter.

use std::io;
use std::mem;

use plimsoll_model::Outcome;

use super::peer::ScriptTransport;
use super::session::{self, SessionHandlers};

/// One kind of misbehaviour.
#[derive(Clone, Copy, Debug)]
pub struct HostileBehaviour {
    /// The behaviour's unique name. Users refer to it, so it is never changed.
    pub name: &'static str,
    /// A short description for lists.
    pub description: &'static str,
    /// The outcome that a correct client reports for the call.
    pub outcome: Outcome,
    /// Whether the server needs a certificate and key, because the script completes a TLS handshake.
    pub needs_certificate: bool,
    pub(super) script: BehaviourScript,
}

/// The actions of a behaviour on a connection. The connection is closed afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) enum BehaviourScript {
    Script(&'static [HostileStep]),
    ThreeSteps([HostileStep; 3]),
    Session(SessionHandlers),
}

/// A function that appends bytes in response to the request with this id.
pub(super) type FrameWriter = fn(&mut Vec<u8>, u32);

/// One step of a script. Consecutive writes are sent together.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostileStep {
    /// Reads a complete request of the protocol.
    Request,
    Send(&'static [u8]),
    Write(FrameWriter),
    /// Sends the bytes of the preceding writes, one at a time.
    Drip,
    /// Sends these bytes repeatedly.
    Flood(&'static [u8]),
    FloodFrames(FrameWriter),
    /// Sends bytes unencrypted, bypassing TLS.
    SendRaw(FrameWriter),
    Wait,
    Ignore,
    HalfClose,
    CloseNotify,
    Reset,
    Do(fn(&mut ScriptTransport) -> io::Result<()>),
}

impl HostileBehaviour {
    /// Makes a behaviour without a script; `outcome` is the outcome that a correct client reports.
    pub(super) const fn new(name: &'static str, outcome: Outcome) -> HostileBehaviour {
        HostileBehaviour {
            name,
            description: "",
            outcome,
            needs_certificate: false,
            script: BehaviourScript::Script(&[]),
        }
    }

    pub(super) const fn with_description(self, about: &'static str) -> HostileBehaviour {
        HostileBehaviour {
            description: about,
            ..self
        }
    }

    pub(super) const fn with_script(self, act: BehaviourScript) -> HostileBehaviour {
        HostileBehaviour {
            script: act,
            ..self
        }
    }

    pub(super) const fn with_steps(self, script: &'static [HostileStep]) -> HostileBehaviour {
        self.with_script(BehaviourScript::Script(script))
    }

    /// Makes the behaviour read a request, send these bytes, and then nothing more.
    pub(super) const fn answers_with(self, bytes: &'static [u8]) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            HostileStep::Request,
            HostileStep::Send(bytes),
            HostileStep::Wait,
        ]))
    }

    /// Makes the behaviour read a request, send `begin`, and then `endless` repeatedly.
    pub(super) const fn answers_with_flood(
        self,
        begin: &'static [u8],
        endless: &'static [u8],
    ) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            HostileStep::Request,
            HostileStep::Send(begin),
            HostileStep::Flood(endless),
        ]))
    }

    /// Makes the behaviour read a request, send these frames, and then nothing more.
    pub(super) const fn answers_with_frames(self, frames: FrameWriter) -> HostileBehaviour {
        self.with_script(BehaviourScript::ThreeSteps([
            HostileStep::Request,
            HostileStep::Write(frames),
            HostileStep::Wait,
        ]))
    }

    /// Runs the script on the connection of `peer`.
    ///
    /// # Errors
    /// When the connection fails; a client may also close it before the script has ended.
    pub(super) fn run(&self, peer: &mut ScriptTransport) -> io::Result<()> {
        match &self.script {
            BehaviourScript::Script(steps) => peer.run_steps(steps),
            BehaviourScript::ThreeSteps(steps) => peer.run_steps(steps),
            BehaviourScript::Session(acts) => session::serve_session(peer, acts),
        }
    }
}

impl ScriptTransport {
    pub(super) fn run_steps(&mut self, script: &[HostileStep]) -> io::Result<()> {
        let mut out = Vec::new();
        for step in script {
            match *step {
                HostileStep::Send(bytes) => out.extend_from_slice(bytes),
                HostileStep::Write(frames) => frames(&mut out, self.request_id),
                HostileStep::Drip => self.drip(&mem::take(&mut out))?,
                step => {
                    self.send(&mem::take(&mut out))?;
                    self.run_step(step)?;
                }
            }
        }
        self.send(&out)
    }

    /// Runs a step other than a write.
    fn run_step(&mut self, step: HostileStep) -> io::Result<()> {
        match step {
            HostileStep::Request => self.read_request(),
            HostileStep::Flood(bytes) => self.flood(bytes),
            HostileStep::FloodFrames(frames) => self.flood(&self.build_frames(frames)),
            HostileStep::SendRaw(frames) => self.send_raw(&self.build_frames(frames)),
            HostileStep::Wait => self.wait_for_close(),
            HostileStep::Ignore => self.ignore_client(),
            HostileStep::HalfClose => self.half_close(),
            HostileStep::CloseNotify => self.close_notify(),
            HostileStep::Reset => self.reset(),
            HostileStep::Do(act) => act(self),
            HostileStep::Send(_) | HostileStep::Write(_) | HostileStep::Drip => Ok(()),
        }
    }

    fn build_frames(&self, frames: FrameWriter) -> Vec<u8> {
        let mut out = Vec::new();
        frames(&mut out, self.request_id);
        out
    }
}
