//! The job step that runs this program on the nodes: one `srun`, whose standard input goes to all of them.

use super::super::ends::Ends;
use super::super::push::{MARK, Program, check_machine, quoted};
use super::jobs::Job;
use crate::cancel;
use crate::exit::{Failure, plain};
use polycast_agent::transfer::{Change, Steering};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A node that does not find the offer within this is not waited for.
const FIND_WITHIN_S: u32 = 10;
/// Nodes that were served say what they have within this.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Time for a step to end that is asked to.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Pause between looks for a user's wish to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A line's bytes at most; srun passes on longer ones in pieces.
const WORDS_MAX: usize = 300;
/// Variables of a job that srun needs. The others are defaults of its options, meant for the job's own steps.
const KEPT: [&str; 6] = [
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_CLUSTER_NAME",
    "SLURM_CLUSTERS",
    "SLURM_JWT",
    "SLURM_WORKING_CLUSTER",
];

/// The file's place on the nodes, and its look.
pub(super) struct Target {
    pub(super) path: PathBuf,
    /// Name that it gets where `path` is a directory; none where `path` is itself to become one.
    pub(super) name: Option<String>,
    pub(super) force: bool,
    /// Mode of a file.
    pub(super) mode: Option<u32>,
    /// Seconds since 1970 of its last access and its last change, where they are kept.
    pub(super) times: Option<[String; 2]>,
}

/// Means by which nodes get the file.
pub(super) enum Means {
    /// An offer.
    Accept,
    /// Their agents, which have the object with this id already.
    Get(String),
}

impl Target {
    /// Script of a node, in words of every shell.
    fn script(&self, program: &Program, means: &Means) -> String {
        let (hash, len) = (&program.hash, program.len);
        let own = quoted(&program.path.to_string_lossy());
        let force = if self.force { " --force" } else { "" };
        let get = match means {
            Means::Accept => {
                format!(
                    r#"accept - --from "$f" --timeout {FIND_WITHIN_S}s --host "$n" --quiet --out "$p"{force}"#
                )
            }
            Means::Get(id) => format!(r#"get {id} --quiet --out "$p"{force}"#),
        };
        let into = self
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!(r#"[ ! -d "$p" ] || p="$p"/{}"#, quoted(name)));
        let mode = self.mode.map_or_else(String::new, |mode| format!(r#" && chmod {mode:o} "$p""#));
        let times = self.times.as_ref().map_or_else(String::new, |[accessed, changed]| {
            format!(r#" && touch -c -m -d @{changed} "$p" && touch -c -a -d @{accessed} "$p""#)
        });
        // Every node hears the same words: those that have the program throw it away where it is brought.
        format!(
            r#"n=${{SLURMD_NODENAME:-$(hostname)}}; p={path}; say() {{ echo "{MARK}$n $*"; }}
umask 077; d="${{XDG_CACHE_HOME:-${{HOME:-/tmp}}/.cache}}/polycast"; b={own}; h=have
[ -x "$b" ] && [ "$(wc -c < "$b")" -eq {len} ] || {{ b="$d/polycast-{hash}"; [ -x "$b" ] || h=need; }}
say $h "$(uname -sm)"; IFS= read -r f || exit 1
if [ "$f" = bring ]; then
if [ $h = have ]; then head -c {len} > /dev/null; else mkdir -p "$d" && head -c {len} > "$b.$n.$$" &&
[ "$(wc -c < "$b.$n.$$")" -eq {len} ] && chmod 700 "$b.$n.$$" && mv -f "$b.$n.$$" "$b" ||
{{ rm -f "$b.$n.$$"; say failed "it cannot keep the program in $d"; exit 1; }}; fi; fi
v=$("$b" --version 2>&1 < /dev/null) || {{ say failed "it cannot run the program: $v"; exit 1; }}
say ready; IFS= read -r f || exit 1; umask 022; {into}
w=$({{ "$b" {get} 2>&1 > /dev/null{mode}{times}; }} 2>&1) && say done "$p" ||
say failed "$(printf %s "$w" | tr '\n' ' ' | head -c {WORDS_MAX})""#,
            path = quoted(&self.path.to_string_lossy()),
        )
    }
}

/// The last word of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Nothing,
    Have,
    Need,
    Ready,
    Done(PathBuf),
    Failed(String),
}

impl Said {
    fn read(word: &str, rest: &str, is_own: bool) -> Option<Self> {
        match word {
            "have" | "need" if is_own => match check_machine(rest) {
                Err(why) => Some(Said::Failed(why)),
                Ok(()) if word == "have" => Some(Said::Have),
                Ok(()) => Some(Said::Need),
            },
            "have" => Some(Said::Have),
            "need" => Some(Said::Need),
            "ready" => Some(Said::Ready),
            "done" => Some(Said::Done(rest.into())),
            "failed" => {
                let words = rest.trim().trim_start_matches("error: ");
                Some(Said::Failed(words.split(" hint: ").next().unwrap_or(words).to_string()))
            }
            _ => None,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self, Said::Done(_) | Said::Failed(_))
    }
}

/// All words of the nodes, as the thread that reads it knows.
#[derive(Default)]
struct Heard {
    nodes: BTreeMap<String, Said>,
    /// The step has ended.
    is_over: bool,
    /// Is told of each node that has ended.
    steering: Option<Arc<Steering>>,
}

impl Heard {
    fn hear(&mut self, node: &str, said: Said) {
        let Some(last) = self.nodes.get_mut(node).filter(|last| !last.has_ended()) else { return };
        if let (true, Some(steering)) = (said.has_ended(), &self.steering) {
            steering.change(Change::Fewer(node.to_string()));
        }
        *last = said;
    }

    fn end(&mut self, why: &str) {
        self.is_over = true;
        let open: Vec<String> =
            self.nodes.iter().filter(|(_, said)| !said.has_ended()).map(|(node, _)| node.clone()).collect();
        for node in open {
            self.hear(&node, Said::Failed(why.to_string()));
        }
    }
}

type Shared = Arc<(Mutex<Heard>, Condvar)>;

/// The step.
pub(super) struct Step {
    child: Child,
    input: Option<ChildStdin>,
    heard: Shared,
    /// Nodes on which the program was ready.
    reached: Vec<String>,
}

impl Step {
    /// Starts it, and brings the program to nodes where it is not. Nodes that have not come then have failed.
    pub(super) fn open(
        job: &Job,
        (program, target, means): (&Program, &Target, &Means),
        within: Duration,
    ) -> Result<Self, Failure> {
        let mut command = Command::new("srun");
        let nodes = job.nodes.len();
        command.args([
            "--overlap",
            "--input=all",
            "--kill-on-bad-exit=0",
            "--mpi=none",
            "--ntasks-per-node=1",
        ]);
        command.args([
            format!("--nodes={nodes}"),
            format!("--ntasks={nodes}"),
            format!("--jobid={}", job.id),
        ]);
        command.args([format!("--nodelist={}", job.nodes.join(",")), "--cpus-per-task=1".into()]);
        command.args(["sh", "-c", &target.script(program, means)]);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let of_slurm = ["SLURM_", "SRUN_", "SBATCH_"].iter().any(|prefix| name.starts_with(prefix));
            if of_slurm && !KEPT.contains(&&*name) {
                command.env_remove(&*name);
            }
        }
        // Ctrl-C is ours to pass on.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            Failure::input(format!("cannot run srun, which starts the nodes: {}", plain(&error)))
        })?;
        let heard: Shared = Arc::default();
        heard.0.lock().unwrap_or_else(PoisonError::into_inner).nodes =
            job.nodes.iter().map(|node| (node.clone(), Said::Nothing)).collect();
        let stderr = child.stderr.take().expect("it was piped");
        let errors = std::thread::spawn(move || super::super::push::last_words(stderr));
        let stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let (shared, is_own) = (Arc::clone(&heard), program.is_own);
        std::thread::spawn(move || listen(stdout, &shared, is_own, errors));
        let mut step = Step { input: child.stdin.take(), child, heard, reached: Vec::new() };
        step.bring(program, within)?;
        let ready = |(node, said): (&String, &Said)| (*said == Said::Ready).then(|| node.clone());
        let reached = step.lock().nodes.iter().filter_map(ready).collect();
        step.reached = reached;
        Ok(step)
    }

    fn bring(&mut self, program: &Program, within: Duration) -> Result<(), Failure> {
        self.wait("begin", within, |said| *said != Said::Nothing)?;
        let wanted = self.lock().nodes.values().any(|said| *said == Said::Need);
        let input = self.input.as_mut().expect("nothing has closed it");
        let told = match wanted {
            false => input.write_all(b"go\n"),
            true => input
                .write_all(b"bring\n")
                .and_then(|()| io::copy(&mut File::open(&program.path)?.take(program.len), input).map(drop)),
        };
        // Where srun has ended, its words say why.
        let _ = told.and_then(|()| input.flush());
        self.wait("get the program", within, |said| *said == Said::Ready || said.has_ended())
    }

    /// Waits until each node has said such a thing; those that have not have failed then.
    fn wait(&self, what: &str, within: Duration, is_so: impl Fn(&Said) -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut heard = self.lock();
        while !heard.nodes.values().all(&is_so) {
            if cancel::is_asked() {
                return Err(Failure::cancelled());
            }
            if begun.elapsed() > within {
                let why = format!("it did not {what} within {} s", within.as_secs());
                let late: Vec<String> = heard
                    .nodes
                    .iter()
                    .filter(|(_, said)| !is_so(said))
                    .map(|(node, _)| node.clone())
                    .collect();
                for node in late {
                    heard.hear(&node, Said::Failed(why.clone()));
                }
                break;
            }
            heard = self.heard.1.wait_timeout(heard, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that failed before the offer, with the reasons.
    pub(super) fn failures(&self) -> Vec<(String, String)> {
        let failed = |(node, said): (&String, &Said)| match said {
            Said::Failed(why) => Some((node.clone(), why.clone())),
            _ => None,
        };
        self.lock().nodes.iter().filter_map(failed).collect()
    }

    /// Lets nodes begin that need no offer.
    pub(super) fn go(&mut self) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(b"go\n").and_then(|()| input.flush());
        }
    }
}

impl Ends for Step {
    fn hosts(&self) -> Vec<String> {
        self.reached.clone()
    }

    fn begin(&mut self, address: SocketAddr, code: &str, steering: &Arc<Steering>) {
        self.lock().steering = Some(Arc::clone(steering));
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{address}\n{code}").and_then(|()| input.flush());
        }
    }

    fn end(&mut self, host: &str) -> Result<PathBuf, String> {
        let begun = Instant::now();
        let mut heard = self.lock();
        loop {
            match heard.nodes.get(host) {
                Some(Said::Done(path)) => return Ok(path.clone()),
                Some(Said::Failed(why)) => return Err(why.clone()),
                None => return Err("it is no node of the job".into()),
                _ if begun.elapsed() > END_WITHIN => return Err("it does not end".into()),
                _ => {
                    heard =
                        self.heard.1.wait_timeout(heard, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
                }
            }
        }
    }
}

impl Drop for Step {
    /// Ends it with all its tasks: srun passes that on.
    fn drop(&mut self) {
        drop(self.input.take());
        let begun = Instant::now();
        let mut is_asked = self.lock().is_over;
        while begun.elapsed() < STOP_WITHIN && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let has_ended = self.lock().nodes.values().all(Said::has_ended);
            if !std::mem::replace(&mut is_asked, true) && !has_ended {
                let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads what the nodes say, to its end.
fn listen(stdout: impl BufRead, heard: &Shared, is_own: bool, errors: std::thread::JoinHandle<String>) {
    let (heard, news) = &**heard;
    for line in stdout.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let Some(said) = line.strip_prefix(MARK) else { continue };
        let (node, said) = said.split_once(' ').unwrap_or((said, ""));
        let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
        if let Some(said) = Said::read(word, rest, is_own) {
            heard.lock().unwrap_or_else(PoisonError::into_inner).hear(node, said);
            news.notify_all();
        }
    }
    let words = errors.join().unwrap_or_default();
    let why = if words.is_empty() { "its step has ended" } else { &words };
    heard.lock().unwrap_or_else(PoisonError::into_inner).end(why);
    news.notify_all();
}

/// The file's look here, which it gets there.
pub(super) fn look(path: &Path, keeps_times: bool) -> io::Result<(u32, Option<[String; 2]>)> {
    use std::os::unix::fs::MetadataExt;
    let data = path.metadata()?;
    let time = |seconds: i64, nanos: i64| format!("{seconds}.{nanos:09}");
    let times = [time(data.atime(), data.atime_nsec()), time(data.mtime(), data.mtime_nsec())];
    Ok((data.mode() & 0o7777, keeps_times.then_some(times)))
}

/// Gives a file here that look.
#[cfg(feature = "cluster")]
pub(super) fn dress(path: &Path, mode: u32, times: Option<&[String; 2]>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    let Some([accessed, changed]) = times else { return Ok(()) };
    for (which, time) in [("-m", changed), ("-a", accessed)] {
        let ran = Command::new("touch").args(["-c", which, "-d", &format!("@{time}")]).arg(path).status()?;
        if !ran.success() {
            return Err(io::Error::other(format!("touch ends with {ran}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_say_is_read() {
        let own = format!("Linux {}", std::env::consts::ARCH);
        assert_eq!(Said::read("have", &own, true), Some(Said::Have));
        assert!(
            matches!(Said::read("need", "Linux riscv64", true), Some(Said::Failed(why)) if why.contains("riscv64"))
        );
        assert_eq!(Said::read("need", "Linux riscv64", false), Some(Said::Need));
        assert_eq!(Said::read("done", "/tmp/a b", true), Some(Said::Done("/tmp/a b".into())));
        assert_eq!(Said::read("failed", "error: x hint: y", true), Some(Said::Failed("x".into())));
        assert_eq!(Said::read("Welcome", "", true), None);
    }

    #[test]
    fn a_node_that_has_ended_stays_so_and_the_end_of_the_step_ends_the_others() {
        let nodes = ["a", "b"].map(|node| (node.to_string(), Said::Nothing)).into();
        let mut heard = Heard { nodes, ..Heard::default() };
        heard.hear("a", Said::Done("/x".into()));
        heard.hear("a", Said::Ready);
        heard.hear("stranger", Said::Ready);
        heard.end("gone");
        assert_eq!(heard.nodes["a"], Said::Done("/x".into()));
        assert_eq!(heard.nodes["b"], Said::Failed("gone".into()));
        assert_eq!(heard.nodes.len(), 2);
    }
}
