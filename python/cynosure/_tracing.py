# SPDX-License-Identifier: Apache-2.0
"""Selection inside a torch.compile trace: lengths become length facts, one guard a fact, one graph a decision region.

Written for the tracer: each bytecode costs it tens of microseconds and each inlined function hundreds, so this is one
flat loop. Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import index
from typing import Any, TypeVar
from weakref import ref

from cynosure import _core, log
from cynosure._constant import ENVIRONMENT, constant

# Digest of the rule set that faults.py holds besides the file of CYNOSURE_FAULTS. Text, because traced code guards on
# it and torch would make a number that changes symbolic.
added_faults = "0"

_F = TypeVar("_F", bound=Callable[..., Any])
_functions: dict[str, Callable[..., Any]] = {}


def in_traces(function: _F) -> _F:
    """Lets traced code `call` the function, by its name."""
    _functions[function.__name__] = function
    return function


@constant
def call(name: str, *args: Any) -> Any:
    """What a function gives, as a constant of the trace. One for many: each function a trace sees is a guard."""
    return _functions[name](*args)


# torch's own: the first set once its tracer is imported, the others once it traces, before traced code reads them.
_current_trace: Any = None
guard_or_false: Any = None
guard_or_true: Any = None
has_static_value: Any = None


@constant
def compiling() -> bool:
    """True while torch traces the caller; False where torch's tracer is not even imported."""
    if _current_trace is None:
        _find_torch()
    if _current_trace is None or _current_trace() is None:
        return False
    if guard_or_false is None:
        _import_guards()
    return True


def _find_torch() -> None:
    global _current_trace
    if "torch._dynamo" in sys.modules:
        context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
        _current_trace = getattr(context, "try_get", None)


def _import_guards() -> None:
    global guard_or_false, guard_or_true, has_static_value
    from torch.fx.experimental import symbolic_shapes

    has_static_value = getattr(symbolic_shapes, "has_static_value", _not_known_to_be_static)
    guard_or_true = symbolic_shapes.guard_or_true
    guard_or_false = symbolic_shapes.guard_or_false


def _not_known_to_be_static(length: Any) -> bool:
    return False


# What an earlier call in the trace worked out under guards: (the trace, its guards then, what it hangs on, the result).
_kept: tuple[Any, frozenset[Any], Any, Any] | None = None


def _guards(trace: Any) -> Any:
    return getattr(trace.guards_context.dynamo_guards, "inner", ())


def keep_for_this_trace(state: Any, result: Any, names: tuple[str, ...]) -> None:
    """Keeps a result for the next call in this trace, if the trace holds a guard on each of these variables.

    It need not hold them where a marked function of the user's calls us, which runs outside the trace.
    """
    global _kept
    trace = _current_trace() if _current_trace is not None else None
    if trace is None:
        return
    about = {guard: f"{guard.name}{guard.create_fn}" for guard in _guards(trace)}
    about = {guard: text for guard, text in about.items() if ".ENVIRONMENT" in text}
    if all(any(f"b'{name}'" in text for text in about.values()) for name in names):
        _kept = (ref(trace), frozenset(about), state, result)


def kept_in_this_trace(state: Any) -> Any:
    """What was kept in this trace for an equal state, while its guards are still there (torch may roll them back)."""
    kept = _kept
    if kept is None or kept[0]() is not _current_trace() or kept[2] != state:
        return None
    return kept[3] if kept[1] <= _guards(_current_trace()) else None


@in_traces
def step(features: bytes, word: int, device: bytes, answers: tuple[bool | None, ...]) -> tuple[int, Any, int]:
    """(kind, of, constant) of the length fact to decide next, (-1, chosen, eligible), or (-2, error text, 0)."""
    try:
        result: tuple[int, int, int] = _core.step(features, word, device, answers)
    except ValueError as error:
        return -2, str(error), 0
    if result[0] < 0 and log.wanted():
        log.decided(features, None, word, device, answers)
    return result


@in_traces
def outcome(features: bytes, batch: int, seqlen_q: int, seqlen_k: int, word: int, device: bytes) -> tuple[int, Any]:
    """(chosen, eligible) for lengths that are known, or (-2, error text)."""
    for name, length in (("batch", batch), ("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)):
        if length < 0:
            return -2, f"{name}: got {length}, expected 0 or more"
    try:
        result: tuple[int, int] = _core.outcome(features, batch, seqlen_q, seqlen_k, word, device)
    except ValueError as error:
        return -2, str(error)
    if log.wanted():
        log.decided(features, (batch, seqlen_q, seqlen_k), word, device, None)
    return result


class Traceable:
    """What objects made in traced code bring with them: torch reaches their methods without a guard."""

    __slots__ = ()

    def _traced_word(self) -> int:
        """The settings word of the current environment, torch's deterministic flag and its matmul precision.

        In traced code each variable leaves one guard, absent or not, and nothing else does: the keys are literal for
        that reason. tests/python/test_settings.py holds them to `_core.ENVIRONMENT`.
        """
        added = added_faults
        known: int | None = call("known_word", added)
        if known is not None:
            return known
        get = ENVIRONMENT.get
        word, error = call(
            "word_of_values",
            added,
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
        if error is not None:
            raise ValueError(error)
        return word  # type: ignore[no-any-return]

    def _decide(self, value: tuple[bytes, Any, Any, Any], word: int, device: bytes) -> tuple[Any, int, int]:
        """(answers to the facts asked, chosen, eligible). Asks only what can still change the outcome.

        Where torch specialises the lengths anyway nothing is asked, and the answers are None.
        """
        features, batch, seqlen_q, seqlen_k = value
        if has_static_value(seqlen_q) and has_static_value(seqlen_k) and has_static_value(batch):
            lengths = (index(batch), index(seqlen_q), index(seqlen_k))
            chosen, eligible = call("outcome", features, *lengths, word, device)
            if chosen == -2:
                raise ValueError(eligible)
            return None, chosen, eligible
        answers: tuple[bool | None, ...] = ()
        operands: tuple[Any, ...] = (None, batch, seqlen_q, None, seqlen_k)  # by LengthFact::Operand
        while True:
            # LengthFact::Kind: 0 equals, 1 multiple_of, 2 at_most, 3 q <= k, 4 q == k, 5 product_over.
            kind, of, constant = call("step", features, word, device, answers)
            if kind < 0:
                break
            if kind < 3:
                length = operands[of]
                condition = (
                    length <= constant if kind == 2 else length % constant == 0 if kind == 1 else length == constant
                )
            elif kind == 3:
                condition = seqlen_q <= seqlen_k
            elif kind == 4:
                condition = seqlen_q == seqlen_k
            else:
                product = constant
                if of & 1:
                    product = product * batch
                if of & 2:
                    product = product * seqlen_q
                if of & 4:
                    product = product * seqlen_k
                condition = product > 2147483647
            if guard_or_false(condition):
                answers += (True,)
            elif guard_or_true(condition):  # the two differ only where torch cannot decide: an unbacked size
                answers += (None,)
            else:
                answers += (False,)
        if kind == -2:
            raise ValueError(of)
        return answers, of, constant
