//! TL1 as GR-831 has it, without the peculiarities of any make: `ENT-CRS-FIBER::1,121:7;`.

use super::{Blocks, Circuit, Command, Dialect, Held, Request, RequestError, counted};

/// Ports count from 1, and a circuit is listed as it is made: `1,121`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain;

impl Dialect for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn port_name(&self, port: u32) -> String {
        (u64::from(port) + 1).to_string()
    }

    fn port(&self, name: &str) -> Option<u32> {
        counted(name)
    }

    fn enter(&self, circuit: Circuit) -> Vec<Command> {
        vec![Command::tl1("ENT-CRS-FIBER", &self.circuit_name(circuit), "")]
    }

    fn delete(&self, circuit: Circuit) -> Vec<Command> {
        vec![Command::tl1("DLT-CRS-FIBER", &self.circuit_name(circuit), "")]
    }

    fn retrieve(&self) -> Command {
        Command::tl1("RTRV-CRS-FIBER", "ALL", "")
    }

    fn circuits(&self, line: &str) -> Option<Vec<Held>> {
        // What follows a colon says more and is left out.
        let (from, to) = line.split(':').next()?.split_once(',')?;
        Some(vec![Circuit { from: counted(from)?, to: counted(to)? }.into()])
    }

    fn parse(&self, text: &str) -> Result<(Request, String), RequestError> {
        let blocks = Blocks::read(text)?;
        let circuit = || blocks.circuit(counted, counted, "1,121");
        let request = match blocks.verb.as_str() {
            "ENT-CRS-FIBER" => Request::Enter(circuit()?),
            "DLT-CRS-FIBER" => Request::Delete(circuit()?),
            "RTRV-CRS-FIBER" => Request::Retrieve,
            _ => return blocks.common(),
        };
        Ok((request, blocks.tag))
    }

    fn list(&self, circuits: &[Circuit], _ports: u32) -> Vec<String> {
        circuits.iter().map(|circuit| self.circuit_name(*circuit)).collect()
    }
}
