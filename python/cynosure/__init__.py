# SPDX-License-Identifier: Apache-2.0
"""Cynosure: attention for PyTorch that picks the fastest correct backend for each call and says why.

This release has the core: `select`, `explain` and TransformerEngine's `get_attention_backend`, for any machine, and the
command line. It has no attention operators yet; nothing here needs torch.
"""

from cynosure import _core, faults
from cynosure._core import Backend
from cynosure.api import select
from cynosure.backend import Contract, FusedAttnBackend, prefer, require
from cynosure.decision import Decision, Fix, Reason
from cynosure.device import Device
from cynosure.errors import NoBackendError
from cynosure.explain import explain
from cynosure.problem import Problem
from cynosure.settings import Settings
from cynosure.te import AttentionParams, get_attention_backend
from cynosure.version import Version

__version__: str = _core.VERSION

__all__ = [
    "AttentionParams",
    "Backend",
    "Contract",
    "Decision",
    "Device",
    "Fix",
    "FusedAttnBackend",
    "NoBackendError",
    "Problem",
    "Reason",
    "Settings",
    "Version",
    "__version__",
    "explain",
    "faults",
    "get_attention_backend",
    "prefer",
    "require",
    "select",
]
