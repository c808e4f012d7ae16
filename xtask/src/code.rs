//! Just enough of Rust's grammar to look for words in code and not in comments or strings.

/// `text` with comments and the contents of string and character literals turned into spaces;
/// every line keeps its number.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped_from(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// The comments of `text`, without the marks that make them comments. What else is on a line becomes `|`, so
/// that words on its two sides do not meet; a line without a comment is empty. Every line keeps its number.
pub(crate) fn comments_alone(text: &str) -> String {
    let (mut comments, chars): (String, Vec<char>) = (String::new(), text.chars().collect());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped_from(&chars, at);
        if end == at {
            comments.push(if chars[at].is_whitespace() { chars[at] } else { '|' });
        } else if chars[at] == '/' {
            comments.push_str(&words_of_comment(&chars[at..end]));
        } else {
            comments.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { '|' }));
        }
        at = end.max(at + 1);
    }
    let is_code = |line: &str| line.chars().all(|c| c == '|' || c.is_whitespace());
    comments.split('\n').map(|line| if is_code(line) { "" } else { line }).collect::<Vec<_>>().join("\n")
}

/// A comment without the marks at the beginning of its lines.
fn words_of_comment(comment: &[char]) -> String {
    let text: String = comment.iter().collect();
    let lines = text.split('\n').map(|line| {
        let words = line.trim_start().trim_start_matches(['/', '!', '*']);
        " ".repeat(line.chars().count() - words.chars().count()) + words
    });
    lines.collect::<Vec<_>>().join("\n").replace("*/", "  ")
}

/// The contents of the string literals in `text`, each with the number of the line that it begins on.
/// Escapes, and names in braces, become spaces, but for ends of lines.
pub(crate) fn strings(text: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let end = skipped_from(&chars, at).max(at + 1);
        let skipped = &chars[at..end];
        if skipped.len() > 1 && matches!(skipped[0], '"' | 'r') {
            let content: String = skipped.iter().collect();
            let content = without_escapes(content.trim_start_matches('r').trim_matches(['#', '"']));
            found.push((line, without_names_in_braces(&content)));
        }
        line += skipped.iter().filter(|c| **c == '\n').count();
        at = end;
    }
    found
}

fn without_escapes(content: &str) -> String {
    let (mut plain, mut escaped) = (String::with_capacity(content.len()), false);
    for c in content.chars() {
        plain.push(if (escaped || c == '\\') && c != '\n' { ' ' } else { c });
        escaped = !escaped && c == '\\';
    }
    plain
}

fn without_names_in_braces(content: &str) -> String {
    let mut pieces = content.split('{');
    let mut plain = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let end = piece.find(['}', ':']).unwrap_or_default();
        let is_name = piece[..end].chars().all(|c| c.is_alphanumeric() || c == '_');
        let name = if is_name { " ".repeat(end) } else { piece[..end].to_string() };
        plain.extend(["{", &name, &piece[end..]]);
    }
    plain
}

/// Returns the end of the comment or literal that starts at `at`; `at` itself if none starts there.
fn skipped_from(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => position(chars, at, |c| c == '\n').unwrap_or(chars.len()),
        '/' if next == Some('*') => comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if matches!(next, Some('"' | '#')) && !continues_a_word(chars, at) => raw_string_end(chars, at),
        '\'' => character_end(chars, at),
        _ => at,
    }
}

fn position(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> Option<usize> {
    (from..chars.len()).find(|i| wanted(chars[*i]))
}

/// Returns true if a letter at `at` belongs to a longer word; `b` may stand before a literal.
fn continues_a_word(chars: &[char], at: usize) -> bool {
    let is_word = |i: usize| chars[i].is_alphanumeric() || chars[i] == '_';
    match at {
        0 => false,
        1 => is_word(0) && chars[0] != 'b',
        _ => is_word(at - 1) && (chars[at - 1] != 'b' || is_word(at - 2)),
    }
}

fn comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut i = at;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
    }
    chars.len()
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut i = from;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let quote = at + 1 + hashes;
    if chars.get(quote) != Some(&'"') {
        return at;
    }
    let closes =
        |i: &usize| chars[*i] == '"' && chars[*i + 1..].iter().take_while(|c| **c == '#').count() >= hashes;
    (quote + 1..chars.len()).find(closes).map_or(chars.len(), |i| i + 1 + hashes)
}

/// A quote starts a character or a lifetime.
fn character_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => position(chars, at + 3, |c| c == '\'').map_or(chars.len(), |i| i + 1),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// Code, line by line with numbers from 1, without items that only tests see.
///
/// Relies on the layout that rustfmt makes: an item ends at the first line that is indented as much
/// as its first one and closes it.
pub(crate) fn lines_outside_tests(code: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut kept = Vec::new();
    let mut i = 0;
    while i < lines.len() {
        if lines[i].trim() == "#[cfg(test)]" {
            i = item_end(&lines, i);
        } else {
            kept.push((i + 1, lines[i]));
        }
        i += 1;
    }
    kept
}

/// The last line of the item whose attribute is on line `attribute`.
fn item_end(lines: &[&str], attribute: usize) -> usize {
    let indent = lines[attribute].len() - lines[attribute].trim_start().len();
    let mut opened = false;
    for (i, line) in lines.iter().enumerate().skip(attribute + 1) {
        let trimmed = line.trim_end();
        let same_indent = line.len() - line.trim_start().len() == indent && !line.trim().is_empty();
        if same_indent && opened && line.trim().starts_with('}') {
            return i;
        }
        if same_indent && (trimmed.ends_with(';') || trimmed.ends_with('}')) {
            return i;
        }
        opened |= trimmed.ends_with('{');
    }
    lines.len() - 1
}

/// Every function with a body: its name, its first line from 1, and how many lines it has. Relies on
/// rustfmt's layout.
pub(crate) fn functions(code: &str) -> Vec<(&str, usize, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(at) = line.find("fn ").filter(|_| has_word(line, "fn")) else { continue };
        let before_is_modifiers = line[..at]
            .split_whitespace()
            .all(|word| !word.contains(['=', ':', ',']) || word.starts_with("pub("));
        let name =
            line[at + 3..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if !before_is_modifiers || name.is_empty() {
            continue;
        }
        let end = if line.trim_end().ends_with(['}', ';']) { i } else { item_end(&lines, i) };
        if !lines[end].trim_end().ends_with(';') {
            found.push((name, i + 1, end - i + 1));
        }
    }
    found
}

/// Returns true if `word` stands in `line`, not as a part of a longer word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_names_and_lines() {
        let code = "\
fn one() { two() }
impl A {
    pub(super) async fn three(
        at: fn(u8) -> u8,
    ) -> bool
    where
        T: X,
    {
        if a {
            b();
        }
    }
    fn declared(
        self,
    );
    const fn last() {
    }
}
type F = fn (u8);
";
        assert_eq!(functions(code), [("one", 1, 1), ("three", 3, 10), ("last", 16, 2)]);
    }

    #[test]
    fn comments_and_strings_become_spaces() {
        for (text, hidden, kept) in [
            ("let a = 1; // secret", "secret", "let a = 1;"),
            ("a /* secret /* secret */ secret */ b", "secret", "b"),
            ("call(\"secret \\\" secret\", b)", "secret", ", b)"),
            ("call(r#\"secret \" secret\"#, b)", "secret", ", b)"),
            ("call(br\"secret\", b)", "secret", ", b)"),
            ("for<'a> f('\\'', '\"', 's') secret", "\"", "secret"),
            ("fn f<'a>(x: &'a str) -> &'a str", "secret", "&'a str"),
        ] {
            let code = without_comments_and_strings(text);
            assert!(!code.contains(hidden), "{code}");
            assert!(code.contains(kept), "{code}");
            assert_eq!(code.chars().count(), text.chars().count());
        }
        assert_eq!(without_comments_and_strings("/*\n\n*/\nx").lines().count(), 4);
    }

    #[test]
    fn items_of_tests_are_left_out() {
        let code = "one\n#[cfg(test)]\nmod tests {\n    {\n    }\n}\ntwo\n#[cfg(test)]\nmod other;\nthree\n";
        let kept: Vec<_> = lines_outside_tests(code).into_iter().map(|(_, line)| line).collect();
        assert_eq!(kept, ["one", "two", "three"]);
        let nested = "mod a {\n    #[cfg(test)]\n    fn f() {\n        x\n    }\n    y\n}\n";
        let kept: Vec<_> = lines_outside_tests(nested).into_iter().map(|(n, _)| n).collect();
        assert_eq!(kept, [1, 6, 7]);
    }

    #[test]
    fn words_are_whole_words() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("#![deny(unsafe_code)]", "unsafe"));
        assert!(!has_word("not_unsafe", "unsafe"));
    }
}
