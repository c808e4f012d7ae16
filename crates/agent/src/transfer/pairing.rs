//! The code of an offer: a host that knows it may take the offer, and sees that it is this one.
//!
//! A key is made of the code and of the offer's salt, slowly, so that trying codes is slow as well. What it gives for the
//! handle stands in the announcement; ASK and OFFERED, and then JOIN, prove on the connection that either end has it. The
//! code itself, and the key, never go over the network.

use super::control::fresh_salt;
use polycast_net::frames::FrameStream;
use polycast_net::hash::keyed_hash;
use polycast_net::seal::Secret;
use polycast_net::tls::Security;
use polycast_types::Handle;
use polycast_wire::control::{Hash, Salt};
use polycast_wire::discovery::CodeSign;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Letters of a code that was drawn: syllables that can be said over the telephone (proquints, arXiv:0901.4016).
const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aiou";
/// Words of a code that was drawn, of 16 bits each.
const WORDS: usize = 3;
/// A code that a person has made up has at least so many letters and digits,
const CHARS_MIN: usize = 6;
/// and at most so many.
const CHARS_MAX: usize = 64;
/// Hashes between a code and its key: a few milliseconds for a host that knows the code, centuries for one that tries all of them.
const ROUNDS: usize = 1 << 16;

/// Tenths of a bit that the parts of a code count for a host that guesses: a word in the form of drawn ones, another word, which is one of
/// 2,000 that people take, a letter where a word is shorter, and a digit.
const DRAWN_WORD: u32 = 160;
const WORD: u32 = 110;
const LETTER: u32 = 47;
const DIGIT: u32 = 33;
/// A number that is a year of this century or the last.
const YEAR: u32 = 60;

/// The code of an offer.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

impl Code {
    /// A code that cannot be guessed.
    #[must_use]
    pub fn fresh() -> Self {
        Code::of_words(fresh_salt().first_chunk().expect("a salt is longer"))
    }

    /// About how many bits a host has to guess that tries what people think of. A word counts 11, however long it is, and 16 in the form of
    /// drawn ones; a digit 3.3, unless it is the one before it or follows it as in 123; what comes again counts nothing.
    #[must_use]
    pub fn bits(&self) -> u32 {
        let chars: Vec<char> = self.0.chars().collect();
        let runs: BTreeSet<&[char]> = chars.chunk_by(|a, b| class_of(*a) == class_of(*b)).collect();
        runs.into_iter().map(tenths_of).sum::<u32>() / 10
    }

    /// How many bits there are at most: as if its letters had been drawn. A letter counts 4.7 unless it is the one before it, and so does a
    /// hyphen; numbers count as in [`Code::bits`], and years 6.
    #[must_use]
    pub fn bits_at_most(&self) -> u32 {
        let chars: Vec<char> = self.0.chars().collect();
        let count = |run: &[char]| match class_of(run[0]) {
            Class::Word | Class::Gap => LETTER * run.chunk_by(char::eq).count() as u32,
            Class::Number if matches!(run, ['1', '9', _, _] | ['2', '0', _, _]) => YEAR,
            Class::Number => tenths_of(run),
        };
        chars.chunk_by(|a, b| class_of(*a) == class_of(*b)).map(count).sum::<u32>() / 10
    }

    fn of_words(bytes: &[u8; 2 * WORDS]) -> Self {
        let words = bytes.chunks(2).map(|pair| word(u16::from_be_bytes([pair[0], pair[1]])));
        Code(words.collect::<Vec<_>>().join("-"))
    }
}

/// Sixteen bits as consonant, vowel, consonant, vowel, consonant.
fn word(bits: u16) -> String {
    let consonant = |shift: u16| char::from(CONSONANTS[usize::from(bits >> shift & 15)]);
    let vowel = |shift: u16| char::from(VOWELS[usize::from(bits >> shift & 3)]);
    [consonant(12), vowel(10), consonant(6), vowel(4), consonant(0)].iter().collect()
}

/// What a character is a part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Word,
    Number,
    Gap,
}

fn class_of(c: char) -> Class {
    match c {
        '-' => Class::Gap,
        c if c.is_numeric() => Class::Number,
        _ => Class::Word,
    }
}

/// What a word, or a run of digits, counts.
fn tenths_of(run: &[char]) -> u32 {
    let len = u32::try_from(run.len()).unwrap_or(u32::MAX);
    match class_of(run[0]) {
        Class::Gap => 0,
        Class::Word if is_drawn(run) => DRAWN_WORD,
        Class::Word => WORD.min(len.saturating_mul(LETTER)),
        Class::Number => {
            let goes_on = |pair: &&[char]| u32::from(pair[0]).abs_diff(u32::from(pair[1])) <= 1;
            let known = u32::try_from(run.windows(2).filter(goes_on).count()).unwrap_or(u32::MAX);
            len.saturating_sub(known).saturating_mul(DIGIT)
        }
    }
}

/// Whether a word has the form of those that are drawn.
fn is_drawn(run: &[char]) -> bool {
    let fits = |(at, c): (usize, &char)| {
        let letters: &[u8] = if at % 2 == 0 { CONSONANTS } else { VOWELS };
        letters.iter().any(|letter| char::from(*letter) == *c)
    };
    run.len() == 5 && run.iter().enumerate().all(fits)
}

impl FromStr for Code {
    type Err = String;

    /// Reads a code as people write it: capitals and what stands between words do not count.
    fn from_str(text: &str) -> Result<Self, String> {
        let apart = |c: char| c.is_whitespace() || matches!(c, '-' | '_' | '.');
        let words: Vec<String> =
            text.split(apart).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        let chars = words.iter().map(|word| word.chars().count()).sum::<usize>();
        if !(CHARS_MIN..=CHARS_MAX).contains(&chars)
            || !words.iter().all(|w| w.chars().all(char::is_alphanumeric))
        {
            let example = "such as lusab-babad-gutih";
            return Err(format!("a code has {CHARS_MIN} to {CHARS_MAX} letters and digits, {example}"));
        }
        Ok(Code(words.join("-")))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// It must not get into a log.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Code(..)")
    }
}

/// What is made of a code and of an offer's salt.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pairing {
    salt: [u8; 16],
    key: Hash,
}

/// It must not get into a log.
impl fmt::Debug for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pairing(..)")
    }
}

impl Pairing {
    /// The source's: with a salt of its own.
    pub(super) fn fresh(code: &Code) -> Self {
        Self::derive(code, *fresh_salt().first_chunk().expect("a salt is longer"))
    }

    /// The receiver's; `None` where the code is another one.
    pub(super) fn matching(code: &Code, handle: Handle, sign: &CodeSign) -> Option<Self> {
        let pairing = Self::derive(code, sign.salt);
        (pairing.sign(handle).tag == sign.tag).then_some(pairing)
    }

    fn derive(code: &Code, salt: [u8; 16]) -> Self {
        let mut key = *b"polycast: the key of an offer, 2";
        let words = [&salt[..], code.0.as_bytes()].concat();
        for _ in 0..ROUNDS {
            key = keyed_hash(&key, &words);
        }
        Pairing { salt, key }
    }

    /// What the offer shows of its code.
    pub(super) fn sign(&self, handle: Handle) -> CodeSign {
        let tag = self.prove(b"sign", handle, &[]);
        CodeSign { salt: self.salt, tag: *tag.first_chunk().expect("a hash is longer") }
    }

    /// That the source knows the code.
    pub(super) fn of_source(&self, handle: Handle, nonce: &Hash) -> Hash {
        self.prove(b"from", handle, nonce)
    }

    /// That the receiver of this name knows the code.
    pub(super) fn of_receiver(&self, handle: Handle, challenge: &Hash, name: &str) -> Hash {
        self.prove(b"join", handle, &[challenge, name.as_bytes()].concat())
    }

    /// The connections of those who know the code.
    pub(super) fn security(&self) -> Security {
        Security::shared(&Secret::new(self.key))
    }

    fn prove(&self, what: &[u8; 4], handle: Handle, of: &[u8]) -> Hash {
        keyed_hash(&self.key, &[&what[..], &handle.0.to_be_bytes(), of].concat())
    }
}

/// Whether two hashes are equal, in a time that does not tell where they differ.
pub(super) fn same(one: &Hash, other: &Hash) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The challenge for a connection: no other connection has it, and nothing has to be kept for it. The kernel numbers sockets, so that
/// not even a later one between the same addresses has the same.
pub(super) fn challenge(secret: &Salt, stream: &FrameStream) -> Hash {
    // Where a sandbox has no such numbers, it is that of the other end's address.
    let number = rustix::net::sockopt::socket_cookie(stream).unwrap_or_default();
    keyed_hash(secret, format!("{number} {:?}", stream.peer()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_can_be_said_and_read() {
        // The examples of the proposal: 127.0.0.1 and 63.84.220.193.
        assert_eq!(Code::of_words(&[127, 0, 0, 1, 63, 84]).to_string(), "lusab-babad-gutih");
        let code = Code::fresh();
        assert_ne!(code, Code::fresh());
        let text = code.to_string();
        for typed in [text.clone(), text.to_uppercase(), text.replace('-', " "), format!(" {text}. ")] {
            assert_eq!(typed.parse(), Ok(code.clone()), "{typed}");
        }
        for typed in ["", "short", "what/ever", "a\u{1b}bcdefg", &"x".repeat(65)] {
            assert!(typed.parse::<Code>().is_err(), "{typed:?}");
        }
        assert!(!format!("{code:?}").contains(&text));
    }

    #[test]
    fn what_people_think_of_counts_little() {
        for (code, bits, most) in [
            ("summer", 11, 23),
            ("summer2026", 24, 29),
            ("summer-summer-summer-summer", 11, 108),
            ("our own words", 33, 61),
            ("correct horse battery staple", 44, 122),
            ("blue-sky", 22, 37),
            ("green-hat", 22, 37),
            ("aaaaaa", 11, 4),
            ("123456789012345678", 6, 6),
            ("83749150268374915026", 66, 66),
            ("k3v9x2m7q1w4", 48, 48),
            ("lusab-babad", 32, 51),
            ("lusab-babad-gutih", 48, 79),
        ] {
            let code: Code = code.parse().unwrap();
            assert_eq!((code.bits(), code.bits_at_most()), (bits, most), "{code}");
        }
        assert!(Code::fresh().bits() <= 48, "it is never said to be better than it is");
    }

    /// A proof that was seen is of no use on another connection, also between the same addresses and ports.
    #[test]
    fn each_connection_has_a_challenge_of_its_own() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().into();
        let connect = |from: std::net::SocketAddr| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            // Ended at once, and its port is free again.
            socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
            socket.bind(&from.into()).unwrap();
            socket.connect(&to).unwrap();
            (socket, FrameStream::stranger(listener.accept().unwrap().0, None).unwrap())
        };
        let (first, heard) = connect("127.0.0.1:0".parse().unwrap());
        let (secret, peer) = ([7; 32], heard.peer().unwrap());
        let challenged = challenge(&secret, &heard);
        assert_eq!(challenge(&secret, &heard), challenged);
        drop(first);
        let (_second, again) = connect(peer);
        assert_eq!(again.peer(), Some(peer));
        assert_ne!(challenge(&secret, &again), challenged);
    }

    #[test]
    fn a_sign_is_known_by_its_code_only() {
        let (code, other) = (Code::fresh(), Code::fresh());
        let source = Pairing::fresh(&code);
        let sign = source.sign(Handle(1));
        let receiver = Pairing::matching(&code, Handle(1), &sign).expect("the same code");
        assert!(Pairing::matching(&other, Handle(1), &sign).is_none());
        assert!(Pairing::matching(&code, Handle(2), &sign).is_none(), "of another offer");
        assert_ne!(Pairing::fresh(&code).sign(Handle(1)), sign, "the salt is another one");
        let (nonce, name) = ([5; 32], "name");
        assert_eq!(source.of_source(Handle(1), &nonce), receiver.of_source(Handle(1), &nonce));
        let proof = receiver.of_receiver(Handle(1), &nonce, name);
        assert!(same(&proof, &source.of_receiver(Handle(1), &nonce, name)));
        for (challenge, name) in [([6; 32], "name"), (nonce, "other")] {
            assert!(!same(&proof, &source.of_receiver(Handle(1), &challenge, name)));
        }
        assert_ne!(proof, source.of_source(Handle(1), &nonce), "one end's word is not the other's");
    }
}
