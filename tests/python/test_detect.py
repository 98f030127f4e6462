# SPDX-License-Identifier: Apache-2.0
"""Detection, on packages and probes that are made up; the real probes at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from cynosure import _core, _detect
from cynosure._detect import Found, Gpu

H200 = ("NVIDIA H200", 90, 132)
B200 = ("NVIDIA B200", 100, 148)


@dataclass
class FakeCore:
    """Stands in for the native core's probes. Which versions are refused is the real core's to say."""

    gpus: list[tuple[str, int, int]] = field(default_factory=list)
    cudnn: tuple[str | None, str | None, str | None] = ("9.21.0", "/lib/libcudnn.so.9", None)
    paths: list[str] = field(default_factory=list)
    probes: int = 0

    refuse_flash2 = staticmethod(_core.refuse_flash2)
    refuse_flash4 = staticmethod(_core.refuse_flash4)

    def detect_cpu(self) -> tuple[str, str]:
        self.probes += 1
        return "avx512", "AMD EPYC 9575F"

    def detect_cuda(self) -> tuple[list[tuple[str, int, int]], str | None]:
        return self.gpus, None if self.gpus else "libcuda.so.1 not found"

    def detect_cudnn(self, paths: list[str]) -> tuple[str | None, str | None, str | None]:
        self.paths = paths
        return self.cudnn


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> FakeCore:
    fake = FakeCore()
    monkeypatch.setattr(_detect, "_core", fake)
    monkeypatch.setattr(_detect, "_kept", None)
    return fake


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A site-packages in the place of the real ones; a function that installs a package's metadata there."""
    others = [entry for entry in sys.path if not entry.endswith(("site-packages", "dist-packages"))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def install(package: str, version: str | None, files: Sequence[str] = ()) -> None:
        folder = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {package}"] + ([f"Version: {version}"] if version else [])
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]), encoding="utf-8")
        (folder / "RECORD").write_text("".join(f"{name},,\n" for name in files), encoding="utf-8")

    return install


def test_a_bare_machine_says_why_not(core: FakeCore, install: Install) -> None:
    core.cudnn = (None, None, "libcudnn.so.9: cannot open shared object file")
    found = _detect.detect()
    assert (found.cpu_isa, found.cpu_name) == ("avx512", "AMD EPYC 9575F")
    assert (found.gpus, found.gpus_why_not) == ([], "libcuda.so.1 not found")
    assert found.cudnn == Found(why_not="libcudnn.so.9: cannot open shared object file")
    assert found.flash2 == Found(why_not="flash-attn is not installed")
    assert found.flash3 == Found(why_not="flash-attn-3 is not installed")
    assert found.flash4 == Found(why_not="flash-attn-4 is not installed")
    assert found.torch == Found(why_not="torch is not installed")


def test_a_full_machine(core: FakeCore, install: Install, tmp_path: Path) -> None:
    core.gpus = [H200, H200]
    for package, version in {
        "flash-attn": "2.8.3.post1",
        "flash_attn_3": "3.0.0b1+cu130",  # as its build names it
        "flash-attn-4": "4.0.0b36",
        "nvidia-cutlass-dsl": "4.6.2",
        "torch": "2.11.0+cu130",
    }.items():
        install(package, version)
    found = _detect.detect()
    where = str(tmp_path)
    assert (found.gpus, found.gpus_why_not) == ([Gpu(*H200)] * 2, None)
    assert found.cudnn == Found("9.21.0", None, "/lib/libcudnn.so.9")
    assert found.flash2 == Found("2.8.3.post1", None, where)
    assert found.flash3 == Found("3.0.0b1+cu130", None, where)
    assert found.flash4 == Found("4.0.0b36", None, where)
    assert found.torch == Found("2.11.0+cu130", None, where)


def test_a_refused_flash_attn_has_a_reason_and_no_version(core: FakeCore, install: Install, tmp_path: Path) -> None:
    install("flash-attn", "2.8.4")
    found = _detect.detect().flash2
    assert (found.version, found.where) == (None, str(tmp_path))
    assert found.why_not == "flash-attn 2.8.4 is not supported: need 2.1.1 or newer and older than 2.8.4"


def test_flash_attn_is_judged_for_the_gpu(core: FakeCore, install: Install) -> None:
    install("flash-attn", "2.6.3")
    core.gpus = [B200, H200]
    assert "compute capability 10.0" in (_detect.detect().flash2.why_not or "")
    assert _detect.flash2_for(90).version == "2.6.3"
    assert _detect.flash2_for(0).version == "2.6.3"


def test_flash_attn_4_needs_cutlass_dsl(core: FakeCore, install: Install) -> None:
    install("flash-attn-4", "4.0.0b24")
    assert "nvidia-cutlass-dsl, which is not installed" in (_detect.detect().flash4.why_not or "")
    install("nvidia-cutlass-dsl", "4.6.1")
    assert "4.6.2 or newer, found 4.6.1" in (_detect.refresh().flash4.why_not or "")


def test_a_version_that_cannot_be_read_is_a_reason(core: FakeCore, install: Install) -> None:
    install("flash-attn", "main")
    assert "cannot be read" in (_detect.detect().flash2.why_not or "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importlib.metadata's, about the missing key
def test_metadata_without_a_version_is_a_reason(core: FakeCore, install: Install) -> None:
    install("flash-attn-3", None)
    found = _detect.detect().flash3
    assert found.version is None
    assert "gives no version" in (found.why_not or "")


def test_the_cudnn_of_the_wheel_is_handed_to_the_probe(core: FakeCore, install: Install, tmp_path: Path) -> None:
    library = "nvidia/cudnn/lib/libcudnn.so.9"
    for wheel in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"):
        install(wheel, "9.21.0.82", [library, "nvidia/cudnn/lib/libcudnn_graph.so.9", "nvidia/cudnn/include/cudnn.h"])
    _detect.detect()
    assert core.paths == [str(tmp_path / library)]


def test_an_imported_torch_tells_its_version(core: FakeCore, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("torch", "2.10.0")
    torch = ModuleType("torch")
    torch.__version__ = "2.12.0a0+git1234"  # type: ignore[attr-defined]
    torch.__file__ = "/src/pytorch/torch/__init__.py"
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert _detect.detect().torch == Found("2.12.0a0+git1234", None, "/src/pytorch")


def test_no_package_is_imported(core: FakeCore, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "flash-attn", "flash-attn-3", "flash-attn-4", "nvidia-cutlass-dsl"):
        install(package, "4.0.0")
    asked: list[str] = []

    class Recorder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            asked.append(name.partition(".")[0])
            return None

    monkeypatch.setattr(sys, "meta_path", [Recorder(), *sys.meta_path])
    _detect.detect()
    assert not {"torch", "flash_attn", "flash_attn_3", "flash_attn_interface", "cutlass", "nvidia"} & set(asked)


def test_the_answer_is_kept_until_refresh(core: FakeCore, install: Install) -> None:
    first = _detect.detect()
    core.gpus = [H200]
    assert _detect.detect() is first
    assert core.probes == 1
    assert _detect.refresh().gpus == [Gpu(*H200)]
    assert _detect.detect() is not first


def test_changed_circumstances_ask_again(core: FakeCore, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _detect.detect()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _detect.detect()
    assert core.probes == 2
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    _detect.detect()
    _detect.detect()
    assert core.probes == 3


# --- the real probes


def one_of_two(found: Found) -> bool:
    return (found.version is None) != (found.why_not is None)


def test_this_machine() -> None:
    found = _detect.refresh()
    assert found.cpu_isa in {"generic", "avx2", "avx512", "amx"}
    assert found.cpu_name
    assert bool(found.gpus) != bool(found.gpus_why_not)
    assert all(one_of_two(item) for item in (found.cudnn, found.flash2, found.flash3, found.flash4, found.torch))


def test_the_native_probes_have_their_types() -> None:
    gpus, why_not = _core.detect_cuda()
    assert bool(gpus) != bool(why_not)
    assert all(isinstance(name, str) and sm >= 50 and sm_count > 0 for name, sm, sm_count in gpus)
    version, path, why_not = _core.detect_cudnn(["/absent/libcudnn.so.9"])
    assert (version is None) == (path is None)
    assert version or "/absent/libcudnn.so.9" in (why_not or "")
    assert _core.refuse_flash2("2.8.3", 90) is None
    assert _core.refuse_flash4("4.0.0b24", None) is not None
