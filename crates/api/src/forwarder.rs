//! Reports of the process of Datacast forwarders on its links: lines of JSON over TCP (Datacast, section
//! 3.1).
//!
//! A client that connects sends the line `{"do":"watch"}`. The first answer names all nodes of the process
//! and their links that are down; each further one is a link that has changed, or all of them again.

use serde::{Deserialize, Serialize};

/// The line that asks for the words.
pub const WATCH: &str = "{\"do\":\"watch\"}\n";

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The nodes of the process; always the first word, and said again from time to time.
    Nodes(Vec<NodeLinks>),
    /// A link has changed, and stayed so as long as the forwarder's settings say.
    Link(LinkChange),
}

/// A node and its links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLinks {
    /// Its name.
    pub name: String,
    /// Its number in the network.
    pub number: u32,
    /// The ports whose links are down.
    pub down: Vec<u32>,
}

/// A link that has changed, as one of its ends says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChange {
    /// The name of the node that says so.
    pub name: String,
    /// Its number in the network.
    pub number: u32,
    /// Its port.
    pub port: u32,
    /// Set if the link works both ways.
    pub up: bool,
}
