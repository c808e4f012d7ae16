//! Many agents that ask at nearly the same time, a subscriber that loses a version again, and any sequence of
//! words.

use super::*;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use polycast_types::{AppId, DataId, Duration};
use proptest::prelude::*;

mod draining;
mod passing;

fn agent(number: u64) -> AgentKey {
    AgentKey { name: format!("h{number}"), incarnation: 1 }
}

fn object(number: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(number) }
}

fn ms(at: u64) -> Time {
    Time(at * 1_000_000)
}

fn have(of: u64, number: u64) -> DirectoryInput {
    let (root, age) = (Some([3; 32]), Duration::ZERO);
    DirectoryInput::Have { agent: agent(of), object: object(number), length: 7, root, age }
}

fn outputs(directory: &mut Directory, now: Time) -> Vec<DirectoryOutput> {
    core::iter::from_fn(|| directory.poll(now)).collect()
}

/// A directory that knows what there is, and agents that have said so.
fn settled(agents: u64) -> Directory {
    let mut directory = Directory::new(DirectoryConfig::default(), Time::ZERO, 0);
    for number in 0..agents {
        directory.handle(Time::ZERO, DirectoryInput::Arrived { agent: agent(number) });
        directory.handle(Time::ZERO, DirectoryInput::Told { agent: agent(number) });
    }
    assert_eq!(outputs(&mut directory, ms(10_000)), []);
    directory
}

/// 200 agents ask for one key within 50 ms: one of them gets it from its origin, and then sends it to all
/// others at once.
#[test]
fn many_who_ask_at_once_are_one_fill_and_one_transfer() {
    const AGENTS: u64 = 200;
    let mut directory = settled(AGENTS);
    let wish = Wish { can_fill: true, waits: true, fills: false };
    let begun = ms(20_000);
    let mut said = Vec::new();
    for number in 0..AGENTS {
        let now = begun + Duration(number * 49_000_000 / AGENTS);
        directory.handle(now, DirectoryInput::Want { agent: agent(number), object: object(1), wish });
        said.extend(outputs(&mut directory, now));
    }
    said.extend(outputs(&mut directory, begun + Duration::from_millis(60)));
    let [DirectoryOutput::Fill { agent: filler, .. }] = &said[..] else { panic!("{said:?}") };
    let filler = filler.clone();
    let now = ms(21_000);
    let number: u64 = filler.name[1..].parse().unwrap();
    directory.handle(now, have(number, 1));
    let mut said = outputs(&mut directory, now);
    said.extend(outputs(&mut directory, now + Duration::from_millis(60)));
    let [DirectoryOutput::Serve { holder, receivers, .. }] = &said[..] else { panic!("{said:?}") };
    assert_eq!((holder, receivers.len() as u64), (&filler, AGENTS - 1));
}

/// A wish that is said again meets the word to fill on its way; in a new session that word may have been
/// lost.
#[test]
fn the_word_to_fill_is_said_once_in_a_session() {
    let mut directory = settled(2);
    let wish = Wish { can_fill: true, waits: true, fills: false };
    let want = || DirectoryInput::Want { agent: agent(0), object: object(1), wish };
    let fill = [DirectoryOutput::Fill { agent: agent(0), object: object(1) }];
    directory.handle(ms(20_000), want());
    assert_eq!(outputs(&mut directory, ms(20_060)), fill);
    directory.handle(ms(20_061), want());
    assert_eq!(outputs(&mut directory, ms(20_200)), []);
    directory.handle(ms(21_000), DirectoryInput::Arrived { agent: agent(0) });
    directory.handle(ms(21_001), want());
    directory.handle(ms(21_002), want());
    assert_eq!(outputs(&mut directory, ms(21_060)), [], "what it has is not known yet");
    directory.handle(ms(21_061), DirectoryInput::Told { agent: agent(0) });
    assert_eq!(outputs(&mut directory, ms(21_061)), fill);
    assert_eq!(outputs(&mut directory, ms(30_000)), []);
}

/// A version whose object no agent has any longer is given up, and its publisher is notified at once.
#[test]
fn a_version_that_its_only_holder_loses_is_given_up() {
    let mut directory = settled(2);
    directory.handle(ms(20_000), have(0, 1));
    let (app, topic) = (AppId::default(), "t".to_string());
    directory.handle(ms(20_000), DirectoryInput::Subscribe { agent: agent(1), app, topic: topic.clone() });
    let version = Version { number: 4, object: object(1) };
    let publish =
        DirectoryInput::Publish { agent: agent(0), app, topic: topic.clone(), version, patience: None };
    directory.handle(ms(20_000), publish);
    outputs(&mut directory, ms(20_000));
    directory.handle(ms(20_100), DirectoryInput::Lost { agent: agent(0), object: object(1) });
    let said = outputs(&mut directory, ms(20_100));
    let why = TopicRefusal::Vanished { topic: topic.clone(), number: 4 };
    let refused = DirectoryOutput::TopicRefused { agent: agent(0), topic, number: Some(4), why };
    assert!(said.contains(&refused), "{said:?}");
    assert_eq!(directory.committed("t"), None);
}

/// A directory that has begun lately does not know all subscribers: it commits nothing before they have had
/// time to come.
#[test]
fn nothing_is_committed_before_subscribers_have_had_time_to_come() {
    let mut directory = Directory::new(DirectoryConfig::default(), ms(20_000), 0);
    for number in 0..3 {
        directory.handle(ms(20_000), DirectoryInput::Arrived { agent: agent(number) });
        directory.handle(ms(20_000), DirectoryInput::Told { agent: agent(number) });
    }
    directory.handle(ms(20_001), have(0, 1));
    let (app, topic) = (AppId::default(), "t".to_string());
    let version = Version { number: 1, object: object(1) };
    let publish = DirectoryInput::Publish {
        agent: agent(0),
        app,
        topic: topic.clone(),
        version: version.clone(),
        patience: None,
    };
    directory.handle(ms(20_001), publish);
    outputs(&mut directory, ms(20_002));
    assert_eq!(directory.committed("t"), None, "who subscribes may not have said so yet");
    // One does and gets it, and then another one does that is waited for.
    let subscribe = |number| DirectoryInput::Subscribe { agent: agent(number), app, topic: topic.clone() };
    directory.handle(ms(20_010), subscribe(1));
    directory.handle(ms(20_020), have(1, 1));
    outputs(&mut directory, ms(20_020));
    assert_eq!(directory.committed("t"), None, "it may not be the only one");
    directory.handle(ms(20_030), subscribe(2));
    outputs(&mut directory, ms(40_000));
    assert_eq!(directory.committed("t"), None, "the other one does not have it");
    directory.handle(ms(40_001), have(2, 1));
    outputs(&mut directory, ms(40_001));
    assert_eq!(directory.committed("t"), Some(&version));
}

#[test]
fn a_subscriber_that_lost_a_version_before_its_commit_is_named() {
    let mut directory = settled(3);
    directory.handle(ms(20_000), have(0, 1));
    for number in [1, 2] {
        let topic = "t".to_string();
        let subscribe = DirectoryInput::Subscribe { agent: agent(number), app: AppId::default(), topic };
        directory.handle(ms(20_000), subscribe);
    }
    let version = Version { number: 1, object: object(1) };
    let publish = DirectoryInput::Publish {
        agent: agent(0),
        app: AppId::default(),
        topic: "t".into(),
        version: version.clone(),
        patience: None,
    };
    directory.handle(ms(20_001), publish);
    directory.handle(ms(20_100), have(1, 1));
    // Something else needed its room.
    directory.handle(ms(20_200), DirectoryInput::Lost { agent: agent(1), object: object(1) });
    outputs(&mut directory, ms(20_200));
    assert_eq!(directory.committed("t"), None, "the other one has not got it yet");
    directory.handle(ms(20_300), have(2, 1));
    let said = outputs(&mut directory, ms(20_400));
    let published = said.iter().find_map(|output| match output {
        DirectoryOutput::Published { have, missing, .. } => Some((have.clone(), missing.clone())),
        _ => None,
    });
    let missing = vec![("h1".to_string(), Missed::NotKept)];
    assert_eq!(published, Some((vec!["h2".to_string()], missing)));
    let told = |number: u64| {
        let to = agent(number);
        said.iter().any(
            |output| matches!(output, DirectoryOutput::News { agent, committed: true, .. } if *agent == to),
        )
    };
    assert!(told(2) && !told(1), "{said:?}");
    assert_eq!(directory.committed("t"), Some(&version));
}

/// A version waits for a subscriber as long as its publisher has said, and no longer.
#[test]
fn a_version_is_committed_when_its_patience_is_over() {
    let mut directory = settled(2);
    directory.handle(ms(20_000), have(0, 1));
    let (app, topic) = (AppId::default(), "t".to_string());
    directory.handle(ms(20_000), DirectoryInput::Subscribe { agent: agent(1), app, topic: topic.clone() });
    let version = Version { number: 1, object: object(1) };
    let patience = Some(Duration::from_millis(300));
    let publish = DirectoryInput::Publish { agent: agent(0), app, topic, version: version.clone(), patience };
    directory.handle(ms(20_000), publish);
    outputs(&mut directory, ms(20_000));
    for at in [20_001, 20_150, 20_299] {
        // Something makes it look at the topic.
        let lost = DirectoryInput::Lost { agent: agent(1), object: object(1) };
        directory.handle(ms(at), lost);
        directory.handle(ms(at), have(0, 1));
        outputs(&mut directory, ms(at));
        assert_eq!(directory.committed("t"), None, "at {at} ms the subscriber is waited for");
    }
    outputs(&mut directory, ms(20_300));
    assert_eq!(directory.committed("t"), Some(&version));
}

/// One that cannot reach the origin is not asked to, nor one that has tried in vain.
#[test]
fn only_who_can_get_an_object_from_its_origin_is_told_to() {
    let mut directory = settled(3);
    for (number, can_fill) in [(0, false), (1, true), (2, true)] {
        let wish = Wish { can_fill, waits: true, fills: false };
        directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(number), object: object(1), wish });
    }
    let fill = |number| DirectoryOutput::Fill { agent: agent(number), object: object(1) };
    assert_eq!(outputs(&mut directory, ms(20_100)), [fill(1)]);
    let failed = |number| {
        let (agent, reason) = (agent(number), "no route".to_string());
        DirectoryInput::FillFailed { agent, object: object(1), reason }
    };
    directory.handle(ms(20_200), failed(1));
    let denied = |number, why| DirectoryOutput::Denied { agent: agent(number), object: object(1), why };
    assert_eq!(outputs(&mut directory, ms(20_300)), [fill(2)], "the one that could not may wait for it");
    directory.handle(ms(20_400), failed(2));
    let no_route = |number| denied(number, WishRefusal::Origin("no route".to_string()));
    assert_eq!(outputs(&mut directory, ms(20_500)), [no_route(1), no_route(2)], "the first one waits");
}

#[test]
fn names_of_topics_are_short_and_without_spaces() {
    let mut directory = settled(1);
    let long = "t".repeat(255);
    let refused = |directory: &mut Directory, topic: &str| {
        let topic = topic.to_string();
        let subscribe = DirectoryInput::Subscribe { agent: agent(0), app: AppId::default(), topic };
        directory.handle(ms(20_000), subscribe);
        let said = outputs(directory, ms(20_000));
        said.into_iter().find_map(|output| match output {
            DirectoryOutput::TopicRefused { why, .. } => Some(why),
            _ => None,
        })
    };
    for fine in ["t", "weights.7-b_c", "\u{e9}", &long] {
        assert_eq!(refused(&mut directory, fine), None, "{fine}");
    }
    for odd in ["", " ", "a b", "a\tb", "a\u{0}b", "a,b", "a/b"] {
        assert_eq!(refused(&mut directory, odd), Some(TopicRefusal::BadName(odd.to_string())));
    }
    let longer = format!("{long}u");
    assert_eq!(
        refused(&mut directory, &longer),
        Some(TopicRefusal::BadName(long)),
        "cut to what a name may be"
    );
}

fn word() -> impl Strategy<Value = DirectoryInput> {
    let (who, what) = (0u64..5, 0u64..3);
    (0u8..14, who, what, 0u64..4, any::<(bool, bool, bool)>()).prop_map(|(kind, who, what, number, bits)| {
        let (agent, object) = (agent(who), object(what));
        let (app, topic) = (AppId::default(), format!("t{}", number % 2));
        let version = Version { number: number + 1, object };
        match kind {
            0 => DirectoryInput::Arrived { agent },
            1 => DirectoryInput::Told { agent },
            2 => DirectoryInput::Gone { agent },
            3 | 4 => have(who, what),
            5 => DirectoryInput::Lost { agent, object },
            6 | 7 => {
                let wish = Wish { can_fill: bits.0, waits: bits.1, fills: false };
                DirectoryInput::Want { agent, object, wish }
            }
            8 => DirectoryInput::Unwant { agent, object },
            9 => DirectoryInput::FillFailed { agent, object, reason: "no".into() },
            12 => DirectoryInput::Unserved { agent, object, waits: bits.0 },
            13 => {
                let hosts = [(bits.0, who), (bits.1, number)].into_iter().filter(|(is_out, _)| *is_out);
                DirectoryInput::Drained { hosts: hosts.map(|(_, host)| format!("h{host}")).collect() }
            }
            10 if bits.2 => DirectoryInput::Unsubscribe { agent, topic },
            10 => DirectoryInput::Subscribe { agent, app, topic },
            _ => {
                let patience = bits.0.then_some(Duration::from_millis(300));
                DirectoryInput::Publish { agent, app, topic, version, patience }
            }
        }
    })
}

proptest! {
    /// Whatever agents say in whatever order: no agent is told to get what another has, one at a time is told
    /// so, none is sent what it has, a topic's versions rise, and what is committed an agent has.
    #[test]
    fn any_sequence_of_words_keeps_the_rules(
        words in proptest::collection::vec((word(), 0u64..400), 1..120),
    ) {
        let mut directory = Directory::new(DirectoryConfig::default(), Time::ZERO, 0);
        let mut now = 0;
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        // Agents that have not said everything yet, and until when that is waited for.
        let mut untold: BTreeMap<AgentKey, u64> = BTreeMap::new();
        let settle = DirectoryConfig::default().settle.as_millis();
        // Agents that could get an object from its origin by their own last word.
        let mut able: BTreeMap<(AgentKey, ObjectId), bool> = BTreeMap::new();
        for (word, wait) in words {
            now += wait;
            match &word {
                // One that gets it already is only told so again.
                DirectoryInput::Want { agent, object, wish } if directory.filler(*object) != Some(agent) => {
                    able.insert((agent.clone(), *object), wish.can_fill);
                }
                DirectoryInput::FillFailed { agent, object, .. }
                    if directory.filler(*object) == Some(agent) =>
                {
                    able.insert((agent.clone(), *object), false);
                }
                DirectoryInput::Arrived { agent } => {
                    untold.insert(agent.clone(), now + settle);
                }
                DirectoryInput::Told { agent } | DirectoryInput::Gone { agent } => {
                    untold.remove(agent);
                }
                _ => {}
            }
            let doubtful = now < settle || untold.values().any(|until| now < *until);
            let fillers: Vec<Option<AgentKey>> =
                (0..3).map(|what| directory.filler(object(what)).cloned()).collect();
            directory.handle(ms(now), word);
            while let Some(output) = directory.poll(ms(now)) {
                match output {
                    DirectoryOutput::Fill { agent, object } => {
                        prop_assert_eq!(directory.filler(object), Some(&agent));
                        prop_assert_eq!(able.get(&(agent, object)), Some(&true), "it cannot get it");
                        // Those that have it have not sent it.
                        let tried = &directory.entries[&object].wants[directory.filler(object).unwrap()].tried;
                        prop_assert!(directory.holders(object).all(|holder| tried.contains(holder)), "an agent has it");
                        let again = fillers[object.data.0 as usize].as_ref() == directory.filler(object);
                        prop_assert!(again || !doubtful, "an agent may have it that has not said so yet");
                    }
                    DirectoryOutput::Serve { holder, object, receivers, .. } => {
                        prop_assert!(directory.holders(object).any(|one| *one == holder));
                        prop_assert!(!receivers.is_empty());
                        for one in directory.holders(object) {
                            prop_assert!(!receivers.contains(&one.name), "{} has it", one.name);
                        }
                    }
                    DirectoryOutput::News { topic, version: Some(version), committed: true, agent } => {
                        let before = last.insert(topic.clone(), version.number).unwrap_or(0);
                        prop_assert!(before <= version.number || directory.committed(&topic).is_none_or(
                            |known| known.number == version.number), "{} goes back", topic);
                        prop_assert!(directory.holders(version.object).any(|one| *one == agent));
                    }
                    _ => {}
                }
                directory.check();
            }
        }
    }
}

fn publish(of: u64, topic: &str, number: u64, what: u64) -> DirectoryInput {
    let version = Version { number, object: object(what) };
    DirectoryInput::Publish {
        agent: agent(of),
        app: AppId::default(),
        topic: topic.into(),
        version,
        patience: None,
    }
}

fn subscribe(of: u64, topic: &str) -> DirectoryInput {
    DirectoryInput::Subscribe { agent: agent(of), app: AppId::default(), topic: topic.into() }
}

/// The answer to it where nothing was published.
fn subscribed(of: u64, topic: &str) -> DirectoryOutput {
    DirectoryOutput::News { agent: agent(of), topic: topic.into(), version: None, committed: false }
}

/// Returns the messages that a directory sends at once in reply to an input.
fn said(directory: &mut Directory, word: DirectoryInput) -> Vec<DirectoryOutput> {
    directory.handle(ms(20_000), word);
    outputs(directory, ms(20_000))
}

fn refused(of: u64, number: Option<u64>, why: TopicRefusal) -> DirectoryOutput {
    DirectoryOutput::TopicRefused { agent: agent(of), topic: "t".into(), number, why }
}

fn published(of: u64, number: u64, have: &[u64], missing: &[(u64, Missed)]) -> DirectoryOutput {
    let have = have.iter().map(|number| agent(*number).name).collect();
    let missing = missing.iter().map(|(number, why)| (agent(*number).name, why.clone())).collect();
    DirectoryOutput::Published { agent: agent(of), topic: "t".into(), number, have, missing }
}

/// Versions only rise, one at a time, and their publisher has them. What is said again is answered as it was,
/// or when it is committed, and to all that have said it.
#[test]
fn versions_rise_one_at_a_time() {
    let mut directory = settled(4);
    let topic = || "t".to_string();
    let not_held = refused(0, Some(4), TopicRefusal::NotHeld(topic()));
    assert_eq!(said(&mut directory, publish(0, "t", 4, 1)), [not_held]);
    for (of, what) in [(0, 1), (0, 2), (3, 1)] {
        assert_eq!(said(&mut directory, have(of, what)), []);
    }
    assert_eq!(
        said(&mut directory, publish(0, "t", 4, 1)),
        [published(0, 4, &[], &[])],
        "none is subscribed"
    );
    assert_eq!(directory.committed("t"), Some(&Version { number: 4, object: object(1) }));
    // The same again is there already; another one of that number, or below, is not above it.
    assert_eq!(said(&mut directory, publish(3, "t", 4, 1)), [published(3, 4, &[], &[])]);
    for (number, what) in [(4, 2), (3, 1), (3, 2)] {
        let why = TopicRefusal::NotAbove { topic: topic(), number, last: 4 };
        assert_eq!(said(&mut directory, publish(0, "t", number, what)), [refused(0, Some(number), why)]);
    }
    // A subscriber has to get the next one first.
    let told = said(&mut directory, subscribe(1, "t"));
    assert!(
        !told.iter().any(|output| matches!(output, DirectoryOutput::News { committed: true, .. })),
        "{told:?}"
    );
    said(&mut directory, have(1, 1));
    said(&mut directory, publish(0, "t", 5, 2));
    assert_eq!(directory.committed("t").map(|version| version.number), Some(4));
    for number in [5, 6] {
        let why = TopicRefusal::Staging { topic: topic(), staging: 5 };
        assert_eq!(said(&mut directory, publish(0, "t", number, 1)), [refused(0, Some(number), why)]);
    }
    said(&mut directory, have(3, 2));
    assert_eq!(said(&mut directory, publish(3, "t", 5, 2)), [], "it is on its way");
    let told = said(&mut directory, have(1, 2));
    for publisher in [0, 3] {
        assert!(told.contains(&published(publisher, 5, &[1], &[])), "{told:?}");
    }
    let version = Some(Version { number: 5, object: object(2) });
    let news = DirectoryOutput::News { agent: agent(1), topic: topic(), version, committed: true };
    assert!(told.contains(&news), "{told:?}");
    // One that comes later and has not got it is named where it is published again.
    said(&mut directory, subscribe(2, "t"));
    let missing = [(2, Missed::Earlier)];
    assert_eq!(said(&mut directory, publish(0, "t", 5, 2)), [published(0, 5, &[1], &missing)]);
}

/// A topic takes a place as long as it has a subscriber, a version on its way, or a version that an agent
/// has.
#[test]
fn topics_without_subscribers_and_versions_take_no_place() {
    let config = DirectoryConfig { topics_max: 2, ..DirectoryConfig::default() };
    let mut directory = Directory::new(config, Time::ZERO, 0);
    assert_eq!(said(&mut directory, subscribe(0, "a")), [subscribed(0, "a")]);
    said(&mut directory, have(1, 1));
    said(&mut directory, publish(1, "b", 1, 1));
    let full = refused(2, None, TopicRefusal::Full(2));
    assert_eq!(said(&mut directory, subscribe(2, "t")), core::slice::from_ref(&full));
    // One that has no version and is left by its only subscriber goes.
    said(&mut directory, DirectoryInput::Unsubscribe { agent: agent(2), topic: "a".into() });
    assert_eq!(
        said(&mut directory, subscribe(2, "t")),
        core::slice::from_ref(&full),
        "another one is still there"
    );
    said(&mut directory, DirectoryInput::Unsubscribe { agent: agent(0), topic: "a".into() });
    assert_eq!(said(&mut directory, subscribe(2, "t")), [subscribed(2, "t")]);
    let other = || DirectoryInput::Subscribe { agent: agent(3), app: AppId::default(), topic: "t".into() };
    assert_eq!(said(&mut directory, other()), [subscribed(3, "t")]);
    said(&mut directory, DirectoryInput::Gone { agent: agent(2) });
    assert_eq!(directory.topics.len(), 2, "one of two is left");
    said(&mut directory, DirectoryInput::Gone { agent: agent(3) });
    assert_eq!(directory.topics.len(), 1);
    // One whose version no agent has any more goes, and what was refused leaves none behind.
    said(&mut directory, publish(1, "c", 1, 9));
    assert_eq!(directory.topics.len(), 1);
    said(&mut directory, DirectoryInput::Lost { agent: agent(1), object: object(1) });
    assert_eq!((directory.topics.len(), directory.committed("b")), (0, None));
}

/// A topic is one application's, whatever others say.
#[test]
fn a_topic_belongs_to_one_application() {
    let mut directory = settled(2);
    said(&mut directory, subscribe(0, "t"));
    said(&mut directory, have(1, 1));
    let app = AppId([7; 16]);
    let why = TopicRefusal::OtherApplication("t".into());
    let word = DirectoryInput::Subscribe { agent: agent(1), app, topic: "t".into() };
    assert_eq!(said(&mut directory, word), [refused(1, None, why.clone())]);
    let version = Version { number: 1, object: object(1) };
    let word = DirectoryInput::Publish {
        agent: agent(1),
        app,
        topic: "t".into(),
        version: version.clone(),
        patience: None,
    };
    assert_eq!(said(&mut directory, word), [refused(1, Some(1), why)]);
    assert_eq!(
        said(&mut directory, DirectoryInput::Committed { agent: agent(1), app, topic: "t".into(), version }),
        []
    );
    assert_eq!(directory.committed("t"), None);
}

/// A version that an earlier manager has committed counts if it is newer than the known one, and ends the
/// staged version that it has overtaken.
#[test]
fn what_an_earlier_manager_has_committed_counts() {
    let committed = |number, what| {
        let version = Version { number, object: object(what) };
        DirectoryInput::Committed { agent: agent(0), app: AppId::default(), topic: "t".into(), version }
    };
    let last = |directory: &Directory| directory.committed("t").map(|version| version.number);
    for (number, expected) in [(2, 3), (3, 3), (4, 4)] {
        let mut directory = settled(3);
        said(&mut directory, have(0, 1));
        said(&mut directory, committed(3, 1));
        said(&mut directory, committed(number, 1));
        assert_eq!(last(&directory), Some(expected));
    }
    for (number, is_over) in [(4, false), (5, true), (6, true)] {
        let mut directory = settled(3);
        said(&mut directory, have(0, 1));
        said(&mut directory, have(0, 2));
        said(&mut directory, subscribe(1, "t"));
        said(&mut directory, publish(0, "t", 5, 2));
        said(&mut directory, committed(number, 1));
        let staged = directory.topics["t"].staging.is_some();
        assert_eq!((staged, last(&directory)), (!is_over, Some(number)), "{number} beside 5 on its way");
    }
}

/// Subscriptions count as wishes, of which there may be so many; one that is said again does not count twice.
#[test]
fn subscriptions_have_a_limit() {
    let config = DirectoryConfig { wishes_max: 2, ..DirectoryConfig::default() };
    let mut directory = Directory::new(config, Time::ZERO, 0);
    for _ in 0..3 {
        assert_eq!(said(&mut directory, subscribe(0, "t")), [subscribed(0, "t")]);
    }
    assert_eq!(said(&mut directory, subscribe(1, "t")), [subscribed(1, "t")]);
    assert_eq!(said(&mut directory, subscribe(2, "t")), [refused(2, None, TopicRefusal::Full(2))]);
    said(&mut directory, DirectoryInput::Unsubscribe { agent: agent(0), topic: "t".into() });
    said(&mut directory, DirectoryInput::Unsubscribe { agent: agent(0), topic: "t".into() });
    assert_eq!(said(&mut directory, subscribe(2, "t")), [subscribed(2, "t")]);
    assert_eq!(said(&mut directory, subscribe(0, "t")), [refused(0, None, TopicRefusal::Full(2))]);
}

fn want(of: u64, what: u64) -> DirectoryInput {
    let wish = Wish { can_fill: false, waits: true, fills: false };
    DirectoryInput::Want { agent: agent(of), object: object(what), wish }
}

fn serve(holder: u64, serve: u64, what: u64, receivers: &[u64]) -> DirectoryOutput {
    let receivers = receivers.iter().map(|number| agent(*number).name).collect();
    DirectoryOutput::Serve { holder: agent(holder), serve, object: object(what), receivers }
}

fn served(holder: u64, serve: u64, outcomes: &[(u64, bool)]) -> DirectoryInput {
    let outcome = |is_well: bool| if is_well { Ok(()) } else { Err("no route".to_string()) };
    let outcomes =
        outcomes.iter().map(|(number, is_well)| (agent(*number).name, outcome(*is_well))).collect();
    DirectoryInput::Served { agent: agent(holder), serve, outcomes }
}

/// Returns the messages of a directory at each of these milliseconds.
fn spoken(directory: &mut Directory, at: core::ops::Range<u64>) -> Vec<(u64, DirectoryOutput)> {
    at.flat_map(|at| outputs(directory, ms(at)).into_iter().map(move |output| (at, output))).collect()
}

/// Wishes are gathered for 50 ms and served together. One to whom the object was sent has ten seconds to say
/// that it has it.
#[test]
fn what_was_sent_and_does_not_arrive_is_sent_again() {
    for arrives in [false, true] {
        let mut directory = settled(4);
        directory.handle(ms(20_000), have(0, 1));
        assert_eq!(outputs(&mut directory, ms(20_000)), []);
        for (at, number) in [(20_000, 1), (20_049, 2)] {
            directory.handle(ms(at), want(number, 1));
        }
        assert_eq!(spoken(&mut directory, 20_049..20_100), [(20_050, serve(0, 1, 1, &[1, 2]))]);
        directory.handle(ms(21_000), served(0, 1, &[(1, true)]));
        directory.handle(ms(21_500), served(0, 1, &[(2, true), (2, true), (3, true)]));
        directory.handle(ms(22_000), have(2, 1));
        if arrives {
            directory.handle(ms(30_999), have(1, 1));
        }
        // Another one that has it comes first.
        let again = if arrives { vec![] } else { vec![(31_000, serve(2, 2, 1, &[1]))] };
        assert_eq!(spoken(&mut directory, 30_990..32_000), again);
    }
}

/// An object comes from the holder that sends the least, and not from one that is gone.
#[test]
fn the_holder_that_sends_least_is_asked() {
    let mut directory = settled(8);
    for (number, what) in [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)] {
        directory.handle(ms(20_000), have(number, what));
    }
    let mut told = Vec::new();
    for (at, number, what) in [(20_000, 3, 3), (20_100, 4, 1), (20_200, 5, 2), (20_300, 6, 1), (20_400, 7, 2)]
    {
        directory.handle(ms(at), want(number, what));
        told.extend(spoken(&mut directory, at..at + 60).into_iter().map(|(_, output)| output));
    }
    let expected = [
        serve(0, 1, 3, &[3]),
        serve(1, 2, 1, &[4]),
        // Both send something.
        serve(0, 3, 2, &[5]),
        // It sends this object to another one already.
        serve(0, 4, 1, &[6]),
        serve(1, 5, 2, &[7]),
    ];
    assert_eq!(told, expected);
    directory.handle(ms(21_000), DirectoryInput::Gone { agent: agent(0) });
    let told = outputs(&mut directory, ms(21_000));
    assert_eq!(told, [serve(1, 6, 1, &[6]), serve(1, 7, 2, &[5])], "nothing is left of the third object");
    assert_eq!(directory.holders(object(3)).count(), 0);
    // One that has it all the same has to say so; then it is sent to the one that waits.
    directory.handle(ms(22_000), have(2, 3));
    assert_eq!(outputs(&mut directory, ms(22_000)), [serve(2, 8, 3, &[3])]);
}

/// One that does not ask any more is sent nothing; where another one does it goes on.
#[test]
fn one_that_asks_no_more_is_sent_nothing() {
    let mut directory = settled(4);
    let unwant = |of| DirectoryInput::Unwant { agent: agent(of), object: object(1) };
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), want(1, 1));
    directory.handle(ms(20_010), unwant(1));
    assert_eq!(spoken(&mut directory, 20_010..20_100), []);
    (1..3).for_each(|number| directory.handle(ms(21_000), want(number, 1)));
    assert_eq!(spoken(&mut directory, 21_000..21_100), [(21_050, serve(0, 1, 1, &[1, 2]))]);
    directory.handle(ms(21_200), unwant(1));
    directory.handle(ms(21_300), served(0, 1, &[(1, false), (2, false)]));
    assert_eq!(spoken(&mut directory, 21_300..21_400), [(21_350, serve(0, 2, 1, &[2]))]);
    directory.handle(ms(21_400), unwant(2));
    directory.handle(ms(21_500), DirectoryInput::Gone { agent: agent(0) });
    assert_eq!(directory.deadline(), None, "nothing is left to do");
    directory.check();
}

/// Bytes of another length or another root are another object of the same id: it is not sent from there, and
/// an agent that has requested the first object is notified.
#[test]
fn another_object_of_the_same_id_is_not_sent() {
    let aged = |of, length, root, age| DirectoryInput::Have {
        agent: agent(of),
        object: object(1),
        length,
        root,
        age,
    };
    let other = |of, length, root| aged(of, length, root, Duration::from_millis(5));
    for (length, root, is_same) in
        [(7, Some([3; 32]), true), (7, None, true), (8, Some([3; 32]), false), (7, Some([4; 32]), false)]
    {
        let mut directory = settled(3);
        directory.handle(ms(20_000), have(0, 1));
        directory.handle(ms(20_000), want(1, 1));
        directory.handle(ms(20_001), other(1, length, root));
        let why = WishRefusal::Failed("it has another object of the same id".to_string());
        let denied = DirectoryOutput::Denied { agent: agent(1), object: object(1), why };
        assert_eq!(outputs(&mut directory, ms(20_001)), if is_same { vec![] } else { vec![denied] });
        let holders: Vec<AgentKey> = directory.holders(object(1)).cloned().collect();
        assert_eq!(holders, if is_same { vec![agent(0), agent(1)] } else { vec![agent(0)] });
    }
    // The only one that has it may have another one now.
    let mut directory = settled(2);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_001), other(0, 9, Some([9; 32])));
    directory.handle(ms(20_002), other(1, 9, None));
    assert_eq!(directory.holders(object(1)).count(), 2);
    directory.handle(ms(20_002), other(1, 9, Some([9; 32])));
    // What is younger takes the place of what all others have, and they are not asked for it any more.
    let fresh = aged(3, 9, Some([5; 32]), Duration::ZERO);
    assert_eq!(said(&mut directory, fresh), []);
    assert_eq!(directory.holders(object(1)).collect::<Vec<_>>(), [&agent(3)]);
    directory.handle(ms(20_003), DirectoryInput::Gone { agent: agent(3) });
    assert_eq!(directory.holders(object(1)).count(), 2);
}

/// Objects that agents have and objects that they request are counted, and bounded.
#[test]
fn holdings_and_wishes_have_limits() {
    let config = DirectoryConfig { holds_max: 2, wishes_max: 2, ..DirectoryConfig::default() };
    let mut directory = Directory::new(config, Time::ZERO, 40);
    for what in [1, 2, 3, 1] {
        said(&mut directory, have(0, what));
    }
    let held = |directory: &Directory| {
        (1..4).filter(|what| directory.holders(object(*what)).count() == 1).collect::<Vec<u64>>()
    };
    assert_eq!(held(&directory), [1, 2]);
    said(&mut directory, DirectoryInput::Lost { agent: agent(0), object: object(1) });
    said(&mut directory, have(0, 3));
    assert_eq!(held(&directory), [2, 3]);
    for number in [1, 2, 1] {
        assert_eq!(said(&mut directory, want(number, 2)), []);
    }
    let why = WishRefusal::Full(2);
    assert_eq!(
        said(&mut directory, want(3, 2)),
        [DirectoryOutput::Denied { agent: agent(3), object: object(2), why }]
    );
    assert_eq!(
        outputs(&mut directory, ms(20_050)),
        [serve(0, 41, 2, &[1, 2])],
        "numbers begin above the first"
    );
}

/// Subscribers that a version did not reach are named with the reason: one that leaves, one that dies, one
/// that cannot get it, and one that is late.
#[test]
fn who_does_not_get_a_version_is_named_with_the_reason() {
    let mut directory = settled(5);
    (1..5).for_each(|number| drop(said(&mut directory, subscribe(number, "t"))));
    said(&mut directory, have(0, 1));
    let version = Version { number: 1, object: object(1) };
    let (app, topic, patience) = (AppId::default(), "t".to_string(), Some(Duration::from_millis(500)));
    said(&mut directory, DirectoryInput::Publish { agent: agent(0), app, topic, version, patience });
    said(&mut directory, DirectoryInput::Unsubscribe { agent: agent(1), topic: "t".into() });
    said(&mut directory, DirectoryInput::Gone { agent: agent(2) });
    let mut told = Vec::new();
    // Three times in vain are enough.
    for (serve, at) in [(1, 20_010), (2, 20_110), (3, 20_210)] {
        directory.handle(ms(at), served(0, serve, &[(3, false)]));
        told.extend(spoken(&mut directory, at..at + 60));
    }
    assert_eq!(told, [(20_060, serve(0, 2, 1, &[3])), (20_160, serve(0, 3, 1, &[3]))]);
    let why = [
        (1, Missed::Unsubscribed),
        (2, Missed::Gone),
        (3, Missed::Object(WishRefusal::Failed("no route".into()))),
        (4, Missed::Late),
    ];
    assert_eq!(spoken(&mut directory, 20_270..20_600), [(20_500, published(0, 1, &[], &why))]);
}

/// Once an agent has reported everything in a new session, objects and requests that it has not named again
/// are removed.
#[test]
fn what_is_not_said_again_is_over() {
    for says in [true, false] {
        let mut directory = settled(4);
        directory.handle(ms(20_000), have(0, 1));
        directory.handle(ms(20_000), want(1, 2));
        directory.handle(ms(20_000), want(2, 1));
        directory.handle(ms(20_000), subscribe(1, "t"));
        let told = [(20_000, subscribed(1, "t")), (20_000, serve(0, 1, 1, &[2]))];
        assert_eq!(spoken(&mut directory, 20_000..20_100), told);
        for number in [0, 1] {
            directory.handle(ms(21_000), DirectoryInput::Arrived { agent: agent(number) });
        }
        if says {
            directory.handle(ms(21_001), have(0, 1));
            directory.handle(ms(21_001), DirectoryInput::Serving { agent: agent(0), serves: vec![1] });
            directory.handle(ms(21_001), want(1, 2));
            directory.handle(ms(21_001), subscribe(1, "t"));
        }
        for number in [0, 1] {
            directory.handle(ms(21_002), DirectoryInput::Told { agent: agent(number) });
        }
        let told = if says { vec![(21_000, subscribed(1, "t"))] } else { Vec::new() };
        assert_eq!(spoken(&mut directory, 21_000..21_100), told);
        assert_eq!(directory.holders(object(1)).count(), usize::from(says));
        assert_eq!(directory.serves.contains_key(&1), says, "it sends no more");
        directory.handle(ms(22_000), have(3, 2));
        let served = spoken(&mut directory, 22_000..22_100);
        assert_eq!(served, if says { vec![(22_000, serve(3, 2, 2, &[1]))] } else { vec![] });
        directory.handle(ms(22_200), publish(3, "t", 1, 2));
        let told = spoken(&mut directory, 22_200..22_300);
        let published = told.contains(&(22_200, published(3, 1, &[], &[])));
        assert_eq!(published, !says, "a subscriber is waited for: {told:?}");
    }
}

/// No agent is told to get what another one may have and has not said yet; when all have said what they have,
/// it is told so at once.
#[test]
fn what_was_held_back_is_looked_at_when_all_have_said_what_they_have() {
    let mut directory = settled(2);
    directory.handle(ms(21_000), DirectoryInput::Arrived { agent: agent(1) });
    let wish = Wish { can_fill: true, waits: true, fills: false };
    directory.handle(ms(21_000), DirectoryInput::Want { agent: agent(0), object: object(1), wish });
    assert_eq!(spoken(&mut directory, 21_000..21_200), []);
    directory.handle(ms(21_200), DirectoryInput::Told { agent: agent(1) });
    let fill = DirectoryOutput::Fill { agent: agent(0), object: object(1) };
    assert_eq!(spoken(&mut directory, 21_200..21_300), [(21_200, fill)]);
}

/// One that says it has an object and does not send it: when its receiver says that nothing comes, another
/// one that has it is told to, and then the receiver gets it from its origin where it can; where there is
/// neither, it is waited for. Nothing is denied for that.
#[test]
fn one_that_does_not_begin_to_send_is_passed_over() {
    for can_fill in [false, true] {
        let mut directory = settled(4);
        directory.handle(ms(20_000), have(0, 1));
        directory.handle(ms(20_000), have(2, 1));
        let wish = Wish { can_fill, waits: false, fills: false };
        directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(1), object: object(1), wish });
        assert_eq!(spoken(&mut directory, 20_000..20_060), [(20_000, serve(0, 1, 1, &[1]))]);
        let unserved = |of| DirectoryInput::Unserved { agent: agent(of), object: object(1), waits: false };
        // It has 20 seconds to begin, and only its receiver says that it has not.
        directory.handle(ms(39_999), unserved(1));
        directory.handle(ms(40_000), unserved(3));
        assert_eq!(spoken(&mut directory, 39_999..40_100), []);
        directory.handle(ms(40_100), unserved(1));
        assert_eq!(spoken(&mut directory, 40_100..40_200), [(40_100, serve(2, 2, 1, &[1]))]);
        directory.handle(ms(60_100), unserved(1));
        let fill = DirectoryOutput::Fill { agent: agent(1), object: object(1) };
        let expected = if can_fill { vec![(60_100, fill)] } else { vec![] };
        assert_eq!(spoken(&mut directory, 60_100..60_200), expected);
        // What the first one says of its serve does not count any more.
        directory.handle(ms(60_200), served(0, 1, &[(1, false)]));
        assert_eq!(spoken(&mut directory, 60_200..60_300), []);
        if can_fill {
            directory.handle(ms(60_300), unserved(1));
            let (agent, reason) = (agent(1), "no route".to_string());
            directory.handle(ms(60_300), DirectoryInput::FillFailed { agent, object: object(1), reason });
            assert_eq!(spoken(&mut directory, 60_300..60_400), [(60_300, serve(0, 3, 1, &[1]))]);
            directory.handle(ms(90_000), unserved(1));
            assert_eq!(spoken(&mut directory, 90_000..90_100), [], "it has tried all");
        }
        directory.handle(ms(99_000), have(1, 1));
        assert_eq!(directory.holders(object(1)).count(), 3);
    }
}

/// One agent alone does not fill what there is for all: half of it, or a quarter where others have their part
/// of that half.
#[test]
fn one_agent_leaves_room_for_the_others() {
    let config =
        DirectoryConfig { holds_max: 400, wishes_max: 400, topics_max: 400, ..DirectoryConfig::default() };
    for others in [0, 150] {
        let mut directory = Directory::new(config, Time::ZERO, 0);
        for what in 0..others {
            said(&mut directory, have(9, 1_000 + what));
            said(&mut directory, want(9, 2_000 + what));
        }
        for what in 0..500 {
            said(&mut directory, have(0, what));
            said(&mut directory, want(0, 3_000 + what));
        }
        let (holds, wishes) = (directory.holds as u64, directory.wishes as u64);
        let expected = if others == 0 { 200 } else { 250 };
        assert_eq!((holds, wishes), (expected, expected), "beside {others}");
        let full = 400 - expected;
        for what in 0..100.min(full) {
            said(&mut directory, have(5, 5_000 + what));
            assert_eq!(said(&mut directory, want(5, 6_000 + what)), []);
        }
        assert_eq!(directory.holds as u64, holds + 100.min(full));
    }
    // Topics of which an agent says that they were committed.
    let mut directory = Directory::new(config, Time::ZERO, 0);
    said(&mut directory, DirectoryInput::Arrived { agent: agent(0) });
    let known = |topic: u64, what| {
        let version = Version { number: u64::MAX, object: object(what) };
        let (app, topic) = (AppId::default(), format!("t{topic}"));
        DirectoryInput::Committed { agent: agent(0), app, topic, version }
    };
    said(&mut directory, have(0, 1));
    for topic in 0..500 {
        said(&mut directory, known(topic, if topic < 3 { 1 } else { 2 }));
    }
    assert_eq!(directory.topics.len(), 200);
    assert_eq!(said(&mut directory, subscribe(1, "mine")), [subscribed(1, "mine")]);
    // It counts by its name: one that begins anew has no more.
    let again = AgentKey { incarnation: 2, ..agent(0) };
    let version = Version { number: 1, object: object(1) };
    let (app, topic) = (AppId::default(), "again".to_string());
    said(&mut directory, DirectoryInput::Committed { agent: again, app, topic, version });
    assert_eq!(directory.topics.len(), 201);
    // Those of which no agent has the version take no place when it is known what agents have; nor what is
    // said later.
    said(&mut directory, DirectoryInput::Told { agent: agent(0) });
    let settled = ms(20_000) + DirectoryConfig::default().settle;
    outputs(&mut directory, settled);
    assert_eq!(directory.topics.len(), 4);
    directory.handle(settled, known(7, 2));
    outputs(&mut directory, settled);
    assert_eq!(directory.topics.len(), 4);
}

/// A version that an earlier manager has committed counts as long as agents may still report that they have
/// it.
#[test]
fn a_version_is_not_forgotten_before_its_holder_has_come() {
    for comes in [true, false] {
        let mut directory = Directory::new(DirectoryConfig::default(), ms(20_000), 0);
        directory.handle(ms(20_000), DirectoryInput::Arrived { agent: agent(0) });
        let version = Version { number: 7, object: object(1) };
        let (app, topic) = (AppId::default(), "t".to_string());
        directory.handle(ms(20_001), DirectoryInput::Committed { agent: agent(0), app, topic, version });
        directory.handle(ms(20_002), DirectoryInput::Told { agent: agent(0) });
        directory.handle(ms(23_000), DirectoryInput::Arrived { agent: agent(1) });
        outputs(&mut directory, ms(23_000));
        // It says so just before it is waited for no more.
        outputs(&mut directory, ms(26_900));
        assert!(directory.committed("t").is_some());
        if comes {
            directory.handle(ms(26_950), have(1, 1));
        }
        directory.handle(ms(26_960), DirectoryInput::Told { agent: agent(1) });
        outputs(&mut directory, ms(27_100));
        assert_eq!(directory.committed("t").is_some(), comes);
    }
}

/// One that says at once that it has sent what it has not is passed over as well.
#[test]
fn one_that_says_it_has_sent_and_has_not_is_passed_over() {
    let mut directory = settled(4);
    directory.handle(ms(20_000), have(0, 1));
    directory.handle(ms(20_000), have(3, 1));
    let wish = Wish { can_fill: true, waits: true, fills: false };
    directory.handle(ms(20_000), DirectoryInput::Want { agent: agent(1), object: object(1), wish });
    assert_eq!(spoken(&mut directory, 20_000..20_060), [(20_000, serve(0, 1, 1, &[1]))]);
    directory.handle(ms(20_060), served(0, 1, &[(1, true)]));
    assert_eq!(spoken(&mut directory, 20_060..30_100), [(30_060, serve(3, 2, 1, &[1]))]);
    directory.handle(ms(30_100), served(3, 2, &[(1, true)]));
    let fill = DirectoryOutput::Fill { agent: agent(1), object: object(1) };
    assert_eq!(spoken(&mut directory, 30_100..40_200), [(40_100, fill)]);
}

/// A subscriber that comes after the commit hears which version is about to come. So its agent can say that
/// nothing of it does, and another one that has it is told to send it.
#[test]
fn a_subscriber_that_comes_after_the_commit_hears_what_is_about_to_come() {
    let mut directory = settled(4);
    said(&mut directory, have(0, 1));
    said(&mut directory, have(2, 1));
    said(&mut directory, publish(0, "t", 3, 1));
    let version = Version { number: 3, object: object(1) };
    assert_eq!(directory.committed("t"), Some(&version));
    let news = |committed| {
        let (topic, version) = ("t".to_string(), Some(version.clone()));
        DirectoryOutput::News { agent: agent(1), topic, version, committed }
    };
    assert_eq!(said(&mut directory, subscribe(1, "t")), [news(false), serve(0, 1, 1, &[1])]);
    assert_eq!(directory.server(&agent(1), object(1)), Some(&agent(0)));
    directory
        .handle(ms(50_000), DirectoryInput::Unserved { agent: agent(1), object: object(1), waits: false });
    assert_eq!(outputs(&mut directory, ms(50_000)), [serve(2, 2, 1, &[1])]);
    assert_eq!(directory.server(&agent(1), object(1)), Some(&agent(2)));
    directory.handle(ms(51_000), have(1, 1));
    assert_eq!(outputs(&mut directory, ms(51_000)), [news(true)]);
    assert_eq!(directory.server(&agent(1), object(1)), None);
}

/// A subscriber hears at once that it is one, also where nothing has been published: what is published after
/// that is for it, too.
#[test]
fn a_subscriber_hears_that_it_is_one() {
    let mut directory = settled(2);
    for _ in 0..2 {
        // Its agent may have lost the first answer.
        assert_eq!(said(&mut directory, subscribe(1, "t")), [subscribed(1, "t")]);
    }
}
