//! Commands and settings of the documents, held against the command line and against the readers of settings.
//!
//! Nothing is run. In blocks of `console` a command follows `$ `, or `# ` where it needs root; in blocks of
//! `sh` every line is one. Each command is parsed as if it were typed. A span of code in a sentence, which
//! may have words in place of values, has a command that there is and options that this command has. Each
//! block of `toml` fits a reader. A block that cannot be parsed has the line `<!-- unchecked: WHY -->` before
//! it.

use crate::ADDED;
use crate::plan::parts::PartsFile;
use clap::error::ErrorKind;
use polycast_experiments::catalogue::select;
use std::fs;
use std::path::{Path, PathBuf};

const MARKER: &str = "<!-- unchecked: ";
/// Made from the command line, or from types: other tests hold them.
const MADE: &str = "reference";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Reader of a file of settings, and the name of what it sets.
type Reader = (&'static str, fn(&str) -> Result<(), String>);
static READERS: [Reader; 7] = [
    ("manager", |text| said(polycast_manager::ManagerConfig::from_toml(text))),
    ("agent", |text| said(polycast_agent::daemon::AgentConfig::from_toml(text))),
    ("label switch", |text| said(polycast_agent::label_switch::LabelSwitchConfig::parse(text))),
    ("forwarder", |text| said(polycast_agent::forwarder::ForwarderConfig::parse(text))),
    ("policy", read_policy),
    ("scenario", |text| said(polycast_experiments::scenario::parse(text))),
    ("parts", |text| said(toml::from_str::<PartsFile>(text))),
];

fn said<T, E: ToString>(read: Result<T, E>) -> Result<(), String> {
    read.map(drop).map_err(|error| error.to_string())
}

/// A manager reads its policy when it starts.
fn read_policy(text: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let config = polycast_manager::ManagerConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        policy: Some(file.path().to_path_buf()),
        ..Default::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    said(runtime.block_on(polycast_manager::Manager::bind(config)))
}

/// A block of code.
struct Block {
    /// Its first line, counted from 1.
    line: usize,
    language: String,
    text: String,
    is_unchecked: bool,
}

fn documents() -> Vec<(String, String)> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with(MADE) {
                walk(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                into.push(path);
            }
        }
    }
    let root = Path::new(ROOT);
    let mut paths = vec![root.join("python/README.md")];
    for page in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        paths.push(root.join(page));
    }
    walk(&root.join("docs"), &mut paths);
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a document, and its other lines; lines of blocks are empty there.
fn parts(text: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose, mut open): (Vec<Block>, String, bool) = (Vec::new(), String::new(), false);
    let mut before = "";
    for (i, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open) {
            (Some(language), false) => blocks.push(Block {
                line: i + 2,
                language: language.to_string(),
                text: String::new(),
                is_unchecked: before.starts_with(MARKER),
            }),
            (None, true) => {
                let block = blocks.last_mut().expect("one is open");
                block.text += line;
                block.text += "\n";
            }
            (None, false) => prose += line,
            (Some(_), true) => (),
        }
        open ^= fence.is_some();
        prose += "\n";
        before = line;
    }
    assert!(!open, "a block has no end");
    (blocks, prose)
}

/// The lines of a block that a shell reads, each with its number; lines that go on are one.
fn shell_lines(block: &Block) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut goes_on, mut end_word) = (false, None::<String>);
    for (i, line) in block.text.lines().enumerate() {
        if let Some(word) = &end_word {
            if line == word {
                end_word = None;
            }
            continue;
        }
        let prompt = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let typed = if block.language == "console" && !goes_on { prompt } else { Some(line) };
        let Some(typed) = typed else { continue };
        let (typed, more) = typed.strip_suffix('\\').map_or((typed, false), |typed| (typed, true));
        match found.last_mut().filter(|_| goes_on) {
            Some((_, last)) => *last += typed,
            None => found.push((block.line + i, typed.to_string())),
        }
        goes_on = more;
        end_word = typed.split_once("<<").map(|(_, word)| word.trim().trim_matches('\'').to_string());
    }
    found
}

/// The commands of a line, each as its words: quotes are taken off; comments, and where input comes from and
/// output goes to, are left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in line.chars().chain([' ', ';']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => {
                all.push(std::mem::take(&mut words));
                return without_redirections(all);
            }
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, '|' | ';') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            // `2>&1` goes on; a single `&`, and two, end a command.
            (None, '&') if !word.as_ref().is_some_and(|word| word.ends_with('>')) => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    without_redirections(all)
}

fn without_redirections(commands: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let plain = |words: Vec<String>| {
        let (mut kept, mut skip) = (Vec::new(), false);
        for word in words {
            let bare = word.trim_start_matches(|c: char| c.is_ascii_digit());
            if std::mem::take(&mut skip) {
                continue;
            }
            match bare.starts_with(['>', '<']) {
                true => skip = bare.trim_matches(['>', '<']).is_empty(),
                false => kept.push(word),
            }
        }
        kept
    };
    commands.into_iter().map(plain).filter(|words| !words.is_empty()).collect()
}

/// Returns the arguments of `polycast` in a command, also where another program runs it: `sudo`,
/// `ip netns exec`, `polycast lab exec`, a container.
fn told(words: &[String]) -> Vec<&[String]> {
    let known = |word: &String| polycast::tree(Some(&ADDED)).find_subcommand(word).is_some();
    let mut found = Vec::new();
    let first = words.iter().position(|word| !word.contains('=') && word != "sudo");
    for (i, word) in words.iter().enumerate() {
        let rest = &words[i + 1..];
        let is_program = word == "polycast" || word.ends_with("/polycast");
        if is_program && (Some(i) == first || rest.first().is_some_and(known)) {
            found.push(rest);
        }
    }
    if words[0] == "cargo" && words.get(1).is_some_and(|word| word == "run") {
        found.extend(words.iter().position(|word| word == "--").map(|at| &words[at + 1..]));
    }
    found
}

/// Returns the mistake in the arguments of `polycast`.
fn wrong(arguments: &[String]) -> Option<String> {
    let typed = std::iter::once("polycast").chain(arguments.iter().map(String::as_str));
    let error = polycast::tree(Some(&ADDED)).try_get_matches_from(typed).err()?;
    let is_page = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    (!is_page).then(|| error.to_string().lines().take_while(|line| !line.is_empty()).collect())
}

/// Returns the mistake in a span of code, if it is a command: it may lack values, and have words or dots in
/// place of them.
fn wrong_span(span: &str) -> Option<String> {
    let mut words = span.split_whitespace().peekable();
    words.next_if(|word| *word == "sudo");
    words.next_if(|word| *word == "polycast")?;
    let mut command = polycast::tree(Some(&ADDED));
    command.build();
    while let Some(inner) = words.peek().and_then(|word| command.find_subcommand(word)).cloned() {
        command = inner;
        words.next();
    }
    let is_name = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
    if command.has_subcommands() && words.peek().is_some_and(|word| is_name(word)) {
        return Some(format!("there is no command '{}'", words.peek()?));
    }
    if command.get_name() == "reproduce" {
        // A command line takes any word here, so that it can say which there are.
        let named: Vec<&str> = words.clone().take_while(|word| is_name(word)).collect();
        let wrong = select(named.first().copied(), named.get(1).copied()).err();
        if wrong.is_some() {
            return wrong.map(|wrong| wrong.to_string());
        }
    }
    for word in words.take_while(|word| *word != "--") {
        let option = word.trim_start_matches('[').strip_prefix("--").unwrap_or_default();
        let option =
            option.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
        let is_known = command.get_arguments().any(|argument| argument.get_long() == Some(option));
        if !option.is_empty() && !is_known && !["help", "version"].contains(&option) {
            return Some(format!("'{}' has no option --{option}", command.get_name()));
        }
    }
    None
}

/// Lists the mistakes in a document: commands that are not parsed, settings that no reader takes, blocks
/// without a language.
fn problems(path: &str, text: &str) -> Vec<String> {
    let (blocks, prose) = parts(text);
    let mut problems = Vec::new();
    for block in blocks.iter().filter(|block| !block.is_unchecked) {
        let at = format!("{path}:{}", block.line);
        match block.language.as_str() {
            "" => problems.push(format!("{at} has no language: write ```console, ```sh, ```toml or ```text")),
            "console" | "sh" => {
                for (line, typed) in shell_lines(block) {
                    for words in commands(&typed) {
                        let wrong = told(&words).into_iter().filter_map(wrong);
                        problems.extend(wrong.map(|why| format!("{path}:{line} {why}")));
                    }
                }
            }
            "toml" => {
                let read = READERS.iter().map(|(name, read)| read(&block.text).map_err(|why| (name, why)));
                let errors: Vec<_> = read.map_while(Result::err).collect();
                if errors.len() == READERS.len() {
                    let why: String = errors.iter().map(|(name, why)| format!("\n  {name}: {why}")).collect();
                    problems.push(format!("{at} has settings of no program:{why}"));
                }
            }
            "json" => {
                let read = serde_json::from_str::<serde_json::Value>(&block.text);
                problems.extend(read.err().map(|why| format!("{at} is no JSON: {why}")));
            }
            _ => (),
        }
    }
    for paragraph in prose.split("\n\n") {
        let spans = paragraph.split('`').skip(1).step_by(2).filter(|span| !span.contains("\n\n"));
        problems.extend(spans.filter_map(|span| Some(format!("{path}: `{span}`: {}", wrong_span(span)?))));
    }
    problems
}

#[test]
fn commands_and_settings_of_the_documents_are_ours() {
    let documents = documents();
    let all: usize = documents.iter().map(|(_, text)| text.matches("polycast ").count()).sum();
    assert!(documents.len() > 30 && all > 200, "only {all} commands in {} documents", documents.len());
    let problems: Vec<String> = documents.iter().flat_map(|(path, text)| problems(path, text)).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn wrong_commands_are_found() {
    let console = |typed: &str| problems("a.md", &format!("Say:\n\n```console\n{typed}\n```\n"));
    for fine in [
        "$ polycast cast LICENSE",
        "$ polycast get f      # then more: --wrong",
        "prints polycast get --wrong",
        "$ polycast send f \\\n    --to all",
        "$ A=1 polycast status > log 2>&1 &",
        "$ tail -f a | polycast stream send t",
        "$ chown polycast /etc/key && cargo test -p polycast --test cast",
        "# polycast lab exec n h0 -- sh -c 'polycast | more'",
        "$ polycast subscribe t --exec 'kill $(cat f) --wrong'",
        "$ polycast --help",
    ] {
        assert_eq!(console(fine), Vec::<String>::new(), "{fine}");
    }
    for wrong in [
        "$ polycast cast LICENSE --wrong",
        "$ polycast cats LICENSE",
        "$ polycast send f \\\n    --wrong",
        "# sudo polycast status --wrong",
        "# ip netns exec h0 polycast status --wrong",
        "# polycast lab exec n h0 -- polycast status --wrong",
        "$ cargo run --release -- cast LICENSE --wrong",
        "$ true && polycast status --wrong",
        "$ polycast get f --wrong | more",
        "$ echo `a` \"b\" | polycast stream send",
    ] {
        assert_eq!(console(wrong).len(), 1, "{wrong}");
    }
    assert!(console("out\n$ polycast status --wrong")[0].starts_with("a.md:5 error: unexpected argument"));
    assert!(problems("a.md", "<!-- unchecked: why -->\n```console\n$ polycast cats\n```\n").is_empty());
    assert_eq!(problems("a.md", "```sh\ncat > f <<END\npolycast cats\nEND\npolycast cats\n```\n").len(), 1);
    assert_eq!(problems("a.md", "```\npolycast cats\n```\n").len(), 1);
}

#[test]
fn wrong_spans_and_settings_are_found() {
    for (fine, wrong) in [
        ("See `polycast send FILE --to all`.", "See `polycast sned FILE`."),
        ("See `polycast lab up SPEC --name NAME`.", "See `polycast lab up SPEC --to NAME`."),
        ("See `polycast plan --help`.", "See `polycast plan trams`."),
        ("See `polycast reproduce orca fig-7 --json`.", "See `polycast reproduce orca fig-70`."),
        ("```toml\nfabrics = ['tcp-chain']\n```\n", "```toml\nfabriks = ['tcp-chain']\n```\n"),
        ("```toml\nsocket = 'a'\n```\n", "```toml\nsocket = 1\n```\n"),
        ("```json\n{\"a\": 1}\n```\n", "```json\n{a: 1}\n```\n"),
    ] {
        assert_eq!(problems("a.md", fine), Vec::<String>::new(), "{fine}");
        assert_eq!(problems("a.md", wrong).len(), 1, "{wrong}");
    }
}
