# SPDX-License-Identifier: Apache-2.0
"""Cynosure: attention for PyTorch that picks the fastest correct backend for each call and says why.

Only what runs attention needs torch, and imports it at its first use: `attention`, `scaled_dot_product_attention`,
`DotProductAttention`. `select`, `explain` and all else answer without it.
"""

from typing import TYPE_CHECKING, Any

from cynosure import _core, faults, ledgers
from cynosure._core import Backend
from cynosure.api import select
from cynosure.backend import Contract, FusedAttnBackend, prefer, require
from cynosure.decision import Decision, Fix, Reason
from cynosure.device import Device
from cynosure.errors import NoBackendError
from cynosure.explain import explain
from cynosure.ledgers import ledger
from cynosure.problem import Problem
from cynosure.settings import Settings
from cynosure.te import AttentionParams, get_attention_backend
from cynosure.version import Version

if TYPE_CHECKING:
    from cynosure._attention import attention as attention
    from cynosure.dot_product_attention import DotProductAttention as DotProductAttention
    from cynosure.sdpa import scaled_dot_product_attention as scaled_dot_product_attention

__version__: str = _core.VERSION

# Where the names that need torch live.
_OF_TORCH = {
    "DotProductAttention": "dot_product_attention",
    "attention": "_attention",
    "scaled_dot_product_attention": "sdpa",
}


def __getattr__(name: str) -> Any:
    module = _OF_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'cynosure' has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(f"cynosure.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise ImportError(f"cynosure.{name} needs torch 2.10 or newer, which is not installed") from error
    globals()[name] = value
    return value


# Without the names that need torch: `import *` imports nothing more.
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
    "ledger",
    "ledgers",
    "prefer",
    "require",
    "select",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TORCH})
