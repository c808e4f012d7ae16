//! The far ends of a push: a shell on each host, this program there, and `polycast accept` in it.

use super::program::Programs;
use crate::args::PushArgs;
use crate::exit::{Failure, plain};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Answers of the script begin with this: a login may print other things before.
pub(crate) const MARK: &str = "polycast-push ";
/// Lines that a login may print.
const LINES_MAX: usize = 1_000;
/// A line's bytes at most.
const LINE_MAX: u64 = 64 << 10;
/// Last lines of an end's errors that are kept.
const WORDS_MAX: usize = 4;
/// A host that is slower to answer is not reached.
const CONNECT_WITHIN_S: u32 = 10;
/// A host that does not find this one within this is not waited for.
const FIND_WITHIN_S: u32 = 10;
/// An end that was served says what it has within this.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Words in single quotes, for a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The command that opens a shell on a host, and what is said there.
pub(super) struct Shell {
    words: Vec<String>,
    script: String,
}

impl Shell {
    /// # Errors
    /// The user's command is empty.
    pub(super) fn of(args: &PushArgs) -> Result<Self, Failure> {
        let words: Vec<String> = args.ssh.split_whitespace().map(str::to_string).collect();
        if words.is_empty() {
            return Err(Failure::input("--ssh needs a command, such as 'ssh -p 2222'"));
        }
        let present = match (args.force, args.update) {
            (true, _) => " --force",
            (_, true) => " --update",
            _ => "",
        };
        let end = match args.clean {
            true => r#""$b" "$@"; r=$?; rm -f "$b"; exit $r"#,
            false => r#"exec "$b" "$@""#,
        };
        // It has to run in each shell that POSIX knows. What was cut off on its way is not kept.
        let script = format!(
            r#"umask 077; d="${{XDG_CACHE_HOME:-$HOME/.cache}}/polycast"
echo "{MARK}at $(uname -sm)"; read -r h l || exit 1; b="$d/polycast-$h"
if [ -x "$b" ]; then echo "{MARK}have"; else echo "{MARK}need"
mkdir -p "$d" && head -c "$l" > "$b.$$" && [ "$(wc -c < "$b.$$")" -eq "$l" ] && chmod 700 "$b.$$" && mv -f "$b.$$" "$b" ||
{{ rm -f "$b.$$"; echo "{MARK}cannot keep the program in $d"; exit 1; }}; fi
v=$("$b" --version 2>&1) || {{ echo "{MARK}cannot run the program: $v"; exit 1; }}
echo "{MARK}ready"; umask 022; IFS= read -r f || exit 1
if [ -d "$p" ]; then set -- --into "$p"; else set -- --out "$p"; fi
set -- accept - --from "$f" --timeout {FIND_WITHIN_S}s --host "$n" --json --quiet{present} "$@"
{end}"#
        );
        Ok(Shell { words, script })
    }

    /// The script for one host.
    fn script(&self, host: &str, path: &str) -> String {
        let path = match path {
            "" | "~" => ".",
            path => path.strip_prefix("~/").unwrap_or(path),
        };
        // A path that begins with a dash is no option.
        let path = if path.starts_with('-') { format!("./{path}") } else { path.to_string() };
        let script = format!("n={}; p={}\n{}", quoted(host), quoted(&path), self.script);
        // The user's shell may be another one.
        format!("exec sh -c {}", quoted(&script))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        // A question for each of many hosts would wait for its answer.
        command.args(["-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={CONNECT_WITHIN_S}")]);
        command
    }
}

/// A shell on a host, in which the program runs or can be run.
pub(super) struct Session {
    /// Its host, as the user has named it.
    pub(super) host: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    /// Reads what comes after the beginning.
    rest: Option<Receiver<String>>,
    errors: Option<JoinHandle<String>>,
}

impl Session {
    /// Opens it, and brings the program where it is not.
    ///
    /// # Errors
    /// The sentence says why not.
    pub(super) fn open(
        shell: &Shell,
        programs: &Programs,
        (host, login, path): (&str, &str, &str),
    ) -> Result<Self, String> {
        let mut command = shell.command();
        command.arg(login).arg(shell.script(host, path));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot run '{}': {}", shell.words[0], plain(&error)))?;
        let stderr = child.stderr.take().expect("it was piped");
        let (input, output) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let errors = Some(std::thread::spawn(move || last_words(stderr)));
        let mut session = Session { host: host.to_string(), child, input, output, rest: None, errors };
        match session.bring(programs) {
            Ok(()) => Ok(session),
            Err(why) => Err(session.given_up(why)),
        }
    }

    fn bring(&mut self, programs: &Programs) -> Result<(), String> {
        let answer = self.answer()?;
        let program = programs.of(answer.strip_prefix("at ").unwrap_or(&answer))?;
        let input = self.input.as_mut().expect("nothing has closed it");
        let named = writeln!(input, "{} {}", program.hash, program.len).and_then(|()| input.flush());
        // Where that failed, the other end may have said why.
        let answer = self.answer()?;
        named.map_err(|error| format!("it hears nothing: {}", plain(&error)))?;
        if answer == "need" {
            let sent = File::open(&program.path).and_then(|file| {
                let input = self.input.as_mut().expect("nothing has closed it");
                let copied = io::copy(&mut file.take(program.len), input)?;
                input.flush()?;
                if copied == program.len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            });
            let answer = self.answer();
            sent.map_err(|error| format!("the program was not taken: {}", plain(&error)))?;
            answer?;
        } else {
            self.answer()?;
        }
        Ok(())
    }

    /// The next answer of the script.
    fn answer(&mut self) -> Result<String, String> {
        let output = self.output.as_mut().expect("nothing has taken it");
        for _ in 0..LINES_MAX {
            let mut line = Vec::new();
            let read = output.take(LINE_MAX).read_until(b'\n', &mut line);
            if !read.is_ok_and(|len| len > 0) {
                return Err(String::new());
            }
            let line = String::from_utf8_lossy(&line);
            let Some(answer) = line.trim_end().strip_prefix(MARK) else { continue };
            return match answer.strip_prefix("cannot ") {
                Some(what) => Err(format!("it cannot {what}")),
                None => Ok(answer.to_string()),
            };
        }
        Err("its login prints without an end".into())
    }

    /// Ends it; returns the reason, or that of the other end where there is none.
    fn given_up(mut self, why: String) -> String {
        drop(self.input.take());
        let _ = self.child.kill();
        let status = self.child.wait();
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        match (why.is_empty(), said.is_empty(), status) {
            (false, true, _) => why,
            (false, false, _) => format!("{why} ({said})"),
            (true, false, _) => said,
            (true, true, Ok(status)) => format!("the shell has ended: {status}"),
            (true, true, Err(error)) => plain(&error),
        }
    }

    /// Lets it begin with the offer at this address; `ended` is told when it has ended.
    pub(super) fn begin(&mut self, address: SocketAddr, code: &str, ended: impl FnOnce() + Send + 'static) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{address}\n{code}").and_then(|()| input.flush());
        }
        let (sender, rest) = channel();
        if let Some(output) = self.output.take() {
            std::thread::spawn(move || {
                let lines = output.take(LINE_MAX).lines().map_while(Result::ok);
                // It may not be waited for any more.
                let _ = sender.send(lines.last().unwrap_or_default());
                ended();
            });
        }
        self.rest = Some(rest);
    }

    /// Waits for its end; gives where the object is, or why it has none.
    pub(super) fn end(&mut self) -> Result<PathBuf, String> {
        let begun = Instant::now();
        let said = self.rest.as_ref().and_then(|rest| rest.recv_timeout(END_WITHIN).ok());
        let document: serde_json::Value =
            said.and_then(|line| serde_json::from_str(&line).ok()).unwrap_or_default();
        while begun.elapsed() < END_WITHIN && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let status = self.child.wait();
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        match (document["path"].as_str(), document["error"].as_str()) {
            (Some(path), _) => Ok(path.into()),
            (None, Some(error)) => Err(error.to_string()),
            (None, None) if !errors.is_empty() => Err(errors),
            (None, None) => Err(match status {
                Ok(status) => format!("its shell has ended: {status}"),
                Err(error) => plain(&error),
            }),
        }
    }
}

/// The last lines that an end has said.
pub(crate) fn last_words(stderr: impl Read) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim().to_string();
        if !line.is_empty() {
            last.push_back(line);
        }
        if last.len() > WORDS_MAX {
            last.pop_front();
        }
    }
    Vec::from(last).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for text in ["", "a b", "it's", r#"$(rm -rf x) `y` "z" \"#, "line\nbreak", "-n"] {
            let ran =
                Command::new("sh").args(["-c", &format!("printf %s {}", quoted(text))]).output().unwrap();
            assert_eq!(String::from_utf8(ran.stdout).unwrap(), text);
        }
    }

    #[test]
    fn the_last_words_are_kept() {
        let said = (0..9).map(|at| format!("line {at}\r\n\n")).collect::<String>();
        assert_eq!(last_words(said.as_bytes()), "line 5; line 6; line 7; line 8");
    }
}
