"""Agents for the tests: real ones, of the program in the package."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import polycast
import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[polycast.Agent]]:
    """A manager, and four agents of one application."""
    app = uuid.uuid4()
    agents = [polycast.Agent.embedded(app=app)]
    try:
        agents += [polycast.Agent.embedded(agents[0].manager, app=app) for _ in range(3)]
        yield agents
    finally:
        for agent in reversed(agents):
            agent.close()


@pytest.fixture
def number() -> int:
    """A number that no other test has."""
    return uuid.uuid4().int >> 65
