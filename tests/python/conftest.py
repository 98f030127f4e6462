# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests: an environment without our variables, and torch.compile with its graphs counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cynosure import _core, faults


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """None of the variables that settings read is set, and no fault rows are added, before and after."""
    for name in [*_core.ENVIRONMENT, *(key for key in os.environ if key.startswith(("NVTE_", "CYNOSURE_")))]:
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    faults.clear()


class Compiled:
    """A function under torch.compile(fullgraph=True), and how many graphs it has cost."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        import torch
        from torch._dynamo.testing import CompileCounter

        self._counter = CompileCounter()
        self._call = torch.compile(function, backend=self._counter, **{"fullgraph": True, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def graphs(self) -> int:
        return int(self._counter.frame_count)


@pytest.fixture
def compiled(clean_environment: pytest.MonkeyPatch) -> Iterator[type[Compiled]]:
    """`Compiled`, with torch's caches and flags as new before and after."""
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    yield Compiled
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture
def many_graphs() -> Iterator[None]:
    """Room for more graphs of one function than torch's limit of 8: for tests that walk through settings."""
    import torch._dynamo.config as config

    with config.patch(recompile_limit=256, accumulated_recompile_limit=512):
        yield


@pytest.fixture
def attention(clean_environment: pytest.MonkeyPatch) -> None:
    """`cynosure.attention`, or a stand-in while it is not there; and random numbers from a fixed seed."""
    import torch

    import cynosure

    if not hasattr(cynosure, "attention"):
        import attention_stand_in  # type: ignore[import-not-found]

        clean_environment.setattr(cynosure, "attention", attention_stand_in.attention, raising=False)
    torch.manual_seed(0)
