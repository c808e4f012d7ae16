#![no_std]
//! Every Polycast packet format.
