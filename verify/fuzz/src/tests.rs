//! Every target on its corpus, and on damaged copies of it.

use super::*;
use crate::noise::Noise;
use crate::words::Words;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Runs of damaged inputs, a target; those that touch files or sockets are slower.
const DAMAGED: usize = 2_000;
const DAMAGED_SLOW: usize = 100;
const SLOW: [&str; 6] =
    ["archive_unpack", "delta", "frame_stream", "receiver_driver", "set_list", "source_driver"];

#[test]
fn targets_keep_their_promises_on_their_corpus_and_on_damaged_copies() {
    for (name, body) in TARGETS {
        let seeds = corpus::seeds(name);
        seeds.iter().for_each(|seed| body(seed));
        let mut noise = Noise(0x2545_f491_4f6c_dd1d);
        let runs = if SLOW.contains(name) { DAMAGED_SLOW } else { DAMAGED };
        for _ in 0..runs {
            let long = noise.bytes(600);
            let seed = seeds.get(noise.below(seeds.len() + 1)).unwrap_or(&long);
            body(&noise.damage(seed));
        }
    }
}

/// The repository holds little, and nothing for targets that there are not.
#[test]
fn the_corpus_is_small_and_whole() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let (mut bytes, mut without) = (0, TARGETS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>());
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        bytes += entry.metadata().unwrap().len();
        let file = entry.file_name().into_string().unwrap();
        let name = file.strip_suffix(".hex").unwrap_or_else(|| panic!("{file} is no corpus"));
        assert!(without.remove(name), "there is no target for {file}");
        assert!(
            corpus::seeds(name).iter().all(|seed| seed.len() <= 20_480),
            "{file} has a line that is too long"
        );
    }
    assert!(without.is_empty(), "no corpus for {without:?}");
    assert!(bytes <= 500 << 10, "the corpus takes {bytes} bytes");
}

/// Behind the end of the bytes every choice is the first one, so that a run ends.
#[test]
fn choices_without_bytes_are_the_first_ones() {
    let mut words = Words::new(&[]);
    assert!(words.is_empty() && !words.flip() && words.below(9) == 0 && words.number(5) == 0);
    assert_eq!((words.text(), words.ranges(9).len(), words.bytes(9).len()), (String::new(), 0, 0));
}
