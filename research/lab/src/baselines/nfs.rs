//! A folder of the source, shared by NFS: every receiver copies the file out of it, all at the same time. The
//! server is NFS-Ganesha and the client libnfs: both run in user space, and so in a host's namespace and
//! where the kernel has no NFS.

use super::programs::{Programs, await_server, copy_of, copy_to_all, folder_of, start};
use super::{Job, Outcome};
use crate::daemons;
use crate::error::LabError;
use crate::system::Space;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

const PORT: u16 = 2_049;
/// The name under which clients find the folder, and the file in it.
const SHARED: &str = "shared";
const FILE: &str = "object";

/// Delivers the file.
pub(super) fn deliver(job: &Job<'_>) -> Result<Outcome, LabError> {
    let shared = folder_of(job, &job.source)?;
    // The server gives away files of a file system in memory, which the user's need not be in.
    fs::copy(job.path, shared.join(FILE)).map_err(|error| LabError::path("copy", job.path, &error))?;
    let address = job.address_v4(&job.source);
    let settings = job.folder.join("ganesha.conf");
    let records = job.folder.join("records");
    fs::create_dir_all(&records).map_err(|error| LabError::path("make", &records, &error))?;
    fs::write(&settings, server_settings(address, &shared, &records))
        .map_err(|error| LabError::path("write", &settings, &error))?;
    let mut command = Space::named(&job.source.name).command("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(&settings).args(["-L", "STDERR", "-p"]).arg(job.folder.join("pid"));
    let mut server = Programs(vec![start(job, &job.source, &mut command)?]);
    for host in job.receivers.iter().take(1) {
        await_server(job, (&job.source, PORT), host, &mut server.0[0])?;
    }
    let commands = job.receivers.iter().map(|host| {
        let mut command = Space::named(&host.name).command("nfs-cp");
        command.arg(format!("nfs://{address}/{SHARED}/{FILE}?version=4")).arg(copy_of(job, host)?);
        Ok(command)
    });
    let commands = commands.collect::<Result<Vec<Command>, LabError>>()?;
    let cpu = || daemons::cpu(server.0[0].id()).unwrap_or_default();
    let before = cpu();
    let receivers = copy_to_all(job, commands)?;
    Ok(Outcome { receivers, source_cpu: cpu().since(before) })
}

/// Version 4 alone, which needs no port mapper; without the period in which a server that comes back waits
/// for its clients.
fn server_settings(address: Ipv4Addr, shared: &Path, records: &Path) -> String {
    let (shared, records) = (shared.display(), records.display());
    format!(
        "NFS_Core_Param {{ Protocols = 4; NFS_Port = {PORT}; Bind_addr = {address}; Enable_NLM = false; \
         Enable_RQUOTA = false; }}\n\
         NFSv4 {{ Graceless = true; RecoveryRoot = \"{records}\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{shared}\"; Pseudo = /{SHARED}; Access_Type = RO; Squash = None; \
         SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}\n\
         LOG {{ Default_Log_Level = CRIT; }}\n"
    )
}
