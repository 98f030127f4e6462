# SPDX-License-Identifier: Apache-2.0
"""select: which backend runs a call, and why. Plain eager code, and code that torch traces."""

from __future__ import annotations

from cynosure import _core, log
from cynosure import device as _device
from cynosure._constant import compiling
from cynosure.decision import Decision
from cynosure.device import Device
from cynosure.problem import Problem
from cynosure.settings import Settings, eager_word, traced_word


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
    if compiling():
        from cynosure._tracing import decide

        word = traced_word() if settings is None else settings.word
        key = _device.this_key_constant() if device is None else device.key
        answers, chosen, eligible = decide(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k, word, key)
        return Decision(problem, word, key, answers, chosen, eligible)
    key = _device.this_key() if device is None else device.key
    word = eager_word() if settings is None else settings.word
    chosen, eligible = _core.outcome(problem.key, problem.batch, problem.seqlen_q, problem.seqlen_k, word, key)
    if log.wanted():
        log.decided(problem.key, (problem.batch, problem.seqlen_q, problem.seqlen_k), word, key, None)
    return Decision(problem, word, key, None, chosen, eligible)
