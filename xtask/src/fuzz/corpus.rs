//! The corpus in the repository: one file a target, one input a line, its name before its bytes in hex.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Name of inputs that were found, which make room for better ones; all others stay.
const FOUND: &str = "found";
/// Most bytes of found inputs per target: the repository is no place for more.
const FOUND_BYTES_MAX: usize = 6 << 10;

/// Writes the inputs of a folder in the place of those that were found before; gives how many lines there
/// are.
pub(super) fn store(file: &Path, folder: &Path) -> io::Result<u64> {
    let before = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let mut inputs =
        fs::read_dir(folder)?.map(|entry| fs::read(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    let text = lines(&before, &inputs);
    fs::write(file, &text)?;
    Ok(text.lines().count() as u64)
}

/// The lines that stay, and those of the smallest inputs.
fn lines(before: &str, inputs: &[Vec<u8>]) -> String {
    let is_kept = |line: &&str| line.split(' ').next() != Some(FOUND);
    let mut text: String = before.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    let mut room = FOUND_BYTES_MAX;
    for input in inputs {
        let Some(left) = room.checked_sub(input.len()) else { break };
        room = left;
        let hex = input.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a text cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        if !hex.is_empty() && !before.lines().any(|line| is_kept(&line) && line.ends_with(&format!(" {hex}")))
        {
            text.push_str(&format!("{FOUND} {hex}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_gives_way_and_sessions_stay() {
        let before = "session 0102\nfound 09\nhello ff\n";
        let inputs = vec![vec![], vec![7], vec![1, 2], vec![0; FOUND_BYTES_MAX]];
        assert_eq!(lines(before, &inputs), "session 0102\nhello ff\nfound 07\n");
    }

    #[test]
    fn a_corpus_may_begin_with_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = folder.path().join("inputs");
        fs::create_dir(&inputs).unwrap();
        fs::write(inputs.join("b"), [2, 3]).unwrap();
        fs::write(inputs.join("a"), [1]).unwrap();
        let file = folder.path().join("corpus.hex");
        assert_eq!(store(&file, &inputs).unwrap(), 2);
        assert_eq!(fs::read_to_string(&file).unwrap(), "found 01\nfound 0203\n");
    }
}
