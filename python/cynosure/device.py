# SPDX-License-Identifier: Apache-2.0
"""Device: what a machine is and has; this one, or any other by name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from cynosure import _core
from cynosure._constant import ENVIRONMENT, constant
from cynosure._json import read_object
from cynosure._values import value_class

_FIELDS = frozenset(_core.device_dict(_core.default_device()))
# The operators, built where torch was there; a build of core and command line alone has none.
OPERATORS = Path(_core.__file__).with_name("libcynosure_torch.so")


def built_for(kind: str) -> list[str]:
    """The backends that this build runs on tensors of a kind of device."""
    if not OPERATORS.exists():
        return []
    if kind == "cpu":
        return ["cpu", "unfused"]
    return [*(["cudnn"] if _core.CUDNN_BUILT else []), "aten_flash", "unfused"]


class Device:
    """A machine by value. `Device.this()` detects this one; `Device.named("h200", cudnn="9.21.0")` describes another.

    Args:
        fields: device_kind ("cpu" or "cuda"), sm (compute capability times 10: 90), sm_count, cpu_isa, cudnn, flash2,
            flash3, flash4, torch (versions as text, None: absent), built (backend names), interpreter.
    """

    __slots__ = ("_key",)
    _key: bytes

    def __init__(self, **fields: Any) -> None:
        self._key = _core.pack_device(_core.default_device(), fields)

    @property
    def key(self) -> bytes:
        """All fields, packed."""
        return self._key

    @classmethod
    def this(cls, index: int | None = None) -> Device:
        """This machine: its CUDA device of that index (None: the current one), or its CPU where it has none.

        Lists as built only what this build of Cynosure can run.
        """
        return device_of_key(_detected_key(index))

    @classmethod
    def named(cls, name: str, **fields: Any) -> Device:
        """A machine of the catalogue: a100, h100, h200, b200, b300, l40s, rtx5090, cpu, ...; all backends are built.

        Args:
            name: the machine, in any case.
            fields: as for the constructor, over the catalogue's, which has the newest releases it knows.
        """
        if not isinstance(name, str):
            raise TypeError(f"device: got {type(name).__name__}, expected a name: {_core.device_names()}")
        return device_of_key(_core.pack_device(_core.named_device(name.lower()), fields))  # type: ignore[arg-type]

    def replace(self, **fields: Any) -> Device:
        """The same machine with some fields changed."""
        return device_of_key(_core.pack_device(self.key, fields))

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        fields: dict[str, Any] = _core.device_dict(self.key)
        return fields

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Device:
        """From `to_dict`'s fields, or some of them."""
        return cls(**fields)

    @classmethod
    def from_json(cls, text: str) -> Device:
        """From `to_json`'s text."""
        return cls(**read_object(text, "device"))

    def __getattr__(self, name: str) -> Any:
        # The fields are properties, made below.
        raise AttributeError(f"Device has no field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Device.from_dict, (self.to_dict(),)  # by name, so that another release reads it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        default = _core.device_dict(_core.default_device())
        stated = {
            name: value for name, value in self.to_dict().items() if value != default[name] or name == "device_kind"
        }
        return f"Device({', '.join(f'{name}={value!r}' for name, value in stated.items())})"


@constant
def _field(key: bytes, name: str) -> Any:
    return _core.device_dict(key)[name]


value_class(Device, _FIELDS, lambda device, name: _field(device._key, name))


def device_of_key(key: bytes) -> Device:
    """A Device around its packed form."""
    device = object.__new__(Device)
    device._key = key
    return device


def _detected_key(index: int | None) -> bytes:
    """Detection remembers its findings, and looks again when torch has been imported since (_detect.py)."""
    from cynosure._detect import detect, flash2_for

    found = detect()
    fields: dict[str, Any] = {
        "device_kind": "cpu",
        "cpu_isa": os.environ.get("CYNOSURE_CPU_ISA", found.cpu_isa),
        "torch": found.torch.version,
        "built": built_for("cuda" if found.gpus else "cpu"),
    }
    if index is not None and not 0 <= index < len(found.gpus):
        raise ValueError(f"device: got index {index}, expected one of the {len(found.gpus)} CUDA devices here")
    if found.gpus:
        gpu = found.gpus[_current_device() if index is None else index]
        fields.update(
            device_kind="cuda",
            sm=gpu.sm,
            sm_count=gpu.sm_count,
            cudnn=found.cudnn.version,
            flash2=flash2_for(gpu.sm).version,
            flash3=found.flash3.version,
            flash4=found.flash4.version,
        )
    key: bytes = _core.pack_device(_core.default_device(), fields)
    return key


def _current_device() -> int:
    """Torch's current CUDA device; 0 where torch has not touched CUDA yet."""
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0


@constant
def this_key_constant() -> bytes:
    """The packed form of this machine, for traced code: a constant (the settings guard CYNOSURE_CPU_ISA)."""
    return _detected_key(None)


# (CYNOSURE_CPU_ISA, whether torch is imported, the current device where there are any, the key)
_last: tuple[bytes | None, bool, int | None, bytes] | None = None


def this_key() -> bytes:
    """The packed form of this machine, remembered while nothing it depends on changed."""
    global _last
    isa, torch, last = ENVIRONMENT.get(b"CYNOSURE_CPU_ISA"), "torch" in sys.modules, _last
    if last is not None and last[0] == isa and last[1] == torch and (last[2] is None or last[2] == _current_device()):
        return _remembered(last)
    key = _detected_key(None)
    current = _current_device() if _core.device_dict(key)["device_kind"] == "cuda" else None
    _last = (isa, torch, current, key)
    return _remembered(_last)


def _remembered(last: tuple[bytes | None, bool, int | None, bytes]) -> bytes:
    """Lets the core answer the next time."""
    isa, _, current, key = last
    _core.remember_machine(isa, key, None if current is None else _current_device, current)
    return key
