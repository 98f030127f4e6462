# SPDX-License-Identifier: Apache-2.0
"""Tests that need a GPU: skipped, with the reason, where there is none. They share bodies with tests/python/attend."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python" / "attend"), str(HERE / "shared")]

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]


def why_not() -> str | None:
    """Why nothing here can run."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device that torch can use"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(item.path).parent == Path(__file__).parent]
    reason = why_not() if here else None
    for item in here:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """What torch's allocator hands out holds NaN, so that an element nobody wrote is seen."""
    import torch

    if torch.cuda.is_available():
        small = [torch.full((2**17,), float("nan"), device="cuda") for _ in range(8)]
        large = [torch.full((2**22,), float("nan"), device="cuda") for _ in range(4)]
        del small, large
