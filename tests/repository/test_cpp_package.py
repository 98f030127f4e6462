# SPDX-License-Identifier: Apache-2.0
"""The installed package serves C++: find_package(cynosure), one include, one answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(consumer LANGUAGES CXX)
find_package(cynosure CONFIG REQUIRED)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE cynosure::cynosure)
"""
PROGRAM = """
#include <cynosure/select.hpp>

#include <cstdio>

int main() {
  cynosure::Problem problem;
  problem.features.heads = problem.features.kv_heads = 32;
  problem.features.head_dim_qk = problem.features.head_dim_v = 128;
  problem.features.causal = true;
  problem.lengths = {2, 4096, 4096};
  const cynosure::Decision decision = cynosure::select(problem, {}, *cynosure::named_device("h200"));
  std::puts(std::string(cynosure::name(*decision.backend())).c_str());
  std::puts(decision.reasons(cynosure::Backend::cpu).front().rule.c_str());
}
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not on the path")
def test_a_cpp_program_finds_and_uses_the_package(tmp_path: Path) -> None:
    """What `cynosure --cmake-dir` prints is all a C++ project needs."""
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "main.cpp").write_text(PROGRAM)

    def run(*command: str) -> str:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    cmake_dir = run(sys.executable, "-m", "cynosure", "--cmake-dir").strip()
    run("cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-Dcynosure_DIR={cmake_dir}")
    run("cmake", "--build", str(tmp_path / "build"))
    assert run(str(tmp_path / "build" / "consumer")).split() == ["cudnn", "cpu.device"]
