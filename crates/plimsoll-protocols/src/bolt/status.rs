//! Response statuses of SOFABolt (`com.alipay.remoting.ResponseStatus`), and the outcome that each is counted
//! as.

use plimsoll_model::Outcome;

/// The outcome of a response whose header map says that the SOFARPC call failed.
pub const SOFA_ERROR: Outcome = Outcome::coded("SOFA_ERROR");

macro_rules! statuses {
    ($($name:ident $number:literal $code:literal $outcome:literal)*) => {
        /// A response status. [`Status::Success`] says only that there is a response: a failed SOFARPC call
        /// is a success with a header entry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Status { $(#[doc = concat!("`", $code, "`, counted as ", $outcome, ".")] $name,)* }

        impl Status {
            /// All statuses, in the order of their numbers.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// Returns the encoded number.
            pub fn number(self) -> u16 {
                match self { $(Status::$name => $number,)* }
            }

            /// Returns the status with this number; 0x0a to 0x0f are unassigned.
            #[inline]
            pub const fn from_number(number: u16) -> Option<Status> {
                match number { $($number => Some(Status::$name),)* _ => None }
            }

            /// Returns SOFABolt's own name.
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => $code,)* }
            }

            /// Returns the outcome that the status is counted as.
            #[inline]
            pub const fn outcome(self) -> Outcome {
                match self { $(Status::$name => const { Outcome::coded($outcome) },)* }
            }
        }
    };
}

statuses! {
    Success 0x00 "SUCCESS" "OK"
    Error 0x01 "ERROR" "BOLT_ERROR"
    ServerException 0x02 "SERVER_EXCEPTION" "BOLT_SERVER_EXCEPTION"
    Unknown 0x03 "UNKNOWN" "BOLT_UNKNOWN"
    ServerThreadpoolBusy 0x04 "SERVER_THREADPOOL_BUSY" "BOLT_SERVER_THREADPOOL_BUSY"
    ErrorComm 0x05 "ERROR_COMM" "BOLT_ERROR_COMM"
    NoProcessor 0x06 "NO_PROCESSOR" "BOLT_NO_PROCESSOR"
    Timeout 0x07 "TIMEOUT" "BOLT_TIMEOUT"
    ClientSendError 0x08 "CLIENT_SEND_ERROR" "BOLT_CLIENT_SEND_ERROR"
    CodecException 0x09 "CODEC_EXCEPTION" "BOLT_CODEC_EXCEPTION"
    ConnectionClosed 0x10 "CONNECTION_CLOSED" "BOLT_CONNECTION_CLOSED"
    ServerSerialException 0x11 "SERVER_SERIAL_EXCEPTION" "BOLT_SERVER_SERIAL_EXCEPTION"
    ServerDeserialException 0x12 "SERVER_DESERIAL_EXCEPTION" "BOLT_SERVER_DESERIAL_EXCEPTION"
}

impl Status {
    /// Returns the status with this name, ignoring case.
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
