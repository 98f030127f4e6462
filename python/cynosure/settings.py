# SPDX-License-Identifier: Apache-2.0
"""Settings: what the user switched on or off, as one 64-bit word, and how the environment becomes one."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from cynosure import _core, _tracing, log
from cynosure._constant import ENVIRONMENT, constant
from cynosure._json import read_object
from cynosure._tracing import (
    Traceable,
    compiling,
    in_traces,
    keep_for_this_trace,
    kept_in_this_trace,
)
from cynosure._values import value_class
from cynosure.backend import BackendArgument, Contract, contract_of

_flags: tuple[Any, Any] | None = None  # torch's functions, once it is imported


def _torch_state() -> tuple[bool, int]:
    """(deterministic, matmul precision), without importing torch.

    The precision is 0 for "highest" and 1 below it: torch's tracer guards no finer, and both lower ones allow the same.
    """
    global _flags
    flags = _flags
    if flags is None:
        torch = sys.modules.get("torch")
        if not hasattr(torch, "get_float32_matmul_precision"):
            return False, 0
        # What torch.are_deterministic_algorithms_enabled and torch.get_float32_matmul_precision return.
        native: Any = torch._C  # type: ignore[union-attr]
        _flags = flags = (native._get_deterministic_algorithms, native._get_float32_matmul_precision)
    return flags[0](), 0 if flags[1]() == "highest" else 1


def _word_of(values: tuple[bytes | None, ...], deterministic: bool, precision: int, added: str) -> int:
    """The word for these values of `_core.ENVIRONMENT`. Raises ValueError naming the variable."""
    path = values[_core.ENVIRONMENT.index("CYNOSURE_FAULTS")]
    digest = 0
    if path is not None or added != "0":
        from cynosure import faults

        digest = faults.digest_with_file(os.fsdecode(path) if path else None)
    return int(_core.settings_from_environment(values, deterministic, precision, digest))


@in_traces
def known_word(added: str) -> int | None:
    """The word where an earlier call in this trace has left all guards; None: read the environment."""
    word: int | None = kept_in_this_trace((added, _torch_state()))
    return word


@in_traces
def word_of_values(added: str, *values: bytes | None) -> tuple[int, str | None]:
    """The word for these values of `_core.ENVIRONMENT`, or an error as text."""
    state = _torch_state()
    try:
        word = _word_of(values, *state, added)
    except ValueError as error:
        return 0, str(error)
    keep_for_this_trace((added, state), word, _core.ENVIRONMENT)
    return word, None


_KEYS = tuple(os.fsencode(name) for name in _core.ENVIRONMENT)


def eager_now() -> tuple[int, bool, bytes | None]:
    """(the word of now, whether decisions may have to be logged, this machine where it is remembered).

    Remembered until something changes. Not for traced code.
    """
    added = _tracing.added_faults
    now: Any = _core.recall(ENVIRONMENT, added)
    if now is not None:
        return now  # type: ignore[no-any-return]
    deterministic, precision = _torch_state()
    values = tuple([ENVIRONMENT.get(key) for key in _KEYS])
    word = _word_of(values, deterministic, precision, added)
    _core.remember(values, added, _flags, deterministic, precision, word)
    return word, log.wanted(), None


def traced_word() -> int:
    """The word of now in traced code."""
    return object.__new__(Traceable)._traced_word()


def current_word() -> int:
    """The word of now, traced or not, as the caller needs."""
    return traced_word() if compiling() else eager_now()[0]


class Settings:
    """The packed 64-bit user choice. `Settings.current()` reads the environment; the constructor starts from defaults.

    Args:
        backend: the contract: "auto", a name or list (required), `prefer(...)` or `require(...)`.
        policy: "fastest" or "te".
        deterministic: results must not vary between runs.
        switched_off: names of backends that must not run.
    """

    __slots__ = ("_word",)
    _word: int

    def __init__(
        self,
        *,
        backend: BackendArgument = "auto",
        policy: str = "fastest",
        deterministic: bool = False,
        switched_off: str | tuple[str, ...] | list[str] = (),
    ) -> None:
        kind, names = (backend.kind, backend.names) if isinstance(backend, Contract) else (None, backend)
        digest = _digest(_tracing.added_faults)
        self._word = _checked(*_word_with(_DEFAULT, kind, names, policy, deterministic, switched_off, digest))

    @property
    def word(self) -> int:
        """The 64 bits in two's complement, as operators take them."""
        return self._word

    @classmethod
    def current(cls, *, backend: BackendArgument | None = None, policy: str | None = None) -> Settings:
        """Of this process now. Precedence: the arguments here, `CYNOSURE_*`, `NVTE_*`."""
        word = current_word()
        if backend is not None or policy is not None:
            word = word_over(word, backend, policy)
        return settings_of_word(word)

    @classmethod
    def from_word(cls, word: int) -> Settings:
        """The settings a word stands for; refuses a word of another layout version."""
        signed = word - (1 << 64) if word >= 1 << 63 else word
        return settings_of_word(_core.check_settings(signed))

    def describe(self) -> str:
        """One readable line."""
        return str(_core.settings_describe(self.word))

    def to_dict(self) -> dict[str, Any]:
        """The parts of the word by name, and the word."""
        return {"word": f"{self.word & (1 << 64) - 1:#018x}", **_core.settings_dict(self.word)}

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """From `to_json`'s text. The word counts; whatever else is there must agree with it."""
        try:
            value = read_object(text, "settings")
            settings = cls.from_word(int(value["word"], 0))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f'settings: got {text[:80]!r}, expected an object with a word such as "0x...": {error}'
            ) from None
        parts = {**settings.to_dict(), "describe": settings.describe()}
        for name, given in value.items():
            if name not in parts:
                raise ValueError(f"settings: got the key {name!r}, expected one of {', '.join(parts)}")
            if name != "word" and given != parts[name]:
                raise ValueError(f"{name}: got {given!r}, but the word {value['word']} says {parts[name]!r}")
        return settings

    def __reduce__(self) -> tuple[Any, ...]:
        return Settings.from_word, (self.word,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.word == other.word

    def __hash__(self) -> int:
        return hash(self.word)

    def __repr__(self) -> str:
        return f"<Settings {self.describe()}>"


value_class(Settings)

_DEFAULT: int = _core.default_settings()


@constant
def _digest(added: str) -> int:
    return int(added)


@constant
def _word_with(
    word: int, kind: str | None, backend: Any, policy: Any, deterministic: Any, switched_off: Any, digest: int | None
) -> tuple[int, str | None, bool]:
    """(the word with these parts replaced; those that are None are kept), or (0, error text, whether a type is wrong).

    A contract comes as its kind and names.
    """
    try:
        contract = None if backend is None else contract_of(backend) if kind is None else Contract(kind, backend)
        if not (policy is None or isinstance(policy, str)):  # the core checks the name
            raise ValueError(f"policy: got {policy!r}, expected 'fastest' or 'te'")
        if not (deterministic is None or isinstance(deterministic, bool)):
            raise ValueError(f"deterministic: got {deterministic!r}, expected True or False")
        known = list(_core.Backend.__members__)
        if not (switched_off is None or isinstance(switched_off, (str, list, tuple))):
            raise ValueError(f"switched_off: got {switched_off!r}, expected a name or a list of {', '.join(known)}")
        off = () if switched_off is None else (switched_off,) if isinstance(switched_off, str) else tuple(switched_off)
        for name in off:
            if name not in known:
                raise ValueError(f"switched_off: got {name!r}, expected one of {', '.join(known)}")
        changed: int = _core.settings_with(
            word,
            contract=None if contract is None else contract.kind,
            names=None if contract is None else list(contract.names),
            policy=policy,
            deterministic=deterministic,
            enabled=None if switched_off is None else [name for name in known if name not in off],
            rules_digest=digest,
        )
    except (ValueError, TypeError) as error:
        return 0, str(error), isinstance(error, TypeError)
    return changed, None, False


def _checked(word: int, error: str | None, wrong_type: bool) -> int:
    if wrong_type:
        raise TypeError(error)
    if error is not None:
        raise ValueError(error)
    return word


def word_over(word: int, backend: BackendArgument | None, policy: str | None) -> int:
    """The word with a call's contract and policy over it; None keeps a part. Works in traced code, too."""
    kind, names = (backend.kind, backend.names) if isinstance(backend, Contract) else (None, backend)
    return _checked(*_word_with(word, kind, names, policy, None, None, None))


def settings_of_word(word: int) -> Settings:
    """Settings around a word that is known to be sound."""
    settings = object.__new__(Settings)
    settings._word = word
    return settings
