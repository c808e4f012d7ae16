//! The code of an offer, and how it is drawn.
//!
//! A code that is drawn is a hash of the source's public key and of a number: its words say whose offer it
//! is, and one that knows them cannot be its source for others. Where the number is not known, the key tells
//! nothing of the code. Words that a person has made up say nothing of a source: there the first that shows
//! that it knows them is believed.

use polycast_net::hash::{hex, keyed_hash, parse_hex};
use polycast_net::seal::Secret;
use polycast_net::tls::OffererKey;
use polycast_wire::discovery::CodeSign;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Letters of a code that was drawn: syllables that can be said over the telephone (proquints,
/// arXiv:0901.4016).
const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aiou";
/// Words of a code that was drawn, of 16 bits each: the first is the offer's name plate, which all hosts may
/// read, and the others are for those who may take it. A host that tries keys until one has a given code
/// makes 2^64 of them, with [`ROUNDS`] hashes each.
const WORDS: usize = 4;
/// Minimum number of letters and digits in a code that a person has made up.
const CHARS_MIN: usize = 6;
/// Maximum number of letters and digits in it.
const CHARS_MAX: usize = 64;
/// Hashes between a source's key and its code: a few milliseconds for one that looks whether they belong
/// together.
const ROUNDS: usize = 1 << 16;
/// Bytes of the number that stands beside a key.
const NUMBER_LEN: usize = 16;

/// Tenths of a bit that the parts of a code count for a host that guesses: a word in the form of drawn ones,
/// another word, which is one of 2,000 that people take, a letter where a word is shorter, and a digit.
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
    /// Returns true if the code has the form of drawn ones, which show whose offer it is.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        let words: Vec<&str> = self.0.split('-').collect();
        words.len() == WORDS && words.into_iter().all(|word| bits_of(word).is_some())
    }

    /// Returns the sign that an offer with this code shows of it.
    pub(super) fn sign(&self) -> CodeSign {
        let plate = self.0.split('-').next().and_then(bits_of).filter(|_| self.is_drawn());
        plate.map_or(CodeSign::Own, CodeSign::Drawn)
    }

    /// Its letters and digits, as both ends have them.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns true if the source with this key may have drawn the code. Words that were not drawn are any
    /// source's.
    pub(super) fn is_of(&self, public: &[u8; 32], number: &[u8; NUMBER_LEN]) -> bool {
        !self.is_drawn() || Code::of_words(&words_of(public, number)) == *self
    }

    /// About how many bits a host has to guess that tries what people think of. A word counts 11, however
    /// long it is, and 16 in the form of drawn ones; a digit 3.3, unless it is the one before it or follows
    /// it as in 123; what comes again counts nothing.
    #[must_use]
    pub fn bits(&self) -> u32 {
        let chars: Vec<char> = self.0.chars().collect();
        let runs: BTreeSet<&[char]> = chars.chunk_by(|a, b| class_of(*a) == class_of(*b)).collect();
        runs.into_iter().map(tenths_of).sum::<u32>() / 10
    }

    /// Returns the number of bits at most: as if its letters had been drawn. A letter counts 4.7 unless it is
    /// the one before it, and so does a hyphen; numbers count as in [`Code::bits`], and years 6.
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

/// Derives the bytes for the words of a code from a key and a number.
fn words_of(public: &[u8; 32], number: &[u8; NUMBER_LEN]) -> [u8; 2 * WORDS] {
    let mut key = *b"polycast: what a drawn code says";
    let words = [&public[..], number].concat();
    for _ in 0..ROUNDS {
        key = keyed_hash(&key, &words);
    }
    *key.first_chunk().expect("a hash is longer")
}

/// The bits that a drawn word stands for; `None` where it was not drawn.
fn bits_of(word: &str) -> Option<u16> {
    let letters: &[u8; 5] = word.as_bytes().try_into().ok()?;
    let place = |at: usize| -> Option<u16> {
        let all: &[u8] = if at.is_multiple_of(2) { CONSONANTS } else { VOWELS };
        all.iter().position(|letter| *letter == letters[at]).map(|place| place as u16)
    };
    Some(place(0)? << 12 | place(1)? << 10 | place(2)? << 6 | place(3)? << 4 | place(4)?)
}

/// Sixteen bits as consonant, vowel, consonant, vowel, consonant.
fn word(bits: u16) -> String {
    let consonant = |shift: u16| char::from(CONSONANTS[usize::from(bits >> shift & 15)]);
    let vowel = |shift: u16| char::from(VOWELS[usize::from(bits >> shift & 3)]);
    [consonant(12), vowel(10), consonant(6), vowel(4), consonant(0)].iter().collect()
}

/// Class of a character.
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

/// Returns the tenths of a bit that a word, or a run of digits, counts.
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

/// Returns true if a word has the form of drawn ones.
fn is_drawn(run: &[char]) -> bool {
    bits_of(&run.iter().collect::<String>()).is_some()
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
            let example = "such as lusab-babad-gutih-tugad";
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

/// A code, and the key of the source whose offer it is for.
#[derive(Clone, PartialEq, Eq)]
pub struct OfferCode {
    code: Code,
    key: OffererKey,
    number: [u8; NUMBER_LEN],
}

/// It must not get into a log: key and number give the words.
impl fmt::Debug for OfferCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfferCode(..)")
    }
}

/// A code that has the form of those that are drawn, and was drawn elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these words were drawn for another offer, and say that it is that one's: leave --code out, or take words of your own"
)]
pub struct DrawnElsewhere;

impl OfferCode {
    /// One that is drawn.
    #[must_use]
    pub fn drawn() -> Self {
        let number = *Secret::fresh().reveal().first_chunk().expect("a secret is longer");
        Self::of_key(OffererKey::fresh(), number)
    }

    fn of_key(key: OffererKey, number: [u8; NUMBER_LEN]) -> Self {
        OfferCode { code: Code::of_words(&words_of(key.public(), &number)), key, number }
    }

    /// Words of the user's own.
    ///
    /// # Errors
    /// They have the form of those that are drawn: receivers would ask for the key of which those were made.
    pub fn own(code: Code) -> Result<Self, DrawnElsewhere> {
        if code.is_drawn() {
            return Err(DrawnElsewhere);
        }
        Ok(OfferCode { code, key: OffererKey::fresh(), number: [0; NUMBER_LEN] })
    }

    /// The words.
    #[must_use]
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Returns the offer code of an end that knows the words of an offer, and would be its source.
    #[cfg(test)]
    pub(super) fn stolen(code: &Code) -> Self {
        OfferCode { code: code.clone(), key: OffererKey::fresh(), number: [7; NUMBER_LEN] }
    }

    pub(super) fn key(&self) -> &OffererKey {
        &self.key
    }

    pub(super) fn number(&self) -> &[u8; NUMBER_LEN] {
        &self.number
    }

    /// A line by which an offer can be made again under the same drawn words; it is a secret.
    #[must_use]
    pub fn kept(&self) -> Zeroizing<String> {
        let mut number = [0; 32];
        number[..NUMBER_LEN].copy_from_slice(&self.number);
        Zeroizing::new(format!("{} {}", hex(self.key.seed().reveal()), hex(&number)))
    }

    /// The code that was kept so; `None` where this is no such line.
    #[must_use]
    pub fn again(kept: &str) -> Option<Self> {
        let (seed, number) = kept.trim_end().split_once(' ')?;
        let number = *parse_hex(number)?.first_chunk().expect("a hash is longer");
        Some(Self::of_key(OffererKey::of(Secret::new(parse_hex(seed)?)), number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_can_be_said_and_read() {
        // The examples of the proposal: 127.0.0.1 and 63.84.220.193.
        let example = Code::of_words(&[127, 0, 0, 1, 63, 84, 220, 193]);
        assert_eq!(example.to_string(), "lusab-babad-gutih-tugad");
        let code = OfferCode::drawn().code().clone();
        assert_ne!(code, *OfferCode::drawn().code());
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
            ("lusab-babad-gutih-tugad", 64, 108),
        ] {
            let code: Code = code.parse().unwrap();
            assert_eq!((code.bits(), code.bits_at_most()), (bits, most), "{code}");
        }
        assert!(OfferCode::drawn().code().bits() <= 64, "it is never said to be better than it is");
    }

    #[test]
    fn drawn_words_are_of_one_key() {
        let (offer, other) = (OfferCode::drawn(), OfferCode::drawn());
        let code = offer.code();
        assert!(code.is_drawn() && code.is_of(offer.key().public(), offer.number()));
        assert!(!code.is_of(other.key().public(), offer.number()), "of another key");
        assert!(
            !code.is_of(offer.key().public(), other.number()),
            "of another number: the key alone tells nothing"
        );
        assert_eq!(OfferCode::own(code.clone()), Err(DrawnElsewhere));
        assert_eq!(OfferCode::again(&offer.kept()), Some(offer.clone()));
        assert_eq!(OfferCode::again(&offer.kept()[1..]), None);
        assert_eq!(format!("{offer:?}"), "OfferCode(..)");
        let CodeSign::Drawn(plate) = code.sign() else { panic!("it shows its plate") };
        assert_eq!(Some(plate), bits_of(&code.to_string()[..5]));
        for bits in [0, 1, 0x1234, u16::MAX] {
            assert_eq!(bits_of(&word(bits)), Some(bits));
        }
        // Three drawn words, and four others, say nothing of a source.
        for words in ["lusab-babad-gutih", "four-words-of-ours", "lusab-babad-gutih-robotic"] {
            let own = OfferCode::own(words.parse().unwrap()).unwrap();
            assert_eq!(own.code().sign(), CodeSign::Own, "{words}");
            assert!(own.code().is_of(other.key().public(), other.number()));
        }
    }
}
