//! The scripts of behaviours, and their interpreter.

use std::io;
use std::mem;

use plimsoll_model::Outcome;

use super::peer::Peer;
use super::session::{self, Acts};

/// One kind of misbehaviour.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Unique among all behaviours; users refer to it, so it is never renamed.
    pub name: &'static str,
    /// A short description for lists.
    pub about: &'static str,
    /// The outcome that a correct client reports for the call.
    pub outcome: Outcome,
    /// Needs a certificate and key, because the handshake succeeds.
    pub needs_certificate: bool,
    pub(super) act: Act,
}

/// What happens on a connection, which is closed afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Script(&'static [Step]),
    Three([Step; 3]),
    Session(Acts),
}

/// Appends bytes in response to the request of this number.
pub(super) type Frames = fn(&mut Vec<u8>, u32);

/// One step of a script. Consecutive writes are sent together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Reads a complete request of the protocol.
    Request,
    Send(&'static [u8]),
    Write(Frames),
    /// Sends what was written one byte at a time.
    Drip,
    /// Sends these bytes repeatedly.
    Flood(&'static [u8]),
    FloodOf(Frames),
    /// Sends bytes unencrypted, bypassing TLS.
    Raw(Frames),
    Wait,
    Ignore,
    HalfClose,
    CloseNotify,
    Reset,
    Do(fn(&mut Peer) -> io::Result<()>),
}

impl Behaviour {
    /// Makes a behaviour without a script; `outcome` is what a correct client reports.
    pub(super) const fn new(name: &'static str, outcome: Outcome) -> Behaviour {
        Behaviour {
            name,
            about: "",
            outcome,
            needs_certificate: false,
            act: Act::Script(&[]),
        }
    }

    pub(super) const fn about(self, about: &'static str) -> Behaviour {
        Behaviour { about, ..self }
    }

    pub(super) const fn act(self, act: Act) -> Behaviour {
        Behaviour { act, ..self }
    }

    pub(super) const fn script(self, script: &'static [Step]) -> Behaviour {
        self.act(Act::Script(script))
    }

    /// Reads a request, sends these bytes, and then nothing more.
    pub(super) const fn instead(self, bytes: &'static [u8]) -> Behaviour {
        self.act(Act::Three([Step::Request, Step::Send(bytes), Step::Wait]))
    }

    /// Reads a request, sends `begin`, and then `endless` repeatedly.
    pub(super) const fn floods(self, begin: &'static [u8], endless: &'static [u8]) -> Behaviour {
        self.act(Act::Three([
            Step::Request,
            Step::Send(begin),
            Step::Flood(endless),
        ]))
    }

    /// Reads a request, sends these frames, and then nothing more.
    pub(super) const fn frames(self, frames: Frames) -> Behaviour {
        self.act(Act::Three([Step::Request, Step::Write(frames), Step::Wait]))
    }

    /// # Errors
    /// Errors of the connection, because a client may close it within a script.
    pub(super) fn play(&self, peer: &mut Peer) -> io::Result<()> {
        match &self.act {
            Act::Script(steps) => peer.play(steps),
            Act::Three(steps) => peer.play(steps),
            Act::Session(acts) => session::play(peer, acts),
        }
    }
}

impl Peer {
    pub(super) fn play(&mut self, script: &[Step]) -> io::Result<()> {
        let mut out = Vec::new();
        for step in script {
            match *step {
                Step::Send(bytes) => out.extend_from_slice(bytes),
                Step::Write(frames) => frames(&mut out, self.number),
                Step::Drip => self.drip(&mem::take(&mut out))?,
                step => {
                    self.send(&mem::take(&mut out))?;
                    self.step(step)?;
                }
            }
        }
        self.send(&out)
    }

    /// Runs a step that does more than write.
    fn step(&mut self, step: Step) -> io::Result<()> {
        match step {
            Step::Request => self.read_request(),
            Step::Flood(bytes) => self.flood(bytes),
            Step::FloodOf(frames) => self.flood(&self.frames(frames)),
            Step::Raw(frames) => self.send_raw(&self.frames(frames)),
            Step::Wait => self.wait(),
            Step::Ignore => self.ignore(),
            Step::HalfClose => self.half_close(),
            Step::CloseNotify => self.close_notify(),
            Step::Reset => self.reset(),
            Step::Do(act) => act(self),
            Step::Send(_) | Step::Write(_) | Step::Drip => Ok(()),
        }
    }

    fn frames(&self, frames: Frames) -> Vec<u8> {
        let mut out = Vec::new();
        frames(&mut out, self.number);
        out
    }
}
