//! Calient: ports are `shelf.slot.port`, circuits have names such as `1.1.1>1.2.3` and belong to a group, and
//! are noted before they are lit.
//!
//! The facts are from public drivers; tests/circuits has dialogues from them, each with its source.

use super::{Blocks, Circuit, Command, Dialect, Held, Request, RequestError, value_of};

/// The group of our circuits.
const GROUP: &str = "polycast";
/// Slots of a shelf, and ports of a slot, where places are counted.
const SLOTS: u32 = 8;
const PORTS: u32 = 8;

/// TL1 with `ENT-CRS::1.1.1,1.2.3:7::polycast,1WAY;`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calient;

fn read(name: &str) -> Option<u32> {
    let mut parts = name.trim().split('.');
    let mut number = 0;
    for _ in 0..3 {
        number = number << 8 | u32::from(parts.next()?.parse::<u8>().ok().filter(|part| *part > 0)?);
    }
    parts.next().is_none().then_some(number)
}

fn write(port: u32) -> String {
    let [_, shelf, slot, port] = port.to_be_bytes();
    format!("{shelf}.{slot}.{port}")
}

fn ports(circuit: Circuit) -> String {
    format!("{},{}", write(circuit.from), write(circuit.to))
}

impl Dialect for Calient {
    fn name(&self) -> &'static str {
        "calient"
    }

    fn port_name(&self, port: u32) -> String {
        write(port)
    }

    fn port(&self, name: &str) -> Option<u32> {
        read(name)
    }

    fn nth_port(&self, place: u32) -> u32 {
        let (shelf, slot, port) = (place / (SLOTS * PORTS), place / PORTS % SLOTS, place % PORTS);
        (shelf + 1) << 16 | (slot + 1) << 8 | (port + 1)
    }

    fn circuit_name(&self, circuit: Circuit) -> String {
        format!("{}>{}", write(circuit.from), write(circuit.to))
    }

    fn enter(&self, circuit: Circuit) -> Vec<Command> {
        let name = self.circuit_name(circuit);
        vec![
            Command::tl1("ENT-CRS", &ports(circuit), &format!(":{GROUP},1WAY")),
            Command::tl1("ACT-CRS", &ports(circuit), &format!(":{name},{GROUP}")),
        ]
    }

    fn delete(&self, circuit: Circuit) -> Vec<Command> {
        let name = format!(":,{GROUP},{}", self.circuit_name(circuit));
        ["CANC-CRS", "DLT-CRS"].map(|verb| Command::tl1(verb, &ports(circuit), &name)).to_vec()
    }

    fn retrieve(&self) -> Command {
        Command::tl1("RTRV-CRS", "", ":ALL")
    }

    /// One that goes both ways is two.
    fn circuits(&self, line: &str) -> Option<Vec<Held>> {
        let (_, list) = line.split_once(':')?;
        let (from, to) = (read(value_of(list, "SRCPORT")?)?, read(value_of(list, "DSTPORT")?)?);
        let fault = value_of(list, "OC").filter(|condition| *condition != "OK").map(str::to_string);
        let held = |from, to| Held { circuit: Circuit { from, to }, fault: fault.clone() };
        Some(match value_of(list, "CONNTYPE")? {
            "2WAY" => vec![held(from, to), held(to, from)],
            _ => vec![held(from, to)],
        })
    }

    fn identity(&self) -> Option<Command> {
        Some(Command::tl1("RTRV-NE", "", ""))
    }

    fn parse(&self, text: &str) -> Result<(Request, String), RequestError> {
        let blocks = Blocks::read(text)?;
        let circuit = || blocks.circuit(read, read, "1.1.1,1.2.3");
        let request = match blocks.verb.as_str() {
            "ENT-CRS" => Request::Prepare(circuit()?),
            "ACT-CRS" => Request::Enter(circuit()?),
            "CANC-CRS" => Request::Delete(circuit()?),
            "DLT-CRS" => Request::Dispose(circuit()?),
            "RTRV-CRS" => Request::Retrieve,
            "RTRV-NE" => Request::Identity,
            _ => return blocks.common(),
        };
        Ok((request, blocks.tag))
    }

    fn list(&self, circuits: &[Circuit], _ports: u32) -> Vec<String> {
        let line = |circuit: &Circuit| {
            let (name, from, to) = (self.circuit_name(*circuit), write(circuit.from), write(circuit.to));
            format!(
                "{name}:SRCPORT={from},DSTPORT={to},GRPNAME={GROUP},CONNNAME={name},CONNTYPE=1WAY,AS=UMA,OS=RDY,\
                 OC=OK,PS=UPR,AL=CL"
            )
        };
        circuits.iter().map(line).collect()
    }

    fn introduce(&self, request: &Request, _ports: u32) -> Vec<String> {
        match request {
            Request::Identity => {
                vec!["LAB:SERIALNUMBER=LAB,SWPACKAGE=0,STATUS=OK,CHASSISTYPE=LAB,PLATFORM=LAB".into()]
            }
            _ => Vec::new(),
        }
    }
}
