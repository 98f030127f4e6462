# SPDX-License-Identifier: Apache-2.0
"""A comparable version that torch's tracer can follow."""

from __future__ import annotations

from typing import Any

from cynosure import _core
from cynosure._constant import constant
from cynosure._values import value_class

_FINAL = 8  # the core's rank of a release among dev, alpha, beta, candidate, final, post


@constant
def _parse(text: str) -> tuple[int, int, int, int, int, str] | None:
    return _core.version_parts(text)  # type: ignore[return-value]


@constant
def _text_of(version: Any) -> str:
    return str(version)


def _key(other: Any) -> tuple[int, ...] | None:
    """The comparison key of a Version, a tuple of ints, a text or a packaging Version; None for anything else."""
    if isinstance(other, Version):
        return other.key
    if isinstance(other, tuple):
        return (*(*other, 0, 0, 0)[:3], _FINAL, 0)
    if not isinstance(other, str):
        if not hasattr(other, "micro"):
            return None
        other = str(other)
    parts = _parse(other)
    return None if parts is None else parts[:5]


class Version:
    """A release number in PEP 440's order, without local part. Compares with itself, text, tuples and packaging's."""

    __slots__ = ("_parts",)
    # (major, minor, micro, phase, number, text): one attribute, because each costs the tracer
    _parts: tuple[int, int, int, int, int, str]

    def __init__(self, text: str) -> None:
        parts = _parse(text)
        if parts is None:
            raise ValueError(f"version: got {text!r}, expected a text such as '2.8.3' or '3.0.0b1'")
        self._parts = parts

    @property
    def key(self) -> tuple[int, ...]:
        """What versions are compared by: major, minor, micro, phase and the number within the phase."""
        return self._parts[:5]

    @property
    def major(self) -> int:
        """The first number."""
        return self._parts[0]

    @property
    def minor(self) -> int:
        """The second number."""
        return self._parts[1]

    @property
    def micro(self) -> int:
        """The third number."""
        return self._parts[2]

    def __eq__(self, other: object) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key == key

    def __ne__(self, other: object) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key != key

    def __lt__(self, other: Any) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key < key

    def __le__(self, other: Any) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key <= key

    def __gt__(self, other: Any) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key > key

    def __ge__(self, other: Any) -> bool:
        key = _key(other)
        return NotImplemented if key is None else self.key >= key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self._parts[5]

    def __repr__(self) -> str:
        return f"Version('{self._parts[5]}')"


value_class(Version)


def version_of_parts(parts: tuple[int, int, int, int, int, str]) -> Version:
    """A Version around `_core.version_parts`."""
    version = object.__new__(Version)
    version._parts = parts
    return version
