# SPDX-License-Identifier: Apache-2.0
"""select: which backend runs a call, and why. Plain eager code, and code that torch traces."""

from __future__ import annotations

from typing import Any

from cynosure import _core, log
from cynosure import device as _device
from cynosure._constant import compiling, constant
from cynosure.decision import Decision
from cynosure.device import Device
from cynosure.problem import Problem
from cynosure.settings import Settings, current_word


@constant
def _step(key: bytes, word: int, device: bytes, answers: tuple[bool | None, ...]) -> tuple[int, int, int] | str:
    """The next length fact to decide, or (-1, chosen, eligible); an error as text."""
    try:
        result: tuple[int, int, int] = _core.step(key, word, device, answers)
    except ValueError as error:
        return str(error)
    if result[0] < 0:
        log.decided(key, None, word, device, answers)
    return result


def select(problem: Problem, device: Device | None = None, settings: Settings | None = None) -> Decision:
    """The decision for a problem: a pure function of its three arguments.

    Args:
        problem: the call. While torch traces, its batch and lengths may be symbolic: the trace then holds one decision
            region, and guards on its length facts only.
        device: the machine; None: this one.
        settings: the user's choice; None: the current environment's.

    Returns:
        The decision; its `backend` is None where nothing may run.
    """
    word = current_word() if settings is None else settings.word
    key = _device.this_key() if device is None else device.key
    if not compiling():
        chosen, eligible = _core.outcome(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k, word, key)
        if log.wanted_now():
            log.decided(problem.key, (problem.batch, problem.seqlen_q, problem.seqlen_k), word, key, None)
        return Decision(problem, word, key, None, chosen, eligible)
    from cynosure._tracing import decide

    answers, chosen, eligible = decide(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k, word, key)
    return Decision(problem, word, key, answers, chosen, eligible)
