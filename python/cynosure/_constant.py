# SPDX-License-Identifier: Apache-2.0
"""How the core is called from code that torch may be tracing, without importing torch.

Rules, each learnt by trying on torch 2.11 and 2.15 (tests/python/test_trace*.py; what things cost: docs/tracing.md):

* every call into the native module goes through a Python function marked `constant`, with None, bool, int, str, bytes,
  tuples, dtypes and types in, and None, int, str, bytes and tuples out. Never an enum or an object out: torch 2.15
  hands back the function itself instead of an enum.
* an int that must be static goes through `operator.index`; a float only through its truth, `True if p else False`.
* marked functions return an error as text, and the traced code raises it: an exception inside would change its type.
* objects are made with `object.__new__` and few attributes: a call of a class costs the tracer as much as 60 bytecodes.
* a global that traced code reads is a guard on every compiled call; a method of an object made in the trace is none,
  but costs the tracer 350 calls more. Hence `_tracing.Traceable` for the large functions, and globals for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

# The dict behind os.environ. Dynamo guards look-ups in it, of absent keys too; those in os.environ itself it does not.
ENVIRONMENT: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]

_F = TypeVar("_F", bound=Callable[..., Any])


def constant(function: _F) -> _F:
    """Marks a function whose result torch's tracer may take as a constant: `torch.compiler.assume_constant_result`."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
