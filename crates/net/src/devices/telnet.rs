//! The telnet protocol (RFC 854) as far as a management interface needs it: plain bytes both ways, and a
//! refusal of every option that the other end asks for.

/// Interpret as command.
const IAC: u8 = 255;
const DONT: u8 = 254;
const DO: u8 = 253;
const WONT: u8 = 252;
const WILL: u8 = 251;
/// Subnegotiation begins.
const SB: u8 = 250;
/// Subnegotiation ends.
const SE: u8 = 240;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Data,
    Command,
    Option(u8),
    Subnegotiation,
    SubnegotiationCommand,
}

/// Takes telnet's commands out of a stream of bytes.
///
/// All options stay off at both ends, so each request is answered once by a refusal, and refusals are not
/// answered: that cannot loop (RFC 1143).
#[derive(Clone, Debug, Default)]
pub struct Telnet {
    state: State,
}

impl Telnet {
    /// A stream at its beginning.
    #[must_use]
    pub fn new() -> Self {
        Telnet::default()
    }

    /// Takes bytes as they came: text is appended to `text`, answers to the other end to `answers`.
    pub fn receive(&mut self, bytes: &[u8], text: &mut Vec<u8>, answers: &mut Vec<u8>) {
        for &byte in bytes {
            self.state = match (self.state, byte) {
                (State::Data, IAC) => State::Command,
                (State::Data, byte) => {
                    // NUL fills up a lone carriage return.
                    if byte != 0 {
                        text.push(byte);
                    }
                    State::Data
                }
                (State::Command, IAC) => {
                    text.push(IAC);
                    State::Data
                }
                (State::Command, verb @ (WILL | WONT | DO | DONT)) => State::Option(verb),
                (State::Command, SB) => State::Subnegotiation,
                (State::Command, _) => State::Data,
                (State::Option(verb), option) => {
                    match verb {
                        WILL => answers.extend([IAC, DONT, option]),
                        DO => answers.extend([IAC, WONT, option]),
                        _ => {}
                    }
                    State::Data
                }
                (State::Subnegotiation, IAC) => State::SubnegotiationCommand,
                (State::Subnegotiation, _) => State::Subnegotiation,
                (State::SubnegotiationCommand, SE) => State::Data,
                (State::SubnegotiationCommand, _) => State::Subnegotiation,
            };
        }
    }

    /// Text as it goes on the wire: a byte that could be taken for a command is doubled.
    pub fn send(text: &[u8], wire: &mut Vec<u8>) {
        for &byte in text {
            wire.push(byte);
            if byte == IAC {
                wire.push(IAC);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let (mut telnet, mut text, mut answers) = (Telnet::new(), Vec::new(), Vec::new());
        for piece in pieces {
            telnet.receive(piece, &mut text, &mut answers);
        }
        (text, answers)
    }

    #[test]
    fn options_are_refused_once() {
        let wire = [b'a', IAC, DO, 1, IAC, WILL, 3, b'b', IAC, WONT, 3, IAC, DONT, 1, b'c'];
        assert_eq!(through(&[&wire]), (b"abc".to_vec(), vec![IAC, WONT, 1, IAC, DONT, 3]));
        // However the bytes come.
        let single: Vec<&[u8]> = wire.chunks(1).collect();
        assert_eq!(through(&single), through(&[&wire]));
    }

    #[test]
    fn subnegotiations_are_skipped() {
        let wire = [b'a', IAC, SB, 24, IAC, IAC, b'x', IAC, SE, b'b', IAC, 241, b'c', b'\r', 0];
        assert_eq!(through(&[&wire]).0, b"abc\r");
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives(bytes in proptest::collection::vec(1u8.., 0..100)) {
            let mut wire = Vec::new();
            Telnet::send(&bytes, &mut wire);
            prop_assert_eq!(through(&[&wire]), (bytes, vec![]));
        }
    }
}
