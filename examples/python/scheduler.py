"""A scheduler for the manager: requests that take the least time go first, and none waits for longer than a minute behind others.

    python scheduler.py [ADDRESS]

ADDRESS is 127.0.0.1:7500 if it is left out. The manager's settings name it (docs/howto/scheduler.md):

    [scheduler]
    address = "http://127.0.0.1:7500"

It needs grpcio, and code made from scheduler.proto:

    python -m grpc_tools.protoc -I crates/api/proto --python_out=. --grpc_python_out=. polycast/scheduler/v1/scheduler.proto
"""

import sys
from collections import Counter
from collections.abc import Iterable
from concurrent import futures
from typing import Any

import grpc
from polycast.scheduler.v1 import scheduler_pb2 as messages
from polycast.scheduler.v1 import scheduler_pb2_grpc as services

# One that has waited for this long goes before all that are shorter: otherwise short ones could keep it waiting without an end.
PATIENCE_MS = 60_000


def order(requests: Iterable[Any]) -> list[Any]:
    """The requests in the order in which they get paths: overdue ones as they came, then the shortest first."""

    def key(request: Any) -> tuple[bool, int, int]:
        is_overdue = request.waited_ms >= PATIENCE_MS
        return (not is_overdue, 0 if is_overdue else request.remaining_bytes, request.id)

    return sorted(requests, key=key)


class Shortest(services.SchedulerServicer):  # type: ignore[misc]
    def Decide(self, question: Any, _: grpc.ServicerContext) -> Any:
        free = Counter({things.kind: things.count for things in question.free})
        decisions = []
        for request in order(question.requests):
            takes = Counter({things.kind: things.count for things in request.takes})
            if takes <= free:
                free -= takes
                # The manager may know better which fabric is free: then it waits, and that is no mistake.
                accept = messages.Accept(if_free=True)
                decisions.append(messages.Decision(id=request.id, accept=accept))
            elif request.waited_ms >= PATIENCE_MS:
                # What it lacks is kept for it: none of those behind it goes first.
                break
        return messages.Answer(decisions=decisions, ask_again_ms=1_000)


def serve(scheduler: Any, address: str) -> Any:
    """Serves until the program ends."""
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    services.add_SchedulerServicer_to_server(scheduler, server)
    server.add_insecure_port(address)
    server.start()
    print(f"decides at {address}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(Shortest(), sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7500")
