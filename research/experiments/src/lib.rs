//! The papers' figures and tables, one function each, and the yardsticks that planners are measured with.
//!
//! A function returns [`Row`]s: what the paper says, what we get. Times are of the machine it runs on. Each
//! module lists its [`report::Item`]s in a constant `ITEMS`; [`catalogue`] has them all, [`report`] runs them
//! and draws the figures.
#![warn(missing_docs)]

pub mod advice;
pub mod blast;
pub mod catalogue;
pub mod datacast;
pub mod exact;
pub mod figures;
pub mod lab;
pub mod orca;
pub mod random;
pub mod report;
pub mod republic;
mod row;
pub mod scenario;
pub mod shufflecast;
mod side_by_side;
pub mod tenants;
pub mod traces;

pub use row::{Kind, Row, Test};
