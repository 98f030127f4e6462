# SPDX-License-Identifier: Apache-2.0
"""Settings: what the user switched on or off, as one 64-bit word, and how the environment becomes one."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from cynosure import _core
from cynosure._constant import compiling, constant
from cynosure.backend import BackendArgument, contract_of

# The dict behind os.environ. Dynamo guards look-ups in it, of absent keys too; those in os.environ itself it does not.
_ENVIRONMENT: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]

# Digest of the rule set in force besides the file that CYNOSURE_FAULTS names; see faults.py. Traced code guards on it.
added_faults = 0


def _torch_state() -> tuple[bool, int]:
    """(deterministic, matmul precision), without importing torch.

    The precision is 0 for "highest" and 1 below it: torch's tracer guards no finer, and the two lower ones allow us the same.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_float32_matmul_precision"):
        return False, 0
    return torch.are_deterministic_algorithms_enabled(), 0 if torch.get_float32_matmul_precision() == "highest" else 1


@constant
def _word_of(added: int, *values: bytes | None) -> int | str:
    """The word for these values of `_core.ENVIRONMENT`, or an error as text."""
    deterministic, precision = _torch_state()
    try:
        return _core.settings_from_environment(values, deterministic, precision, _rules_digest(added, values))
    except ValueError as error:
        return str(error)


def _rules_digest(added: int, values: tuple[bytes | None, ...]) -> int:
    path = values[_core.ENVIRONMENT.index("CYNOSURE_FAULTS")]
    if path is None and added == 0:
        return 0
    from cynosure import faults

    return faults.digest_with_file(os.fsdecode(path) if path else None)


def traced_word() -> int:
    """The word of the current environment, torch's deterministic flag and its matmul precision.

    In traced code each variable leaves one guard, absent or not, and nothing else does: the keys are literal for that
    reason. tests/python/test_settings.py holds them to `_core.ENVIRONMENT`.
    """
    get = _ENVIRONMENT.get
    word = _word_of(
        added_faults,
        get(b"NVTE_FLASH_ATTN"),
        get(b"NVTE_FLASH_ATTN_V2"),
        get(b"NVTE_FLASH_ATTN_V3"),
        get(b"NVTE_FLASH_ATTN_V4"),
        get(b"NVTE_FUSED_ATTN"),
        get(b"NVTE_UNFUSED_ATTN"),
        get(b"NVTE_UnfusedDPA_Emulate_FP8"),
        get(b"NVTE_ALLOW_NONDETERMINISTIC_ALGO"),
        get(b"NVTE_DEBUG"),
        get(b"NVTE_DEBUG_LEVEL"),
        get(b"CYNOSURE_POLICY"),
        get(b"CYNOSURE_BACKEND"),
        get(b"CYNOSURE_LOG"),
        get(b"CYNOSURE_CPU_ISA"),
        get(b"CYNOSURE_CHECK"),
        get(b"CYNOSURE_FAULTS"),
    )
    if isinstance(word, str):
        raise ValueError(word)
    return word


def eager_word() -> int:
    """The same, remembered until a variable or one of the flags changes. Not for traced code."""
    deterministic, precision = _torch_state()
    known = _core.known_word(_ENVIRONMENT, deterministic, precision, added_faults)
    if known is None:
        known = traced_word()
        _core.remember_word(_ENVIRONMENT, deterministic, precision, added_faults, known)
    return known  # type: ignore[no-any-return]


def current_word() -> int:
    """`eager_word` or `traced_word`, as the caller needs."""
    return traced_word() if compiling() else eager_word()


class Settings:
    """The packed 64-bit user choice. `Settings.current()` reads the environment; the constructor starts from defaults.

    Args:
        backend: the contract: "auto", a name or list (required), `prefer(...)` or `require(...)`.
        policy: "fastest" or "te".
        deterministic: results must not vary between runs.
        switched_off: names of backends that must not run.
    """

    __slots__ = ("word",)
    word: int  # two's complement, as operators take it

    def __init__(
        self,
        *,
        backend: BackendArgument = "auto",
        policy: str = "fastest",
        deterministic: bool = False,
        switched_off: tuple[str, ...] | list[str] = (),
    ) -> None:
        contract = contract_of(backend)
        names = list(_core.Backend.__members__)
        for name in switched_off:
            if name not in names:
                raise ValueError(f"switched_off: got {name!r}, expected one of {', '.join(names)}")
        self.word = _core.settings_with(
            _core.default_settings(),
            contract=contract.kind,
            names=list(contract.names),
            policy=policy,
            deterministic=bool(deterministic),
            enabled=[name for name in names if name not in switched_off],
            rules_digest=added_faults,
        )

    @classmethod
    def current(cls, *, backend: BackendArgument | None = None, policy: str | None = None) -> Settings:
        """Of this process now. Precedence: the arguments here, `CYNOSURE_*`, `NVTE_*`."""
        word = current_word()
        if backend is not None or policy is not None:
            contract = None if backend is None else contract_of(backend)
            word = _core.settings_with(
                word,
                contract=None if contract is None else contract.kind,
                names=None if contract is None else list(contract.names),
                policy=policy,
            )
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
        """From `to_json`'s text; only the word counts."""
        value = json.loads(text)
        word = value.get("word") if isinstance(value, dict) else None
        try:
            return cls.from_word(int(word, 0))
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings: got {text[:80]!r}, expected an object with a word such as \"0x...\": {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.word == other.word

    def __hash__(self) -> int:
        return hash(self.word)

    def __repr__(self) -> str:
        return f"<Settings {self.describe()}>"


def settings_of_word(word: int) -> Settings:
    """Settings around a word that is known to be sound."""
    settings = object.__new__(Settings)
    settings.word = word
    return settings
