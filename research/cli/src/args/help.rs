//! Pages of help that are longer than a line.

pub(crate) const REPRODUCE: &str = "\
Compute the papers' figures and tables, ours beside theirs.

Without PAPER the items are listed. Rows say what the paper says, what we get, and what to know when \
comparing them. Nothing is sent over a network: planners and simulations give the numbers.";

pub(crate) const REPRODUCE_MORE: &str = "\
Examples:
  polycast reproduce
  polycast reproduce blast
  polycast reproduce shufflecast fig-7 --json
  polycast reproduce all --quick --out report/   (open report/index.html)

--quick or --out without PAPER means all papers.";

pub(crate) const LAB: &str = "\
Run a whole data center on this machine.

Hosts and switches are network namespaces with real cables between them; each host runs a real agent, \
and one the manager. Switches are Open vSwitch, optical devices are emulated and speak the real ones' \
languages. Needs Linux and root. A lab is one process: when it ends, however it ends, nothing is left.";

pub(crate) const LAB_MORE: &str = "\
Labs:
  bridge:8                     8 hosts on one Ethernet switch
  blast:racks=8,hosts=2        racks on a packet core and on a circuit switch with splitters; more settings:
                               fanout=4, splitters=N, ports=1 (fibres a rack), circuit-ms=25
  shufflecast:2,2,hosts=2      racks on a packet core and on a p,k-Shufflecast of splitters; with tors=15 of so many racks,
                               of which some have several splitters
  orca:4                       a fat-tree of 4-port switches that forward by labels, with agents in its racks; more
                               settings: agents=1, standby=1, timeout-us=100000, trees=1
  datacast:bcube:4,2           servers and switches that cache packets; also torus:4,2 and fat-tree:4,3; links of
                               100 Mbit/s and packets of 8 KiB unless set otherwise, trees=N
  ...,rate=1gbit               every link at this rate
  ...,mtu=9000                 larger packets
  bridge:8,ip=6                hosts with IPv6 alone

Examples:
  polycast lab cast bridge:8 model.bin
  polycast lab cast blast:racks=8,hosts=2,mtu=9000 model.bin --json
  polycast lab up bridge:3
  polycast lab exec bridge h0 -- polycast send model.bin --to all
  polycast lab down --all";

pub(crate) const LAB_CAST_MORE: &str = "\
Examples:
  polycast lab cast bridge:8 model.bin
  polycast lab cast bridge:8,rate=1gbit model.bin --source h2 --receivers h0,h5 --fail agent:h5@1
  polycast lab cast datacast:bcube:4,2 model.bin --receivers 2,4,9,11,13,15 --fail link:s19-h14@2";

pub(crate) const LAB_COMPARE_MORE: &str = "\
Ways beside the lab's own fabric (polycast):
  tcp           the source sends to every receiver over a TCP connection of its own
  scp, rsync    the command for every receiver at the source, all at the same time; needs sshd, and scp or rsync
  nfs           every receiver copies from a server at the source; needs ganesha.nfsd (NFS-Ganesha) and nfs-cp (libnfs)
  bittorrent    a BitTorrent client at every host, all of them neighbours; needs aria2c
  single-tree   datacast labs: one tree of shortest ways with caches, as in content centric networking

The table says how often the object's bytes crossed the source's links and the busiest link, and how the bytes on \
all links compare with an ideal multicast, which crosses every link of one tree once. 'CPU' is the source's processor \
time. Each way begins when all of its ends are ready; 'in all' is from the request to the end, with set-up.

Examples:
  polycast lab compare datacast:bcube:4,2 model.bin --receivers 2,4,9,11,13,15 --with single-tree,tcp,bittorrent
  polycast lab compare bridge:9,rate=1gbit model.bin --with scp,rsync,nfs,bittorrent --rounds 3 --json
  polycast lab compare orca:4,rate=400mbit F --with tcp --counts 4,8,12";

pub(crate) const LAB_EXEC_MORE: &str = "\
Examples:
  polycast lab exec bridge h0 -- polycast status
  polycast lab exec bridge network -- ip -s link";

pub(crate) const SIMULATE: &str = "\
Simulate transfers packet by packet, in virtual time.

A scenario is a TOML file: a network, one or several transfers over it by push, pull or TCP, other traffic, and what fails \
when. The machines are those of the daemons. The same file and seed give the same run: trace_hash covers every \
event in order.";

pub(crate) const SIMULATE_MORE: &str = "\
A scenario:
  [network]
  topology = \"leaf-spine:4,2,8\"
  [links]
  rate = \"10gbit\"
  delay = \"1us\"
  loss = 0.0001
  [transfer]
  transport = \"push\"
  source = 0
  receivers = \"all\"
  bytes = \"16M\"

docs/simulation.md lists all keys. More samples are in docs/scenarios, and in packages in /usr/share/doc/polycast/scenarios.

Examples:
  polycast simulate /usr/share/doc/polycast/scenarios/spine-fails.toml
  polycast simulate scenario.toml --seed 7 --json
  polycast simulate scenario.toml --series run.csv --interval 100us
  polycast simulate scenario.toml --sweep links.queue=64K,256K,1M --sweep seed=1,2,3 --out queues.csv
  polycast simulate scenario.toml --sweep 'network.topology=leaf-spine:4,2,8;leaf-spine:4,2,16'";
