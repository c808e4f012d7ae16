//! Stand-in for the transfer engine's functions, with their shapes.

use polycast_agent::transfer::{
    Options, Received, ReceiverProgress, ReceiverSpec, Report, SlowPolicy, SourceSpec,
};
use polycast_types::{Duration, Handle};
use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("system error: {0}")]
    System(#[from] std::io::Error),
    #[error("cancelled")]
    #[allow(dead_code)]
    Cancelled,
}

pub struct Prepared {
    pub control_addr: SocketAddr,
    pub handle: Handle,
}

fn missing<T>() -> Result<T, TransferError> {
    Err(TransferError::System(std::io::Error::other("the transfer engine is not there yet")))
}

pub fn prepare(_: SourceSpec) -> Result<Prepared, TransferError> {
    missing()
}

impl Prepared {
    pub fn run(self, _: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        missing()
    }
}

pub fn deliver(_: SourceSpec, _: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
    missing()
}

pub fn receive(_: ReceiverSpec, _: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
    missing()
}

pub fn options() -> Options {
    Options {
        deadline: None,
        join_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(10),
        slow: SlowPolicy::Wait,
        loss: 0.0,
        seed: 1,
    }
}
