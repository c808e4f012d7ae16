//! Numbers that cannot be foreseen.

use polycast_wire::control::Salt;

/// Random bytes that cannot be foreseen.
pub(super) fn fresh_salt() -> Salt {
    let mut salt = Salt::default();
    // The system's generator is there since it was started, and gives so few bytes whole.
    let got = rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(salt.len()), "the system gives random bytes");
    salt
}

/// A number that cannot be foreseen.
pub(super) fn fresh_number() -> u64 {
    let salt = fresh_salt();
    salt[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
