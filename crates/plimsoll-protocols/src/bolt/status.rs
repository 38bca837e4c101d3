//! Response statuses of SOFABolt (`com.alipay.remoting.ResponseStatus`), and what each is
//! counted as.

use plimsoll_model::Outcome;

macro_rules! statuses {
    ($($name:ident $number:literal $code:literal $outcome:ident)*) => {
        /// A response status. [`Status::Success`] says only that an answer was made: a
        /// SOFARPC failure travels as a success with a header entry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Status { $($name,)* }

        impl Status {
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// The number on the wire.
            pub fn number(self) -> u16 {
                match self { $(Status::$name => $number,)* }
            }

            /// The status of that number; the numbers 0x0a to 0x0f mean nothing.
            #[inline]
            pub fn from_number(number: u16) -> Option<Status> {
                match number { $($number => Some(Status::$name),)* _ => None }
            }

            /// SOFABolt's own name.
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => $code,)* }
            }

            #[inline]
            pub fn outcome(self) -> Outcome {
                match self { $(Status::$name => Outcome::$outcome,)* }
            }
        }
    };
}

statuses! {
    Success 0x00 "SUCCESS" Ok
    Error 0x01 "ERROR" BoltError
    ServerException 0x02 "SERVER_EXCEPTION" BoltServerException
    Unknown 0x03 "UNKNOWN" BoltUnknown
    ServerThreadpoolBusy 0x04 "SERVER_THREADPOOL_BUSY" BoltServerThreadpoolBusy
    ErrorComm 0x05 "ERROR_COMM" BoltErrorComm
    NoProcessor 0x06 "NO_PROCESSOR" BoltNoProcessor
    Timeout 0x07 "TIMEOUT" BoltTimeout
    ClientSendError 0x08 "CLIENT_SEND_ERROR" BoltClientSendError
    CodecException 0x09 "CODEC_EXCEPTION" BoltCodecException
    ConnectionClosed 0x10 "CONNECTION_CLOSED" BoltConnectionClosed
    ServerSerialException 0x11 "SERVER_SERIAL_EXCEPTION" BoltServerSerialException
    ServerDeserialException 0x12 "SERVER_DESERIAL_EXCEPTION" BoltServerDeserialException
}

impl Status {
    /// The status of that name, in any case.
    pub fn from_name(name: &str) -> Option<Status> {
        Status::ALL
            .iter()
            .copied()
            .find(|status| status.name().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_outcomes_agree() {
        for status in Status::ALL.iter().copied() {
            assert_eq!(Status::from_number(status.number()), Some(status));
            assert_eq!(Status::from_name(status.name()), Some(status));
            if status != Status::Success {
                assert_eq!(status.outcome().code(), format!("BOLT_{}", status.name()));
            }
        }
        for hole in 0x0a..=0x0f {
            assert_eq!(Status::from_number(hole), None);
        }
    }
}
