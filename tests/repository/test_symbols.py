# SPDX-License-Identifier: Apache-2.0
"""A decision reads only its arguments: what libcynosure imports from outside is held to one list."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Everything that the library may import; a whole name each. Whoever adds a line says what it is for.
ALLOWED = re.compile(
    "|".join(
        [
            r"_ITM_\w+|__gmon_start__|__cxa_finalize|__cxa_atexit|__cxa_thread_atexit",  # start and end
            r"__cxa_\w+|__gxx_personality_v0|_Unwind_\w+|__dynamic_cast",  # exceptions and casts
            r"(?:vtable|typeinfo|typeinfo name|VTT) for .*",
            r"operator (?:new|delete)(?:\[\])?\(.*\)",
            r"(?:construction vtable for |non-virtual thunk to |guard variable for |virtual thunk to )?std::.*",
            r"__gnu_cxx::.*",
            r"mem(?:cpy|move|set|cmp|r?chr)|str\w+|bcmp|__(?:mem|str)\w+_chk|malloc|calloc|realloc|free",  # memory
            r"abort|__assert_fail|__stack_chk_fail|__glibcxx_assert_fail",  # the end
            r"v?snprintf|__v?snprintf_chk|isspace|isdigit|isalpha|isalnum|tolower|toupper|__ctype_\w+",  # text
            r"__errno_location|(?:floor|ceil|round|trunc|sqrt|pow|exp2?|log2?|fmod|lround|llround)[fl]?",
            r"pthread_\w+|__tls_get_addr|__once_proxy|__libc_single_threaded",  # locks, shared pointers
            r"__popcountdi2",  # counting bits without the instruction
        ]
    )
)

# What the list above would let through. C names need no entry here: files, output, the environment, dlopen, the GPU
# and Python are not in the list.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"\bstd::(?:__cxx11::)?(?:basic_[io]?fstream|basic_filebuf|__basic_file|filesystem|random_device)\b",
            r"\bstd::ios_base::Init\b|\bstd::w?(?:cout|cerr|clog|cin)\b",  # <iostream>
            r"\bstd::locale::(?:global\b|locale\(char const\*)",  # a named or global locale
            r"\bstd::thread::_M_start_thread\b|^pthread_create$",
        ]
    )
)


def offending(symbols: list[str]) -> list[str]:
    """The symbols that the library may not import."""
    return [name for name in symbols if FORBIDDEN.search(name) or not ALLOWED.fullmatch(name)]


def imported(library: Path) -> list[str]:
    """The demangled names that a shared library leaves to others, without their symbol versions."""
    nm = shutil.which("nm")
    assert nm, "nm was not found (Debian: binutils)"
    command = [nm, "--dynamic", "--undefined-only", "--demangle", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = (re.sub(r"^\s*[0-9a-f]*\s*[a-zA-Z]\s+", "", line) for line in lines)
    return [re.sub(r"@+[\w.]+$", "", name) for name in names]


def built_library() -> Path:
    """The library under test: $CYNOSURE_LIBRARY, else the installed package's, else the release build's."""
    if named := os.environ.get("CYNOSURE_LIBRARY"):
        return Path(named)
    folders = [ROOT / "build" / "release"]
    if importlib.util.find_spec("cynosure"):
        module = importlib.util.find_spec("cynosure._core")
        if module and module.origin:
            folders.insert(0, Path(module.origin).parent)
    for folder in folders:
        if found := sorted(folder.glob("libcynosure.so.*")):
            return found[-1]
    pytest.fail(f"no libcynosure in {', '.join(map(str, folders))}; build it first: make build")


def test_the_library_imports_nothing_that_reads_the_world() -> None:
    symbols = imported(built_library())
    assert any(name.startswith("__cxa_") for name in symbols), "nm printed nothing that every C++ library imports"
    found = offending(symbols)
    assert not found, "libcynosure imports:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "name",
    [
        "getenv",
        "secure_getenv",
        "environ",
        "__environ",
        "fopen",
        "fopen64",
        "open",
        "openat",
        "read",
        "dlopen",
        "dlsym",
        "cuInit",
        "cudaGetDeviceCount",
        "cudnnGetVersion",
        "nvmlInit_v2",
        "printf",
        "std::cout",
        "std::ios_base::Init::Init()",
        "std::basic_ifstream<char, std::char_traits<char> >::basic_ifstream(char const*, std::_Ios_Openmode)",
        "std::basic_filebuf<char, std::char_traits<char> >::open(char const*, std::_Ios_Openmode)",
        "vtable for std::basic_ofstream<char, std::char_traits<char> >",
        "std::filesystem::__cxx11::path::_M_split_cmpts()",
        "std::random_device::_M_getval()",
        "PyErr_SetString",
        "pthread_create",
        "std::locale::locale(char const*)",
    ],
)
def test_a_forbidden_symbol_is_found(name: str) -> None:
    assert offending([name]) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "__cxa_throw",
        "operator new(unsigned long)",
        "std::__throw_length_error(char const*)",
        "std::__cxx11::basic_ostringstream<char, std::char_traits<char>, std::allocator<char> >::str() const",
        "vtable for __cxxabiv1::__si_class_type_info",
        "memcpy",
        "pthread_mutex_lock",
    ],
)
def test_an_allowed_symbol_is_not(name: str) -> None:
    assert offending([name]) == []


def test_a_planted_import_is_found(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler
    source, library = tmp_path / "planted.cpp", tmp_path / "libplanted.so"
    source.write_text('#include <cstdlib>\n#include <iostream>\nconst char* f() { return std::getenv("X"); }\n')
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    found = offending(imported(library))
    assert "getenv" in found
    assert any("ios_base::Init" in name for name in found)
