"""Clients that know nothing of this package: Python's own gRPC, with code made from the protos as docs/api.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polycast
import pytest
from conftest import HANG_S

pytest.importorskip("grpc")
pytest.importorskip("grpc_tools")

PROTOS = Path(__file__).parents[2] / "crates/api/proto"

# In a process of its own: what protoc makes is called as this package is.
CLIENT = """
import sys
import grpc
from polycast.agent.v1.agent_pb2 import AddRequest, ReadRequest, RegisterRequest, SendRequest
from polycast.agent.v1.agent_pb2_grpc import AgentStub
from polycast.agent.v1.types_pb2 import Caller

socket, app, version, number, path, name = sys.argv[1:]
# Without this option the client names the socket's path as the authority, which the agent's HTTP/2 library refuses.
options = [("grpc.default_authority", "localhost")]
with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
    agent = AgentStub(channel)
    caller = Caller(app_id=bytes.fromhex(app), process_id=7)
    joined = agent.Register(RegisterRequest(protocol_version=int(version), caller=caller))
    assert joined.agent_name == name, joined
    agent.Add(AddRequest(caller=caller, data_id=int(number), path=path))
    events = list(agent.Send(SendRequest(caller=caller, data_id=int(number), all=True)))
    assert all(receiver.verified for receiver in events[-1].finished.receivers), events[-1]
    try:
        agent.Read(ReadRequest(caller=caller, data_id=int(number) + 1, known_only=True))
        raise AssertionError("it is not here")
    except grpc.RpcError as refused:
        assert dict(refused.trailing_metadata())["polycast-error"] == "object-unknown", refused
"""


def test_pythons_own_grpc_sends_an_object(cluster: list[polycast.Agent], number: int, tmp_path: Path) -> None:
    protos = [f"polycast/agent/v1/{name}.proto" for name in ("agent", "objects", "types")] + ["polycast/manager/v1/status.proto"]
    stubs = tmp_path / "stubs"
    for folder in ("polycast", "polycast/agent", "polycast/agent/v1", "polycast/manager", "polycast/manager/v1"):
        (stubs / folder).mkdir(parents=True)
        (stubs / folder / "__init__.py").touch()
    line = ["-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
    subprocess.run([sys.executable, *line, *protos], check=True)
    file = tmp_path / "from-grpc"
    file.write_bytes(b"from a foreign client" * 1000)
    source = cluster[0]
    socket = source.socket
    version = str(polycast._native.PROTOCOL_VERSION)
    arguments = [socket, source._app.hex(), version, str(number), str(file), source.name]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments], env={"PYTHONPATH": str(stubs)}, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    assert bytes(cluster[1].read(number, HANG_S).map()) == file.read_bytes()
