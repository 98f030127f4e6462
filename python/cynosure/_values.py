# SPDX-License-Identifier: Apache-2.0
"""Values cannot be changed: their attributes are properties that refuse assignment and name what to do instead.

Slots hold what they read. There is no `__setattr__`, which torch's tracer would follow for every object it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=type)


def _refusal(kind: str, name: str) -> Callable[[Any, Any], None]:
    article = "an" if kind[0] in "AEIOU" else "a"

    def refuse(_: Any, value: Any) -> None:
        raise AttributeError(f"{name}: cannot be set to {value!r}; {article} {kind} is a value, make another one")

    return refuse


def _reader(read: Callable[[Any, str], Any], name: str) -> Callable[[Any], Any]:
    return lambda value: read(value, name)


def value_class(cls: _T, fields: Iterable[str] = (), read: Callable[[Any, str], Any] | None = None) -> _T:
    """Gives a class a property for each of these fields, and lets all its properties refuse assignment."""
    for name in fields:
        if name not in vars(cls):
            assert read is not None
            setattr(cls, name, property(_reader(read, name)))
    for name, member in list(vars(cls).items()):
        if isinstance(member, property):
            setattr(cls, name, member.setter(_refusal(cls.__name__, name)))
    return cls
