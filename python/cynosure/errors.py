# SPDX-License-Identifier: Apache-2.0
"""Errors of the public interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cynosure.decision import Decision


class NoBackendError(RuntimeError):
    """No backend may run this call. The message says what to do, then holds the whole table of reasons."""


def no_backend(decision: Decision) -> NoBackendError:
    """The error for a decision without a backend."""
    from cynosure.explain import explanation_text

    return NoBackendError(f"{_what_to_do(decision)}\n\n{explanation_text(decision)}")


def _what_to_do(decision: Decision) -> str:
    """One line: the smallest verified change that makes a backend eligible."""
    from cynosure.explain import best_remedy

    settings = decision.settings.to_dict()
    off = [name for name in settings["named"] if settings["contract"] == "require" and name in settings["switched_off"]]
    what = (
        f"no backend may run this call: {', '.join(off)} is required and switched off"
        if off
        else "no backend may run this call"
    )
    remedy = best_remedy(decision)
    if remedy is not None:
        return f"{what}. To run {remedy[0].name}: {remedy[1]}"
    if not decision.device.to_dict()["built"]:
        return f"{what}: this release has no kernels for this machine; Device.named(...) asks about another"
    return f"{what}; the table has every reason"
