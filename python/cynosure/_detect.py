# SPDX-License-Identifier: Apache-2.0
"""What this machine has: the edge where facts about hardware and installed packages come in.

No attention package is imported here, nor is torch: a switched-off package is never loaded, and one that cannot be
imported does no harm. Versions of packages come from their metadata; the processor, the GPUs and cuDNN are asked by
the native core, which says in its headers (src/detect/cuda.hpp, cudnn.hpp) how it does that without a trace:

* GPUs: from the CUDA driver once somebody in this process has initialised CUDA, from NVML before. So asking does not
  spoil CUDA for forked workers. torch.cuda is not asked: it would have to be imported, its answer before
  initialisation has no compute capabilities, and its devices are the driver's anyway.
* cuDNN: the library that this process has loaded (importing torch's CUDA build loads one), else the one of the wheel
  that torch would load. torch.backends.cudnn.version() reports the same number, or raises.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cynosure import _core

__all__ = ["Detected", "Found", "Gpu", "detect", "flash2_for", "refresh"]

CUDNN_WHEELS = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")


@dataclass(frozen=True)
class Found:
    """A library or package: its version, or why it cannot be used. Exactly one of the two is None."""

    version: str | None = None
    why_not: str | None = None
    where: str | None = None  # a file or a folder; may be set for one that is refused


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees; the position in the list is its CUDA index."""

    name: str
    sm: int  # compute capability times 10
    sm_count: int


@dataclass(frozen=True)
class Detected:
    """Everything that detection found."""

    cpu_isa: str  # generic, avx2, avx512, amx
    cpu_name: str
    gpus: list[Gpu]
    gpus_why_not: str | None  # None when there are GPUs
    cudnn: Found
    flash2: Found  # judged for the first GPU; flash2_for judges for another
    flash3: Found
    flash4: Found
    torch: Found


def installed(package: str) -> Found:
    """A package by its metadata, accepted or not."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return Found(why_not=f"{package} is not installed")
    where = str(distribution.locate_file(""))
    version: str | None = None
    with suppress(KeyError, OSError):  # a half-removed package; without an error before Python 3.15
        version = distribution.version
    if not version:
        return Found(why_not=f"{package}: its metadata in {where} gives no version", where=where)
    return Found(version=version, where=where)


def judged(found: Found, why_not: str | None) -> Found:
    """The same package, without its version when it is refused."""
    return found if why_not is None else Found(why_not=why_not, where=found.where)


def flash2_for(sm: int) -> Found:
    """flash-attn for GPUs of a compute capability times 10; 0 stands for no GPU."""
    found = installed("flash-attn")
    return found if found.version is None else judged(found, _core.refuse_flash2(found.version, sm))


def find_flash4() -> Found:
    """flash-attn-4, with the nvidia-cutlass-dsl that it needs."""
    found = installed("flash-attn-4")
    if found.version is None:
        return found
    return judged(found, _core.refuse_flash4(found.version, installed("nvidia-cutlass-dsl").version))


def find_torch() -> Found:
    """Torch, as imported or else as installed."""
    module = sys.modules.get("torch")
    version = getattr(module, "__version__", None)
    file = getattr(module, "__file__", None)
    if version is None:
        return installed("torch")
    return Found(version=str(version), where=str(Path(file).parent.parent) if file else None)


def cudnn_candidates() -> list[str]:
    """The cuDNN libraries of installed wheels."""
    paths = []
    for wheel in CUDNN_WHEELS:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        paths += [str(file.locate()) for file in files if file.name.startswith("libcudnn.so.")]
    return list(dict.fromkeys(paths))  # the wheels of two CUDA releases install over each other


def find_cudnn() -> Found:
    """The cuDNN that is loaded or that torch would load."""
    version, path, why_not = _core.detect_cudnn(cudnn_candidates())
    return Found(version=version, why_not=None if version else why_not or "cuDNN not found", where=path)


def probe() -> Detected:
    """Asks everything anew."""
    cpu_isa, cpu_name = _core.detect_cpu()
    gpus, gpus_why_not = _core.detect_cuda()
    found = [Gpu(name, sm, sm_count) for name, sm, sm_count in gpus]
    return Detected(
        cpu_isa=cpu_isa,
        cpu_name=cpu_name,
        gpus=found,
        gpus_why_not=None if found else gpus_why_not or "no GPU",
        cudnn=find_cudnn(),
        flash2=flash2_for(found[0].sm if found else 0),
        flash3=installed("flash-attn-3"),
        flash4=find_flash4(),
        torch=find_torch(),
    )


# What an earlier answer depends on and a program may still change: which GPUs are visible, until CUDA is initialised,
# and which cuDNN is loaded, until torch is imported.
Circumstances = tuple[str | None, str | None, bool]


def circumstances() -> Circumstances:
    """The key of the kept answer."""
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), "torch" in sys.modules


_kept: tuple[Circumstances, Detected] | None = None


def detect() -> Detected:
    """What this machine has; found once in a process, and again after refresh() or changed circumstances."""
    global _kept
    now = circumstances()
    kept = _kept
    if kept is None or kept[0] != now:
        _kept = kept = (now, probe())
    return kept[1]


def refresh() -> Detected:
    """Forgets the kept answer and asks again."""
    global _kept
    _kept = None
    return detect()
