//! Codes that were drawn, kept for the user that has drawn them: a code says whose offer it is, so that only
//! one that has the key of which it was made can offer under it again.
//!
//! Each is a file that its owner alone can read, in `polycast/offers` of the user's folder for states
//! (`XDG_STATE_HOME`, or `.local/state`). It goes when the offer has ended well, and otherwise after a week.

use polycast_agent::transfer::{Code, OfferCode};
use polycast_net::hash::{hex, keyed_hash};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// An offer that was ended is begun again sooner than this, or not at all.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3_600);
/// At most so many are kept: the oldest go first.
const KEPT_MAX: usize = 64;
/// Key that names of files are hashed with: the words are in no name.
const NAMES: &[u8; 32] = b"polycast: where a code is kept..";

/// Folder of the kept codes.
pub(super) struct KeptCodes(PathBuf);

impl KeptCodes {
    /// Returns the codes of the user that runs this; `None` where there is no folder for them.
    pub(super) fn of_user() -> Option<Self> {
        let folder = |name: &str| {
            std::env::var_os(name).filter(|value: &OsString| value.as_encoded_bytes().first() == Some(&b'/'))
        };
        let states = folder("XDG_STATE_HOME").map(PathBuf::from);
        let states = states.or_else(|| Some(PathBuf::from(folder("HOME")?).join(".local/state")));
        Some(KeptCodes(states?.join("polycast/offers")))
    }

    fn path(&self, code: &Code) -> PathBuf {
        self.0.join(&hex(&keyed_hash(NAMES, code.to_string().as_bytes()))[..32])
    }

    /// Keeps a code.
    pub(super) fn keep(&self, code: &OfferCode) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        self.clear_old()?;
        let path = self.path(code.code());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // Half of it is none.
        file.write_all(code.kept().as_bytes()).inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// The code with these words, if this user has drawn it.
    pub(super) fn find(&self, code: &Code) -> Option<OfferCode> {
        let kept = OfferCode::again(&fs::read_to_string(self.path(code)).ok()?)?;
        (kept.code() == code).then_some(kept)
    }

    /// The offer has ended well.
    pub(super) fn forget(&self, code: &Code) {
        // One that stays goes after a week.
        let _ = fs::remove_file(self.path(code));
    }

    /// Removes those that are old, and the oldest where there are many. Another offer may do the same at this
    /// moment.
    fn clear_old(&self) -> io::Result<()> {
        let mut kept: Vec<(SystemTime, PathBuf)> = fs::read_dir(&self.0)?
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        kept.sort();
        let excess = (kept.len() + 1).saturating_sub(KEPT_MAX);
        let is_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > KEPT_FOR);
        for (at, (time, path)) in kept.iter().enumerate() {
            if at < excess || is_old(time) {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_code_comes_back_to_the_user_that_has_drawn_it() {
        let dir = tempfile::tempdir().unwrap();
        let codes = KeptCodes(dir.path().join("state/polycast/offers"));
        let code = OfferCode::drawn();
        assert!(codes.find(code.code()).is_none());
        codes.keep(&code).unwrap();
        assert_eq!(codes.find(code.code()), Some(code.clone()));
        assert!(codes.find(OfferCode::drawn().code()).is_none());
        let mode = |path: &PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&codes.0), mode(&codes.path(code.code()))), (0o700, 0o600));
        codes.forget(code.code());
        assert!(codes.find(code.code()).is_none());
    }

    #[test]
    fn few_are_kept_and_none_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let codes = KeptCodes(dir.path().to_path_buf());
        let old = OfferCode::drawn();
        codes.keep(&old).unwrap();
        let week = SystemTime::now() - KEPT_FOR - Duration::from_secs(60);
        File::open(codes.path(old.code())).unwrap().set_modified(week).unwrap();
        for number in 0..KEPT_MAX {
            fs::write(dir.path().join(format!("{number}")), "").unwrap();
        }
        let last = OfferCode::drawn();
        codes.keep(&last).unwrap();
        assert!(codes.find(old.code()).is_none() && codes.find(last.code()).is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX);
    }
}
