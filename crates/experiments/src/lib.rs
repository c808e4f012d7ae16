//! The papers' figures and tables, one function each, and the yardsticks that planners are measured with.
//!
//! A function returns [`Row`]s: what the paper says, what we get. Times are of the machine it runs on.
#![warn(missing_docs)]

pub mod blast;
pub mod datacast;
pub mod exact;
pub mod orca;
pub mod random;
mod row;
pub mod shufflecast;
pub mod tenants;

pub use row::Row;
