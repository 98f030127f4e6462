# SPDX-License-Identifier: Apache-2.0
"""Decision lines through Python's logging: CYNOSURE_LOG=decisions or =reasons, or NVTE_DEBUG=1 with NVTE_DEBUG_LEVEL.

Nothing is logged unless asked for. While torch traces, lines come at trace time.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from cynosure import _core
from cynosure._constant import ENVIRONMENT

logger = logging.getLogger("cynosure")

_MOST_REMEMBERED = 4096  # distinct decisions; forgotten when full, so that memory stays bounded
_seen: set[Any] = set()
_handler: logging.Handler | None = None


def level() -> str | None:
    """What is asked for: "decisions" (NVTE_DEBUG * NVTE_DEBUG_LEVEL is 1), "reasons" (more), or None."""
    asked = {part.strip() for part in os.environ.get("CYNOSURE_LOG", "").split(",")}
    if "reasons" in asked:
        return "reasons"
    if "decisions" in asked:
        return "decisions"
    try:
        product = int(os.environ.get("NVTE_DEBUG", "0")) * int(os.environ.get("NVTE_DEBUG_LEVEL", "0"))
    except ValueError:  # refused with a message where settings are read
        return None
    return None if product == 0 else "decisions" if product == 1 else "reasons"


def decided(key: bytes, lengths: tuple[int, int, int] | None, word: int, device: bytes, answers: Any) -> None:
    """Logs a decision that is new to this process."""
    wanted = level()
    if wanted is None:
        return
    identity = (key, lengths, word, device, answers, wanted)
    if identity in _seen:
        return
    if len(_seen) >= _MOST_REMEMBERED:
        _seen.clear()
    _seen.add(identity)
    _install_handler()
    from cynosure.decision import decision_of

    decision = decision_of(key, lengths, word, device, answers)
    chosen = "none" if decision.backend is None else decision.backend.name
    eligible = ", ".join(backend.name for backend in decision.order) or "none"
    logger.info("chose %s of %s for %s", chosen, eligible, decision.call_text())
    if wanted == "reasons":
        for backend, reasons in decision.reasons.items():
            for reason in reasons:
                actual = ", ".join(f"{name}={value}" for name, value in reason.actual)
                logger.info("  %s not: %s (%s); required: %s", backend.name, reason.rule, actual, reason.required)


_following = False


def follow_ledger() -> None:
    """Logs the decisions that operators make from now on, while they are asked for."""
    global _following
    if not _following:
        _following = True
        from cynosure import _core

        _core.set_ledger_sink(_made_by_operator)


def _made_by_operator(
    key: bytes, batch: int, seqlen_q: int, seqlen_k: int, word: int, device: bytes, backward: bool
) -> None:
    decided(key, (batch, seqlen_q, seqlen_k), word, device, None)


def _install_handler() -> None:
    """Lines to stderr, unless the host has set up logging itself."""
    global _handler
    if _handler is None and not logger.handlers and not logging.getLogger().handlers:
        _handler = logging.StreamHandler()
        _handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logger.addHandler(_handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


_last: tuple[tuple[Any, ...], bool] | None = None
_get = ENVIRONMENT.get


def wanted() -> bool:
    """Whether to log, for the eager path: three look-ups and a comparison."""
    global _last
    now = (_get(b"CYNOSURE_LOG"), _get(b"NVTE_DEBUG"), _get(b"NVTE_DEBUG_LEVEL"))
    last = _last
    if last is None or now != last[0]:
        _last = last = (now, level() is not None)
        _core.remember_logged(*last)
    return last[1]
