#![no_std]
//! Fabric planners and schedulers.
