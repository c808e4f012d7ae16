//! `polycast plan circuits`: groups that get optical circuits and splitters now (Blast, section III).

use super::{Answer, PlanError, names, read, span, timed};
use clap::Args;
use polycast::table::{Table, paragraph};
use polycast_experiments::exact;
use polycast_planning::circuits::{self, CircuitGroup, CircuitNetwork, CircuitSetup, Connection, PortPool};
use polycast_topology::Hybrid;
use polycast_topology::optics::{Cascade, PowerBudget, splitter_loss_db};
use polycast_types::{Printable, format_bytes};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan circuits groups.json
  polycast plan circuits groups.json --exact

groups.json:
  {\"racks\": 6, \"ports_per_rack\": 1, \"splitters\": 2, \"splitter_fanout\": 4, \"cascade_max\": 2,
   \"groups\": [{\"id\": \"weights\", \"source\": 0, \"racks\": [0, 1, 2],
               \"bytes\": 64000000000, \"receivers\": 10}],
   \"running\": []}

docs/planning.md has all of its fields.";

/// Time limit of the exact scheduler.
const EXACT_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The most ports of a circuit switch whose circuits are listed.
const CIRCUIT_PORTS_MAX: u32 = 1 << 20;

/// The most circuits that are listed for people.
const LISTED_MAX: usize = 64;

/// Power budget where a file gives none: all groups get enough light.
const UNLIMITED_POWER: PowerBudget =
    PowerBudget { budget_db: 1e9, switch_loss_db: 0.0, splitter_loss_db: 0.0, amplifier_gain_db: 0.0 };

/// Arguments of `plan circuits`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CircuitsArgs {
    /// The network and the groups, as JSON
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,
    /// Also find the best possible choice, by integer programming
    #[arg(long)]
    pub exact: bool,
}

/// The contents of a circuits file.
#[derive(Deserialize)]
struct CircuitsFile {
    racks: u32,
    ports_per_rack: u32,
    splitters: u32,
    splitter_fanout: u32,
    /// The most splitters between a source and a receiver.
    cascade_max: u32,
    groups: Vec<GroupEntry>,
    /// Ids of the groups that have their circuits already.
    #[serde(default)]
    running: Vec<Value>,
    /// With it, groups that would be too dark are rejected too.
    power: Option<PowerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PowerEntry {
    /// From the transmitter's power to the receiver's sensitivity.
    budget_db: f64,
    /// One pass through the circuit switch.
    switch_loss_db: f64,
    /// One splitter; computed from its outputs where it is not given.
    splitter_loss_db: Option<f64>,
    /// One amplifier; 0 without amplifiers.
    #[serde(default)]
    amplifier_gain_db: f64,
}

#[derive(Deserialize)]
struct GroupEntry {
    id: Value,
    /// The rack of the source; it counts among the racks whether or not it is listed there.
    source: Option<u32>,
    racks: Vec<u32>,
    bytes: u64,
    receivers: u32,
}

/// Problem that a file poses.
struct Question {
    file: CircuitsFile,
    /// The groups' numbers. Ids may be any JSON value; inside, numbers stand for themselves where all ids are
    /// numbers.
    ids: Vec<u64>,
    running: BTreeSet<u64>,
}

/// The groups whose receivers get enough light, and why the others do not. What runs already does get enough.
type Lit = (Vec<CircuitGroup>, Vec<(u64, String)>);

pub(super) fn plan(args: &CircuitsArgs) -> Result<Answer, PlanError> {
    let wrong = |error: String| PlanError::Contents { path: args.file.clone(), error };
    let question = Question::read(&args.file)?;
    let network = question.network();
    let (groups, dark) = question.within_power().map_err(wrong)?;
    let (schedule, micros) = timed(|| circuits::schedule(&network, &groups, &question.running));
    let schedule = schedule?;
    let reasons = schedule.rejected.iter().map(|(id, why)| (*id, why.to_string())).chain(dark);
    let rejected: Vec<Value> =
        reasons.map(|(id, why)| json!({ "id": question.name(id), "reason": why })).collect();
    let mut document = json!({
        "granted": question.names(&schedule.granted),
        "waiting": question.names(&schedule.waiting),
        "rejected": rejected,
        "volume": number(schedule.volume),
        "splitters_used": schedule.splitters_used,
        "micros": micros,
    });
    match question.circuits(&groups, &schedule.granted) {
        Ok(lists) => document["circuits"] = lists.into(),
        Err(why) => document["circuits_left_out"] = why.into(),
    }
    if args.exact {
        let best = exact::schedule(&network, &groups, &question.running, EXACT_TIME_LIMIT)?;
        let kind = if best.proven { "optimal" } else { "best_known" };
        document["optimal_proven"] = best.proven.into();
        document[format!("{kind}_volume")] = number(best.schedule.volume);
        document[format!("{kind}_granted")] = question.names(&best.schedule.granted).into();
    }
    let text = question.people(&document);
    Ok(Answer { document, text })
}

impl Question {
    fn read(path: &Path) -> Result<Self, PlanError> {
        let wrong = |error: String| PlanError::Contents { path: path.into(), error };
        let file: CircuitsFile =
            serde_json::from_str(&read(path)?).map_err(|error| wrong(error.to_string()))?;
        let groups = &file.groups;
        let numbers: Option<Vec<u64>> = groups.iter().map(|group| group.id.as_u64()).collect();
        let ids = numbers.unwrap_or_else(|| (0..groups.len() as u64).collect());
        let earlier = |at: usize| groups[..at].iter().any(|other| other.id == groups[at].id);
        if let Some(twice) = (0..groups.len()).find(|&at| earlier(at)) {
            let name = &groups[twice].id;
            return Err(wrong(format!("two groups are called {name}: give every group its own id")));
        }
        let id_of = |name: &Value| {
            let at = groups.iter().position(|group| group.id == *name);
            at.map(|at| ids[at]).ok_or_else(|| wrong(format!("running group {name} is not among the groups")))
        };
        let running = file.running.iter().map(id_of).collect::<Result<_, _>>()?;
        Ok(Question { file, ids, running })
    }

    fn network(&self) -> CircuitNetwork {
        CircuitNetwork {
            racks: self.file.racks,
            ports_per_rack: self.file.ports_per_rack,
            splitters: self.file.splitters,
            splitter_fanout: self.file.splitter_fanout,
            cascade_max: self.file.cascade_max,
        }
    }

    /// A group as the file has it.
    fn entry(&self, id: u64) -> Option<&GroupEntry> {
        let at = self.ids.iter().position(|&other| other == id)?;
        Some(&self.file.groups[at])
    }

    /// Returns the id that the file gives a group.
    fn name(&self, id: u64) -> Value {
        self.entry(id).map_or(json!(id), |group| group.id.clone())
    }

    fn names(&self, ids: &[u64]) -> Vec<Value> {
        ids.iter().map(|&id| self.name(id)).collect()
    }

    fn within_power(&self) -> Result<Lit, String> {
        let file = &self.file;
        let groups = file.groups.iter().zip(&self.ids).map(|(group, &id)| group.checked(id));
        let Some(power) = &file.power else { return Ok((groups.collect(), Vec::new())) };
        power.check()?;
        let budget = power.budget(file.splitter_fanout);
        let mut dark = Vec::new();
        let bright = groups.filter(|group| {
            // Groups that name no other rack, or one that does not exist, are refused for that.
            if self.running.contains(&group.id) || group.racks.len() < 2 {
                return true;
            }
            let receivers = group.racks.len().saturating_sub(1) as u32;
            let plan = budget.plan(&Cascade::new(receivers, file.splitter_fanout));
            dark.extend(plan.err().map(|error| (group.id, error.to_string())));
            dark.last().is_none_or(|(id, _)| *id != group.id)
        });
        Ok((bright.collect(), dark))
    }

    /// The answer for people.
    fn people(&self, document: &Value) -> String {
        let file = &self.file;
        let list = |key: &str| document[key].as_array().cloned().unwrap_or_default();
        let size = format!(
            "{} racks, {} of {} splitters in use\nplanned in {}\n",
            file.racks,
            document["splitters_used"],
            file.splitters,
            span(document["micros"].as_f64().unwrap_or_default()),
        );
        let mut table = Table::new(&["group", "answer", ">racks", ">receivers", ">bytes", "why"]);
        let mut row = |id: &Value, answer: &str, why: String| {
            let Some(group) = file.groups.iter().find(|group| group.id == *id) else { return };
            let racks = group.checked(0).racks.len().to_string();
            let (receivers, bytes) = (group.receivers.to_string(), format_bytes(group.bytes));
            table.row([plain(id), answer.into(), racks, receivers, bytes, why]);
        };
        for id in &file.running {
            row(id, "running", "-".into());
        }
        for id in list("granted") {
            row(&id, "granted", "-".into());
        }
        for id in list("waiting") {
            row(&id, "waiting", "does not fit beside the others".into());
        }
        for entry in list("rejected") {
            row(&entry["id"], "rejected", plain(&entry["reason"]));
        }
        let volume = |key: &str| Some(format_bytes(document.get(key)?.as_f64()? as u64));
        let mut text = size + &table.text();
        let granted = volume("volume").unwrap_or_default();
        text += &format!("volume granted, bytes times receivers: {granted}\n");
        for (key, word) in
            [("optimal_volume", "the best possible"), ("best_known_volume", "the best found in 60 s")]
        {
            if let Some(volume) = volume(key) {
                text += &format!("{word}: {volume}\n");
            }
        }
        text + &self.wires(document)
    }

    /// The cross connections for people.
    fn wires(&self, document: &Value) -> String {
        if let Some(why) = document.get("circuits_left_out") {
            return "\n".to_string() + &paragraph(&format!("no list of circuits: {}", plain(why)), 0);
        }
        let mut table = Table::new(&["group", "from", "to", "TL1"]).at_most(LISTED_MAX);
        for group in document["circuits"].as_array().into_iter().flatten() {
            let pairs = group["connections"].as_array().into_iter().flatten();
            for (pair, command) in pairs.zip(group["tl1_enter"].as_array().into_iter().flatten()) {
                let end = |at: usize| names::port(&self.hybrid(), pair[at].as_u64().unwrap_or(0) as u32);
                table.row([plain(&group["id"]), end(0), end(1), plain(command)]);
            }
        }
        if table.is_empty() { String::new() } else { format!("\nCircuits to make\n{}", table.text()) }
    }

    fn hybrid(&self) -> Hybrid {
        let file = &self.file;
        Hybrid {
            racks: file.racks,
            servers_per_rack: 1,
            ports_per_rack: file.ports_per_rack,
            splitters: file.splitters,
            splitter_fanout: file.splitter_fanout,
        }
    }

    /// The cross connections and TL1 commands of every granted group. Groups that run already are taken to
    /// hold the first free fibres and splitters, in the order in which they are listed.
    fn circuits(&self, groups: &[CircuitGroup], granted: &[u64]) -> Result<Vec<Value>, String> {
        let file = &self.file;
        let hybrid = self.hybrid().checked(CIRCUIT_PORTS_MAX).map_err(|error| error.to_string())?;
        let mut pool = PortPool::new(hybrid);
        let budget = file.power.as_ref().map_or(UNLIMITED_POWER, |power| power.budget(file.splitter_fanout));
        let mut lists = Vec::with_capacity(granted.len());
        let mut tag = 1;
        let running = groups.iter().map(|group| group.id).filter(|id| self.running.contains(id));
        for id in running.chain(granted.iter().copied()) {
            let Some(group) = groups.iter().find(|group| group.id == id) else { continue };
            let source = self.entry(id).and_then(|entry| entry.source).unwrap_or(group.racks[0]);
            let others: Vec<u32> = group.racks.iter().copied().filter(|rack| *rack != source).collect();
            let circuits = circuits::setup(&mut pool, source, &others, &budget)
                .map_err(|error| format!("group {id}: {error}"))?;
            if self.running.contains(&id) {
                continue;
            }
            let tags = tag..tag + circuits.connections.len() as u32;
            tag = tags.end;
            lists.push(describe(self.name(id), &circuits, &tags));
        }
        Ok(lists)
    }
}

/// The circuits of a group as JSON; each has a tag of its own in the commands.
fn describe(id: Value, circuits: &CircuitSetup, tags: &Range<u32>) -> Value {
    let commands = |what: fn(&Connection, u32) -> String| -> Vec<String> {
        circuits.connections.iter().zip(tags.clone()).map(|(connection, tag)| what(connection, tag)).collect()
    };
    let pairs: Vec<[u32; 2]> = circuits.connections.iter().map(|c| [c.from, c.to]).collect();
    json!({
        "connections": pairs,
        "splitters": circuits.splitters,
        "amplified_splitters": circuits.power.amplified,
        "tl1_enter": commands(Connection::tl1_enter),
        "tl1_delete": commands(Connection::tl1_delete),
        "id": id,
    })
}

impl GroupEntry {
    fn checked(&self, id: u64) -> CircuitGroup {
        let mut racks = self.racks.clone();
        racks.extend(self.source.filter(|source| !self.racks.contains(source)));
        CircuitGroup { id, racks, bytes: self.bytes, receivers: self.receivers }
    }
}

impl PowerEntry {
    fn budget(&self, splitter_fanout: u32) -> PowerBudget {
        PowerBudget {
            budget_db: self.budget_db,
            switch_loss_db: self.switch_loss_db,
            splitter_loss_db: self.splitter_loss_db.unwrap_or_else(|| splitter_loss_db(splitter_fanout)),
            amplifier_gain_db: self.amplifier_gain_db,
        }
    }

    fn check(&self) -> Result<(), String> {
        let values = [
            ("budget_db", self.budget_db),
            ("switch_loss_db", self.switch_loss_db),
            ("splitter_loss_db", self.splitter_loss_db.unwrap_or(0.0)),
            ("amplifier_gain_db", self.amplifier_gain_db),
        ];
        match values.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, value)) => Err(format!("{name} cannot be {value}: write decibels of at least 0")),
            None => Ok(()),
        }
    }
}

/// A JSON value for people: a text stands for itself.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| Printable(text).to_string())
}

/// A whole number as JSON, rounded where JSON numbers end.
fn number(value: u128) -> Value {
    u64::try_from(value).map_or_else(|_| json!(value as f64), |value| json!(value))
}
