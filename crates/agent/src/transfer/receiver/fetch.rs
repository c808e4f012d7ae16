//! Fetching over TCP: from the upstream in the chain, and what comes from there or from a candidate.

use super::super::assembler::Check;
use super::super::error::TransferError;
use super::{FETCH_WITHIN, Input, Landing, Run, ticket_for};
use polycast_net::frames::{Block, FrameError, FrameStream};
use polycast_net::tls::Expected;
use polycast_protocol::push::overlay::UpstreamId;
use polycast_protocol::session::GuestInput;
use polycast_types::RangeSet;
use polycast_wire::control::{Control, FETCH_RANGES_MAX};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl Run {
    /// Begins to fetch over TCP what is still missing.
    pub(super) fn fetch_from(&mut self, address: SocketAddr, expected: &Expected) {
        self.machine.handle(self.clock.now(), Input::Chained);
        tracing::info!(%address, "fetching over the TCP chain");
        let groups = self.offer.geometry.groups();
        let verified = (0..groups).filter(|g| self.machine.is_verified(*g)).map(|g| g..g + 1);
        // Beyond the frame's room some groups come twice; they are recognised.
        let have = verified.collect::<RangeSet>().iter().take(FETCH_RANGES_MAX).collect();
        let (within, cancel) = (self.link.patience(FETCH_WITHIN), &self.spec.cancel);
        let ends = || cancel.load(Ordering::Relaxed);
        let connected =
            FrameStream::connect_unless(address, within, (self.security.as_ref(), expected), &ends);
        let fetching = connected.and_then(|mut stream| {
            let ticket = ticket_for(&mut stream, self.secret.as_ref(), within)?;
            stream.send(&Control::Fetch { handle: self.handle, ticket, have })?;
            Ok(stream)
        });
        match fetching {
            Ok(stream) => self.upstream = Some(stream),
            Err(error) => self.upstream_lost(&error),
        }
    }

    pub(super) fn upstream_lost(&mut self, error: &FrameError) {
        tracing::info!(%error, "the upstream is gone");
        self.upstream = None;
        self.link.handle(GuestInput::UpstreamGone);
    }

    pub(super) fn read_upstream(&mut self) -> Result<(), TransferError> {
        let Some(mut upstream) = self.upstream.take() else { return Ok(()) };
        let filled = upstream.fill();
        loop {
            match upstream.next_frame() {
                Ok(Some(Control::Group { index, payload })) => {
                    let block = Block::of(payload.to_vec());
                    if !self.accept(index, block, None)? {
                        return Ok(());
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.upstream_lost(&error);
                    return Ok(());
                }
            }
        }
        match filled {
            Err(error) if self.assembler.is_some() => self.upstream_lost(&error),
            Ok(_) if self.assembler.is_some() => self.upstream = Some(upstream),
            _ => {}
        }
        Ok(())
    }

    /// A group that came over TCP; false where its upstream serves wrong bytes, and is given up.
    pub(super) fn accept(
        &mut self,
        group: u64,
        block: Block,
        from: Option<UpstreamId>,
    ) -> Result<bool, TransferError> {
        let Some(assembler) = &mut self.assembler else { return Ok(true) };
        if group >= self.offer.geometry.groups() {
            return Ok(true);
        }
        match assembler.accept(group, block.bytes())? {
            Check::Intact => {
                self.served.keep(group, block);
                self.mark(group);
                self.machine.handle(self.clock.now(), Input::Fetched { group });
                self.drain(Landing::Nowhere)?;
            }
            Check::Corrupt => {
                tracing::warn!(group, "the upstream served wrong bytes");
                match from {
                    Some(id) => self.note_wrong(id, group),
                    None => self.upstream_lost(&FrameError::Wire(polycast_wire::WireError::Malformed)),
                }
                return Ok(false);
            }
            Check::Later => {
                self.unhashed.insert(group, (from, block));
            }
        }
        Ok(true)
    }
}
