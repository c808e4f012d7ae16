"""Renamed arguments: the old name still works, and warns with the new one."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deadline_is_timeout(function: Callable[P, R]) -> Callable[P, R]:
    """Accepts `deadline=`, the old name of `timeout=`, with a `DeprecationWarning`."""

    def renamed(given: dict[str, Any]) -> None:
        if "deadline" not in given:
            return
        if "timeout" in given:
            raise TypeError(f"{function.__qualname__}() got timeout and deadline, its old name: give timeout alone")
        warnings.warn(f"{function.__qualname__}(deadline=) is called timeout= now", DeprecationWarning, stacklevel=3)
        given["timeout"] = given.pop("deadline")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waits(*args: Any, **given: Any) -> Any:
            renamed(given)
            return await function(*args, **given)

        return waits  # type: ignore[return-value]

    @functools.wraps(function)
    def calls(*args: P.args, **given: P.kwargs) -> R:
        renamed(given)
        return function(*args, **given)

    return calls
