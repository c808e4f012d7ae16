//! `polycast manager --check --probe`: where the fibres at the circuit switch lead in truth. One circuit at a
//! time is made between two of our ports, and the racks' switches are asked which of their ports has light
//! since; then it is taken away.
//!
//! Each rack's port gets light from the one before it, so that every fibre in and every fibre out is used
//! once. A splitter is fed by a rack, and each of its outputs is led to another one. Ports with circuits are
//! left alone, whosesoever they are, and when the probe ends, however it does, what it may have made is
//! looked for and taken down.

use polycast_net::devices::circuits::{Circuit, CircuitError, Dialect, Held};
use polycast_topology::PortTable;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Interval at which a check polls a switch.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Maximum duration of a probe.
pub(super) const PROBE_MAX: Duration = Duration::from_secs(600);
/// Racks' ports from which light is tried before a port counts as dark.
const SOURCES_MAX: usize = 3;
/// Number of checks at the end for remaining circuits of ours, and the pause between.
const SWEEPS: u32 = 8;
const SWEEP_PAUSE: Duration = Duration::from_millis(250);

/// Results of a probe.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeFindings {
    /// The circuit switch's ports of racks.
    pub ports: Vec<ProbedPort>,
    /// Outputs of splitters.
    pub outputs: Vec<ProbedOutput>,
    /// Parts that were not probed, a sentence each.
    pub left_alone: Vec<String>,
}

/// Destination of light that leaves by a port of the circuit switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbedPort {
    /// The port, as the switch calls it.
    pub port: String,
    /// Device at the port, according to the settings.
    pub named: String,
    /// Port that got light; `None` if none did.
    pub found: Option<String>,
}

/// Result of a probe for light through a splitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbedOutput {
    /// The splitter.
    pub splitter: usize,
    /// The port that leads into it.
    pub input: String,
    /// The port where the light was expected.
    pub output: String,
    /// True if the light arrived.
    pub lit: bool,
}

/// A port of a rack's switch: the rack, and OpenFlow's number.
pub(super) type Place = (u32, u32);

/// Access to the network that a probe needs.
pub(super) trait Optics {
    /// The circuits that there are.
    async fn held(&self) -> Result<Vec<Held>, CircuitError>;
    /// Makes one.
    async fn enter(&self, circuit: Circuit) -> Result<(), CircuitError>;
    /// Takes one down.
    async fn delete(&self, circuit: Circuit) -> Result<(), CircuitError>;
    /// The ports of the racks' switches but those of hosts, and whether each has light. A switch that does
    /// not answer has none.
    async fn light(&self) -> BTreeMap<Place, bool>;
}

/// Reason why a probe ended early.
#[derive(Debug)]
pub(super) enum Halt {
    /// A device keeps it from going on.
    Device(String),
    /// It has taken too long.
    Late,
    /// The user has asked it to end.
    Asked,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = "what is not listed above was not looked at";
        match self {
            Halt::Device(reason) => write!(f, "the probe has ended early, and {rest}: {reason}"),
            Halt::Late => write!(f, "the probe has taken {} s and ends: {rest}", PROBE_MAX.as_secs()),
            Halt::Asked => write!(f, "the probe was interrupted: {rest}"),
        }
    }
}

/// Result of a circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// This port has light since.
    At(Place),
    /// None has.
    Nothing,
    /// Not known: the port that should get light is up without it.
    Up,
    /// .. or its switch does not say.
    Mute,
    /// There is no circuit, and why not.
    Refused(String),
}

/// Cabling that a probe works with.
pub(super) struct Cabling<'a> {
    pub(super) table: &'a PortTable,
    pub(super) dialect: &'a dyn Dialect,
    /// The racks' ports by those of the circuit switch, according to the settings.
    pub(super) places: BTreeMap<u32, Place>,
    /// Time after a circuit during which a port may have no light.
    pub(super) settle: Duration,
}

impl Cabling<'_> {
    fn port(&self, port: u32) -> String {
        self.dialect.port_name(port)
    }

    /// Describes what the settings name at a port, and which setting it is.
    fn named(&self, port: u32) -> String {
        if let Some(place) = self.places.get(&port) {
            return format!("ocs.rack-ports says {}", words(*place));
        }
        for (number, splitter) in self.table.splitters().iter().enumerate() {
            if splitter.input == port {
                return format!("ocs.splitters says the input of splitter {number}");
            }
            if let Some(output) = splitter.outputs.iter().position(|output| *output == port) {
                return format!("ocs.splitters says output {output} of splitter {number}");
            }
        }
        "the settings do not name it".into()
    }
}

/// A rack's port in words.
fn words((rack, port): Place) -> String {
    format!("rack {rack}'s port {port}")
}

/// A probe under way.
pub(super) struct Probe<'a, O> {
    optics: O,
    cabling: Cabling<'a>,
    /// The circuits that it has made, and whether it was not told that they are there.
    made: BTreeMap<Circuit, bool>,
    /// Ports that have circuits of others.
    taken: BTreeSet<u32>,
    /// Ports of which nothing can be told.
    untold: BTreeSet<u32>,
    /// Racks' ports of the circuit switch by which light is known to enter.
    shining: BTreeSet<u32>,
    /// .. and by which none does.
    dark: BTreeSet<u32>,
    /// Racks' ports that ports of the circuit switch lead to.
    leads: BTreeMap<u32, Place>,
    findings: ProbeFindings,
    faults: Vec<String>,
}

impl<'a, O: Optics> Probe<'a, O> {
    pub(super) fn new(optics: O, cabling: Cabling<'a>) -> Self {
        Probe {
            optics,
            cabling,
            made: BTreeMap::new(),
            taken: BTreeSet::new(),
            untold: BTreeSet::new(),
            shining: BTreeSet::new(),
            dark: BTreeSet::new(),
            leads: BTreeMap::new(),
            findings: ProbeFindings::default(),
            faults: Vec::new(),
        }
    }

    /// Probes until all is known, `stop` is ready or the time is over, and leaves no circuit behind. Gives
    /// what is wrong, too.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) -> (ProbeFindings, Vec<String>) {
        let until = Instant::now() + PROBE_MAX;
        let ended = tokio::select! {
            ended = timeout_at(until, self.probe()) => ended.unwrap_or(Err(Halt::Late)),
            () = stop => Err(Halt::Asked),
        };
        let left = self.sweep().await;
        self.faults.extend(ended.err().map(|halt| halt.to_string()));
        self.faults.extend(left);
        (self.findings, self.faults)
    }

    async fn probe(&mut self) -> Result<(), Halt> {
        let held = self.held().await?;
        for Held { circuit, .. } in held {
            let ours = [circuit.from, circuit.to].map(|port| self.cabling.table.owner(port).is_some());
            if ours != [false, false] {
                let name = self.cabling.dialect.circuit_name(circuit);
                let ports = [circuit.from, circuit.to].map(|port| self.cabling.port(port)).join(" and ");
                let words = format!("circuit {name} is there, so ports {ports} are left alone");
                self.findings.left_alone.push(words);
                self.taken.extend([circuit.from, circuit.to]);
            }
        }
        let pending = self.ring().await?;
        self.second_look(pending).await?;
        self.search_splitters().await?;
        self.judge_ports();
        self.splitters().await
    }

    /// The racks' ports of the circuit switch without circuits.
    fn free(&self) -> Vec<u32> {
        self.cabling.places.keys().copied().filter(|port| !self.taken.contains(port)).collect()
    }

    /// Lights each rack's port from the one before it. Gives those that stayed dark, each with where its
    /// light should have come from.
    async fn ring(&mut self) -> Result<Vec<Circuit>, Halt> {
        let ports = self.free();
        if ports.len() < 2 {
            let words =
                "fewer than two of the racks' ports at the circuit switch are free, and light needs two";
            self.findings.left_alone.push(words.into());
            return Ok(Vec::new());
        }
        let mut dark = Vec::new();
        let before = ports.iter().cycle().skip(ports.len() - 1);
        for (from, to) in before.copied().zip(ports.iter().copied()) {
            let circuit = Circuit { from, to };
            match self.try_port(circuit).await? {
                Seen::At(place) => {
                    self.shining.insert(from);
                    self.leads.insert(to, place);
                }
                Seen::Nothing => dark.push(circuit),
                other => self.note_untold(to, other),
            }
        }
        Ok(dark)
    }

    /// Says why nothing is known of a rack's port.
    fn note_untold(&mut self, port: u32, seen: Seen) {
        self.untold.insert(port);
        let named = self.cabling.places.get(&port).copied().map(words).unwrap_or_default();
        match seen {
            Seen::Refused(why) => self.faults.push(why),
            Seen::Mute => {
                let words = format!("{named} is left alone: its switch does not answer, or has no such port");
                self.findings.left_alone.push(words);
            }
            _ => {
                let words = format!(
                    "{named} is left alone: it is up without a circuit, so it does not tell of light"
                );
                self.findings.left_alone.push(words);
            }
        }
    }

    /// Checks whether a port that stayed dark is dark from everywhere, or only from where the first light
    /// should have come.
    async fn second_look(&mut self, pending: Vec<Circuit>) -> Result<(), Halt> {
        for Circuit { from, to } in pending {
            let sources: Vec<u32> =
                self.shining.iter().copied().filter(|port| ![from, to].contains(port)).collect();
            let mut found = None;
            for source in sources.into_iter().take(SOURCES_MAX - 1) {
                if let Seen::At(place) = self.try_port(Circuit { from: source, to }).await? {
                    found = Some(place);
                    break;
                }
            }
            match found {
                Some(place) => {
                    self.leads.insert(to, place);
                    self.dark.insert(from);
                }
                // The first source may be as good as any.
                None if !self.shining.contains(&from) => {
                    let target = self.leads.keys().copied().find(|port| *port != from);
                    let Some(target) = target else { continue };
                    match self.try_port(Circuit { from, to: target }).await? {
                        Seen::At(_) => {
                            self.shining.insert(from);
                        }
                        Seen::Nothing => {
                            self.dark.insert(from);
                        }
                        Seen::Up | Seen::Mute | Seen::Refused(_) => {}
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Looks for racks' ports that got no light behind the ports that should be splitters'.
    async fn search_splitters(&mut self) -> Result<(), Halt> {
        let ports: Vec<u32> = self
            .cabling
            .table
            .splitters()
            .iter()
            .flat_map(|s| [&[s.input], &s.outputs[..]].concat())
            .collect();
        for port in ports {
            let found: BTreeSet<Place> = self.leads.values().copied().collect();
            let is_missing = self.free().iter().any(|port| {
                let is_told = !self.untold.contains(port) && !self.leads.contains_key(port);
                is_told && self.cabling.places.get(port).is_some_and(|place| !found.contains(place))
            });
            let Some(&source) = self.shining.first().filter(|_| is_missing) else { return Ok(()) };
            if self.taken.contains(&port) {
                continue;
            }
            if let Seen::At(place) = self.shine(Circuit { from: source, to: port }, None).await? {
                self.leads.insert(port, place);
            }
        }
        Ok(())
    }

    /// Compares what was found with the settings.
    fn judge_ports(&mut self) {
        let all_dark = self.leads.is_empty();
        for (&port, &place) in &self.cabling.places {
            if self.taken.contains(&port) || self.untold.contains(&port) {
                continue;
            }
            let (name, found) = (self.cabling.port(port), self.leads.get(&port).copied());
            let (named, said) = (words(place), self.cabling.named(port));
            self.findings.ports.push(ProbedPort {
                port: name.clone(),
                named: named.clone(),
                found: found.map(words),
            });
            match found {
                Some(found) if found != place => self.faults.push(format!(
                    "port {name} of the circuit switch leads to {}, and {said}: swap the cables, or mend the setting",
                    words(found)
                )),
                None if !all_dark => self.faults.push(format!(
                    "no light comes from port {name} of the circuit switch to any rack, and {said}: \
                     look at the fibre, and at what it leads to"
                )),
                _ => {}
            }
            if self.dark.contains(&port) {
                self.faults.push(format!(
                    "no light enters the circuit switch at port {name}, where {named} should shine: \
                     force that port up (it has no light of its own), or look at the fibre"
                ));
            }
        }
        if all_dark && !self.findings.ports.is_empty() {
            self.faults.push(
                "no circuit between two racks' ports has lit any port: do the racks' ports send without light of their own (forced \
                 up), and are ocs.rack-ports and tor.fibre-ports those that are cabled?"
                    .into(),
            );
        }
        let splitters =
            self.cabling.table.splitters().iter().flat_map(|s| [&[s.input], &s.outputs[..]].concat());
        for port in splitters {
            if let Some(place) = self.leads.get(&port) {
                self.faults.push(format!(
                    "port {} of the circuit switch leads to {}, and {}: swap the cables, or mend the setting",
                    self.cabling.port(port),
                    words(*place),
                    self.cabling.named(port)
                ));
            }
        }
    }

    /// Feeds every splitter and leads its outputs to a rack, one after the other.
    async fn splitters(&mut self) -> Result<(), Halt> {
        let splitters = self.cabling.table.splitters();
        for (number, splitter) in splitters.iter().enumerate() {
            for &output in &splitter.outputs {
                let ports = [splitter.input, output];
                if ports.iter().any(|port| self.taken.contains(port) || self.leads.contains_key(port)) {
                    continue;
                }
                let ends = self.shining.iter().find_map(|source| {
                    let is_rack = |port: &u32| self.cabling.places.contains_key(port) && port != source;
                    Some((*source, self.leads.keys().copied().find(is_rack)?))
                });
                let Some((source, target)) = ends else {
                    let words = "splitters are left alone: light into them and out of them needs two racks' ports that work";
                    self.findings.left_alone.push(words.into());
                    return Ok(());
                };
                self.split(number, (source, splitter.input), (output, target)).await?;
            }
        }
        Ok(())
    }

    /// Checks whether light that goes into a splitter comes out here; if not, finds the splitter whose light
    /// does.
    async fn split(&mut self, number: usize, into: (u32, u32), out: (u32, u32)) -> Result<(), Halt> {
        let behind = Circuit { from: out.0, to: out.1 };
        let (input, output) = (self.cabling.port(into.1), self.cabling.port(out.0));
        let place = self.leads[&out.1];
        // It may need a moment to go dark again.
        self.goes_dark(place).await;
        if let Err(why) = self.make(behind).await? {
            self.faults.push(why);
            return Ok(());
        }
        let seen = self.shine(Circuit { from: into.0, to: into.1 }, Some(place)).await?;
        let said = self.cabling.named(out.0);
        let stays = seen == Seen::Up || seen == Seen::At(place) && !self.goes_dark(place).await;
        let lit = seen == Seen::At(place) && !stays;
        let fault = match seen {
            Seen::Refused(why) => Some(why),
            _ if lit => None,
            _ if stays => Some(format!(
                "light comes into the circuit switch at port {output} although none goes into splitter {number}, and {said}: \
                 look at what is cabled there"
            )),
            _ => Some(match self.other_input(into, place).await? {
                Some(other) => format!(
                    "the light at port {output} of the circuit switch is what goes into a splitter at port {}, and {said}, \
                     whose input is port {input}: swap the cables, or mend the setting",
                    self.cabling.port(other)
                ),
                None => format!(
                    "light that leaves the circuit switch at port {input} for splitter {number} does not come back at port \
                     {output}, and {said}: look at the fibres and at the splitter"
                ),
            }),
        };
        self.faults.extend(fault);
        self.take(behind).await?;
        self.findings.outputs.push(ProbedOutput { splitter: number, input, output, lit });
        Ok(())
    }

    /// Feeds the other splitters; gives the input of the one whose light comes to this place.
    async fn other_input(&mut self, into: (u32, u32), place: Place) -> Result<Option<u32>, Halt> {
        let table = self.cabling.table;
        for other in table.splitters().iter().map(|other| other.input) {
            let is_tried = other != into.1 && !self.taken.contains(&other);
            if is_tried
                && self.shine(Circuit { from: into.0, to: other }, Some(place)).await? == Seen::At(place)
            {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Lights a rack's port.
    async fn try_port(&mut self, circuit: Circuit) -> Result<Seen, Halt> {
        let expected = self.cabling.places.get(&circuit.to).copied();
        self.shine(circuit, expected).await
    }

    /// Makes a circuit, looks which port gets light by it, and takes it down again.
    async fn shine(&mut self, circuit: Circuit, expected: Option<Place>) -> Result<Seen, Halt> {
        if let Some(place) = expected {
            match self.optics.light().await.get(&place) {
                None => return Ok(Seen::Mute),
                Some(true) if !self.goes_dark(place).await => return Ok(Seen::Up),
                Some(_) => {}
            }
        }
        let before = self.optics.light().await;
        if let Err(why) = self.make(circuit).await? {
            return Ok(Seen::Refused(why));
        }
        let until = Instant::now() + self.cabling.settle;
        let mut risen: Vec<Place> = Vec::new();
        while Instant::now() < until {
            let now = self.optics.light().await;
            let has_risen =
                |place: &Place| now.get(place) == Some(&true) && before.get(place) == Some(&false);
            if let Some(place) = expected.filter(has_risen) {
                self.take(circuit).await?;
                return Ok(Seen::At(place));
            }
            risen = now.keys().copied().filter(has_risen).collect();
            if expected.is_none() && !risen.is_empty() {
                break;
            }
            sleep(LOOK_AGAIN).await;
        }
        if risen.is_empty() && !self.held().await?.iter().any(|held| held.circuit == circuit) {
            let name = self.cabling.dialect.circuit_name(circuit);
            let reason =
                format!("the circuit switch said that it has made circuit {name}, and does not list it");
            return Err(Halt::Device(reason));
        }
        self.take(circuit).await?;
        // Ports that the settings name come first. Others' links may have come up just then: this one's light
        // goes with the circuit.
        risen.sort_by_key(|place| !self.cabling.places.values().any(|named| named == place));
        for place in risen {
            if self.goes_dark(place).await {
                return Ok(Seen::At(place));
            }
        }
        Ok(Seen::Nothing)
    }

    /// Waits until a port has no light; whether it has none then.
    async fn goes_dark(&self, place: Place) -> bool {
        let until = Instant::now() + self.cabling.settle;
        loop {
            if self.optics.light().await.get(&place) == Some(&false) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn held(&self) -> Result<Vec<Held>, Halt> {
        self.optics.held().await.map_err(|error| Halt::Device(error.to_string()))
    }

    /// Makes a circuit, unless another program uses its ports by now or the switch refuses: then says why
    /// not.
    async fn make(&mut self, circuit: Circuit) -> Result<Result<(), String>, Halt> {
        let name = self.cabling.dialect.circuit_name(circuit);
        let others = self.held().await?;
        let in_way = |held: &&Held| held.circuit.from == circuit.from || held.circuit.to == circuit.to;
        if let Some(Held { circuit: other, .. }) = others.iter().find(in_way) {
            if self.made.contains_key(other) {
                let name = self.cabling.dialect.circuit_name(*other);
                return Err(Halt::Device(format!(
                    "the circuit switch keeps circuit {name}, which was taken down"
                )));
            }
            self.taken.extend([other.from, other.to]);
            let other = self.cabling.dialect.circuit_name(*other);
            return Ok(Err(format!("circuit {name} was not tried: circuit {other} has come meanwhile")));
        }
        // Before it is asked for: whatever happens then, it is looked for in the end.
        self.made.insert(circuit, true);
        match self.optics.enter(circuit).await {
            Ok(()) => {
                self.made.insert(circuit, false);
                Ok(Ok(()))
            }
            Err(CircuitError::Denied { code, text, .. }) => {
                self.made.remove(&circuit);
                Ok(Err(format!("the circuit switch refuses circuit {name}: {text} ({code})")))
            }
            Err(error) => Err(Halt::Device(error.to_string())),
        }
    }

    async fn take(&mut self, circuit: Circuit) -> Result<(), Halt> {
        self.optics.delete(circuit).await.map_err(|error| Halt::Device(error.to_string()))
    }

    /// Takes down what it may have made, and looks whether it is gone. Gives what it could not.
    async fn sweep(&mut self) -> Option<String> {
        let mut left: Vec<Circuit> = self.made.keys().copied().collect();
        for _ in 0..SWEEPS {
            if left.is_empty() {
                return None;
            }
            if let Ok(held) = self.optics.held().await {
                let is_there = |circuit: &Circuit| held.iter().any(|held| held.circuit == *circuit);
                left.retain(|circuit| is_there(circuit) || self.made[circuit]);
                for circuit in &left {
                    let blocks =
                        |held: &Held| held.circuit.from == circuit.from || held.circuit.to == circuit.to;
                    // One that the switch may be making still is taken down unseen; not what others have
                    // there.
                    if (is_there(circuit) || !held.iter().any(blocks))
                        && self.optics.delete(*circuit).await.is_ok()
                    {
                        self.made.insert(*circuit, false);
                    }
                }
            }
            if !left.is_empty() {
                sleep(SWEEP_PAUSE).await;
            }
        }
        let held = self.optics.held().await;
        left.retain(|circuit| {
            held.as_ref().map_or(true, |held| held.iter().any(|held| held.circuit == *circuit))
        });
        let names: Vec<String> =
            left.iter().map(|circuit| self.cabling.dialect.circuit_name(*circuit)).collect();
        (!names.is_empty()).then(|| {
            format!("what the probe has made may be there still: take down by hand {}", names.join(" and "))
        })
    }
}

impl ProbeFindings {
    /// The same for people.
    pub(super) fn write(&self, text: &mut String) {
        for ProbedPort { port, named, found } in &self.ports {
            let found = match found {
                Some(found) if found == named => "leads there".to_string(),
                Some(found) => format!("leads to {found}"),
                None => "leads nowhere".into(),
            };
            text.push_str(&format!("probe: port {port:8} {named:24} {found}\n"));
        }
        for ProbedOutput { splitter, input, output, lit } in &self.outputs {
            let light = if *lit { "light comes through" } else { "dark" };
            text.push_str(&format!(
                "probe: splitter {splitter:3} in by port {input}, out by port {output}: {light}\n"
            ));
        }
        for words in &self.left_alone {
            text.push_str(&format!("probe: {words}\n"));
        }
    }
}

#[cfg(test)]
mod tests;
