//! Reasons why a device did not do what a plan needs.

use super::{DeviceId, JOBS_MAX};
use crate::racks::RacksError;
use polycast_net::devices::circuits::CircuitError;
use polycast_net::devices::openflow::SwitchError;
use polycast_planning::{DeviceCommand, RackPort};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Reason why one device did not do a job. Its sentence follows the device's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    /// No device of this name was started.
    #[error("the settings do not say where it is")]
    Unknown,
    /// Its queue is full.
    #[error("{JOBS_MAX} jobs wait for it already")]
    Busy,
    /// Nothing takes its jobs any more.
    #[error("its task has ended")]
    Ended,
    /// The job was dropped.
    #[error("the manager is ending")]
    Ending,
    /// The command is another device's, or needs what this device does not have.
    #[error("it cannot do {0:?}")]
    Foreign(Box<DeviceCommand>),
    /// The circuit switch refused, or did not answer.
    #[error(transparent)]
    Circuits(#[from] CircuitError),
    /// A circuit is not there although it should be.
    #[error("it says that circuit {0} is made, and does not list it")]
    NotListed(String),
    /// A circuit is there, and carries no light.
    #[error("circuit {circuit} carries no light: it lists {fault}")]
    NoLight {
        /// The circuit.
        circuit: String,
        /// In its words.
        fault: String,
    },
    /// A port has another circuit, too.
    #[error(
        "it lists circuit {other} beside {circuit}, which has the same port: see what holds {other}, and take that down"
    )]
    Beside {
        /// The circuit.
        circuit: String,
        /// The other one.
        other: String,
    },
    /// A circuit is asked for at ports that are other people's.
    #[error(
        "a circuit from port {from} to {to} is needed, and the settings do not name both: name the ports that it had"
    )]
    ForeignPorts {
        /// Port where light enters, as the switch calls it.
        from: String,
        /// Port where light leaves.
        to: String,
    },
    /// A circuit would have to go that is not ours.
    #[error(
        "circuit {0} is not ours and has a port that is: take it down, or name another port in the settings"
    )]
    NotOurs(String),
    /// A rack's switch refused, or did not answer.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// Another switch is there.
    #[error(
        "it is the switch with the dpid {found:#x}, and tor.dpid says {named:#x}: name the address of that one, or this dpid"
    )]
    OtherSwitch {
        /// As the settings say.
        named: u64,
        /// As it says.
        found: u64,
    },
    /// It has not come.
    #[error(
        "no switch with the dpid {dpid:#x} (tor.dpid) has connected to openflow-listen: make this manager its controller"
    )]
    NotCome {
        /// Its number.
        dpid: u64,
    },
    /// It cannot copy.
    #[error(
        "it has no groups of type all, without which a switch cannot copy packets: turn them on, or take another switch"
    )]
    NoGroups,
    /// It has too few tables.
    #[error("it has one table of flows, and tor.tables says {named}: write tables = 1")]
    OneTable {
        /// As the settings say.
        named: u8,
    },
    /// The settings name no such port of a rack's switch.
    #[error("it has no port for {0:?}")]
    NoPort(RackPort),
    /// A rule would be for packets to one host.
    #[error("it makes rules for groups of IPv4 alone, and {0} is none")]
    NoGroup(IpAddr),
    /// A rule would not fit into a message.
    #[error("it cannot send by {ports} ports with one rule")]
    TooManyPorts {
        /// Number of ports that the rule would have.
        ports: usize,
    },
    /// The settings do not say which addresses a rack has.
    #[error("it does not know the addresses of rack {0}")]
    NoSubnet(u32),
    /// No connection was made in time.
    #[error("no connection within {millis} ms")]
    NotInTime {
        /// Time limit in milliseconds.
        millis: u128,
    },
    /// No connection could be made.
    #[error("{address}: {reason}")]
    Unreachable {
        /// Address that was tried.
        address: SocketAddr,
        /// Reason, in the system's words.
        reason: String,
    },
    /// The connection broke, or there is none.
    #[error("the connection has ended: {0}")]
    Broken(String),
    /// There was no answer in time: whether it was done is not known.
    #[error("no answer within {millis} ms")]
    Silent {
        /// Time limit in milliseconds.
        millis: u128,
    },
    /// Label switches said no.
    #[error("{0}")]
    Refused(String),
    /// The controllers of racks cannot be heard at this address.
    #[error("leaf controllers cannot call {listen}: {reason}")]
    NoController {
        /// Address for the calls of leaf controllers.
        listen: SocketAddr,
        /// Reason, in the system's words.
        reason: String,
    },
    /// The central controller refused.
    #[error(transparent)]
    Racks(#[from] RacksError),
    /// The agents of a rack have not confirmed a label in time.
    #[error("a rack's agents have not confirmed their label within {millis} ms")]
    Unconfirmed {
        /// Time limit in milliseconds.
        millis: u128,
    },
}

impl DeviceError {
    /// It is not for this device.
    pub(super) fn foreign(command: &DeviceCommand) -> Self {
        DeviceError::Foreign(Box::new(command.clone()))
    }
}

/// The devices that failed to set up a plan, each with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SetUpError(pub(crate) Vec<(DeviceId, DeviceError)>);

impl fmt::Display for SetUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (id, error)) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            write!(f, "{between}{id}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SetUpError {}
