//! Identifiers, units, time, ranges and printable texts: the words that every Polycast crate shares.
//!
//! Nothing here knows a socket, a clock or an allocator's policy. Time is an integer number of
//! nanoseconds since an origin that the driver of a machine chooses, so that the same machine runs
//! in real time and in virtual time.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod address;
mod id;
mod label;
mod location;
mod modification_time;
mod printable;
mod pull_tuning;
mod ranges;
mod time;
mod units;

pub use address::without_secrets;
pub use id::{AppId, DataId, Handle, ObjectId, ParseIdError};
pub use label::LabelKind;
pub use location::{LOCATION_LEN_MAX, Location, check_location_name};
pub use modification_time::ModificationTime;
pub use printable::Printable;
pub use pull_tuning::PullTuning;
pub use ranges::RangeSet;
pub use time::{Duration, Time};
pub use units::{ParseUnitError, Rate, format_bytes, format_rate, parse_bytes};
