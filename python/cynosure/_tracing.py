# SPDX-License-Identifier: Apache-2.0
"""Selection inside a torch.compile trace: lengths become length facts, one guard a fact, one graph a decision region.

Written for the tracer: each bytecode costs it tens of microseconds and each inlined function hundreds, so this is one
flat loop. Importing this module does not import torch.
"""

from __future__ import annotations

import sys
from operator import index
from typing import Any
from weakref import ref

from cynosure import _core, log
from cynosure._constant import constant

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
    about = {guard: text for guard, text in about.items() if "_ENVIRONMENT" in text}
    if all(any(f"b'{name}'" in text for text in about.values()) for name in names):
        _kept = (ref(trace), frozenset(about), state, result)


def in_this_trace(state: Any) -> Any:
    """What was kept in this trace for an equal state, while its guards are still there (torch may roll them back)."""
    kept = _kept
    if kept is None or kept[0]() is not _current_trace() or kept[2] != state:
        return None
    return kept[3] if kept[1] <= _guards(_current_trace()) else None


@constant
def _step(features: bytes, word: int, device: bytes, answers: tuple[bool | None, ...]) -> tuple[int, Any, int]:
    """(kind, of, constant) of the length fact to decide next, (-1, chosen, eligible), or (-2, error text, 0)."""
    try:
        result: tuple[int, int, int] = _core.step(features, word, device, answers)
    except ValueError as error:
        return -2, str(error), 0
    if result[0] < 0 and log.wanted():
        log.decided(features, None, word, device, answers)
    return result


@constant
def _outcome(features: bytes, batch: int, seqlen_q: int, seqlen_k: int, word: int, device: bytes) -> tuple[int, Any]:
    """(chosen, eligible) for lengths that are known, or (-2, error text)."""
    try:
        _core.validate(features, batch, seqlen_q, seqlen_k)
        result: tuple[int, int] = _core.outcome(features, batch, seqlen_q, seqlen_k, word, device)
    except ValueError as error:
        return -2, str(error)
    if log.wanted():
        log.decided(features, (batch, seqlen_q, seqlen_k), word, device, None)
    return result


def decide(value: tuple[bytes, Any, Any, Any], word: int, device: bytes) -> tuple[Any, int, int]:
    """(answers to the facts asked, chosen, eligible). Asks only what can still change the outcome.

    Where torch specialises the lengths anyway nothing is asked, and the answers are None.
    """
    features, batch, seqlen_q, seqlen_k = value
    if has_static_value(seqlen_q) and has_static_value(seqlen_k) and has_static_value(batch):
        chosen, eligible = _outcome(features, index(batch), index(seqlen_q), index(seqlen_k), word, device)
        if chosen == -2:
            raise ValueError(eligible)
        return None, chosen, eligible
    answers: tuple[bool | None, ...] = ()
    operands = (None, batch, seqlen_q, None, seqlen_k)  # by LengthFact::Operand
    while True:
        # A LengthFact (length_facts.hpp) by its kind: 0 equals, 1 multiple_of, 2 at_most, 3 q <= k, 4 q == k, 5 product.
        kind, of, constant = _step(features, word, device, answers)
        if kind < 0:
            break
        if kind < 3:
            length = operands[of]
            condition = length <= constant if kind == 2 else length % constant == 0 if kind == 1 else length == constant
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
