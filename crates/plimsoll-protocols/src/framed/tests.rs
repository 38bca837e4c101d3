use super::*;

/// A format whose frames begin with their length and an id, one byte each. It requires `wants` bytes before it
/// accepts the first frame.
#[derive(Debug)]
struct PickyFormat {
    wants: usize,
}

impl FrameFormat for PickyFormat {
    type Frame<'a> = u8;

    fn name(&self) -> &str {
        "reluctant"
    }

    fn is_oneway(&self) -> bool {
        false
    }

    fn write_request(
        &self,
        id: u32,
        _: Option<Duration>,
        out: &mut Vec<u8>,
    ) -> Result<(), Outcome> {
        out.push(id as u8);
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Option<(u8, usize)>, ProtocolError> {
        let length = bytes.first().map_or(2, |length| usize::from(*length));
        if bytes.len() < self.wants.max(length) {
            return Ok(None);
        }
        self.wants = 0;
        Ok(Some((bytes[1], length)))
    }

    fn needed_length(&self, partial: &[u8]) -> Option<usize> {
        (self.wants > partial.len()).then_some(self.wants)
    }

    fn frame_purpose(id: &u8) -> FramePurpose {
        FramePurpose::Answer(u32::from(*id))
    }

    fn outcome(&self, _: &u8) -> Outcome {
        Outcome::Ok
    }

    fn failure_detail(&self, _: &u8) -> Option<String> {
        None
    }

    fn write_response(&self, _: &u8, _: &mut Vec<u8>) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn write_heartbeat(&self, _: u32, _: &mut Vec<u8>) -> Result<(), ProtocolError> {
        Ok(())
    }
}

/// Neither the number of bytes that the parser requires first nor the way the bytes are split makes a
/// difference.
#[test]
fn short_frames_lose_no_bytes() {
    for wants in 0..=11 {
        for pieces in 1..=11 {
            let mut driver =
                FramedDriver::new(PickyFormat { wants }, FramedSettings::new(None, None, b"r"));
            let (mut requests, mut events) = (Vec::new(), Vec::new());
            driver.open(Time::ZERO, &mut requests);
            for call in 0..3 {
                driver.start(CallId(call), 0, Time::ZERO, &mut requests);
            }
            let [a, b, c] = requests[..] else {
                panic!("{requests:?}");
            };
            let answers = [4, a, 0, 0, 2, b, 5, c, 0, 0, 0];
            for piece in answers.chunks(pieces) {
                driver
                    .receive(piece, Time::ZERO, &mut Vec::new(), &mut events)
                    .unwrap();
            }
            let done = events.iter().map(|event| match event {
                Event::Done(done) => (done.call, done.bytes_received),
                other => panic!("{other:?}"),
            });
            let done: Vec<_> = done.collect();
            let expected = [(CallId(0), 4), (CallId(1), 2), (CallId(2), 5)];
            assert_eq!(done, expected, "{wants} wanted, in pieces of {pieces}");
        }
    }
}
