//! What label switches see of their links: a port without a carrier is a broken link (Orca section 3.4).

use crate::error::LabError;
use crate::layout;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use polycast_net::bpf::in_namespace;
use polycast_net::link_watch::LinkWatch;
use polycast_topology::{Clos, Graph as _, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

/// The links between the switches of a network.
pub(crate) struct Links {
    watches: Vec<(Node, LinkWatch)>,
    /// The switch at the other end of a switch's interface.
    far_end: BTreeMap<(Node, u32), Node>,
    /// Switches, and to which others they see no light.
    dark: BTreeSet<(Node, Node)>,
}

impl Links {
    /// Begins to watch the ports of all switches; all links are taken for whole.
    pub(crate) fn open(clos: &Clos) -> Result<Self, LabError> {
        let mut links = Links { watches: Vec::new(), far_end: BTreeMap::new(), dark: BTreeSet::new() };
        for node in clos.hosts()..clos.node_count() {
            let name = layout::label_switch(clos, node);
            let failed = |error: &dyn std::fmt::Display| LabError::system(format!("watch {name}"), error);
            let opened = in_namespace(&Path::new("/run/netns").join(&name), || {
                let mut ends = Vec::new();
                for port in 0..clos.port_count(node) {
                    let other = clos.neighbor(node, port);
                    if other >= clos.hosts() {
                        ends.push((nix::net::if_::if_nametoindex(&layout::label_port(port)[..])?, other));
                    }
                }
                Ok::<_, io::Error>((LinkWatch::open()?, ends))
            });
            let (watch, ends) = opened.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
            links.watches.push((node, watch));
            links.far_end.extend(ends.into_iter().map(|(index, other)| ((node, index), other)));
        }
        Ok(links)
    }

    /// Tells `hear` of every link that breaks or works again, for ever.
    pub(crate) fn run(mut self, mut hear: impl FnMut((Node, Node), bool)) -> io::Result<()> {
        loop {
            let mut fds: Vec<PollFd<'_>> =
                self.watches.iter().map(|(_, watch)| PollFd::new(watch.as_fd(), PollFlags::POLLIN)).collect();
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<usize> = fds
                .iter()
                .enumerate()
                .filter(|(_, fd)| fd.any().unwrap_or(false))
                .map(|(at, _)| at)
                .collect();
            for at in ready {
                let (node, watch) = &mut self.watches[at];
                let node = *node;
                for (index, runs) in watch.changes()? {
                    let Some(&other) = self.far_end.get(&(node, index)) else { continue };
                    if let Some(works) = note(&mut self.dark, node, other, runs) {
                        hear((node.min(other), node.max(other)), works);
                    }
                }
            }
        }
    }
}

/// Notes what one end sees; gives whether the link works if that has changed.
fn note(dark: &mut BTreeSet<(Node, Node)>, node: Node, other: Node, runs: bool) -> Option<bool> {
    let works = |dark: &BTreeSet<_>| !dark.contains(&(node, other)) && !dark.contains(&(other, node));
    let before = works(dark);
    if runs {
        dark.remove(&(node, other));
    } else {
        dark.insert((node, other));
    }
    let after = works(dark);
    (before != after).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_works_when_both_ends_see_light() {
        let mut dark = BTreeSet::new();
        let said = [(1, 2, true), (1, 2, false), (2, 1, false), (1, 2, true), (2, 1, true), (2, 1, true)];
        let said = said.map(|(node, other, runs)| note(&mut dark, node, other, runs));
        assert_eq!(said, [None, Some(false), None, None, Some(true), None]);
    }
}
