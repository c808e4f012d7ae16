//! Polatis (HUBER+SUHNER): ports are fibres. Those where light enters come first, those where it leaves after
//! them: a switch of 24x24 has the circuits `1,25` to `24,48`. It speaks TL1, and SCPI, which has no login.
//!
//! The facts are from public drivers; tests/circuits has dialogues from them, each with its source.

use super::{Blocks, Circuit, Command, Dialect, Framing, Held, Login, Request, RequestError, counted};

/// Language that is spoken with a Polatis switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// TL1: `ENT-PATCH::1,25:7;`.
    Tl1,
    /// SCPI: `:oxc:swit:conn:add (@1),(@25)`.
    Scpi,
}

/// One number stands for a fibre where light enters and the one where it leaves that has this number after
/// those.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Polatis {
    /// Language that is spoken.
    pub protocol: Protocol,
    /// Fibres where light enters.
    pub inputs: u32,
}

impl Polatis {
    fn entrance(&self, text: &str) -> Option<u32> {
        counted(text).filter(|port| *port < self.inputs)
    }

    fn exit(&self, text: &str) -> Option<u32> {
        counted(text)?.checked_sub(self.inputs)
    }

    fn fibres(&self, circuit: Circuit) -> (u32, u32) {
        (circuit.from + 1, self.inputs + circuit.to + 1)
    }

    /// `(@1),(@25)`
    fn lists(&self, circuits: &[Circuit]) -> String {
        let fibres: Vec<_> = circuits.iter().map(|circuit| self.fibres(*circuit)).collect();
        let join = |list: Vec<String>| list.join(",");
        let from = join(fibres.iter().map(|(from, _)| from.to_string()).collect());
        let to = join(fibres.iter().map(|(_, to)| to.to_string()).collect());
        format!("(@{from}),(@{to})")
    }

    /// The circuits of `(@1,2),(@25,26)`, whatever blanks there are.
    fn read_lists(&self, text: &str) -> Option<Vec<Circuit>> {
        let text: String = text.split_whitespace().collect();
        let (from, to) = text.strip_prefix("(@")?.strip_suffix(')')?.split_once("),(@")?;
        if from.is_empty() && to.is_empty() {
            return Some(Vec::new());
        }
        let (mut from, mut to) = (from.split(','), to.split(','));
        let mut circuits = Vec::new();
        loop {
            match (from.next(), to.next()) {
                (None, None) => return Some(circuits),
                (Some(one), Some(other)) => circuits.push(self.circuit(one, other)?),
                _ => return None,
            }
        }
    }

    /// Two fibres, which may be named in either order.
    fn circuit(&self, one: &str, other: &str) -> Option<Circuit> {
        let forth = || Some(Circuit { from: self.entrance(one)?, to: self.exit(other)? });
        let back = || Some(Circuit { from: self.entrance(other)?, to: self.exit(one)? });
        forth().or_else(back)
    }

    fn parse_tl1(&self, text: &str) -> Result<(Request, String), RequestError> {
        let blocks = Blocks::read(text)?;
        let circuit = || blocks.circuit(|one| self.entrance(one), |other| self.exit(other), "1,25");
        let request = match blocks.verb.as_str() {
            "ENT-PATCH" => Request::Enter(circuit()?),
            "DLT-PATCH" => match self.entrance(&blocks.aid) {
                Some(port) => Request::DeleteFrom(port),
                None => Request::Delete(circuit()?),
            },
            "RTRV-PATCH" => Request::Retrieve,
            "RTRV-NETYPE" => Request::Identity,
            "RTRV-EQPT" if blocks.aid == "SYSTEM" => Request::Size,
            _ => return blocks.common(),
        };
        Ok((request, blocks.tag))
    }

    fn parse_scpi(&self, text: &str) -> Result<Request, RequestError> {
        let line = text.trim().to_ascii_lowercase();
        let line = line.strip_prefix(':').unwrap_or(&line);
        let wrong = |code, text: String| RequestError { tag: String::new(), code, text };
        let circuit = |lists: &str| match self.read_lists(lists).as_deref() {
            Some([circuit]) => Ok(*circuit),
            _ => Err(wrong("-102", format!("'{lists}' is no circuit: write two ports, such as (@1),(@25)"))),
        };
        Ok(match line.split_once(' ') {
            Some(("oxc:swit:conn:add", lists)) => Request::Enter(circuit(lists)?),
            Some(("oxc:swit:conn:sub", lists)) => Request::Delete(circuit(lists)?),
            _ => match line {
                "oxc:swit:conn:stat?" => Request::Retrieve,
                "oxc:swit:size?" => Request::Size,
                "*idn?" => Request::Identity,
                "syst:err?" => Request::LastError,
                "*cls" => Request::Header,
                other => return Err(wrong("-113", format!("'{other}' is no command of this switch"))),
            },
        })
    }
}

impl Dialect for Polatis {
    fn name(&self) -> &'static str {
        match self.protocol {
            Protocol::Tl1 => "polatis-tl1",
            Protocol::Scpi => "polatis-scpi",
        }
    }

    fn framing(&self) -> Framing {
        match self.protocol {
            Protocol::Tl1 => Framing::Tl1,
            Protocol::Scpi => Framing::Scpi,
        }
    }

    fn has_login(&self) -> bool {
        self.protocol == Protocol::Tl1
    }

    fn port_name(&self, port: u32) -> String {
        (u64::from(port) + 1).to_string()
    }

    fn port(&self, name: &str) -> Option<u32> {
        counted(name)
    }

    fn circuit_name(&self, circuit: Circuit) -> String {
        let (from, to) = self.fibres(circuit);
        format!("{from},{to}")
    }

    /// In SCPI errors of earlier clients are cleared away.
    fn login(&self, login: Option<&Login>) -> Option<Command> {
        match self.protocol {
            Protocol::Tl1 => login.map(Command::tl1_login),
            Protocol::Scpi => Some(Command::scpi("*cls")),
        }
    }

    fn enter(&self, circuit: Circuit) -> Vec<Command> {
        vec![match self.protocol {
            Protocol::Tl1 => Command::tl1("ENT-PATCH", &self.circuit_name(circuit), ""),
            Protocol::Scpi => Command::scpi(&format!(":oxc:swit:conn:add {}", self.lists(&[circuit]))),
        }]
    }

    fn delete(&self, circuit: Circuit) -> Vec<Command> {
        vec![match self.protocol {
            Protocol::Tl1 => Command::tl1("DLT-PATCH", &(circuit.from + 1).to_string(), ""),
            Protocol::Scpi => Command::scpi(&format!(":oxc:swit:conn:sub {}", self.lists(&[circuit]))),
        }]
    }

    fn retrieve(&self) -> Command {
        match self.protocol {
            Protocol::Tl1 => Command::tl1("RTRV-PATCH", "", ""),
            Protocol::Scpi => Command::scpi(":oxc:swit:conn:stat?"),
        }
    }

    fn circuits(&self, line: &str) -> Option<Vec<Held>> {
        let circuits = match self.protocol {
            Protocol::Tl1 => {
                let (one, other) = line.split_once(',')?;
                vec![self.circuit(one, other)?]
            }
            Protocol::Scpi => self.read_lists(line)?,
        };
        Some(circuits.into_iter().map(Held::from).collect())
    }

    fn alarms(&self) -> Option<Command> {
        (self.protocol == Protocol::Tl1).then(|| Command::tl1("RTRV-ALM-ALL", "", ""))
    }

    fn identity(&self) -> Option<Command> {
        Some(match self.protocol {
            Protocol::Tl1 => Command::tl1("RTRV-NETYPE", "", ""),
            Protocol::Scpi => Command::scpi("*idn?"),
        })
    }

    fn size(&self) -> Option<Command> {
        Some(match self.protocol {
            Protocol::Tl1 => Command::tl1("RTRV-EQPT", "SYSTEM", "::PARAMETER=SIZE"),
            Protocol::Scpi => Command::scpi(":oxc:swit:size?"),
        })
    }

    fn read_size(&self, lines: &[String]) -> Option<(u32, u32)> {
        let line = lines.first()?;
        let (inputs, outputs) = match self.protocol {
            Protocol::Tl1 => line.strip_prefix("SYSTEM:SIZE=")?.split_once('x')?,
            Protocol::Scpi => line.split_once(',')?,
        };
        Some((inputs.trim().parse().ok()?, outputs.trim().parse().ok()?))
    }

    fn probe(&self) -> Command {
        match self.protocol {
            Protocol::Tl1 => Command::tl1("RTRV-HDR", "", ""),
            Protocol::Scpi => Command::scpi("*idn?"),
        }
    }

    fn parse(&self, text: &str) -> Result<(Request, String), RequestError> {
        match self.protocol {
            Protocol::Tl1 => self.parse_tl1(text),
            Protocol::Scpi => self.parse_scpi(text).map(|request| (request, String::new())),
        }
    }

    fn list(&self, circuits: &[Circuit], _ports: u32) -> Vec<String> {
        match self.protocol {
            Protocol::Tl1 => circuits.iter().map(|circuit| self.circuit_name(*circuit)).collect(),
            Protocol::Scpi => vec![self.lists(circuits)],
        }
    }

    fn introduce(&self, request: &Request, ports: u32) -> Vec<String> {
        match (request, self.protocol) {
            (Request::Identity, _) => vec![format!("Polatis,LAB-{ports}x{ports},LAB,0")],
            (Request::Size, Protocol::Tl1) => vec![format!("SYSTEM:SIZE={ports}x{ports}")],
            (Request::Size, Protocol::Scpi) => vec![format!("{ports},{ports}")],
            _ => Vec::new(),
        }
    }
}
