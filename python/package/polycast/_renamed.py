"""Renamed arguments: the old name still works, and warns with the new one."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accepts an argument by its old name too, with a `DeprecationWarning`."""

    def accepts(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")

        def translate(given: dict[str, Any]) -> None:
            if old not in given:
                return
            if new in given:
                raise TypeError(f"{name}() got {new} and {old}, its old name: give {new} alone")
            warnings.warn(f"{name}({old}=) is called {new}= now", DeprecationWarning, stacklevel=3)
            given[new] = given.pop(old)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def waits(*args: Any, **given: Any) -> Any:
                translate(given)
                return await function(*args, **given)

            return waits  # type: ignore[return-value]

        @functools.wraps(function)
        def calls(*args: P.args, **given: P.kwargs) -> R:
            translate(given)
            return function(*args, **given)

        return calls

    return accepts


deadline_is_timeout = renamed("deadline", "timeout")


def variable(new: str, old: str, default: str) -> str:
    """Returns an environment variable, or the one of its old name with a `DeprecationWarning`."""
    if new not in os.environ and old in os.environ:
        warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=3)
        return os.environ[old]
    return os.environ.get(new, default)
