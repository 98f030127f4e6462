# SPDX-License-Identifier: Apache-2.0
"""Selection inside a torch.compile trace: lengths become length facts, one guard a fact, one graph a decision region."""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

from cynosure.api import _step

_INT32_MAX = 2147483647


def _condition(kind: int, of: int, constant: int, batch: Any, seqlen_q: Any, seqlen_k: Any) -> Any:
    """A LengthFact (length_facts.hpp, by its kind) over lengths that may be symbolic."""
    if kind == 3:
        return seqlen_q <= seqlen_k
    if kind == 4:
        return seqlen_q == seqlen_k
    if kind == 5:
        product = constant
        if of & 1:
            product = product * batch
        if of & 2:
            product = product * seqlen_q
        if of & 4:
            product = product * seqlen_k
        return product > _INT32_MAX
    length = batch if of == 1 else seqlen_q if of == 2 else seqlen_k
    if kind == 0:
        return length == constant
    if kind == 1:
        return length % constant == 0
    return length <= constant


def decide(key: bytes, batch: Any, seqlen_q: Any, seqlen_k: Any, word: int, device: bytes) -> tuple[Any, int, int]:
    """(answers to the facts asked, chosen, eligible). Asks only what can still change the outcome."""
    answers: tuple[bool | None, ...] = ()
    while True:
        step = _step(key, word, device, answers)
        if isinstance(step, str):
            raise ValueError(step)
        if step[0] < 0:
            return answers, step[1], step[2]
        condition = _condition(step[0], step[1], step[2], batch, seqlen_q, seqlen_k)
        if guard_or_false(condition):
            answers = (*answers, True)
        elif guard_or_true(condition):  # the two differ only where torch cannot decide: an unbacked size
            answers = (*answers, None)
        else:
            answers = (*answers, False)
