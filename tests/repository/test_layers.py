# SPDX-License-Identifier: Apache-2.0
"""Arrows between the layers point down: every #include under include/ and src/ is held to one table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The C++ standard library, less what reads or changes the world: see OUTSIDE_WORLD.
STANDARD = frozenset(
    """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes
    climits clocale cmath compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef
    cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution expected filesystem format
    forward_list fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits
    list locale map memory memory_resource mutex new numbers numeric optional ostream print queue random ranges
    ratio regex scoped_allocator semaphore set shared_mutex source_location span spanstream sstream stack stacktrace
    stdexcept stop_token streambuf string string_view strstream syncstream system_error thread tuple type_traits
    typeindex typeinfo unordered_map unordered_set utility valarray variant vector version""".split()
)
OUTSIDE_WORLD = frozenset(
    "clocale csetjmp csignal cstdlib filesystem fstream iostream print random syncstream strstream".split()
)


@dataclass(frozen=True)
class Layer:
    """What one layer may include: layers, single headers of other layers, and patterns of external headers."""

    layers: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    external: str | None = None  # headers that are neither ours nor the standard library's; None: no others
    pure: bool = False  # nothing of OUTSIDE_WORLD, and no environment


PUBLIC = "include/cynosure"
CORE, RULES, POLICIES = "src/core", "src/rules", "src/policies"
IO, DETECT, TORCH, EAGER, PYTHON = "src/io", "src/detect", "src/torch", "src/eager", "src/python"
BACKENDS = "src/backends"  # itself: the interface. src/backends/<name>: one backend each
BACKEND = "src/backends/*"

# The allowed edges, low to high. A layer may always include itself.
LAYERS: dict[str, Layer] = {
    PUBLIC: Layer(pure=True),
    CORE: Layer((PUBLIC,), headers=("rules/table.hpp", "policies/order.hpp"), pure=True),
    RULES: Layer((PUBLIC, CORE), pure=True),
    POLICIES: Layer((PUBLIC, CORE), pure=True),
    IO: Layer((PUBLIC, CORE, RULES, POLICIES), external=r"nlohmann/.*"),
    DETECT: Layer(
        (PUBLIC, CORE, RULES, POLICIES),
        external=r"dlfcn\.h|link\.h|cpuid\.h|immintrin\.h|unistd\.h|sys/.*|asm/.*|pthread\.h|sched\.h",
    ),
    BACKENDS: Layer((PUBLIC, CORE, RULES, POLICIES, IO, DETECT)),
    BACKEND: Layer(
        (PUBLIC, CORE, RULES, POLICIES, IO, DETECT, BACKENDS), external=r"(?!torch/|ATen/|c10/|nanobind/).*"
    ),
    TORCH: Layer((PUBLIC, CORE, RULES, POLICIES, IO, DETECT, BACKENDS, BACKEND), external=r"torch/.*|dlfcn\.h"),
    EAGER: Layer(external=r"(ATen|torch)/.*|Python\.h"),
    PYTHON: Layer((PUBLIC, CORE, RULES, POLICIES, IO, DETECT), external=r"nanobind/.*|Python\.h"),
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"(?P<quoted>[^"]+)"|<(?P<angled>[^>]+)>)', re.MULTILINE)
ENVIRONMENT = re.compile(r"\b(?:secure_)?getenv\b|\bsetenv\b|\bputenv\b|\benviron\b")
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SOURCES = (".hpp", ".cpp", ".h", ".inl", ".cu", ".cuh")


def layer_of(path: PurePosixPath) -> str | None:
    """The layer of a file, given relative to the repository: a backend is named src/backends/<name>."""
    parts = path.parts
    if parts[:2] == ("include", "cynosure"):
        return PUBLIC
    if parts[:2] == ("src", "backends") and len(parts) > 3:
        return "/".join(parts[:3])
    return "/".join(parts[:2]) if parts[0] == "src" and len(parts) > 2 else None


def rules_for(layer: str) -> Layer | None:
    """The row of the table for a layer."""
    if layer.startswith(BACKENDS + "/"):
        return LAYERS[BACKEND]
    return LAYERS.get(layer)


def resolve(root: Path, source: PurePosixPath, name: str) -> PurePosixPath | None:
    """The file of ours that an include names, or None for one that is not ours."""
    for folder in (source.parent, PurePosixPath("src"), PurePosixPath("include")):
        candidate = (root / folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return PurePosixPath(candidate.relative_to(root).as_posix())
    return None


def judge(root: Path, source: PurePosixPath, layer: str, name: str, quoted: bool) -> str | None:
    """Why this include is not allowed, or None."""
    rules = rules_for(layer)
    assert rules is not None
    if name in STANDARD:
        return f"reaches the outside world: <{name}>" if rules.pure and name in OUTSIDE_WORLD else None
    target = resolve(root, source, name)
    if target is None:
        if quoted and (layer == PUBLIC or "/" not in name):
            return f'"{name}" is not found in this repository'
        if rules.external is not None and re.fullmatch(rules.external, name):
            return None
        return f"only the standard library and lower layers are allowed here: {name}"
    included = layer_of(target)
    if included is None:
        return f"{name} belongs to no layer"
    if included == layer:
        return None
    allowed = included in rules.layers or (included.startswith(BACKENDS + "/") and BACKEND in rules.layers)
    if allowed or str(target) in {f"src/{header}" for header in rules.headers}:
        return None
    return f"{layer} may not include {included}: {name}"


def blank_comments(text: str) -> str:
    """The text without comments, its lines where they were."""
    return COMMENTS.sub(lambda comment: "\n" * comment.group().count("\n"), text)


def crossings(root: Path) -> tuple[list[str], int]:
    """Every include that the table does not allow, as file:line: why; and how many includes were looked at."""
    found: list[str] = []
    count = 0
    files = [file for top in ("include", "src") for file in sorted((root / top).rglob("*")) if file.suffix in SOURCES]
    for file in files:
        source = PurePosixPath(file.relative_to(root).as_posix())
        layer = layer_of(source)
        rules = rules_for(layer) if layer else None
        if layer is None or rules is None:
            found.append(f"{source}:1: this folder is no layer of the table in {Path(__file__).name}")
            continue
        text = blank_comments(file.read_text(encoding="utf-8"))
        for match in INCLUDE.finditer(text):
            count += 1
            quoted = match["quoted"] is not None
            why = judge(root, source, layer, match["quoted"] if quoted else match["angled"], quoted)
            if why:
                found.append(f"{source}:{text.count(chr(10), 0, match.start()) + 1}: {why}")
        if rules.pure:
            found += [
                f"{source}:{text.count(chr(10), 0, match.start()) + 1}: reads the environment: {match.group()}"
                for match in ENVIRONMENT.finditer(text)
            ]
    return found, count


def test_no_include_crosses_a_layer() -> None:
    found, count = crossings(ROOT)
    assert count > 0, "no includes were found: does this test look in the right place?"
    assert not found, "\n" + "\n".join(found)


def test_every_source_has_its_license() -> None:
    tops = ("include", "src", "python", "tests", "benchmarks", "scripts", "cmake")
    suffixes = (*SOURCES, ".py", ".cmake", ".sh")
    files = [f for top in tops for f in (ROOT / top).rglob("*") if f.suffix in suffixes]
    lines = {f: f.read_text(encoding="utf-8").split("\n", 1)[0] for f in files}
    missing = [
        str(f.relative_to(ROOT)) for f, line in lines.items() if "SPDX-License-Identifier: Apache-2.0" not in line
    ]
    assert not missing, missing


# --- the test of the test

CLEAN = {
    "include/cynosure/problem.hpp": '#include <vector>\n#include "cynosure/backend.hpp"\n',
    "include/cynosure/backend.hpp": "#pragma once\n",
    "src/core/select.hpp": '#include "cynosure/problem.hpp"\n#include <cynosure/backend.hpp>\n',
    "src/core/select.cpp": '#include "select.hpp"\n#include "rules/table.hpp"\n#include "policies/order.hpp"\n',
    "src/rules/table.hpp": '#include "core/select.hpp"\n',
    "src/rules/mask.hpp": "",
    "src/policies/order.hpp": '#include "cynosure/problem.hpp"\n',
    "src/policies/te.hpp": "",
    "src/io/records.hpp": '#include "rules/mask.hpp"\n#include <nlohmann/json.hpp>\n#include <fstream>\n',
    "src/detect/device.hpp": "#include <dlfcn.h>\n#include <cstdlib>\n",
    "src/backends/backend.hpp": '#include "detect/device.hpp"\n',
    "src/backends/cpu/kernel.hpp": '#include "backends/backend.hpp"\n#include <immintrin.h>\n',
    "src/backends/cudnn/plan.hpp": "#include <cudnn_frontend.h>\n",
    "src/torch/operator.cpp": '#include "backends/cpu/kernel.hpp"\n#include <torch/csrc/stable/library.h>\n',
    "src/python/module.cpp": '#include "io/records.hpp"\n#include <nanobind/nanobind.h>\n',
}

PLANTED = [
    ("include/cynosure/problem.hpp", '#include "core/select.hpp"'),
    ("include/cynosure/problem.hpp", "#include <nlohmann/json.hpp>"),
    ("include/cynosure/problem.hpp", "#include <fstream>"),
    ("src/core/select.cpp", '#include "rules/mask.hpp"'),
    ("src/core/select.cpp", '#include "../rules/mask.hpp"'),
    ("src/core/select.cpp", '#include "policies/te.hpp"'),
    ("src/core/select.cpp", '  #  include   "io/records.hpp"'),
    ("src/core/select.cpp", "#include <dlfcn.h>"),
    ("src/core/select.cpp", "#include <stdlib.h>"),
    ("src/core/select.cpp", "#include <cuda_runtime.h>"),
    ("src/core/select.cpp", 'extern "C" char* getenv(const char*);'),
    ("src/rules/mask.hpp", '#include "policies/order.hpp"'),
    ("src/rules/mask.hpp", "#include <cstdlib>"),
    ("src/policies/te.hpp", '#include "rules/table.hpp"'),
    ("src/io/records.hpp", '#include "detect/device.hpp"'),
    ("src/io/records.hpp", "#include <dlfcn.h>"),
    ("src/detect/device.hpp", '#include "io/records.hpp"'),
    ("src/detect/device.hpp", '#include "backends/backend.hpp"'),
    ("src/backends/backend.hpp", '#include "backends/cpu/kernel.hpp"'),
    ("src/backends/cpu/kernel.hpp", '#include "backends/cudnn/plan.hpp"'),
    ("src/backends/cpu/kernel.hpp", "#include <torch/csrc/stable/library.h>"),
    ("src/python/module.cpp", "#include <torch/extension.h>"),
    ("src/misc/new.cpp", "#include <vector>"),
]


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_clean_tree_has_no_crossing(tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert crossings(tmp_path.resolve())[0] == []


@pytest.mark.parametrize(("file", "line"), PLANTED)
def test_a_planted_crossing_is_found(tmp_path: Path, file: str, line: str) -> None:
    plant(tmp_path, CLEAN | {file: CLEAN.get(file, "") + line + "\n"})
    found, _ = crossings(tmp_path.resolve())
    assert len(found) == 1, found
    assert found[0].startswith(file + ":"), found


def test_a_comment_is_no_crossing(tmp_path: Path) -> None:
    comment = '// #include "io/records.hpp", getenv\n/* \n#include <dlfcn.h>\n*/\n'
    plant(tmp_path, CLEAN | {"src/core/select.cpp": comment})
    assert crossings(tmp_path.resolve())[0] == []
