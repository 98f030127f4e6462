# SPDX-License-Identifier: Apache-2.0
"""Errors of the public interface."""

from __future__ import annotations


class NoBackendError(RuntimeError):
    """No backend may run this call. The message is the whole table of reasons."""
