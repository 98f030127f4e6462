# SPDX-License-Identifier: Apache-2.0
"""Backends, contracts over them, and TransformerEngine's names for cuDNN's two."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Union

from cynosure import _core
from cynosure._core import Backend

# Indexed by the core's answer: its backend, or None for -1.
BACKENDS: tuple[Backend | None, ...] = (*Backend, None)


@dataclass(frozen=True)
class Contract:
    """What a caller asks of the choice: `auto`, or an ordered list that is preferred or required."""

    kind: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.kind if self.kind == "auto" else f"{self.kind}({', '.join(self.names)})"


BackendArgument = Union[str, Backend, "list[str | Backend]", "tuple[str | Backend, ...]", Contract]


_ALL = tuple(Backend.__members__)  # once, outside of traced code: torch 2.11 does not trace the look-up


def _names(kind: str, backends: tuple[Any, ...]) -> tuple[str, ...]:
    names = []
    for backend in backends:
        name = backend.name if isinstance(backend, Backend) else backend
        if not isinstance(name, str) or name not in _ALL:
            raise ValueError(f"backend: got {backend!r} in {kind}(...), expected one of {', '.join(_ALL)}")
        if name in names:
            raise ValueError(f"backend: {kind}(...) names {name!r} twice")
        names.append(name)
    if not names:
        raise ValueError(f"backend: {kind}() names no backend, expected one or more of {', '.join(_ALL)}")
    return tuple(names)


def prefer(*backends: str | Backend) -> Contract:
    """These first, in order, where eligible; then the policy's order."""
    return Contract("prefer", _names("prefer", backends))


def require(*backends: str | Backend) -> Contract:
    """These, in order, or `NoBackendError`."""
    return Contract("require", _names("require", backends))


def contract_of(backend: BackendArgument) -> Contract:
    """The contract of a `backend=` argument: a bare name or list is `require`; softness is written `prefer(...)`."""
    if isinstance(backend, Contract):
        return backend
    if isinstance(backend, Backend):
        return require(backend)
    if isinstance(backend, (list, tuple)):
        return require(*backend)
    if isinstance(backend, str):
        kind, *names = _core.parse_contract(backend)
        return Contract(kind, tuple(names))
    raise TypeError(
        f"backend: got {type(backend).__name__}, expected a name, a list of names, prefer(...) or require(...)"
    )


class FusedAttnBackend(enum.IntEnum):
    """TransformerEngine's fused sub-backends; the values are its ABI."""

    No_Backend = -1
    F16_arbitrary_seqlen = 1
    FP8 = 2

    @classmethod
    def cast(cls, value: Any) -> FusedAttnBackend:
        """The member for an int, a name, a member, or a foreign enum with the same values (TransformerEngine's own)."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            if value in cls.__members__:
                return cls[value]
        else:
            number = getattr(value, "value", value)  # pybind enums are no ints but have a value
            if isinstance(number, int) and not isinstance(number, bool):
                for member in cls:
                    if member.value == number:
                        return member
        allowed = ", ".join(f"{member.name} ({member.value})" for member in cls)
        raise ValueError(f"FusedAttnBackend: got {value!r}, expected one of {allowed}")

    def __eq__(self, other: object) -> bool:
        number = getattr(other, "value", other)  # also equal to a foreign enum's member of the same value
        return self._value_ == number if isinstance(number, int) else NotImplemented  # int.__eq__ does not trace

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = enum.IntEnum.__hash__


if tuple((member.name, member.value) for member in FusedAttnBackend) != _core.TE_SUB_BACKENDS:
    raise ImportError(f"FusedAttnBackend does not agree with the native core, which has {_core.TE_SUB_BACKENDS}")
