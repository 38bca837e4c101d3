//! Reads an envelope (the server's record of its delays), and checks that it matches its commitment.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use plimsoll_model::formats::input::{self, LineEnd};
use plimsoll_model::formats::quantity::plural;
use plimsoll_model::law::{LawError, ServerDelays};

use super::{
    CommitmentOpening, ENVELOPE_VERSION, EnvelopeCommitment, EnvelopeLine, MAX_LINE_BYTES,
    ServedRequest, compute_commitment,
};
use plimsoll_wire::hex;

/// The maximum number of requests in an envelope. It is limited because all requests are kept in memory.
const MAX_REQUESTS: u64 = 50_000_000;

/// Why an envelope can't be read, or does not match its commitment.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}", path = .path.display())]
pub struct EnvelopeError {
    path: PathBuf,
    problem: String,
}

/// An envelope that matches its commitment.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// The commitment that was printed before the first request, in hexadecimal digits.
    pub commitment: String,
    /// The seed, nonce and law that open the commitment.
    pub opening: CommitmentOpening,
    /// All requests, by number.
    pub requests: Vec<ServedRequest>,
}

impl Envelope {
    /// Reads the file and checks it against its commitment.
    ///
    /// # Errors
    /// When the file can't be read, its commitment was not opened, or a line does not match the commitment; the
    /// message says which.
    pub fn read(path: &Path) -> Result<Envelope, EnvelopeError> {
        let read = Envelope::read_lines(path).and_then(|(sealed, digest, envelope)| {
            envelope.check_commitment(&sealed, &digest)?;
            Ok(envelope)
        });
        read.map_err(|problem| EnvelopeError {
            path: path.to_owned(),
            problem,
        })
    }

    /// Recreates the server's delays. Their time is counted from the arrival of the first request.
    ///
    /// # Errors
    /// When the text of the law is not valid.
    pub fn delays(&self) -> Result<ServerDelays, LawError> {
        let delays = ServerDelays::new(&self.opening.law, self.opening.seed)?;
        Ok(match self.requests.first() {
            Some(first) => delays.with_start(first.arrived_ns),
            None => delays,
        })
    }

    /// Reads all lines. Returns the first line, the SHA-256 of the requests' lines, and the envelope.
    fn read_lines(path: &Path) -> Result<(EnvelopeCommitment, String, Envelope), String> {
        let file = input::open_file(path).map_err(|e| format!("can't read it: {e}"))?;
        let mut file = BufReader::new(file);
        let mut context = Context::new(&SHA256);
        let mut text = Vec::new();
        let (mut sealed, mut opened, mut requests) = (None, None, Vec::new());
        for place in 1u64.. {
            let within = |e: io::Error| format!("line {place}: {e}");
            let end = input::read_line(&mut file, &mut text, MAX_LINE_BYTES).map_err(within)?;
            if end == LineEnd::EndOfInput && text.is_empty() {
                break;
            }
            let line: EnvelopeLine = serde_json::from_slice(&text)
                .map_err(|e| format!("line {place} is not a valid line of an envelope: {e}"))?;
            if opened.is_some() {
                return Err(format!(
                    "line {place} follows the line that opens the commitment"
                ));
            }
            match line {
                EnvelopeLine::Sealed(line) if place == 1 => sealed = Some(line),
                _ if sealed.is_none() => return Err("line 1 has no commitment".to_owned()),
                EnvelopeLine::Sealed(_) => {
                    return Err(format!("line {place} is a second commitment"));
                }
                EnvelopeLine::Opened(line) => opened = Some(line),
                EnvelopeLine::Request(request) => {
                    if place > MAX_REQUESTS {
                        return Err(format!("more than {MAX_REQUESTS} requests"));
                    }
                    context.update(&text);
                    context.update(b"\n");
                    requests.push(request);
                }
            }
        }
        let sealed = sealed.ok_or("it is empty")?;
        let opened = opened.ok_or(
            "its commitment is not opened: the server is still running, or was killed; stop it \
             with Ctrl-C or SIGTERM",
        )?;
        requests.sort_by_key(|request| request.number);
        let envelope = Envelope {
            commitment: sealed.commitment.clone(),
            opening: opened,
            requests,
        };
        Ok((sealed, hex::encode(context.finish().as_ref()), envelope))
    }

    /// Checks seed, law and all requests against the commitment.
    fn check_commitment(
        &self,
        sealed: &EnvelopeCommitment,
        requests_sha256: &str,
    ) -> Result<(), String> {
        if sealed.envelope != ENVELOPE_VERSION {
            return Err(format!(
                "version {} of the format, but this program reads {ENVELOPE_VERSION}",
                sealed.envelope
            ));
        }
        let opened = &self.opening;
        let found = compute_commitment(opened.seed, &opened.nonce, &opened.law);
        if found != sealed.commitment {
            return Err(format!(
                "seed, nonce and law do not match the commitment: their hash is {found}, but {} was committed to",
                sealed.commitment
            ));
        }
        let count = self.requests.len() as u64;
        if count != opened.requests {
            return Err(format!(
                "{}, but the server wrote {}: lines are missing or were added",
                plural(count, "request"),
                opened.requests
            ));
        }
        if requests_sha256 != opened.requests_sha256 {
            return Err("the lines of requests are not those that the server wrote".to_owned());
        }
        let mut delays = self.delays().map_err(|e| format!("law: {e}"))?;
        for (number, request) in (0..).zip(&self.requests) {
            if request.number != number {
                return Err(format!("there is no request {number}"));
            }
            let due = delays.next(request.arrived_ns);
            if request.due_ns.abs_diff(due) > MAX_DELAY_DIFFERENCE_NS {
                return Err(format!(
                    "request {number}: by seed and law, its answer is due {} ns after it arrived, \
                     but the line says {} ns",
                    due.saturating_sub(request.arrived_ns),
                    request.due_ns.saturating_sub(request.arrived_ns)
                ));
            }
            let written = request
                .written_ns
                .map_or(request.due_ns, |[began, _]| began);
            if written < request.due_ns {
                return Err(format!(
                    "request {number}: its answer left before it was due"
                ));
            }
        }
        Ok(())
    }
}

/// The largest accepted difference between a recorded and a recomputed delay: math libraries differ in the last digit
/// of a logarithm.
const MAX_DELAY_DIFFERENCE_NS: u64 = 100;
