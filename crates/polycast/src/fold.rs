//! Lines that fit a terminal: broken at spaces, and not inside a number with its unit, a quoted command, or a
//! command that someone may copy.

use console::measure_text_width;

/// Columns by which the rest of a line is set in.
const HANG: usize = 2;

/// The least room of a last column that keeps the rest of its line.
const COLUMN_MIN: usize = 24;

/// Units that stay with the number before them.
const UNITS: [&str; 22] = [
    "B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB", "PB", "bit/s", "kbit/s", "Mbit/s", "Gbit/s",
    "us", "ms", "s", "min", "h", "%", "USD", "W",
];

/// A text whose lines have so many columns at most where their words allow it. The rest of a line begins
/// where its last column does.
pub(crate) fn folded(text: &str, width: usize) -> String {
    let fitting: Vec<String> = text.lines().map(|line| folded_line(line, width)).collect();
    fitting.join("\n")
}

fn folded_line(line: &str, width: usize) -> String {
    if measure_text_width(line) <= width {
        return line.to_string();
    }
    let hang = hang(line, width);
    pieces(line, width, hang).join(&format!("\n{}", " ".repeat(hang)))
}

/// A text in lines of so many columns, as far as its words allow it.
pub(crate) fn broken(text: &str, width: usize) -> Vec<String> {
    pieces(text, width, 0)
}

/// Lines of so many columns, those behind the first without the `hang` that stands before each.
fn pieces(line: &str, width: usize, hang: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for atom in atoms(line, width.saturating_sub(hang)) {
        let gap = atom.len() - atom.trim_start_matches(' ').len();
        let len = measure_text_width(atom);
        // What fits no line stays where it is, and the terminal breaks it.
        let fits_below = hang + len - gap <= width;
        if used + len > width && used > 0 && fits_below {
            pieces.push(atom[gap..].to_string());
            used = hang + len - gap;
        } else if let Some(piece) = pieces.last_mut() {
            piece.push_str(atom);
            used += len;
        }
    }
    pieces
}

/// Columns before the rest of a line: those before its last column if that has room, or a little more than
/// the line itself is set in.
fn hang(line: &str, width: usize) -> usize {
    let set_in = line.len() - line.trim_start_matches(' ').len();
    let column = line.rfind("  ").map_or(0, |at| measure_text_width(&line[..at + 2]));
    if column > set_in && column + COLUMN_MIN <= width { column } else { set_in + HANG }
}

/// Parts of a line that stay whole, each with the spaces before it. Commands stay whole only if they fit.
fn atoms(line: &str, room: usize) -> Vec<&str> {
    let mut atoms = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let len = [whole(rest), word(rest)]
            .into_iter()
            .find(|len| measure_text_width(rest[..*len].trim_start_matches(' ')) <= room)
            .unwrap_or_else(|| word(rest));
        let (atom, others) = rest.split_at(len);
        atoms.push(atom);
        rest = others;
    }
    atoms
}

/// Length of the first word, with the spaces before it.
fn word(text: &str) -> usize {
    let gap = text.len() - text.trim_start_matches(' ').len();
    text[gap..].find(' ').map_or(text.len(), |len| gap + len)
}

/// Length of the first part that is to stay whole.
fn whole(text: &str) -> usize {
    let end = word(text);
    let first = text[..end].trim_start_matches(' ');
    if first == "polycast" {
        return text.len();
    }
    // An apostrophe within a word quotes nothing.
    let quote = ['`', '\''].into_iter().find(|quote| {
        first.trim_start_matches('(').starts_with(*quote) && first.matches(*quote).count() == 1
    });
    if let Some(quote) = quote {
        // With what follows it without a space, such as a comma.
        return text[end..].find(quote).map_or(end, |at| {
            let rest = &text[end + at..];
            end + at + rest.find(' ').unwrap_or(rest.len())
        });
    }
    let next = text[end..].trim_start_matches(' ');
    let unit = next[..word(next)].trim_end_matches([',', ';', '.', ':', ')']);
    let is_number = first.trim_start_matches('(').starts_with(|letter: char| letter.is_ascii_digit());
    if is_number && UNITS.contains(&unit) { end + word(&text[end..]) } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_at_a_space_and_not_in_a_number_or_a_command() {
        let line = "F (28.61 MiB) to 4 of 4 receivers in 0.82 s, 291.77 Mbit/s over ip-multicast";
        assert_eq!(folded(line, 76), line);
        assert_eq!(
            folded(line, 60),
            "F (28.61 MiB) to 4 of 4 receivers in 0.82 s, 291.77 Mbit/s\n  over ip-multicast"
        );
        assert_eq!(
            folded(line, 55),
            "F (28.61 MiB) to 4 of 4 receivers in 0.82 s,\n  291.77 Mbit/s over ip-multicast"
        );
        let line = "where it does not pass: polycast accept a-b-c-d --from 10.0.0.1";
        assert_eq!(folded(line, 50), "where it does not pass:\n  polycast accept a-b-c-d --from 10.0.0.1");
        let line = "run `polycast doctor --listen` on another machine";
        assert_eq!(folded(line, 24), "run `polycast doctor\n  --listen` on another\n  machine");
        assert_eq!(folded(line, 28), "run\n  `polycast doctor --listen`\n  on another machine");
        let line = "the source's folder: 'polycast manager --ca DIR' makes one";
        assert_eq!(folded(line, 44), "the source's folder:\n  'polycast manager --ca DIR' makes one");
    }

    #[test]
    fn the_rest_of_a_line_stands_in_its_column() {
        let line = "ok   interface  eth0 (192.0.2.2), MTU 1400; there is also ifb0 (off)";
        assert_eq!(
            folded(line, 60),
            "ok   interface  eth0 (192.0.2.2), MTU 1400; there is also\n                ifb0 (off)"
        );
        let line = "\u{1b}[33mwarn \u{1b}[0mbuffers    net.core.rmem_max is 4194304: 3.20 MiB and more";
        let lines = folded(line, 52);
        assert_eq!(
            lines,
            "\u{1b}[33mwarn \u{1b}[0mbuffers    net.core.rmem_max is 4194304:\n                3.20 MiB and more"
        );
        let line = "     costs: more work for the processors";
        assert_eq!(folded(line, 30), "     costs: more work for the\n       processors");
    }

    #[test]
    fn a_word_that_fits_no_line_is_left_to_the_terminal() {
        let hash = "0123456789".repeat(7);
        assert_eq!(folded(&format!("BLAKE3 {hash}"), 60), format!("BLAKE3 {hash}"));
        assert_eq!(folded("", 60), "");
    }
}
