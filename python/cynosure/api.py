# SPDX-License-Identifier: Apache-2.0
"""select: which backend runs a call, and why. Plain eager code, and code that torch traces."""

from __future__ import annotations

from operator import index
from typing import Any

from cynosure import _core, _tracing, log
from cynosure._constant import ENVIRONMENT
from cynosure._tracing import compiling
from cynosure.decision import Decision, make_decision
from cynosure.device import Device, this_key, this_key_constant
from cynosure.problem import Problem
from cynosure.settings import Settings, eager_now


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
        decision = object.__new__(Decision)
        word = decision._traced_word() if settings is None else index(settings._word)
        machine = this_key_constant() if device is None else device._key
        answers, chosen, eligible = decision._decide(problem._value, word, machine)
        decision._made = (problem, word, machine, answers, eligible, chosen)
        return decision
    known: Any = _core.select_now(Decision, problem, device, settings, ENVIRONMENT, _tracing.added_faults)
    return _select(problem, device, settings) if known is None else known


def _select(problem: Problem, device: Device | None, settings: Settings | None) -> Decision:
    """Where something has changed since the last call, the decision is logged, or an argument is wrong."""
    try:
        value = problem._value
        word, logged, _ = eager_now() if settings is None else (settings._word, log.wanted(), None)
        machine = this_key() if device is None else device._key
    except AttributeError:
        _check_types(problem, device, settings)
        raise
    chosen, eligible = _core.outcome(*value, word, machine)
    if logged:
        log.decided(value[0], value[1:], word, machine, None)
    return make_decision(problem, word, machine, None, chosen, eligible)


def _check_types(problem: object, device: object, settings: object) -> None:
    """The error for an argument of another type, named; checked only once something has failed."""
    for name, value, kind, optional in (
        ("problem", problem, Problem, False),
        ("device", device, Device, True),
        ("settings", settings, Settings, True),
    ):
        if not isinstance(value, kind) and not (optional and value is None):
            hint = f", for example Device.named({value!r})" if name == "device" and isinstance(value, str) else ""
            raise TypeError(f"{name}: got {value!r}, expected a cynosure.{kind.__name__}{hint}")
