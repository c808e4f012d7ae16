//! Meaning of dark fibres and silent switches for a fabric's network.

use crate::devices::Fibre;
use polycast_api::forwarder::Word;
use polycast_planning::orca::Orca;
use polycast_planning::shufflecast::Shufflecast;
use polycast_planning::{Failure, HostId, PlanId};
use polycast_topology::{Clos, Graph as _, Kind, Node, Wiring};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A rack misses the light of another one, and no neighbour at the same splitter has said for so long that it
/// does, too: then the neighbours are asked. Ports notice within a few milliseconds of each other that they
/// are dark.
const SUSPECTED_FOR: Duration = Duration::from_millis(30);

/// Changes in a network.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// New failures.
    pub(crate) failed: Vec<Failure>,
    /// Failures that have been repaired.
    pub(crate) repaired: Vec<Failure>,
    /// The same in a sentence, if anything has changed.
    pub(crate) words: String,
    /// Paths whose receivers should have light and have none.
    pub(crate) unlit: Vec<(PlanId, BTreeSet<HostId>)>,
}

impl Verdict {
    /// Returns true if there is nothing to act on.
    pub(crate) fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.repaired.is_empty() && self.unlit.is_empty()
    }
}

/// Meaning of the light at a rack's ports with fibres.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Light {
    /// A port without light is broken, whatever is to light it.
    Expected,
    /// A port is judged while a circuit or a source lights it. One that only sends is not.
    #[default]
    WhenLit,
    /// Nothing: its ports say that they have light whether or not there is any.
    Ignored,
}

/// A rack that receives over a circuit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LitRack {
    /// The rack, and which of its fibres.
    pub(crate) fibre: (u32, u32),
    /// The receivers in it.
    pub(crate) hosts: BTreeSet<HostId>,
}

/// Draws conclusions from what devices say.
pub(crate) trait Health: Send + std::fmt::Debug {
    /// A fibre of a rack has lost its light, or has it again.
    fn fibre(&mut self, _now: Instant, _rack: u32, _fibre: Fibre, _up: bool) -> Verdict {
        Verdict::default()
    }

    /// A link between label switches has broken, or works again.
    fn link(&mut self, _ends: (u32, u32), _up: bool) -> Verdict {
        Verdict::default()
    }

    /// The devices of a path hold it: from now on these receivers' racks should have its light.
    fn lit(&mut self, _now: Instant, _plan: PlanId, _receivers: Vec<LitRack>) {}

    /// The circuits of a path are not what they were.
    fn unlit(&mut self, _plan: PlanId) {}

    /// The fibres that have no light now, each in words.
    fn dark(&self) -> Vec<String> {
        Vec::new()
    }

    /// A rack's switch cannot be reached, or can be again.
    fn switch(&mut self, _now: Instant, _rack: u32, _up: bool) -> Verdict {
        Verdict::default()
    }

    /// Forwarders say which of their links have changed.
    fn links(&mut self, _words: &[Word]) -> Verdict {
        Verdict::default()
    }

    /// Racks whose switches are to be asked how their ports are, and the number of that question.
    fn question(&mut self, _now: Instant) -> Option<(u64, BTreeSet<u32>)> {
        None
    }

    /// The racks of this question have said how their ports are, or do not answer.
    fn answered(&mut self, _now: Instant, _question: u64) -> Verdict {
        Verdict::default()
    }

    /// Returns the time of the next check if nothing is reported.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// Concludes what only time tells.
    fn look(&mut self, _now: Instant) -> Verdict {
        Verdict::default()
    }
}

/// Relays of a Shufflecast, by their splitters. A rack without light into its splitter relays no more and
/// cannot be a source; nor does one that alone misses the light of a splitter. The other racks at that
/// splitter are asked before: a manager, or a switch, that stood still for a moment has not heard yet that
/// they miss it, too. A rack that stands for several logical ToRs is each of them.
#[derive(Debug)]
pub(super) struct OfRelays {
    wiring: Wiring,
    light: Vec<Light>,
    dark_out: BTreeSet<u32>,
    /// Logical ToR, and the splitter whose light it misses.
    dark_in: BTreeSet<(u32, u32)>,
    silent: BTreeSet<u32>,
    /// Logical ToRs that miss the light of a splitter that seems to work.
    suspects: BTreeMap<u32, Suspect>,
    questions: u64,
    failed: BTreeSet<u32>,
}

/// A logical ToR that misses light which others may have.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    since: Instant,
    /// The question to the others at the splitter.
    asked: Option<u64>,
    /// They have answered, and do not miss it.
    is_alone: bool,
}

impl OfRelays {
    /// With what the light means at each rack.
    pub(super) fn new(wiring: Wiring, light: Vec<Light>) -> Self {
        let (dark_out, dark_in, silent, failed) = Default::default();
        OfRelays { wiring, light, dark_out, dark_in, silent, suspects: BTreeMap::new(), questions: 0, failed }
    }

    fn conclude(&mut self, now: Instant) -> Verdict {
        let network = self.wiring.logical();
        let mut failed: BTreeSet<u32> = self.dark_out.union(&self.silent).copied().collect();
        // Where no rack gets a splitter's light, it is the splitter that is dark.
        let unseen = |splitter: &u32| {
            network.children(*splitter).all(|child| self.dark_in.contains(&(child, *splitter)))
        };
        failed.extend((0..network.tors()).filter(unseen));
        let sources = failed.clone();
        let misses = self.dark_in.iter().filter(|(_, parent)| !sources.contains(parent));
        let misses: BTreeSet<u32> = misses.map(|(logical, _)| *logical).collect();
        self.suspects.retain(|logical, _| misses.contains(logical));
        for logical in misses {
            self.suspects.entry(logical).or_insert(Suspect { since: now, asked: None, is_alone: false });
        }
        let known = self.suspects.iter().filter(|(_, suspect)| suspect.is_alone);
        failed.extend(known.map(|(logical, _)| *logical));
        let part = |splitter: &u32| Failure::Part(Shufflecast::part(*splitter));
        let verdict = Verdict {
            failed: failed.difference(&self.failed).map(part).collect(),
            repaired: self.failed.difference(&failed).map(part).collect(),
            words: self.words(&failed, &sources),
            unlit: Vec::new(),
        };
        self.failed = failed;
        verdict
    }

    /// A logical ToR in words.
    fn name(&self, logical: u32) -> String {
        let rack = self.wiring.physical(logical);
        if self.wiring.logical_at(rack, 1).is_none() {
            return format!("rack {rack}");
        }
        format!("rack {rack} with splitter {logical}")
    }

    fn words(&self, failed: &BTreeSet<u32>, sources: &BTreeSet<u32>) -> String {
        let gone: Vec<u32> = failed.difference(&self.failed).copied().collect();
        let back: Vec<u32> = self.failed.difference(failed).copied().collect();
        let mut words = Vec::new();
        for logical in gone {
            let role = if sources.contains(&logical) {
                "relays no more and has lost its role as a source"
            } else {
                "relays no more, because it misses the light of another rack"
            };
            words.push(format!("{} {role}", self.name(logical)));
        }
        words.extend(back.into_iter().map(|logical| format!("{} relays again", self.name(logical))));
        words.join("; ")
    }
}

impl Health for OfRelays {
    fn fibre(&mut self, now: Instant, rack: u32, fibre: Fibre, up: bool) -> Verdict {
        let light = self.light.get(rack as usize).copied().unwrap_or_default();
        let network = self.wiring.logical();
        match fibre {
            _ if light == Light::Ignored => {}
            // Nothing ever lights a port whose fibre leads into a splitter.
            Fibre::Out(_) if light == Light::WhenLit => {}
            Fibre::Out(nth) => {
                let Some(splitter) = self.wiring.logical_at(rack, nth) else { return Verdict::default() };
                mark(&mut self.dark_out, splitter, !up);
            }
            Fibre::In(fibre) => {
                let (nth, partition) = (fibre / network.fanout(), fibre % network.fanout());
                let Some(logical) = self.wiring.logical_at(rack, nth) else { return Verdict::default() };
                mark(&mut self.dark_in, (logical, network.parent(logical, partition)), !up);
            }
        }
        self.conclude(now)
    }

    fn dark(&self) -> Vec<String> {
        let out = self
            .dark_out
            .iter()
            .map(|logical| format!("{}: its fibre into its splitter", self.name(*logical)));
        let inward = self.dark_in.iter().map(|(logical, parent)| {
            let of = self.name(*parent);
            format!("rack {}: its fibre from the splitter of {of}", self.wiring.physical(*logical))
        });
        out.chain(inward).collect()
    }

    fn switch(&mut self, now: Instant, rack: u32, up: bool) -> Verdict {
        for logical in self.wiring.logical_of(rack) {
            mark(&mut self.silent, logical, !up);
        }
        self.conclude(now)
    }

    fn question(&mut self, now: Instant) -> Option<(u64, BTreeSet<u32>)> {
        let is_due =
            |suspect: &Suspect| suspect.asked.is_none() && now.duration_since(suspect.since) >= SUSPECTED_FOR;
        let due: BTreeSet<u32> = self
            .suspects
            .iter()
            .filter(|(_, suspect)| is_due(suspect))
            .map(|(logical, _)| *logical)
            .collect();
        if due.is_empty() {
            return None;
        }
        self.questions += 1;
        let network = self.wiring.logical();
        let missed = self.dark_in.iter().filter(|(logical, _)| due.contains(logical));
        let racks =
            missed.flat_map(|(_, parent)| network.children(*parent)).map(|child| self.wiring.physical(child));
        let racks = racks.collect();
        for logical in due {
            self.suspects.get_mut(&logical).expect("it is one of them").asked = Some(self.questions);
        }
        Some((self.questions, racks))
    }

    fn answered(&mut self, now: Instant, question: u64) -> Verdict {
        for suspect in self.suspects.values_mut().filter(|suspect| suspect.asked == Some(question)) {
            suspect.is_alone = true;
        }
        self.conclude(now)
    }

    fn next_look(&self) -> Option<Instant> {
        let open = self.suspects.values().filter(|suspect| suspect.asked.is_none());
        open.map(|suspect| suspect.since + SUSPECTED_FOR).min()
    }
}

/// Links between label switches (Orca section 3.4). A switch without a working link is one that has failed,
/// in words; its links say enough to plans. A server's own link is its transfers' business.
#[derive(Debug)]
pub(super) struct OfLabels {
    clos: Clos,
    broken: BTreeSet<(Node, Node)>,
}

impl OfLabels {
    pub(super) fn new(clos: Clos) -> Self {
        OfLabels { clos, broken: BTreeSet::new() }
    }

    fn name(&self, node: Node) -> String {
        match self.clos.kind(node) {
            (Kind::Host, number) => format!("server {number}"),
            (Kind::Leaf, number) => format!("leaf {number}"),
            (Kind::Spine, number) => format!("spine {number}"),
            (Kind::Core, number) => format!("core {number}"),
        }
    }

    fn is_cut_off(&self, node: Node) -> bool {
        let others = (0..self.clos.port_count(node)).map(|port| self.clos.neighbor(node, port));
        let mut others = others.filter(|other| *other >= self.clos.hosts());
        others.all(|other| self.broken.contains(&(node.min(other), node.max(other))))
    }
}

impl Health for OfLabels {
    fn link(&mut self, (one, other): (u32, u32), up: bool) -> Verdict {
        let ends = (one.min(other), one.max(other));
        let is_ours = ends.1 < self.clos.node_count() && self.clos.port_to(ends.0, ends.1).is_some();
        if !is_ours || ends.0 < self.clos.hosts() || self.broken.contains(&ends) != up {
            return Verdict::default();
        }
        mark(&mut self.broken, ends, !up);
        let (from, to) = (self.name(ends.0), self.name(ends.1));
        let part = vec![Failure::Part(Orca::link(ends.0, ends.1))];
        if up {
            let words = format!("the link between {from} and {to} works again");
            return Verdict { repaired: part, words, ..Verdict::default() };
        }
        let cut_off = [ends.0, ends.1].into_iter().find(|node| self.is_cut_off(*node));
        let words = match cut_off {
            Some(node) => format!("{} has lost its last link", self.name(node)),
            None => format!("the link between {from} and {to} is broken"),
        };
        Verdict { failed: part, words, ..Verdict::default() }
    }
}

fn mark<T: Ord>(set: &mut BTreeSet<T>, item: T, marked: bool) {
    if marked {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relays() -> OfRelays {
        with_light(Light::Expected)
    }

    fn with_light(light: Light) -> OfRelays {
        OfRelays::new(polycast_topology::Shufflecast::new(2, 3).unwrap().into(), vec![light; 24])
    }

    #[test]
    fn a_port_into_a_splitter_has_no_light_and_is_not_judged_by_it() {
        let now = Instant::now();
        for (light, is_judged) in [(Light::Expected, true), (Light::WhenLit, false), (Light::Ignored, false)]
        {
            let mut health = with_light(light);
            assert_eq!(!health.fibre(now, 8, Fibre::Out(0), false).failed.is_empty(), is_judged, "{light:?}");
        }
        // Ports that its light reaches are judged, and a source whose light no port sees is dark.
        let mut health = with_light(Light::WhenLit);
        let (children, partition) = children(5);
        let verdicts =
            children.iter().map(|child| health.fibre(now, *child, Fibre::In(partition), false).failed);
        assert_eq!(verdicts.collect::<Vec<_>>().concat(), parts(&[5]));
        assert_eq!(health.dark().len(), 2);
        let mut health = with_light(Light::Ignored);
        let verdicts =
            children.iter().map(|child| health.fibre(now, *child, Fibre::In(partition), false).failed);
        assert_eq!(verdicts.collect::<Vec<_>>().concat(), []);
    }

    fn parts(racks: &[u32]) -> Vec<Failure> {
        racks.iter().map(|rack| Failure::Part(Shufflecast::part(*rack))).collect()
    }

    #[test]
    fn a_rack_with_two_splitters_is_judged_by_each_and_lost_with_both() {
        let now = Instant::now();
        let wiring = Wiring::smallest(15, 2).unwrap();
        let mut health = OfRelays::new(wiring, vec![Light::Expected; 15]);
        let verdict = health.fibre(now, 3, Fibre::Out(1), false);
        assert_eq!(verdict.failed, parts(&[18]));
        assert_eq!(verdict.words, "rack 3 with splitter 18 relays no more and has lost its role as a source");
        assert_eq!(health.switch(now, 3, false).failed, parts(&[3]));
        assert_eq!(health.switch(now, 3, true).repaired, parts(&[3]));
        // Splitter 13 feeds the second of racks 3 and 4 by their third and fourth fibres: what both miss is
        // dark.
        let fibre = Fibre::In(wiring.fibre(13, 18));
        assert_eq!(fibre, Fibre::In(3));
        assert_eq!(health.fibre(now, 3, fibre, false).failed, []);
        assert_eq!(health.fibre(now, 4, Fibre::In(3), false).failed, parts(&[13]));
        // Racks 9 to 14 have one splitter, and so two fibres that come in.
        assert_eq!(health.fibre(now, 9, Fibre::In(2), false), Verdict::default());
        assert_eq!(health.fibre(now, 15, Fibre::In(0), false), Verdict::default());
    }

    #[test]
    fn a_rack_that_is_cut_off_fails_alone() {
        let (mut health, now) = (relays(), Instant::now());
        let verdict = health.fibre(now, 8, Fibre::Out(0), false);
        assert_eq!((verdict.failed, verdict.repaired), (parts(&[8]), vec![]));
        assert_eq!(verdict.words, "rack 8 relays no more and has lost its role as a source");
        for partition in 0..2 {
            assert_eq!(health.fibre(now, 8, Fibre::In(partition), false).failed, []);
        }
        for partition in 0..2 {
            assert_eq!(health.fibre(now, 8, Fibre::In(partition), true).repaired, []);
        }
        assert_eq!(health.fibre(now, 8, Fibre::Out(0), true).repaired, parts(&[8]));
    }

    #[test]
    fn links_between_switches_are_parts_of_the_network() {
        let clos = Clos::new(4, 2, 2, 2, 2).unwrap();
        let mut health = OfLabels::new(clos);
        let (spine, core) = (clos.spine(0, 0), clos.core(0, 0));
        let part = vec![Failure::Part(Orca::link(spine, core))];
        let verdict = health.link((core, spine), false);
        assert_eq!((verdict.failed, verdict.repaired), (part.clone(), vec![]));
        assert_eq!(verdict.words, "the link between spine 0 and core 0 is broken");
        // Said twice, by either end, or about what is no link, or a server's.
        for (ends, up) in
            [((spine, core), false), ((0, 1), false), ((0, clos.leaf(0)), false), ((9_999, 1), false)]
        {
            assert_eq!(health.link(ends, up), Verdict::default());
        }
        for pod in 1..4 {
            let verdict = health.link((clos.spine(pod, 0), core), false);
            assert_eq!(
                verdict.words.contains("core 0 has lost its last link"),
                pod == 3,
                "{}",
                verdict.words
            );
        }
        let verdict = health.link((spine, core), true);
        assert_eq!((verdict.failed, verdict.repaired), (vec![], part));
    }

    /// The children of a rack, and the partition that it is to them.
    fn children(rack: u32) -> (Vec<u32>, u32) {
        let network = relays().wiring.logical();
        let children: Vec<u32> = network.children(rack).collect();
        let partition = (0..2).find(|partition| network.parent(children[0], *partition) == rack).unwrap();
        (children, partition)
    }

    #[test]
    fn a_dark_splitter_is_its_own_racks_failure() {
        let (mut health, now) = (relays(), Instant::now());
        let (children, partition) = children(5);
        // The first child to speak may be at fault, or the second one misses the same light.
        assert_eq!(health.fibre(now, children[0], Fibre::In(partition), false), Verdict::default());
        let soon = now + SUSPECTED_FOR / 2;
        assert_eq!(health.look(soon), Verdict::default());
        let verdict = health.fibre(soon, children[1], Fibre::In(partition), false);
        assert_eq!((verdict.failed, verdict.repaired), (parts(&[5]), vec![]));
        assert_eq!(health.next_look(), None, "nothing is left to find out");
        // Once the rack itself says so, nothing changes.
        assert_eq!(health.fibre(soon, 5, Fibre::Out(0), false).failed, []);
        // Its light comes back to one child after the other.
        assert_eq!(health.fibre(soon, 5, Fibre::Out(0), true), Verdict::default());
        let verdict = health.fibre(soon, children[0], Fibre::In(partition), true);
        assert_eq!((verdict.failed, verdict.repaired), (vec![], parts(&[5])));
        assert_eq!(health.fibre(soon, children[1], Fibre::In(partition), true), Verdict::default());
        assert_eq!(health.question(soon + SUSPECTED_FOR), None, "none is suspected any more");
    }

    #[test]
    fn a_rack_that_alone_misses_a_light_fails_when_the_others_have_been_asked() {
        let (mut health, now) = (relays(), Instant::now());
        let (children, partition) = children(5);
        assert_eq!(health.fibre(now, children[0], Fibre::In(partition), false), Verdict::default());
        let due = health.next_look().unwrap();
        assert_eq!((due, health.question(now)), (now + SUSPECTED_FOR, None));
        assert_eq!(health.question(due), Some((1, children.iter().copied().collect())));
        assert_eq!((health.question(due), health.next_look()), (None, None), "they are asked once");
        assert_eq!(health.answered(due, 0), Verdict::default(), "that was another question");
        assert_eq!(health.answered(due, 1).failed, parts(&[children[0]]));
        assert_eq!(health.answered(due, 1).failed, [], "that is said once");
        assert_eq!(
            health.fibre(due, children[0], Fibre::In(partition), true).repaired,
            parts(&[children[0]])
        );
    }

    /// However late a rack says that it misses a light, another one is not blamed for that: it was asked
    /// before.
    #[test]
    fn a_rack_is_not_blamed_before_the_others_have_answered() {
        let (mut health, now) = (relays(), Instant::now());
        let (children, partition) = children(5);
        assert_eq!(health.fibre(now, children[0], Fibre::In(partition), false), Verdict::default());
        let late = now + SUSPECTED_FOR * 100;
        assert!(health.question(late).is_some());
        // What it says of its ports comes before that it has answered.
        assert_eq!(health.fibre(late, children[1], Fibre::In(partition), false).failed, parts(&[5]));
        assert_eq!(health.answered(late, 1), Verdict::default());
    }
}
