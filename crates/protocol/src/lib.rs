#![no_std]
//! Sans-I/O protocol machines.
