//! Many agents that ask at nearly the same time, a subscriber that loses a version again, and any sequence of words.

use super::*;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use polycast_types::{AppId, DataId, Duration};
use proptest::prelude::*;

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
    DirectoryInput::Have { agent: agent(of), object: object(number), length: 7, root: Some([3; 32]) }
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

/// 200 agents ask for one key within 50 ms: one of them gets it from its origin, and then sends it to all others at once.
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

/// A wish that is said again meets the word to fill on its way; in a new session that word may have been lost.
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
    assert_eq!(outputs(&mut directory, ms(21_001)), fill);
    directory.handle(ms(21_002), want());
    directory.handle(ms(21_003), DirectoryInput::Told { agent: agent(0) });
    assert_eq!(outputs(&mut directory, ms(30_000)), []);
}

/// What no agent has any more is no version, and its publisher hears so at once.
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

/// A directory that has begun lately does not know all subscribers: it commits nothing before they have had time to come.
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
    let missing = vec![("h1".to_string(), "it did not keep it".to_string())];
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
    (0u8..12, who, what, 0u64..4, any::<(bool, bool, bool)>()).prop_map(|(kind, who, what, number, bits)| {
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
    /// Whatever agents say in whatever order: no agent is told to get what another has, one at a time is told so, none is sent what it
    /// has, a topic's versions rise, and what is committed an agent has.
    #[test]
    fn any_sequence_of_words_keeps_the_rules(
        words in proptest::collection::vec((word(), 0u64..400), 1..120),
    ) {
        let mut directory = Directory::new(DirectoryConfig::default(), Time::ZERO, 0);
        let mut now = 0;
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
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
                _ => {}
            }
            directory.handle(ms(now), word);
            while let Some(output) = directory.poll(ms(now)) {
                match output {
                    DirectoryOutput::Fill { agent, object } => {
                        prop_assert_eq!(directory.filler(object), Some(&agent));
                        prop_assert_eq!(able.get(&(agent, object)), Some(&true), "it cannot get it");
                        prop_assert_eq!(directory.holders(object).count(), 0, "an agent has it");
                    }
                    DirectoryOutput::Serve { holder, object, receivers, .. } => {
                        prop_assert!(directory.holders(object).any(|one| *one == holder));
                        prop_assert!(!receivers.is_empty());
                        for one in directory.holders(object) {
                            prop_assert!(!receivers.contains(&one.name), "{} has it", one.name);
                        }
                    }
                    DirectoryOutput::News { topic, version, committed: true, agent } => {
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
