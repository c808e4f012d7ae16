//! The commit that a program was built from, where its build has named it.

/// Short name of the commit; `cargo xtask dist` gives it to the compiler.
pub const COMMIT: Option<&str> = option_env!("POLYCAST_COMMIT");
