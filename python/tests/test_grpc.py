"""Clients that know nothing of this package: Python's own gRPC, with code made from the protos as docs/api.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polycast
import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc_tools")

PROTOS = Path(__file__).parents[2] / "crates/api/proto"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What protoc makes, in a folder whose name is not that of this package."""
    out = tmp_path_factory.mktemp("stubs")
    folder = PROTOS / "polycast/agent/v1"
    line = ["-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={out}", f"--grpc_python_out={out}", "agent.proto"]
    subprocess.run([sys.executable, *line], check=True)
    sys.path.insert(0, str(out))
    import agent_pb2  # type: ignore[import-not-found]
    import agent_pb2_grpc  # type: ignore[import-not-found]

    return agent_pb2, agent_pb2_grpc


def test_pythons_own_grpc_sends_an_object(stubs: Any, cluster: list[polycast.Agent], number: int, tmp_path: Path) -> None:
    messages, services = stubs
    file = tmp_path / "from-grpc"
    file.write_bytes(b"from a foreign client" * 1000)
    # Without this option the client names the socket's path as the authority, which the agent's HTTP/2 library refuses.
    options = [("grpc.default_authority", "localhost")]
    socket = cluster[0]._embedded.socket  # type: ignore[union-attr]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        agent = services.AgentStub(channel)
        version = polycast._native.PROTOCOL_VERSION
        caller = messages.Caller(app_id=cluster[0]._app, process_id=7)
        joined = agent.Register(messages.RegisterRequest(protocol_version=version, caller=caller))
        assert joined.agent_name == cluster[0].name
        agent.Add(messages.AddRequest(caller=caller, data_id=number, path=str(file)))
        events = list(agent.Send(messages.SendRequest(caller=caller, data_id=number, all=True)))
        assert all(receiver.verified for receiver in events[-1].finished.receivers)
        with pytest.raises(grpc.RpcError) as refused:
            agent.Read(messages.ReadRequest(caller=caller, data_id=number + 1, known_only=True))
        assert dict(refused.value.trailing_metadata())["polycast-error"] == "object-unknown"
    assert bytes(cluster[1].read(number, 10).map()) == file.read_bytes()
