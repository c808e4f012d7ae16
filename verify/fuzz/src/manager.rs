//! The manager behind its service: messages of agents as bytes, and what it goes on from.

use crate::words::{INPUTS_MAX, Words};
use polycast_manager::fuzzing::Sessions;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

const SETTINGS: &str = "fabrics = ['ip-multicast', 'tcp-chain']\nleases-max = 5\npending-max = 4\nagents-max = 3\n\
                        grant-max = '500'\n[ip-multicast]\npool = '239.255.64.0/31'\n";
const SESSIONS: u64 = 4;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_current_thread().enable_time().build().expect("a runtime without threads")
    })
}

/// Whatever sessions say, the manager answers them and shows its state.
pub fn manager_session(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let sessions = Sessions::new(runtime().handle(), SETTINGS, SESSIONS as usize);
    let mut sessions = sessions.expect("these settings are right");
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        let number = words.below(SESSIONS) as usize;
        drop(sessions.hear(number, words.bytes(400)));
    }
}
