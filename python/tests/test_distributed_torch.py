"""Jobs of torchrun: the processes meet in the store of torch.distributed, and modules get the weights of one of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HANG_S, free_port
from polycast import distributed, errors
from test_distributed import in_namespaces, model, same  # noqa: F401

torch = pytest.importorskip("torch")

# One thread a process, and what several processes say comes line by line.
ALONE = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
RUN = [sys.executable, "-m", "torch.distributed.run"]

MODULES = """
import os, sys
import torch
from pathlib import Path
from polycast import distributed, errors
from polycast import torch as weights

rank = int(os.environ["RANK"])
torch.manual_seed(rank)
module = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400), torch.nn.Linear(400, 10, dtype=torch.bfloat16))
module[1].running_mean += rank

def total():
    return sum(float(tensor.double().sum()) for tensor in module.state_dict().values())

def is_of(source):
    torch.manual_seed(source)
    own = torch.nn.Linear(300, 400)
    return torch.equal(module[0].weight, own.weight) and float(module[1].running_mean[0]) == source
"""


def torchrun(folder: Path, script: str, *arguments: str) -> str:
    (folder / "script.py").write_text(MODULES + script)
    line = [*RUN, "--nproc-per-node", "4", "--master-port", str(free_port()), str(folder / "script.py"), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=2 * HANG_S, env=os.environ | ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("group", ["none", "gloo"])
def test_four_processes_of_torchrun(tmp_path: Path, group: str) -> None:
    script = f"""
if {group!r} != "none":
    torch.distributed.init_process_group({group!r})
distributed.broadcast_module(module)
assert is_of(0), total()
torch.manual_seed(7 + rank)
module[0].reset_parameters()
distributed.broadcast_module(module, src=2)
assert not is_of(0)
if {group!r} != "none":
    sums = [None] * 4
    torch.distributed.all_gather_object(sums, total())
    assert len(set(sums)) == 1, sums
    torch.distributed.destroy_process_group()
apart = torch.nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
distributed.broadcast_module(apart, src=1)
wrong = module if rank != 3 else torch.nn.Linear(3, 4)
try:
    distributed.broadcast_module(wrong, src=1)
except errors.PolycastError as error:
    sys.stdout.write(f"{{rank}} {{type(error).__name__}}: {{error}}\\n")
try:
    distributed.broadcast_module({{"no": "module"}})
except errors.UnsupportedType as error:
    assert "give a torch.nn.Module" in str(error)
except errors.TransferFailed as error:
    assert rank and "failed at rank" in str(error)
assert distributed.broadcast_folder(__file__, src=3) == Path(__file__)
sys.stdout.write("the end\\n")
"""
    said = torchrun(tmp_path, script)
    assert said.count("the end") == 4, said
    assert "3 WeightsMismatch" in said and "'0.weight' is not in the module" in said
    for rank in range(3):
        assert f"{rank} TransferFailed: broadcast_module(src=1) failed at rank 3 on " in said


def test_four_hosts_in_a_network(model: Path, tmp_path: Path) -> None:  # noqa: F811
    script = """
folder = Path(sys.argv[1])
with distributed.init() as group:
    group.broadcast_module(module, src=2)
    assert is_of(2), total()
    versions = weights.subscribe("policy", agent=group.agent)
    group.barrier()
    if rank == 1:
        weights.publish(torch.nn.Linear(2, 3, bias=False), "policy", agent=group.agent)
    assert versions.next(60).state_dict()["weight"].shape == (3, 2)
    found = group.broadcast_folder(folder / "model", src=4, into=folder / str(rank))
    # At once: workers of torchrun do not buffer, and what two of them print would mix.
    sys.stdout.write(f"{found} {len(group.hosts)} {group.agent.manager}\\n")
"""
    line = (
        'exec "$PYTHON" -m torch.distributed.run --nnodes 4 --nproc-per-node 2 --node-rank $HOST --master-addr $FIRST'
        ' --master-port 29500 "$FOLDER/script.py" "$FOLDER"'
    )
    said = sorted(one.rsplit(":", 1)[0] for one in in_namespaces(tmp_path, MODULES + script, line).splitlines())
    places = ["0/model"] * 2 + ["2/model"] * 2 + ["6/model"] * 2 + ["model"] * 2
    assert said == [f"{tmp_path}/{place} 4 10.78.0.1" for place in places]
    assert all(same(tmp_path / rank / "model", tmp_path / "model") for rank in "026")


def test_the_job_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/python.md").read_text()
    (code,) = re.findall(r"Save this as `job.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"^\$ torchrun (--nproc-per-node 4 job.py)$", page, re.MULTILINE)
    (tmp_path / "job.py").write_text(code)
    done = subprocess.run(
        # A file for each worker: they do not buffer, and what two of them print would mix.
        [*RUN, "--master-port", str(free_port()), "--redirects", "1", "--log-dir", "said", *line.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=2 * HANG_S, env=os.environ | ALONE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [file.read_text().split() for file in (tmp_path / "said").rglob("stdout.log")]
    assert sorted(one[0] for one in said) == ["0", "1", "2", "3"]
    assert len({one[2] for one in said}) == 1 and {one[1] for one in said} == {str(tmp_path / "model")}


@pytest.mark.parametrize("starts", ["a user", "Slurm"])
def test_without_torchrun_rank_0_has_the_store(starts: str) -> None:
    script = MODULES + """
with distributed.init(timeout=60) as group:
    group.broadcast_module(module, src=1)
    assert is_of(1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
group = distributed.init(timeout=60)
group.broadcast_module(torch.nn.Linear(2, 2))
print("the end")
"""
    port = free_port()
    if starts == "Slurm":
        script = script.replace('"RANK"])', '"SLURM_PROCID"])')
        # The job's number chooses the port.
        names = {"SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": str(port - 20_000 + 7_000_000)}
    else:
        names = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = "SLURM_PROCID" if starts == "Slurm" else "RANK"
    environment = os.environ | names | ALONE
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environment | {own: str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        assert [one.communicate(timeout=HANG_S)[0] for one in processes] == ["the end\n"] * 3
    finally:
        for one in processes:
            one.kill()


def test_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(errors.TimedOut, match="no store of torch.distributed at MASTER_ADDR=127.0.0.1"):
        distributed.init(rank=1, world_size=2, timeout=1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(errors.Invalid, match="no store of torch.distributed at"):
            distributed.init(rank=0, world_size=2, timeout=1)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(errors.TimedOut, match="^rank 1 did not come within 1 s$"):
        distributed.init(rank=0, world_size=2, timeout=1)


def test_a_module_that_is_spread_over_the_ranks_is_refused_at_each(tmp_path: Path) -> None:
    """Its state dict is gathered by all ranks together: asked of one alone it would wait for the others without an end."""
    script = """
from torch.distributed.fsdp import FullyShardedDataParallel
torch.distributed.init_process_group("gloo")
spread = FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu"))
try:
    distributed.broadcast_module(spread)
except errors.PolycastError as error:
    sys.stdout.write(f"{rank} {type(error).__name__}: {error}\\n")
distributed.broadcast_module(module)
assert is_of(0)
torch.distributed.destroy_process_group()
"""
    said = torchrun(tmp_path, script)
    assert len([line for line in said.splitlines() if "spread over processes (FSDP)" in line]) == 4, said
