# SPDX-License-Identifier: Apache-2.0
"""`cynosure env`: what is here, as data and as tables."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from cynosure import _core
from cynosure._core import Backend
from cynosure._options import LIBRARIES
from cynosure.device import Device
from cynosure.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType


def environment_report() -> dict[str, Any]:
    """What `env` shows, as plain data."""
    from cynosure._detect import detect

    found = detect()
    libraries = {name: vars(getattr(found, name)) for name in LIBRARIES}
    settings: dict[str, Any] = {"describe": None, "error": None}
    built: list[str] = []
    try:
        settings["describe"] = Settings.current().describe()
        built = Device.this().to_dict()["built"]
    except ValueError as error:
        settings["error"] = str(error)
    settings["variables"] = {name: os.environ[name] for name in _core.ENVIRONMENT if name in os.environ}
    return {
        "cynosure": _core.VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {"name": found.cpu_name, "isa": found.cpu_isa},
        "gpus": [vars(gpu) for gpu in found.gpus],
        "gpus_why_not": found.gpus_why_not,
        "libraries": libraries,
        "backends": {name: _backend_report(name, built, libraries, bool(found.gpus)) for name in Backend.__members__},
        "settings": settings,
    }


# The library that each backend needs; the others come with Cynosure and torch.
NEEDS = {
    "cudnn": "cudnn",
    "cudnn_fp8": "cudnn",
    "flash2": "flash2",
    "aten_flash": "torch",
    "flash3": "flash3",
    "flash4": "flash4",
}


def _backend_report(name: str, built: list[str], libraries: dict[str, Any], gpu: bool) -> dict[str, Any]:
    library = NEEDS.get(name)
    why_not = None if library is None else libraries[library]["why_not"]
    missing = [why_not] if why_not else []
    if library is not None and not gpu:
        missing.append("no CUDA device")
    if name not in built:
        missing.append("not built in this release")
    return {"built": name in built, "installed": why_not is None, "usable": not missing, "why_not": missing}


def render(report: dict[str, Any]) -> list[RenderableType]:
    """The report as tables."""
    from rich.text import Text

    from cynosure._render import pairs, table_of

    head: list[tuple[str, Text | str]] = [
        ("cynosure", f"{report['cynosure']}, Python {report['python']}, {report['system']}"),
        ("cpu", f"{report['cpu']['name']}, {report['cpu']['isa']}"),
    ]
    for index, gpu in enumerate(report["gpus"]):
        head.append((f"gpu {index}", f"{gpu['name']}, compute capability {gpu['sm'] / 10}, {gpu['sm_count']} SMs"))
    if not report["gpus"]:
        head.append(("gpu", f"none: {report['gpus_why_not']}"))
    settings = report["settings"]
    head.append(
        ("settings", Text(f"unreadable: {settings['error']}", "red") if settings["error"] else settings["describe"])
    )
    variables = " ".join(f"{name}={value}" for name, value in settings["variables"].items())
    head.append(("variables", variables or "none set"))
    libraries = table_of("library", "version", "where, or why not")
    for name, found in report["libraries"].items():
        libraries.add_row(
            Text(name), Text(found["version"] or "-"), Text(found["why_not"] or found["where"] or "", "dim")
        )
    backends = table_of("backend", "here", "why not")
    for name, found in report["backends"].items():
        here = Text("yes", "green") if found["usable"] else Text("no", "yellow")
        backends.add_row(Text(name), here, Text("; ".join(found["why_not"]), "dim"))
    return [pairs(head), Text(), libraries, Text(), backends]
