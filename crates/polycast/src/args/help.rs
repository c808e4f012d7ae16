//! The pages that `polycast --help` and `polycast COMMAND --help` print around the list of options.
#![cfg_attr(
    not(all(feature = "pages", feature = "cluster")),
    allow(dead_code, reason = "pages of commands that this build lacks")
)]

use super::absent;
use clap::builder::{Resettable, StyledStr};
use std::sync::LazyLock;

pub(crate) const ABOUT: &str = "Deliver one object to many machines";

pub(crate) const LONG_ABOUT: &str = "\
Deliver one object (a file or a directory) to many machines.

Every byte is sent once and reaches all receivers, over whatever the network has: IP multicast where \
it gets through, from receiver to receiver over TCP where it does not. Each receiver verifies every byte; \
nothing half-written is ever seen. A dead or slow receiver does not delay the others, and the report names it.

Once, by hand:   polycast offer FILE, polycast accept CODE
A model:         polycast fetch URL, on every node
Weights:         polycast publish TOPIC, polycast subscribe
To try it out:   polycast cast FILE, on one machine";

pub(crate) const AFTER_HELP: &str = "\
Exit status:
    0  done
    1  the input was wrong, or a receiver failed (the report names it)
    2  an unexpected error
    3  a time limit has passed
  130  interrupted

Results go to standard output, everything else to standard error.";

pub(crate) const CAST: &str = "\
Deliver a file or directory to receivers on this machine.

The source and all receivers run in this process and talk over the loopback interface with the same \
protocol as between machines. This shows what Polycast does and how it copes with loss; it needs no \
root and no set-up. Without --out the receivers' copies are verified and then removed.";

pub(crate) const CAST_MORE: &str = "\
Examples:
  polycast cast model.bin
  polycast cast model.bin --receivers 8 --out received
  polycast cast dataset/ --loss 0.05 --json

With --out DIR, receiver number K puts its copy into DIR/receiver-K. What is there already stays; --force replaces it, \
--update brings it up to date.";

pub(crate) const OFFER: &str = "\
Deliver a file or directory to other machines, without daemons.

Prints a code and serves every machine that runs `polycast accept CODE`, until Ctrl-C. With --receivers N it waits for N machines, \
delivers to all of them at once, ends, and prints a report. They find each other by multicast; where the network carries none, `polycast \
accept CODE --from HOST` goes to this machine, and the object comes over TCP. A machine without the code can \
neither read nor change what is sent. With --open there is no code, and nothing is sealed: the next \
machines that run `polycast accept` get it, also those that run it already.";

pub(crate) const OFFER_MORE: &str = "\
Examples:
  polycast offer model.bin                (serves all that come, until Ctrl-C)
  polycast offer model.bin --receivers 16
  polycast offer model.bin --receivers 16 --open
  polycast offer model.bin --code 'four words of ours'
  polycast offer run7/*.json run7/weights --exclude '*.tmp' --receivers 3
  tar c dataset | polycast offer - --receivers 3
  polycast offer dataset/ --receivers 3 --interface eth1 --rate 5gbit --timeout 2m
  polycast offer model.bin --receivers 2 --port 9000 --udp-port 9000 --pool 239.255.7.0/24

Drawn words say whose offer it is: receivers take it from no other source. A code of your own says nothing of that, and needs 40 bits, or --weak-code: \
a letter counts 4.7 at most, a digit 3.3. Words count 11 for who tries words, and the drawn ones 16. Other users of this machine can read it in the arguments of offer and accept for as long as they run. They cannot read POLYCAST_CODE in \
the environment, nor standard input (--code -, accept -), which on a terminal is asked for.

A firewall must let in TCP port 18067 (--port) here, and at the receivers UDP port 18067 (--udp-port); docs/guide.md has a table.";

pub(crate) const PUSH: &str = "\
Deliver a file or directory to machines over ssh, where nothing of Polycast is installed.

Opens a shell on each host, brings this program there if it is not there yet (it is kept in ~/.cache/polycast under its hash), and \
delivers to all of them at once, as from `polycast offer`: by multicast, or from host to host over TCP. ssh carries the program and the \
code, and no bytes of the object. A host that cannot be reached is named in the report, and the others go on. ssh asks for no password: give it a key or an agent.";

pub(crate) const PUSH_MORE: &str = "\
Examples:
  polycast push model.bin 'gpu[01-32]:/data/'
  polycast push run7/ root@a,b,c:/srv/run7 --update
  polycast push model.bin :/dev/shm/model.bin              (all hosts of the Slurm job)
  polycast push model.bin 'gpu[01-32]:' -e 'ssh -J gateway -p 2222'
  polycast push model.bin 'arm[1-4]:/data/' --program polycast-aarch64

If PATH is a directory there, the object gets its own name in it; otherwise PATH is the object itself. Without PATH it is the user's own folder. What \
is there already stays unless --force or --update says otherwise. The program has to run on the hosts: the one of the packages is static and runs on every Linux \
with the same processor.

The hosts have to reach this machine on TCP port 18067 (--port), and it sends to UDP port 18067 there; where that is closed the object comes over TCP.";

pub(crate) const BCAST: &str = "\
Deliver a file to the nodes of a Slurm job, with the options of sbcast.

One job step starts this program on each node; where it is not, the step brings it (it is kept in ~/.cache/polycast under its hash). All nodes get \
the file at once, sealed, as from `polycast offer`: by multicast, or from node to node over TCP, on the network that BcastAddr names in slurm.conf. \
Where each node of the job runs an agent of one cluster under the node's name, agents deliver it, and it stays in their stores for the next job.

In a step (srun polycast bcast) task 0 does it for all. In Prolog, where no step can be started, each node gets the file through its agent: one of \
them reads SOURCE, which all have to see, and the others get it from there.";

pub(crate) const BCAST_MORE: &str = "\
Examples:
  polycast bcast model.bin /tmp/model.bin
  polycast bcast --force --preserve --send-libs ./solver /tmp/solver
  polycast bcast -j 4711 -w 'n[1-8]' model.bin /dev/shm/     (from outside of the job)
  polycast bcast -Z -w 'n[1-8]' model.bin /dev/shm/          (without a job, over ssh)
  ln -s /usr/bin/polycast ~/bin/sbcast                       (scripts then call this one)

The variables of sbcast (SBCAST_FORCE, SBCAST_PRESERVE, ..) count where the option is not given. What is there already stays unless --force \
says otherwise. A relative DEST is below the current directory.";

pub(crate) const ACCEPT: &str = "\
Receive what another machine offers with `polycast offer`.

Waits for the offer with this code, or without one for an offer that any machine may take, says what it is, receives, verifies \
every byte and exits. Nothing is at PATH before all of it is there and verified, and what is there already stays unless \
--force or --update says otherwise.";

pub(crate) const ACCEPT_MORE: &str = "\
Examples:
  polycast accept lusab-babad-gutih-tugad       (into this directory)
  polycast accept lusab babad gutih tugad       (the same)
  polycast accept lusab-babad-gutih-tugad --out model.bin
  polycast accept lusab-babad-gutih-tugad --from 10.0.0.1  (no multicast needed)
  polycast accept lusab-babad-gutih-tugad --out model.bin --update
  polycast accept lusab-babad-gutih-tugad --out - | tar x    (a directory)
  polycast accept - --out model.bin                  (asks for the code)
  polycast accept --into /data --timeout 10m         (of an offer with --open)
  polycast accept --into /data --handle 00c5f07a9d3b1e42

PATH is the object itself, a file or a directory; a symbolic link means what it leads to. DIR gets the object under \
the name that it has at the source, unless that begins with a dot or is no plain name. After Ctrl-C the same command \
goes on from what was verified. Of several offers on the network none is taken unless --handle says which. Other users of this \
machine can read the code in the arguments while the command runs, but not in POLYCAST_CODE, nor standard input (CODE is -).";

pub(crate) const FETCH: &str = "\
Get an object by its key, address or id.

The local agent asks the manager which agent has it, and gets it from there. Agents that ask for the same object at nearly the same time \
get it together, every byte sent once. If no agent has it, exactly one of those that ask gets it from its address, and the \
others from that one; when it dies, the next one does. A key sha256:HEX is checked against the bytes that come from there.";

pub(crate) const FETCH_MORE: &str = "\
Examples:
  polycast fetch https://example.org/model.bin       (where it is needed)
  polycast fetch sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --from https://example.org/test --out test
  polycast fetch file:///nfs/model.bin --into /data  (read there once)
  polycast fetch s3://bucket/models/llama/ --out llama
  polycast fetch hf://org/model@v1 --out model
  polycast fetch oci://ghcr.io/org/model:1 --out model
  polycast fetch 42 --out copy --timeout 1m    (waits until an agent has it)";

pub(crate) const HF: &str = "\
Get the files of a repository of the Hugging Face Hub into the cache of its clients.

Each file comes from the local agent's store, from another agent, or from the Hub, which one agent reads then; its bytes are compared \
with the digest that the Hub names. Clients of this user, such as `hf` and transformers, find the files in their cache.";

pub(crate) const HF_MORE: &str = "\
Examples:
  polycast hf pull org/model
  polycast hf pull org/model@v1.0 --include '*.safetensors' --include '*.json'
  polycast hf pull org/data --repo-type dataset --to all

Environment: HF_TOKEN, or the file that `hf auth login` writes; HF_HUB_CACHE, HF_HOME.";

pub(crate) const IMAGE: &str = "\
Get the manifests and layers of a container image into the local agent's store, and into those of other agents.

Each comes from the store, from another agent, or from the registry, which one agent reads then; its bytes are compared with its digest. \
Runtimes that use the agents' mirror ([oci] in an agent's settings) then pull the image without reading the registry. The registry is asked \
without credentials.";

pub(crate) const IMAGE_MORE: &str = "\
Examples:
  polycast image pull debian:12
  polycast image pull ghcr.io/org/image:1.2 --to all
  polycast image pull http://registry.lan:5000/org/image --platform linux/arm64 --to gpu1,gpu2";

pub(crate) const WARM: &str = "\
Give what an engine has compiled on one machine to others that would compile the same.

A cache is known by its engine and its key. The automatic key has what was compiled depends on: the GPUs, their driver, the processor's \
instructions, the versions of Python, torch and the engine, and the model. A cache of another key is not found, and so never installed; what is \
found is there as a whole or not at all.";

pub(crate) const WARM_MORE: &str = "\
Examples:
  polycast warm push vllm --model org/model --to all    (where one replica is ready)
  polycast warm pull vllm --model org/model             (before another one starts)
  polycast warm pull inductor --path /cache/inductor --timeout 1m
  polycast warm push triton --key nightly-2026-11-29";

pub(crate) const WHY: &str = "\
Tell where the bytes of a repository's or an image's files were, since the agent began, and why this host has read some from their origin.

An endpoint ([hub] or [oci] in the agent's settings) reads a file from its origin only if no agent of the cluster has it or reads it.";

pub(crate) const PIN: &str = "\
Keep an object in the local agent's store, whatever else needs its room.

When a new object needs room (store-max), received objects go, first those that have not been asked for for the longest time. A \
pinned one stays, also over a restart of the agent, until `polycast unpin` or `polycast rm`. So do those that are being sent or \
received, and those that a process has open or mapped.";

pub(crate) const UNPIN: &str = "\
Let a pinned object go like others when its room is needed.

It is not removed: that is what `polycast rm` is for.";

pub(crate) const PIN_MORE: &str = "\
Examples:
  polycast pin model.bin
  polycast pin 42 43
  polycast unpin model.bin";

pub(crate) const PUBLISH: &str = "\
Give all subscribers of a topic a new version.

Every subscriber gets the file or directory at the same time. The version is committed when all have verified it; only then \
does any of them see it. A subscriber that dies or fails is named and not waited for. A later subscriber gets the last \
committed version from a host that has it.";

pub(crate) const PUBLISH_MORE: &str = "\
Examples:
  polycast publish policy weights.safetensors
  polycast publish policy weights.safetensors --version 17 --timeout 30s
  polycast publish models llama/ --files
  polycast publish policy --from https://example.org/weights.safetensors --token-env TOKEN
  polycast publish models --from hf://org/model";

pub(crate) const SUBSCRIBE: &str = "\
Get every version of a topic.

Each version that is committed is put into --into (or --out) in the place of the one before, and --exec is run. Runs until \
Ctrl-C, or with --once until the first version has come. A version that comes while the one before is being put in its place \
is followed by the newest one.";

pub(crate) const SUBSCRIBE_MORE: &str = "\
Examples:
  polycast subscribe policy --into /models
  polycast subscribe policy --out weights.safetensors --exec 'kill -HUP $(cat server.pid)'
  polycast subscribe policy --into . --once";

pub(crate) const MANAGER: &str = "\
Run the manager, which lends network paths to transfers.

One manager serves a cluster. It knows the agents, decides which transfer gets a path when, and is \
never on the way of the data: transfers that run go on if it dies. Runs until SIGINT or SIGTERM.";

pub(crate) const MANAGER_MORE: &str = "\
Examples:
  polycast manager --key-file cluster.key
  polycast manager --listen 10.0.0.1:7400 --config manager.toml
  polycast manager --listen 10.0.0.1:7400 --insecure      (without a key)
  polycast manager --check --config manager.toml          (before it runs)
  polycast manager --check --probe --config manager.toml  (the fibres too)

The key is made by polycast key new, and agents need it too. Where the manager listens to other machines, it takes a key, certificates or \
--insecure.";

pub(crate) const FORWARDER: &str = "\
Run nodes of a Datacast fabric

A node forwards packets between its neighbours and keeps what passes, so that receivers behind it
get a packet from there instead of from the source. Servers and switches each run one; one process
can run several. It keeps nothing of groups, and nothing that is not what was asked for.";

pub(crate) const FORWARDER_MORE: &str = "\
Settings (TOML):
  socket = \"/run/polycast-forwarder.sock\"   # where it can be asked for its counters
  [[node]]
  name = \"h0\"
  store-packets = 2048                        # what it keeps at most
  [[node.port]]                               # ports count from 0, as in source routes
  local = \"10.128.0.0:7402\"
  peer = \"10.128.0.1:7402\"
  rate = \"1gbit\"                            # sources here never send faster by it

Examples:
  polycast forwarder --config forwarder.toml --key-file cluster.key
  sudo polycast lab cast datacast:bcube:4,2 FILE    # a whole fabric of them";

pub(crate) const LABEL_SWITCH: &str = "\
Run label switches of an Orca fabric

A program in the kernel forwards labelled packets between the interfaces that the settings name, and \
everything else goes on as before. A leaf has the controller of its rack beside it. The manager gives \
switches what they need to know, and hears which links break. Switches forward nothing labelled any more \
when the process ends.";

pub(crate) const LABEL_SWITCH_MORE: &str = "\
Settings (TOML):
  listen = \"10.0.0.11:7475\"                 # one of the manager's orca.switches
  controller = \"10.0.0.1:7476\"              # the manager's orca.controller
  topology = \"leaf-spine:2,1,4\"             # 2 leafs, 1 spine, 4 servers a leaf
  [[switch]]
  layer = \"leaf\"
  number = 0
  ports = [\"swp1\", \"swp2\", \"swp3\", \"swp4\", \"swp5\"]   # down first, then up
  [switch.leaf-controller]
  listen = \"10.0.1.250:7476\"                # one of the manager's orca.leaf-controllers
  servers = [\"10.0.1.1\", \"10.0.1.2\", \"10.0.1.3\", \"10.0.1.4\"]

Examples:
  polycast label-switch --config label-switch.toml
  sudo polycast lab cast orca:4 FILE               # a whole fabric of them";

pub(crate) const RACK_AGENT: &str = "\
Run the agent of a rack of an Orca fabric

It puts labels that name the rack's hosts in place of those that lead to the rack. The host's agent runs it where its \
settings have [rack-agent]; as a process of its own it has a file with that section, and the host's agent needs no root.";

pub(crate) const RACK_AGENT_MORE: &str = "\
Settings (TOML):
  [rack-agent]
  interface = \"eth0\"                        # the one that leads to the leaf
  topology = \"leaf-spine:2,1,4\"
  server = 0                                  # its place in the manager's orca.hosts
  listen = \"10.0.1.1:7476\"
  leaf-controller = \"10.0.1.250:7476\"

Examples:
  polycast rack-agent --config /etc/polycast/rack-agent.toml";

pub(crate) const AGENT: &str = "\
Run the agent, which sends and receives for its machine.

Each machine runs one. Applications reach it over a Unix socket; received objects lie in its store, a \
folder in shared memory or wherever --store says. Runs until SIGINT or SIGTERM.";

pub(crate) const AGENT_MORE: &str = "\
Examples:
  polycast agent --manager 10.0.0.1:7400 --key-file cluster.key
  polycast agent --manager 10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400 --key-file cluster.key
  polycast agent --manager 10.0.0.1:7400 --insecure       (without a key)
  polycast agent --manager 10.0.0.1:7400 --key-file cluster.key --name rack1-host7 --interface eth1 --store /data/polycast";

pub(crate) const KEY_MORE: &str = "\
Examples:
  polycast key new cluster.key
  polycast agent --manager 10.0.0.1:7400 --key-file cluster.key
  polycast offer model.bin --receivers 2 --key-file cluster.key

A key is 32 random bytes, as 64 hexadecimal digits in a line. Copy the file to each machine of the cluster: a machine that has it is a member, \
can read all that members send each other, and can speak as any of them.";

pub(crate) const TOKEN_MORE: &str = "\
Examples:
  polycast manager --ca /var/lib/polycast/ca
  polycast token new --name gpu-1 --for 1h
  polycast token new --name 'gpu-[1-20]' --for 1h      (a name and a token a line)
  polycast token new --name 'gpu-[1-20]' --uses 20     (one token for all of them)
  polycast agent --manager 10.0.0.1:7400 --name gpu-1 --token polycast-0a1b2c3d-...

Tokens are made where the manager runs, as the user who can read its folder. The agent gets a certificate for a day, and renews it by \
itself when two thirds of the day are over.";

pub(crate) const AUDIT_MORE: &str = "\
Examples:
  polycast audit verify /var/log/polycast/audit.log
  polycast audit verify /var/log/polycast/audit.log*

A manager writes the log where its setting audit-log says: a line of JSON for each agent that it lets in, and each transfer that it \
permits. What it refuses is in a log of its own beside it, refusals-FILE. Every line has the hash of the one before, so the first one \
that was changed, or before which one is missing, is named, and the exit status is 1. How far the log goes is signed once a minute, in \
FILE.head with the key in FILE.key: so lines that are missing at its end or before its first one are noticed too. A user who can read \
that key can write all of it anew: keep FILE.head, or the key and the hash that are printed, on another machine.";

pub(crate) const SEND: &str = "\
Send a file or directory to other agents.

The local agent sends; the command waits until each receiver has verified every byte, or has failed, \
and prints a report. It says what to type on those that have the object.";

pub(crate) const SEND_MORE: &str = "\
Examples:
  polycast send model.bin --to all
  polycast get model.bin                 (on a receiver)
  polycast send model.bin --to host2,host3 --id 42 --timeout 10m
  polycast send run7/model.bin --to all --as model-7
  polycast send model.bin --to all --fabric ocs --or-fail
  polycast send model.bin --to all --first 64MiB-80MiB
  polycast get 42 --out model.bin        (on host2)

After Ctrl-C the same command goes on from what receivers have verified. As long as the file does not change it has the \
same id, and receivers that have it are sent nothing. Of one that has changed they are sent what differs from the object \
of the same name or length that they have.";

pub(crate) const STATUS_MORE: &str = "\
Examples:
  polycast status
  polycast status --watch                     (every second, until Ctrl-C)
  polycast status --manager
  polycast status --manager --json";

pub(crate) const TRANSFERS_MORE: &str = "\
Examples:
  polycast transfers
  polycast transfers --json
  polycast status --watch                (with all that the agent knows)";

pub(crate) const SETUP: &str = "\
Make this machine one of a cluster: write the daemon's settings, key and systemd unit, make the account polycast, and start the daemon, now and \
with the machine.

It says each thing that it does. What is as it has to be stays, so it can be repeated; other settings and another key that are there are not \
replaced without being told to. Units of a package are used where there are some; otherwise this program is copied to /usr/local/bin.";

pub(crate) const SETUP_MORE: &str = "\
Examples:
  sudo polycast setup manager                        (once; makes the key)
  sudo polycast setup agent --manager 10.0.0.1:7400 --key-file cluster.key
  sudo polycast setup manager --ca                   (with tokens in place of a key)
  sudo polycast setup agent --manager 10.0.0.1:7400 --token TOKEN --store-max 200GB
  polycast setup agent --manager 10.0.0.1:7400 --key-file cluster.key --root image/

To undo it: systemctl disable --now polycast-agent, and remove /etc/polycast, /etc/systemd/system/polycast-agent.service and the account.";

pub(crate) const NODES_MORE: &str = "\
Examples:
  polycast nodes
  polycast nodes --json

A machine is ready, silent (its heartbeats are late), unreachable (another agent cannot reach it, although the manager hears it) or lost (its agent \
has ended without a word and has not come back). One that is drained is draining while something runs there, and drained then.";

pub(crate) const DRAIN: &str = "\
Take a host or a part of the network out of use until 'polycast undrain' takes it back.

A host that is drained gets no new transfers: a send that names it fails at once, and one to all goes to the others. What \
waits or runs there ends as it would, and others still get from it what only it has. Objects and topics that would be lost \
with it are named. It stays drained when its agent begins anew, and with etcd at the next manager.

Of a part of the network: transfers whose paths need it move to other paths, or go on over TCP where there is none. Nothing is lent over it after \
that, by this manager or the next. A port is one of the circuit switch, and counts from 1; splitters and racks count from 0. \
In a Shufflecast the switch of a rack and its splitter are one.";

pub(crate) const DRAIN_MORE: &str = "\
Examples:
  polycast drain gpu3 --wait             (until nothing runs there)
  polycast drain gpu3 --undo
  polycast drain splitter:0
  polycast drain port:4
  polycast drain tor:3
  polycast drain ocs                     (all circuits)
  polycast undrain splitter:0";

pub(crate) const UNDRAIN_MORE: &str = "\
Examples:
  polycast undrain gpu3
  polycast undrain splitter:0
  polycast status --manager          (what is drained, what is suspected)";

pub(crate) const EXTEND: &str = "\
Change a transfer that waits or runs.

The transfer is named by its object's id. Receivers that are added get the whole object; those that are taken out \
get nothing more. What the network cannot do is refused, and then nothing has changed.";

pub(crate) const EXTEND_MORE: &str = "\
Examples:
  polycast extend 42 --time 10m
  polycast extend 42 --add host4,host5
  polycast extend 42 --remove host2";

pub(crate) const STREAM: &str = "\
Send messages from this machine to all that have joined, and receive them.

A stream has a name, one source, and as many receivers as join; they come and go while messages flow. Messages \
are numbered, and arrive in order. What the network loses is not repaired: receivers are told how many messages \
are missing. Streams go over labels or IP multicast, without a rate of their own; where agents have a key file, they are sealed.

In a stream that was created with --shared every machine that joins may send, up to 64: each gets what all others \
send, the messages of each sender in its order. `send` on such a machine joins for as long as it runs.";

pub(crate) const STREAM_MORE: &str = "\
Examples:
  polycast stream create ticks                      (on host1)
  polycast stream recv ticks                        (on host2, host3, ..)
  tail -f ticks.log | polycast stream send ticks    (on host1)
  polycast stream end ticks                         (on host1)

  polycast stream create talk --shared              (on host1)
  polycast stream recv talk --names                 (on every host that listens)
  echo hello | polycast stream send talk            (on every host that speaks)";

pub(crate) const STREAM_RECV_MORE: &str = "\
Lines go to standard output; what is lost is said on standard error. With --json one document comes at the end, \
with the text of every message.";

pub(crate) const DATACAST: &str = "\
Send a file or directory of any host to others, and copy it there into a directory.

Opens a shell on the host that has it, by ssh, and sends there as `polycast send` does; with --out it then opens one on each receiver, and copies the \
object out of the store of its agent. The accounts that ssh leads to have to be able to read and write there, and to use the agents: no agent reads a \
file for another host. Agents' names have to be names that ssh knows. Where the fabric datacast cannot carry it another one does, unless --or-fail is \
given.";

pub(crate) const DATACAST_MORE: &str = "\
Examples:
  polycast datacast --source host3:/data/model.bin --to host1,host2 --out /data
  polycast datacast --source root@host3:/srv/run7 --to all --out /srv --update --or-fail
  polycast datacast --source host3:model.bin --to all -e 'ssh -J gateway'";

pub(crate) const GROUP: &str = "\
Lease a path for packets that programs send themselves, such as by IP multicast.

A group has a name, this machine as its source, with others where --source names some, and the members that are named. The manager leases a path as for a \
transfer and tells the members' switches; programs that know nothing of Polycast send to the group's address, and \
those at the members join it as usual. No packet goes through an agent of theirs, and nothing repairs or slows packets. The \
group lasts until it is removed, also when the agent restarts.";

pub(crate) const GROUP_MORE: &str = "\
Examples:
  polycast group create prices --to host2,host3
  iperf -u -c 239.255.64.0 -b 100m      (here)
  iperf -u -s -B 239.255.64.0           (on host2 and host3)
  polycast group rm prices
  polycast group create talk --to host1,host2,host3 --source host1,host2     (on host1)
  polycast group change talk --add host4 --source host4 --remove host2

Fabrics that carry only Polycast's own packets (tcp-chain, datacast) carry no group.";

pub(crate) const GROUP_CREATE_MORE: &str = "\
Without --rate the path has the rate that its fabric gives, or none on a shared network. The rate is printed and \
not enforced by Polycast: the program has to keep to it. Programs may use any UDP port at the address. Without \
--fabric the group takes a fabric as a transfer would, among those that carry any packets.

With --source all machines that send are named, this one among them: its agent holds the path for all. A source that is a member hears the others. \
The rate is that of all sources together.";

pub(crate) const GET: &str = "\
Copy an object out of the local agent's store.

An object that is a directory is unpacked. Nothing is at PATH before all of it is there, and what is there \
already stays unless --force or --update says otherwise.";

pub(crate) const GET_MORE: &str = "\
Examples:
  polycast get model.bin              (the newest of that name)
  polycast get 42 --out model.bin
  polycast get 42 --into /data --update
  polycast get 42 --out - | sha256sum

PATH is the object itself, a file or a directory; a symbolic link means what it leads to. DIR gets the object under \
the name that it had at the source.";

pub(crate) const DOCTOR: &str = "\
Look at what keeps transfers from being fast, or from being at all.

Each line says what there is, what it costs if it is not as it should be, and the command that mends it. Other machines are \
found if they run an agent or `polycast doctor --listen`: only then it is seen whether multicast gets through the network, and \
how long packets may be. Nothing is changed. Exits with 1 if something cannot work.";

pub(crate) const DOCTOR_MORE: &str = "\
Examples:
  polycast doctor --listen               (on one machine, then elsewhere:)
  polycast doctor
  polycast doctor --interface eth1 --to 10.0.0.2,10.0.0.3
  sudo polycast doctor --querier 130s";

pub(crate) const COMPLETIONS_MORE: &str = "\
Examples:
  polycast completions bash > ~/.local/share/bash-completion/completions/polycast
  polycast completions zsh > ~/.zfunc/_polycast
  polycast completions fish > ~/.config/fish/completions/polycast.fish";

pub(crate) const MAN_MORE: &str = "\
Examples:
  polycast man | man -l -
  sudo polycast man /usr/local/share/man/man1";

/// What `polycast -h` says at its end.
pub(super) fn note() -> Resettable<StyledStr> {
    absent::note().map(StyledStr::from).into()
}

/// What `polycast --help` says at its end.
pub(super) fn after_help() -> String {
    absent::note().map_or_else(|| AFTER_HELP.to_string(), |note| format!("{note}\n\n{AFTER_HELP}"))
}

/// The version, and what is in this build.
pub(super) fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = crate::commit::COMMIT.map(|commit| format!("commit {commit}; ")).unwrap_or_default();
        format!("{} ({commit}{})", env!("CARGO_PKG_VERSION"), contents())
    });
    &VERSION
}

#[cfg(not(feature = "cluster"))]
fn contents() -> String {
    "cast, offer and accept".to_string()
}

#[cfg(feature = "cluster")]
fn contents() -> String {
    let programs = match polycast_net::bpf::shipped()[..] {
        [] => "none".to_string(),
        ref names => names.join(", "),
    };
    format!("kernel programs: {programs}")
}
