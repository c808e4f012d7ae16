//! The terminal that standard error and standard output may be: what is shown there while a command runs,
//! what is written above it, and colours.

use crate::fold;
use console::{Style, Term};
use indicatif::{ProgressBar, ProgressDrawTarget, TermLike};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Columns of a terminal that does not say how many it has.
pub(crate) const COLUMNS: usize = 80;
/// Columns at the right that the lines of a transfer leave free, for the terminal's echo of `^C`.
const ECHO_COLUMNS: usize = 3;
/// The display is drawn so often in a second at most.
const DRAWN_HZ: u8 = 10;

/// Bar that is shown at the moment.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows this from now on, or nothing.
pub(crate) fn show(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Returns the place where it is drawn: the terminal that standard error is, if it is one.
pub(crate) fn target() -> ProgressDrawTarget {
    let term = Term::buffered_stderr();
    match term.is_term() {
        true => {
            let unpadded = Unpadded { term, spaces: Mutex::new(0) };
            ProgressDrawTarget::term_like_with_hz(Box::new(unpadded), DRAWN_HZ)
        }
        false => ProgressDrawTarget::hidden(),
    }
}

/// The terminal without the spaces at the end of what is drawn. The terminal echoes `^C` at the cursor: after
/// a line that is full, the echo begins another one, and the display stays in the first.
#[derive(Debug)]
struct Unpadded {
    term: Term,
    /// Spaces that are written once something follows.
    spaces: Mutex<usize>,
}

impl Unpadded {
    /// Holds so many spaces back from now on; gives how many were.
    fn hold(&self, spaces: usize) -> usize {
        std::mem::replace(&mut *self.spaces.lock().unwrap_or_else(PoisonError::into_inner), spaces)
    }
}

impl TermLike for Unpadded {
    fn width(&self) -> u16 {
        self.term.size().1
    }

    fn height(&self) -> u16 {
        self.term.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.term.move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.term.move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.term.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.term.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.hold(0);
        self.term.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        let shown = text.trim_end_matches(' ');
        let after = text.len() - shown.len();
        if shown.is_empty() {
            let before = self.hold(0);
            self.hold(before + after);
            return Ok(());
        }
        let before = self.hold(after);
        self.term.write_str(&" ".repeat(before))?;
        self.term.write_str(shown)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.term.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.hold(0);
        self.term.flush()
    }
}

/// Columns of the display.
pub(crate) fn shown_width() -> usize {
    width().saturating_sub(ECHO_COLUMNS).max(1)
}

/// Writes something to standard error above what is shown there.
pub(crate) fn above<T>(write: impl FnOnce() -> T) -> T {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) if !bar.is_hidden() => bar.suspend(write),
        _ => write(),
    }
}

/// Columns of the terminal.
pub(crate) fn width() -> usize {
    Term::stderr().size_checked().map_or(COLUMNS, |(_, columns)| usize::from(columns))
}

/// Columns of the terminal that standard output is, if it is one.
pub(crate) fn terminal_width() -> Option<usize> {
    terminal(&Term::stdout())
}

/// Returns true if standard output and standard error are both terminals.
pub(crate) fn shows_both() -> bool {
    Term::stdout().is_term() && Term::stderr().is_term()
}

/// A result in lines that fit the terminal that standard output is; as it is where that is none.
pub(crate) fn fit_result(text: &str) -> String {
    fit(text, terminal(&Term::stdout()))
}

/// The same of what goes to standard error.
pub(crate) fn fit_note(text: &str) -> String {
    fit(text, terminal(&Term::stderr()))
}

fn fit(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_string(), |width| fold::folded(text, width))
}

/// Writes a page of clap's: it leaves the usage of a command in one line, however long.
pub(crate) fn page(page: &clap::builder::StyledStr, to_stderr: bool) {
    let (term, colours) = match to_stderr {
        true => (Term::stderr(), console::colors_enabled_stderr()),
        false => (Term::stdout(), console::colors_enabled()),
    };
    let text = if colours && term.is_term() { page.ansi().to_string() } else { page.to_string() };
    // Fails only if its output is closed.
    let _ = writeln!(&term, "{}", fit(text.trim_end(), terminal(&term)));
}

fn terminal(term: &Term) -> Option<usize> {
    if !term.is_term() {
        return None;
    }
    term.size_checked().map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Meaning of a word, by its colour where the terminal has colours (and NO_COLOR is not set).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    /// It is as it should be.
    Good,
    /// It could be better.
    Poor,
    /// It is wrong.
    Bad,
    /// Something can be done.
    Advice,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Tone::Good => Style::new().green(),
            Tone::Poor => Style::new().yellow(),
            Tone::Bad => Style::new().red().bold(),
            Tone::Advice => Style::new().cyan(),
        }
    }

    /// The text, for standard output.
    pub(crate) fn of_result(self, text: &str) -> String {
        self.style().for_stdout().apply_to(text).to_string()
    }

    /// The text, for standard error.
    pub(crate) fn of_note(self, text: &str) -> String {
        self.style().for_stderr().apply_to(text).to_string()
    }
}

/// A line of standard error whose first word has its colour: `error:`, `warning:`, `hint:`.
pub(crate) fn toned(line: &str) -> String {
    for (word, tone) in [("error:", Tone::Bad), ("warning:", Tone::Poor), ("hint:", Tone::Advice)] {
        if let Some(rest) = line.strip_prefix(word) {
            return tone.of_note(word) + rest;
        }
    }
    line.to_string()
}
