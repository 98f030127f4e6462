# SPDX-License-Identifier: Apache-2.0
"""explain: the verdicts of a decision as a table."""

from __future__ import annotations

from typing import Any

from cynosure.decision import Decision


def explanation_text(decision: Decision) -> str:
    """The table as plain text."""
    lines = [f"{decision!r}"]
    for backend, reasons in decision.reasons.items():
        lines.extend(f"{backend.name}: {reason.rule}" for reason in reasons)
    return "\n".join(lines)


def explain(*args: Any, **kwargs: Any) -> str:
    """The table for a call."""
    raise NotImplementedError
