# SPDX-License-Identifier: Apache-2.0
"""Selection inside a torch.compile trace: lengths become length facts, one guard a fact, one graph a decision region.

Written for the tracer: each bytecode costs it tens of microseconds and each inlined function hundreds, so this is one
flat loop.
"""

from __future__ import annotations

from typing import Any

from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

from cynosure import _core, log
from cynosure._constant import constant


@constant
def _step(key: bytes, word: int, device: bytes, answers: tuple[bool | None, ...]) -> tuple[int, Any, int]:
    """(kind, of, constant) of the length fact to decide next, (-1, chosen, eligible), or (-2, error text, 0)."""
    try:
        result: tuple[int, int, int] = _core.step(key, word, device, answers)
    except ValueError as error:
        return -2, str(error), 0
    if result[0] < 0 and log.wanted():
        log.decided(key, None, word, device, answers)
    return result


def decide(key: bytes, batch: Any, seqlen_q: Any, seqlen_k: Any, word: int, device: bytes) -> tuple[Any, int, int]:
    """(answers to the facts asked, chosen, eligible). Asks only what can still change the outcome."""
    answers: tuple[bool | None, ...] = ()
    while True:
        # A LengthFact (length_facts.hpp) by its kind: 0 equals, 1 multiple_of, 2 at_most, 3 q <= k, 4 q == k, 5 product.
        kind, of, constant = _step(key, word, device, answers)
        if kind < 0:
            break
        if kind == 4:
            condition = seqlen_q == seqlen_k
        elif kind == 3:
            condition = seqlen_q <= seqlen_k
        elif kind == 5:
            product = constant
            if of & 1:
                product = product * batch
            if of & 2:
                product = product * seqlen_q
            if of & 4:
                product = product * seqlen_k
            condition = product > 2147483647
        else:
            length = batch if of == 1 else seqlen_q if of == 2 else seqlen_k
            condition = length <= constant if kind == 2 else length % constant == 0 if kind == 1 else length == constant
        if guard_or_false(condition):
            answers += (True,)
        elif guard_or_true(condition):  # the two differ only where torch cannot decide: an unbacked size
            answers += (None,)
        else:
            answers += (False,)
    if kind == -2:
        raise ValueError(of)
    return answers, of, constant
