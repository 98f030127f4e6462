# SPDX-License-Identifier: Apache-2.0
"""examples/aoti_cpp, as its README says: a C++ program without Python gets the same results as eager code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "aoti_cpp"


def has_operators() -> bool:
    from cynosure.device import OPERATORS

    return OPERATORS.exists()


def run(*command: str | Path) -> str:
    """As a user: without the variables of these tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CYNOSURE_", "NVTE_"))}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=EXAMPLE, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not has_operators(), reason="this build has no operators")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
@pytest.mark.skipif(not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="no C++ compiler")
def test_a_cpp_program_runs_the_package(tmp_path: Path) -> None:
    """The slowest test of all: AOTInductor compiles the model, CMake the program. About a minute."""
    run(sys.executable, "export.py", "--out", tmp_path)
    run("cmake", "-S", ".", "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "--build", tmp_path)
    library = (tmp_path / "operators.txt").read_text().strip()
    lines = run(tmp_path / "attend", library, tmp_path / "attend.pt2", tmp_path / "cases.pt").splitlines()
    assert len(lines) == 5
    assert all("largest difference" in line for line in lines)

    # Without the operators, the program says what is missing instead of crashing.
    command = [str(tmp_path / "attend"), "/nowhere.so", str(tmp_path / "attend.pt2"), str(tmp_path / "cases.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "/nowhere.so" in done.stderr
