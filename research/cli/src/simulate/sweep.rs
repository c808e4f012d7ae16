//! `--sweep KEY=V1,V2`: the same scenario with other values of some keys, each with each.

use polycast::exit::Failure;
use std::fmt::Write as _;
use toml::{Table, Value};

/// The most runs of a sweep.
const RUNS_MAX: usize = 10_000;

/// A key and the values that it takes in turn.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    /// As in problems of scenarios: `links.queue`, `flow[0].bytes`.
    pub key: String,
    values: Vec<String>,
}

/// The values of one run.
pub(super) type Choice = Vec<(String, String)>;

impl std::str::FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "write KEY=V1,V2 with a key of the scenario, such as links.queue=64K,256K; values with commas in them \
             are parted by semicolons"
                .to_string()
        };
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let parting = if values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values.split(parting).map(|value| value.trim().to_string()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Sweep { key: key.trim().to_string(), values })
    }
}

/// Each value of the first key with each of the second, and so on; the last key changes fastest.
pub(super) fn choices(sweeps: &[Sweep]) -> Result<Vec<Choice>, Failure> {
    for (at, sweep) in sweeps.iter().enumerate() {
        if sweeps[..at].iter().any(|other| other.key == sweep.key) {
            let key = &sweep.key;
            return Err(Failure::input(format!(
                "--sweep {key} is there twice: list all of its values in one"
            )));
        }
    }
    let runs = sweeps.iter().fold(1usize, |runs, sweep| runs.saturating_mul(sweep.values.len()));
    if runs > RUNS_MAX {
        return Err(Failure::input(format!("{runs} runs are more than {RUNS_MAX}: name fewer values")));
    }
    let mut choices = vec![Choice::new()];
    for sweep in sweeps {
        let with = |choice: &Choice| {
            let extended = sweep.values.iter().map(|value| {
                let mut choice = choice.clone();
                choice.push((sweep.key.clone(), value.clone()));
                choice
            });
            extended.collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(with).collect();
    }
    Ok(choices)
}

/// A choice for people: `links.queue=64K transfer.bytes=1M`.
pub(super) fn describe(choice: &Choice) -> String {
    let mut text = String::new();
    for (key, value) in choice {
        let _ = write!(text, "{}{key}={value}", if text.is_empty() { "" } else { " " });
    }
    text
}

/// The scenario with these values in place of its own.
pub(super) fn apply(scenario: &Table, choice: &Choice) -> Result<String, String> {
    let mut table = scenario.clone();
    for (key, value) in choice {
        set(&mut table, key, written(value)).map_err(|why| format!("{key}: {why}"))?;
    }
    toml::to_string(&table).map_err(|error| error.to_string())
}

/// A value as it would stand in a file; what is nothing else is a text.
fn written(text: &str) -> Value {
    let read: Option<Table> = toml::from_str(&format!("value = {text}")).ok();
    let value = read.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_string()))
}

fn set(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let mut table = table;
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        let (name, index) = match part.split_once('[') {
            Some((name, index)) => {
                let number = index.trim_end_matches(']').parse::<usize>();
                (name, Some(number.map_err(|_| format!("'{part}' is no key: write such as flow[0]"))?))
            }
            None => (part, None),
        };
        if parts.peek().is_none() && index.is_none() {
            table.insert(name.to_string(), value);
            return Ok(());
        }
        let place = match index {
            None => table.entry(name).or_insert_with(|| Value::Table(Table::new())),
            Some(index) => {
                let list = table.get_mut(name).and_then(Value::as_array_mut);
                let len = list.as_ref().map_or(0, |list| list.len());
                list.and_then(|list| list.get_mut(index))
                    .ok_or_else(|| format!("the scenario has {len} of [[{name}]], the first is {name}[0]"))?
            }
        };
        table = place.as_table_mut().ok_or_else(|| format!("{name} has no keys in it"))?;
    }
    Err("name a key, such as links.queue".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_tried_with_every_other() {
        let read =
            |texts: &[&str]| texts.iter().map(|text| text.parse::<Sweep>().unwrap()).collect::<Vec<_>>();
        let sweeps = read(&["links.queue=64K, 1M", "network.topology=leaf-spine:2,1,4;bcube:4,2"]);
        let described: Vec<String> = choices(&sweeps).unwrap().iter().map(describe).collect();
        assert_eq!(described.len(), 4);
        assert_eq!(described[1], "links.queue=64K network.topology=bcube:4,2");
        let scenario: Table = toml::from_str("[links]\nrate = \"1gbit\"\n[[flow]]\nfrom = 1\n").unwrap();
        let choice = |key: &str, value: &str| vec![(key.to_string(), value.to_string())];
        for (key, value, line) in [
            ("links.queue", "64K", "queue = \"64K\""),
            ("links.loss", "0.5", "loss = 0.5"),
            ("push.multicast", "false", "multicast = false"),
            ("flow[0].from", "7", "from = 7"),
            ("transfer.receivers", "[1, 2]", "receivers = [1, 2]"),
            ("seed", "9", "seed = 9"),
        ] {
            let text = apply(&scenario, &choice(key, value)).unwrap();
            assert!(text.lines().any(|other| other == line), "{key}: {text}");
        }
        for (key, words) in [("flow[1].from", "has 1 of [[flow]]"), ("links.rate.x", "rate has no keys")] {
            assert!(apply(&scenario, &choice(key, "1")).unwrap_err().contains(words), "{key}");
        }
        assert!("links.queue".parse::<Sweep>().unwrap_err().contains("KEY=V1,V2"));
        assert!("a=1,,2".parse::<Sweep>().is_err());
        assert!(choices(&read(&["a=1", "a=2"])).unwrap_err().message.contains("twice"));
    }
}
