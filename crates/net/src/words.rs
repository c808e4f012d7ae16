//! Words between controllers, and greetings of forwarders, each a datagram: where members share a key, each
//! has a number and a tag.
//!
//! They hold no content, so they are not hidden. One without a right tag, and one that was heard before, is
//! dropped.

use crate::seal::{Seal, Secret};
use crate::tls::Security;
use polycast_types::Handle;
use polycast_wire::data::TAG_LEN;
use polycast_wire::words::{Heard, SealedWord, TRAILER_LEN, Way};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Purpose of the key of messages between controllers.
const PURPOSE: &str = "polycast 3 words";

/// Key that messages are sealed with; nothing where members share no key.
#[derive(Clone, Debug, Default)]
pub struct WordsKey(Option<Secret>);

impl WordsKey {
    /// Returns the key of the members of a cluster; with certificates only there is none, since members share
    /// nothing.
    #[must_use]
    pub fn of(security: Option<&Security>) -> Self {
        WordsKey(security.and_then(|security| security.members_secret(PURPOSE)))
    }

    /// Returns true if messages have tags.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }
}

/// State of the messages that one end sends and has received.
#[derive(Debug)]
pub struct Words {
    seal: Option<Seal>,
    /// Number of this run, and number of its next message.
    run: u64,
    number: u64,
    /// Record of the messages of each sender; as many as the caller's settings have.
    heard: BTreeMap<(Way, u32), Heard>,
    forged: u64,
}

impl Words {
    /// Nothing was said yet. A later run has a larger number, if the machine's clock does not go back.
    #[must_use]
    pub fn new(key: &WordsKey) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seal = key.0.as_ref().map(|secret| Seal::new(secret, Handle(0)));
        let run = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX >> 1);
        Words { seal, run, number: 0, heard: BTreeMap::new(), forged: 0 }
    }

    /// Returns the number of messages that were dropped because their sender lacks the key, or because they
    /// were received before.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// A message as it is sent.
    pub fn say<'a>(&mut self, way: Way, message: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(seal) = &self.seal else { return message.into() };
        let mut datagram = Vec::with_capacity(message.len() + TRAILER_LEN);
        datagram.extend_from_slice(message);
        datagram.extend(self.run.to_be_bytes());
        datagram.extend(self.number.to_be_bytes());
        self.number += 1;
        let tag = seal.tag_of(&way.covered(), &datagram);
        datagram.extend_from_slice(&tag[..TAG_LEN]);
        datagram.into()
    }

    /// The message in a datagram of the speaker with this number; `None`, and counted, where it is not to be
    /// believed.
    pub fn hear<'a>(&mut self, way: Way, from: u32, datagram: &'a [u8]) -> Option<&'a [u8]> {
        self.hear_named(way, from, datagram, |_| true)
    }

    /// The same where several speak in this way, so that a right tag does not tell which of them has: `names`
    /// says whether the message is of this speaker, or for this end. One that is not is given to the caller,
    /// who refuses it. It counts for none: a word of another speaker, recorded and said again with this one's
    /// address, would make all of this one's words old.
    pub fn hear_named<'a>(
        &mut self,
        way: Way,
        from: u32,
        datagram: &'a [u8],
        names: impl FnOnce(&[u8]) -> bool,
    ) -> Option<&'a [u8]> {
        let Some(seal) = &self.seal else { return Some(datagram) };
        let word = SealedWord::parse(datagram).filter(|word| {
            let mut tag = seal.tag();
            tag.header(&way.covered());
            tag.payload(word.before);
            tag.is(word.tag)
        });
        let word = word.filter(|word| {
            !names(word.message) || self.heard.entry((way, from)).or_default().is_new(word.run, word.number)
        });
        if word.is_none() {
            self.forged += 1;
            if self.forged == 1 {
                tracing::warn!(
                    ?way,
                    from,
                    "dropped a word that has no right tag of the cluster's key, came a second time, or is of an earlier run of its speaker"
                );
            }
        }
        word.map(|word| word.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_heard_once_on_its_own_way_by_one_who_has_the_key() {
        let [ours, others] = [(); 2].map(|()| WordsKey::of(Some(&Security::shared(&Secret::fresh()))));
        let (mut speaker, mut listener) = (Words::new(&ours), Words::new(&ours));
        let words: Vec<Vec<u8>> =
            [&b"first"[..], b"second"].map(|text| speaker.say(Way::AgentToLeaf, text).into_owned()).into();
        assert_eq!(listener.hear(Way::AgentToLeaf, 3, &words[1]), Some(&b"second"[..]));
        assert_eq!(listener.hear(Way::AgentToLeaf, 3, &words[0]), Some(&b"first"[..]), "it was overtaken");
        for (way, word) in [(Way::AgentToLeaf, &words[0]), (Way::LeafToCentral, &words[1])] {
            assert_eq!(listener.hear(way, 3, word), None, "again, or on another way");
        }
        for at in 0..words[0].len() {
            let mut changed = words[0].clone();
            changed[at] ^= 1;
            assert_eq!(Words::new(&ours).hear(Way::AgentToLeaf, 3, &changed), None, "byte {at}");
        }
        let foreign = Words::new(&others).say(Way::AgentToLeaf, b"third").into_owned();
        assert_eq!(listener.hear(Way::AgentToLeaf, 3, &foreign), None);
        assert_eq!(listener.hear(Way::AgentToLeaf, 3, b"plain"), None);
        assert_eq!(listener.forged(), 4);
    }

    /// A word of another speaker that was recorded comes with this one's address. Its run is a later one.
    #[test]
    fn a_word_of_another_speaker_silences_none() {
        let key = WordsKey::of(Some(&Security::shared(&Secret::fresh())));
        let [mut speaker, mut other, mut listener] = [(); 3].map(|()| Words::new(&key));
        other.run = speaker.run + 1;
        let mut hear = |word: &[u8]| {
            listener.hear_named(Way::AgentToLeaf, 3, word, |said| said.ends_with(b"of 3")).map(<[u8]>::to_vec)
        };
        let recorded = other.say(Way::AgentToLeaf, b"of 4").into_owned();
        assert_eq!(hear(&recorded).as_deref(), Some(&b"of 4"[..]), "the caller refuses it");
        let word = speaker.say(Way::AgentToLeaf, b"of 3").into_owned();
        assert_eq!(hear(&word).as_deref(), Some(&b"of 3"[..]), "it has not become old");
        assert_eq!(hear(&word), None, "again");
    }

    #[test]
    fn without_a_key_words_are_as_they_are() {
        let mut words = Words::new(&WordsKey::default());
        assert_eq!(&*words.say(Way::CentralToLeaf, b"plain"), b"plain");
        assert_eq!(words.hear(Way::LeafToCentral, 1, b"any"), Some(&b"any"[..]));
        assert_eq!(words.forged(), 0);
    }
}
