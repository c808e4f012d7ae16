//! `scp` and `rsync` over ssh, as they are typed: one command for every receiver at the source, all at the
//! same time. Each receiver runs OpenSSH's server, with a key that this delivery makes.

use super::programs::{Programs, await_server, copy_of, copy_to_all, start, used_by_ended};
use super::{Job, Outcome};
use crate::compare::Way;
use crate::error::LabError;
use crate::layout::Host;
use crate::system::{Space, program, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const PORT: u16 = 22;
/// Folder that Debian's server enters before a client has shown its key. The package's unit creates it; there
/// is none here.
const EMPTY_FOLDER: &str = "/run/sshd";

/// Delivers the file by `scp` or `rsync`. The time has ssh's handshakes in it, as for a user.
pub(super) fn deliver(way: Way, job: &Job<'_>) -> Result<Outcome, LabError> {
    let key = job.folder.join("key");
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key), None)?;
    let write = |name: &str, text: String| {
        let path = job.folder.join(name);
        fs::write(&path, text).map_err(|error| LabError::path("write", &path, &error))?;
        Ok::<PathBuf, LabError>(path)
    };
    let client = write("ssh_config", client_settings(&key))?;
    let server = write("sshd_config", server_settings(&key, is_locked("root")))?;
    let empty = Path::new(EMPTY_FOLDER);
    fs::create_dir_all(empty).map_err(|error| LabError::path("make", empty, &error))?;
    let mut servers = Programs(Vec::new());
    for host in &job.receivers {
        servers.0.push(serve(job, host, &server)?);
    }
    for (host, server) in job.receivers.iter().zip(&mut servers.0) {
        await_server(job, (host, PORT), &job.source, server)?;
    }
    let commands = job.receivers.iter().map(|host| {
        let to = format!("root@{}:{}", job.address_v4(host), copy_of(job, host)?.display());
        Ok(command(way, job, &client, &to))
    });
    let commands = commands.collect::<Result<Vec<Command>, LabError>>()?;
    let before = used_by_ended();
    let receivers = copy_to_all(job, commands)?;
    Ok(Outcome { receivers, source_cpu: used_by_ended().since(before) })
}

/// Builds the command that the source runs for one receiver.
fn command(way: Way, job: &Job<'_>, client: &Path, to: &str) -> Command {
    let mut command = Space::named(&job.source.name).command(&way.to_string());
    match way {
        Way::Rsync => command.arg("-e").arg(format!("ssh -F '{}'", client.display())),
        _ => command.arg("-q").arg("-F").arg(client),
    };
    command.arg("--").arg(job.path).arg(to);
    command
}

/// The server of one receiver.
fn serve(job: &Job<'_>, host: &Host, settings: &Path) -> Result<Child, LabError> {
    // The server runs itself anew for each client, by its full name.
    let program = program("sshd").unwrap_or_else(|| "/usr/sbin/sshd".into());
    let mut command = Space::named(&host.name).command(&program.to_string_lossy());
    command.args(["-D", "-e", "-f"]).arg(settings);
    start(job, host, &mut command)
}

fn client_settings(key: &Path) -> String {
    format!(
        "IdentityFile \"{}\"\nIdentitiesOnly yes\nBatchMode yes\nConnectTimeout 30\nLogLevel ERROR\n\
         StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nGlobalKnownHostsFile /dev/null\n",
        key.display()
    )
}

/// The same key is that of the server and of its user: a lab has no strangers.
fn server_settings(key: &Path, use_pam: bool) -> String {
    let (key, pam) = (key.display(), if use_pam { "yes" } else { "no" });
    format!(
        "Port {PORT}\nHostKey \"{key}\"\nAuthorizedKeysFile \"{key}.pub\"\nStrictModes no\nPidFile none\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM {pam}\n\
         Subsystem sftp internal-sftp\n"
    )
}

/// Returns true if an account is locked, as root's is on Ubuntu: the server then admits it only by way of
/// PAM.
fn is_locked(user: &str) -> bool {
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    shadow.lines().any(|line| line.starts_with(&format!("{user}:!")))
}
