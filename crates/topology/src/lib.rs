#![no_std]
//! Graphs of data-center networks.
