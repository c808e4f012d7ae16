//! Pictures of what planners answer, as Graphviz reads them: `dot -Tsvg FILE`.

use super::PlanError;
use clap::Args;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The most arcs of a picture: Graphviz takes minutes for more.
const ARCS_MAX: usize = 5_000;

/// Colours that colour-blind people can tell apart, one a tree.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5a5a5a"];

/// File that a picture is written to.
#[derive(Args, Clone, Debug)]
pub(crate) struct DotArgs {
    /// Write a picture for Graphviz too: dot -Tsvg FILE.dot > FILE.svg
    #[arg(long, value_name = "FILE.dot")]
    pub dot: Option<PathBuf>,
}

/// Role of a node in a picture.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It sends.
    Source,
    /// It receives.
    Receiver,
    /// It passes on.
    Relay,
    /// It has failed, or gets the object in vain.
    Broken,
}

/// A picture that grows.
pub(super) struct Picture {
    title: String,
    lines: String,
    arcs: usize,
}

impl Picture {
    /// An empty one.
    pub(super) fn new(title: &str) -> Self {
        Picture { title: title.into(), lines: String::new(), arcs: 0 }
    }

    /// Adds a node.
    pub(super) fn node(&mut self, name: &str, role: Role) {
        let look = match role {
            Role::Source => "shape=box, style=filled, fillcolor=\"#0072b2\", fontcolor=white",
            Role::Receiver => "shape=box, style=filled, fillcolor=\"#cfe8f7\"",
            Role::Relay => "shape=ellipse",
            Role::Broken => "shape=box, style=\"filled,dashed\", fillcolor=\"#f6d5c3\"",
        };
        let _ = writeln!(self.lines, "  {name:?} [{look}];");
    }

    /// Adds an arc of the tree with this number, from 0 on, with a word beside it.
    pub(super) fn arc(&mut self, from: &str, to: &str, tree: usize, word: &str) {
        self.arcs += 1;
        let colour = COLOURS[tree % COLOURS.len()];
        let _ = writeln!(self.lines, "  {from:?} -> {to:?} [color=\"{colour}\", label={word:?}];");
    }

    /// Adds a link, which leads both ways.
    pub(super) fn link(&mut self, from: &str, to: &str) {
        self.arcs += 1;
        let _ = writeln!(self.lines, "  {from:?} -> {to:?} [dir=none];");
    }

    /// Adds an arc that must not be used.
    pub(super) fn barred(&mut self, from: &str, to: &str) {
        self.arcs += 1;
        let _ =
            writeln!(self.lines, "  {from:?} -> {to:?} [color=\"#d55e00\", style=dashed, arrowhead=tee];");
    }

    /// Writes it to a file.
    pub(super) fn write(self, path: &Path) -> Result<(), PlanError> {
        if self.arcs > ARCS_MAX {
            return Err(PlanError::PictureSize { arcs: self.arcs, limit: ARCS_MAX });
        }
        let Picture { title, lines, .. } = self;
        let text = format!(
            "digraph {{\n  label={title:?};\n  labelloc=t;\n  rankdir=LR;\n  node [fontname=\"sans-serif\"];\n  \
             edge [fontname=\"sans-serif\", fontsize=10];\n{lines}}}\n"
        );
        write(path, &text)
    }
}

/// Writes a picture to a file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), PlanError> {
    std::fs::write(path, text).map_err(|error| PlanError::Written { path: path.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_nodes_and_arcs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tree.dot");
        let mut picture = Picture::new("a \"small\" tree");
        picture.node("h0", Role::Source);
        picture.arc("h0", "s16", 8, "");
        picture.barred("s16", "h1");
        picture.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("digraph {\n  label=\"a \\\"small\\\" tree\";"), "{text}");
        assert!(text.contains("\"h0\" -> \"s16\" [color=\"#d55e00\"") && text.ends_with("}\n"), "{text}");
        let mut large = Picture::new("");
        (0..=ARCS_MAX).for_each(|_| large.arc("a", "b", 0, ""));
        let why = large.write(&path).unwrap_err().to_string();
        assert!(why.contains("5001 arcs"), "{why}");
        assert!(write(Path::new("/nowhere/x.dot"), "").unwrap_err().to_string().contains("/nowhere/x.dot"));
    }
}
