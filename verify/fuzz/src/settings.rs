//! Files that people write: whatever is in them is read, or refused in one line.

use polycast_agent::daemon::AgentConfig;
use polycast_agent::forwarder::ForwarderConfig;
use polycast_manager::ManagerConfig;
use std::fmt::Display;

/// Checks that an error is one sentence, without the control characters of the file.
fn refused(error: &dyn Display) {
    let sentence = error.to_string();
    assert!(!sentence.is_empty() && !sentence.contains('\n'), "{sentence:?} is no sentence");
}

/// The settings of all daemons: each reads any text.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match AgentConfig::from_toml(text).and_then(|config| config.check().map(|()| config)) {
        Ok(config) => assert!(!config.resolved_name().is_empty()),
        Err(error) => refused(&error),
    }
    match ForwarderConfig::parse(text) {
        Ok(config) => config.check().expect("what is read has been checked"),
        Err(error) => refused(&error),
    }
    match ManagerConfig::from_toml(text) {
        Ok(config) => config.check().expect("what is read has been checked"),
        Err(error) => refused(&error),
    }
}
