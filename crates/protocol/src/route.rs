//! Source routes: a packet names every port on its way (Datacast, sections 3.3 and 6).
//!
//! One byte a hop, as in the paper; its highest bit says that the node is a *non-branching* one, which only
//! passes packets on. An interest turns its route round while it travels: every node writes the port at which
//! the interest came over the port by which it left. A node that keeps packets so finds, in the interest, the
//! way back to the next node below that keeps packets.

use core::fmt;

pub use polycast_wire::pull::{HOPS_MAX, HOPS_USUAL};
use polycast_wire::pull::{Hops, NON_BRANCHING};

/// Nodes have at most this many ports, because a hop is 7 bits and a mark.
pub const PORTS_MAX: u32 = 128;

/// One node of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port by which the packet leaves the node.
    pub port: u8,
    /// The node feeds a single other node and is no receiver: it keeps nothing.
    pub non_branching: bool,
}

/// A way through the network, and how far a packet has come on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Route {
    hops: [u8; HOPS_MAX],
    len: u8,
    at: u8,
}

/// Hops that are no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Too many hops, or none.
    #[error("a source route of {hops} hops: it can have 1 to {HOPS_MAX}")]
    Length {
        /// Number of hops.
        hops: usize,
    },
    /// A port number that does not fit a hop.
    #[error("port {port} in a source route: ports go from 0 to {}", PORTS_MAX - 1)]
    Port {
        /// The port.
        port: u8,
    },
    /// The position lies behind the end.
    #[error("hop {at} of a source route of {hops} hops: the position cannot exceed the hops")]
    Position {
        /// The position.
        at: u8,
        /// The hops.
        hops: usize,
    },
}

impl Route {
    /// A route over these hops, the receiver's own first.
    ///
    /// # Errors
    /// If there are too many hops or a port is too large.
    pub fn new(hops: &[Hop]) -> Result<Self, RouteError> {
        if hops.is_empty() || hops.len() > HOPS_MAX {
            return Err(RouteError::Length { hops: hops.len() });
        }
        let mut route = Route { hops: [0; HOPS_MAX], len: hops.len() as u8, at: 0 };
        for (slot, hop) in route.hops.iter_mut().zip(hops) {
            if u32::from(hop.port) >= PORTS_MAX {
                return Err(RouteError::Port { port: hop.port });
            }
            *slot = hop.port | if hop.non_branching { NON_BRANCHING } else { 0 };
        }
        Ok(route)
    }

    /// The route that these bytes of a packet describe.
    ///
    /// # Errors
    /// If there are too many hops, or the position lies behind them.
    pub fn from_bytes(hops: &[u8], at: u8) -> Result<Self, RouteError> {
        if hops.is_empty() || hops.len() > HOPS_MAX {
            return Err(RouteError::Length { hops: hops.len() });
        }
        if usize::from(at) > hops.len() {
            return Err(RouteError::Position { at, hops: hops.len() });
        }
        let mut route = Route { hops: [0; HOPS_MAX], len: hops.len() as u8, at };
        route.hops[..hops.len()].copy_from_slice(hops);
        Ok(route)
    }

    /// The bytes of the hops, as a packet carries them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.hops[..usize::from(self.len)]
    }

    /// The route as a packet carries it.
    #[must_use]
    pub fn to_wire(&self) -> Hops {
        Hops::new(self.bytes(), self.at).expect("a route has hops, and its position is within them")
    }

    /// The route that a packet carried.
    #[must_use]
    pub fn from_wire(hops: &Hops) -> Self {
        Route::from_bytes(hops.bytes(), hops.position()).expect("routes on the wire are as long as ours")
    }

    /// Returns the number of nodes that the packet has left behind.
    #[must_use]
    pub fn position(&self) -> u8 {
        self.at
    }

    /// Returns true if the packet is at the end of the route.
    #[must_use]
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.len
    }

    /// Returns true if the packet's current node only passes it on.
    #[must_use]
    #[inline]
    pub fn is_non_branching(&self) -> bool {
        !self.is_at_end() && self.hops[usize::from(self.at)] & NON_BRANCHING != 0
    }

    /// The port by which the packet leaves the node where it is; `None` at the end.
    #[must_use]
    #[inline]
    pub fn port(&self) -> Option<u8> {
        (!self.is_at_end()).then(|| self.hops[usize::from(self.at)] & !NON_BRANCHING)
    }

    /// The route after the node where the packet is, which it entered by `came_by`.
    #[must_use]
    #[inline]
    pub fn turned(mut self, came_by: u8) -> Self {
        let hop = &mut self.hops[usize::from(self.at)];
        *hop = *hop & NON_BRANCHING | came_by & !NON_BRANCHING;
        self.at += 1;
        self
    }

    /// The route after the node where the packet is.
    #[must_use]
    #[inline]
    pub fn stepped(mut self) -> Self {
        self.at += 1;
        self
    }

    /// From an interest that has come by port `came_by`: the way to the next node below that keeps packets.
    #[must_use]
    #[inline]
    pub fn way_back(&self, came_by: u8) -> Self {
        let mut back = Route { hops: [0; HOPS_MAX], len: 1, at: 0 };
        back.hops[0] = came_by & !NON_BRANCHING;
        let mut node = usize::from(self.at);
        while node > 1 && self.hops[node - 1] & NON_BRANCHING != 0 {
            node -= 1;
            back.hops[usize::from(back.len)] = self.hops[node] & !NON_BRANCHING;
            back.len += 1;
        }
        back
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, hop) in self.bytes().iter().enumerate() {
            let here = if at == usize::from(self.at) { ">" } else { "" };
            let mark = if hop & NON_BRANCHING != 0 { "'" } else { "" };
            write!(f, "{here}{}{mark} ", hop & !NON_BRANCHING)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(list: &[(u8, bool)]) -> alloc::vec::Vec<Hop> {
        list.iter().map(|&(port, non_branching)| Hop { port, non_branching }).collect()
    }

    #[test]
    fn an_interest_turns_its_route_into_the_way_back() {
        // Receiver, two non-branching nodes, a branching one, the source.
        let route = Route::new(&hops(&[(1, false), (2, true), (3, true), (4, false)])).unwrap();
        let at_first = route.turned(0);
        let at_second = at_first.turned(11);
        let at_third = at_second.turned(12);
        assert!(at_first.is_non_branching() && at_second.is_non_branching() && !at_third.is_non_branching());
        assert_eq!(at_third.way_back(13).bytes(), [13, 12, 11]);
        let at_source = at_third.turned(13);
        assert!(at_source.is_at_end());
        assert_eq!(at_source.way_back(14).bytes(), [14]);
        assert_eq!(at_source.port(), None);
    }

    #[test]
    fn the_position_is_the_number_of_nodes_that_were_left() {
        let route = Route::new(&hops(&[(1, false), (2, true), (3, false)])).unwrap();
        assert_eq!(
            (route.position(), route.turned(7).position(), route.turned(7).stepped().position()),
            (0, 1, 2)
        );
        assert_eq!(Route::from_bytes(&[1, 2], 2).unwrap().position(), 2);
    }

    #[test]
    fn a_route_without_a_keeper_leads_back_to_its_first_node() {
        let route = Route::new(&hops(&[(1, true), (2, true)])).unwrap();
        assert_eq!(route.turned(0).turned(9).way_back(8).bytes(), [8, 9]);
        assert_eq!(route.way_back(5).bytes(), [5]);
    }

    #[test]
    fn impossible_routes_are_refused() {
        assert_eq!(Route::new(&[]), Err(RouteError::Length { hops: 0 }));
        assert_eq!(Route::new(&hops(&[(0, false); 15])), Err(RouteError::Length { hops: 15 }));
        assert_eq!(Route::new(&hops(&[(128, false)])), Err(RouteError::Port { port: 128 }));
        assert_eq!(Route::from_bytes(&[1, 2], 3), Err(RouteError::Position { at: 3, hops: 2 }));
        assert!(Route::from_bytes(&[1, 0x82], 2).unwrap().is_at_end());
    }
}
