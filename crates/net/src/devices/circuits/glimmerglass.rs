//! Glimmerglass, the make that Blast and Republic used: ports where light enters are 10001, 10002 and so on,
//! those where it leaves 20001 and so on, and every port is listed, with or without a circuit.
//!
//! The facts are from public drivers; tests/circuits has dialogues from them, each with its source.

use super::{Blocks, Circuit, Command, Dialect, Held, Request, RequestError, counted, value_of};

/// Offset added to a port that counts from 1, where light enters and where it leaves.
const IN: u32 = 10_000;
const OUT: u32 = 20_000;

/// TL1 with `10001,20121` for a circuit, and lists of `GGN:IPORTID=10001,…`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glimmerglass;

fn entrance(text: &str) -> Option<u32> {
    counted(text)?.checked_sub(IN).filter(|port| *port < IN)
}

fn exit(text: &str) -> Option<u32> {
    counted(text)?.checked_sub(OUT).filter(|port| *port < IN)
}

fn aid(circuit: Circuit) -> String {
    format!("{},{}", IN + circuit.from + 1, OUT + circuit.to + 1)
}

impl Dialect for Glimmerglass {
    fn name(&self) -> &'static str {
        "glimmerglass"
    }

    fn port_name(&self, port: u32) -> String {
        (u64::from(port) + 1).to_string()
    }

    fn port(&self, name: &str) -> Option<u32> {
        counted(name).filter(|port| *port < IN)
    }

    fn circuit_name(&self, circuit: Circuit) -> String {
        aid(circuit)
    }

    fn enter(&self, circuit: Circuit) -> Vec<Command> {
        vec![Command::tl1("ENT-CRS-FIBER", &aid(circuit), "")]
    }

    /// By the port where light enters alone.
    fn delete(&self, circuit: Circuit) -> Vec<Command> {
        vec![Command::tl1("DLT-CRS-FIBER", &(IN + circuit.from + 1).to_string(), "")]
    }

    fn retrieve(&self) -> Command {
        Command::tl1("RTRV-CRS-FIBER", "ALL", "")
    }

    fn circuits(&self, line: &str) -> Option<Vec<Held>> {
        let list = line.strip_prefix("GGN:")?;
        let from = entrance(value_of(list, "IPORTID")?);
        let to = match value_of(list, "OPORTID")?.trim() {
            "0" => return from.map(|_| Vec::new()),
            to => exit(to)?,
        };
        let state = value_of(list, "CONNSTATE")?;
        let cause = value_of(list, "CONNCAUSE").unwrap_or("none");
        let fault = (state == "fault").then(|| cause.to_string());
        Some(vec![Held { circuit: Circuit { from: from?, to }, fault }])
    }

    fn parse(&self, text: &str) -> Result<(Request, String), RequestError> {
        let blocks = Blocks::read(text)?;
        let circuit = || blocks.circuit(entrance, exit, "10001,20121");
        let request = match blocks.verb.as_str() {
            "ENT-CRS-FIBER" => Request::Enter(circuit()?),
            "DLT-CRS-FIBER" => match entrance(&blocks.aid) {
                Some(port) => Request::DeleteFrom(port),
                None => Request::Delete(circuit()?),
            },
            "RTRV-CRS-FIBER" => Request::Retrieve,
            _ => return blocks.common(),
        };
        Ok((request, blocks.tag))
    }

    fn list(&self, circuits: &[Circuit], ports: u32) -> Vec<String> {
        let line = |port: u32| {
            let to = circuits.iter().find(|circuit| circuit.from == port).map(|circuit| circuit.to);
            let (to, state) = to.map_or((0, "single"), |to| (OUT + to + 1, "steady"));
            format!(
                "GGN:IPORTID={},IPORTNAME=,OPORTID={to},OPORTNAME=,CONNID=0,CONNSTATE={state},CONNCAUSE=none,\
                 INPWR=-5.873,OUTPWR=-6.762,PWRLOSS=0.889,CONNLOCK=0,CONNLOCKUSER=",
                IN + port + 1
            )
        };
        (0..ports).map(line).collect()
    }
}
