# SPDX-License-Identifier: Apache-2.0
"""select: which backend runs a call, and why. Plain eager code, and code that torch traces."""

from __future__ import annotations

from operator import index

from cynosure import _core, log
from cynosure._tracing import compiling, decide, traced_word
from cynosure.backend import BACKENDS
from cynosure.decision import Decision
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
        value = problem._value
        word = traced_word() if settings is None else index(settings.word)
        machine = this_key_constant() if device is None else device.key
        answers, chosen, eligible = decide(value, word, machine)
    else:
        try:
            value = problem._value
            word, logged = eager_now() if settings is None else (settings.word, log.wanted())
            machine = this_key() if device is None else device.key
        except AttributeError:
            _check_types(problem, device, settings)
            raise
        answers = None
        chosen, eligible = _core.outcome(*value, word, machine)
        if logged:
            log.decided(value[0], value[1:], word, machine, None)
    decision = object.__new__(Decision)  # make_decision, inlined: a call costs the tracer 300 of its own
    decision.backend = BACKENDS[chosen]
    decision._made = (problem, word, machine, answers, eligible)
    return decision


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
