# SPDX-License-Identifier: Apache-2.0
"""`cynosure matrix`: the choice for every head dim and length, as a heat table and as one self-contained page."""

from __future__ import annotations

import html as _html
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from cynosure import _core
from cynosure._core import Backend
from cynosure.decision import Decision, Reason
from cynosure.device import Device
from cynosure.explain import (
    CHOSEN,
    NOT_PREFERRED,
    WAYS,
    describe_call,
    describe_device,
    describe_settings,
    ground,
    hypothetical,
    preference,
)
from cynosure.problem import Problem
from cynosure.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

HEAD_DIMS = (
    8,
    16,
    24,
    32,
    40,
    64,
    72,
    80,
    96,
    100,
    104,
    112,
    120,
    128,
    136,
    160,
    192,
    200,
    224,
    256,
    264,
    320,
    384,
    512,
)
LENGTHS = (
    1,
    2,
    17,
    64,
    100,
    128,
    500,
    512,
    1000,
    1023,
    1024,
    2048,
    4095,
    4096,
    4097,
    8192,
    16384,
    32767,
    32768,
    65536,
    65537,
    131072,
)
PHASES = ("forward", "training")

# What differs from cell to cell by itself: the page's script puts the cell's own values there.
OWN = ("head_dim_qk", "head_dim_v", "seqlen_q", "seqlen_k")

# Okabe and Ito's colours, told apart with any colour vision; each cell has its backend's letter as well.
LOOKS: dict[str, tuple[str, str, str]] = {  # letter, background, foreground
    "cudnn": ("C", "#0072b2", "#ffffff"),
    "cudnn_fp8": ("8", "#56b4e9", "#000000"),
    "flash2": ("2", "#e69f00", "#000000"),
    "aten_flash": ("A", "#f0e442", "#000000"),
    "flash3": ("3", "#009e73", "#000000"),
    "flash4": ("4", "#cc79a7", "#000000"),
    "unfused": ("U", "#8c8c8c", "#000000"),
    "cpu": ("P", "#d55e00", "#000000"),
    "none": ("x", "#000000", "#ffffff"),
}


@dataclass(frozen=True)
class Matrix:
    """All decisions: one for each phase, head dim and length."""

    device_name: str
    device: Device
    settings: Settings
    call: str  # what all cells have in common
    seqlen_q: int | None  # of every cell; None: queries are as long as keys
    lengths: tuple[int, ...]
    cells: dict[tuple[str, int, int], Decision]


Call = Callable[..., Problem]


def sweep(call: Call, device: Device, settings: Settings, device_name: str, seqlen_q: int | None) -> Matrix:
    """Decides every cell. `call` makes the problem from head_dim, seqlen_q, seqlen_k and training."""
    cells: dict[tuple[str, int, int], Decision] = {}
    for phase in PHASES:
        for head_dim in HEAD_DIMS:
            for length in LENGTHS:
                problem = call(
                    head_dim=head_dim,
                    seqlen_q=length if seqlen_q is None else seqlen_q,
                    seqlen_k=length,
                    training=phase == "training",
                )
                cells[phase, head_dim, length] = hypothetical(problem, device, settings)
    common = call(head_dim=HEAD_DIMS[0], seqlen_q=1, seqlen_k=1, training=False)
    return Matrix(device_name, device, settings, _common_text(common, seqlen_q), seqlen_q, LENGTHS, cells)


def _common_text(problem: Problem, seqlen_q: int | None) -> str:
    """What does not vary, from the line that describes a call."""
    varying = ("head dim", "batch ", "inference")
    parts = [
        part
        for part in describe_call(problem.to_dict()).split(", ")
        if not part.startswith(varying) and " x " not in part
    ]
    parts.insert(1, f"batch {problem.batch}")
    if seqlen_q is not None:
        parts.append("1 query" if seqlen_q == 1 else f"{seqlen_q} queries")
    return ", ".join(parts)


def length_text(length: int) -> str:
    """128k for 131072."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def chosen_name(decision: Decision) -> str:
    """The backend of a cell."""
    return "none" if decision.backend is None else decision.backend.name


def title(matrix: Matrix) -> str:
    """One line."""
    return f"{matrix.device_name}: {matrix.call}"


def _ground_of(matrix: Matrix) -> list[str]:
    """The policy's rows that gave the orders, with their evidence."""
    grounds = dict.fromkeys(ground(decision) for decision in matrix.cells.values())
    return [
        f"policy {g.policy} ({g.when}) prefers {', '.join(b.name for b in g.best_first)}. Evidence: {g.evidence}"
        for g in grounds
        if g is not None
    ]


def to_dict(matrix: Matrix) -> dict[str, Any]:
    """All choices, as plain data."""
    return {
        "device": matrix.device.to_dict(),
        "settings": matrix.settings.to_dict(),
        "call": matrix.call,
        "cells": [
            {
                "phase": phase,
                "head_dim": head_dim,
                "length": length,
                "backend": chosen_name(cell),
                "eligible": _eligible(cell),
            }
            for (phase, head_dim, length), cell in matrix.cells.items()
        ],
    }


def _eligible(decision: Decision) -> list[str]:
    return [backend.name for backend in decision.eligible]


# --- the terminal


def terminal(matrix: Matrix) -> RenderableType:
    """Heat tables for both phases; 71 columns."""
    from rich.console import Group
    from rich.text import Text

    from cynosure._render import pairs

    head = pairs(
        [
            ("call", matrix.call),
            ("device", f"{matrix.device_name}: {describe_device(matrix.device)}"),
            ("settings", describe_settings(matrix.settings)),
            *[("order", line) for line in _ground_of(matrix)],
        ]
    )
    parts: list[RenderableType] = [head]
    for phase in PHASES:
        parts += [Text(), Text(f"{phase}: head dim down, length across", "bold"), _heat(matrix, phase)]
    return Group(*parts, Text(), _legend(matrix))


def _heat(matrix: Matrix, phase: str) -> Text:
    """One line a head dim, three columns a length; the lengths stand in two rows by turns."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for turn in (0, 1):
        labels = [f"{length_text(length):>6}" for i, length in enumerate(matrix.lengths) if i % 2 == turn]
        text.append(("  " if turn == 0 else "     ") + "".join(labels) + "\n", "dim")
    for head_dim in HEAD_DIMS:
        text.append(f"{head_dim:>4} ")
        for length in matrix.lengths:
            letter, background, foreground = LOOKS[chosen_name(matrix.cells[phase, head_dim, length])]
            text.append(f" {letter} ", f"{foreground} on {background}")
        text.append("\n")
    text.right_crop(1)
    return text


def _legend(matrix: Matrix) -> Text:
    from rich.text import Text

    counts = [chosen_name(cell) for cell in matrix.cells.values()]
    text = Text()
    for name, (letter, background, foreground) in LOOKS.items():
        if name in counts:
            text.append(f" {letter} ", f"{foreground} on {background}")
            text.append(f" {_label(name)} {counts.count(name)}   ")
    return text


# --- the page


class Pool:
    """Distinct values with their positions, so that a page holds each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._positions: dict[str, int] = {}

    def add(self, value: Any) -> int:
        """The position of a value."""
        key = json.dumps(value)
        if key not in self._positions:
            self._positions[key] = len(self.values)
            self.values.append(value)
        return self._positions[key]


def html(matrix: Matrix) -> str:
    """One page without outside resources: the tables, and the reasons of a cell on hover, focus and tap."""
    template = resources.files("cynosure").joinpath("matrix.html").read_text(encoding="utf-8")
    data = json.dumps(_page_data(matrix), separators=(",", ":")).replace("</", "<\\/")
    head = [
        ("Machine", f"{matrix.device_name}: {describe_device(matrix.device)}"),
        ("Settings", describe_settings(matrix.settings)),
    ]
    head += [("Order", line) for line in _ground_of(matrix)]
    fills = {
        "TITLE": _html.escape(f"Attention backends on {matrix.device_name}"),
        "CALL": _html.escape(matrix.call),
        "HEAD": "\n".join(f"<dt>{name}</dt><dd>{_html.escape(text)}</dd>" for name, text in head),
        "LEGEND": "\n".join(_legend_button(name, matrix) for name in LOOKS if _appears(name, matrix)),
        "COLORS": "\n".join(
            f".b-{name} {{ background: {back}; color: {front}; }}" for name, (_, back, front) in LOOKS.items()
        ),
        "TABLES": "\n".join(_page_table(matrix, phase) for phase in PHASES),
        "VERSION": _html.escape(_core.VERSION),
        "DATA": data,
    }
    for name, text in fills.items():
        template = template.replace(f"@{name}@", text)
    return template


def _appears(name: str, matrix: Matrix) -> bool:
    """Chosen or eligible somewhere; "none" where nothing runs."""
    return any(name == chosen_name(cell) or name in _eligible(cell) for cell in matrix.cells.values())


def _label(name: str) -> str:
    return "no backend" if name == "none" else name


def _legend_button(name: str, matrix: Matrix) -> str:
    count = sum(chosen_name(cell) == name for cell in matrix.cells.values())
    key = f'<b class="key b-{name}">{LOOKS[name][0]}</b>'
    content = f"{key} {_label(name)} <small>{count}</small>"
    return f'<button type="button" aria-pressed="false" data-backend="{name}">{content}</button>'


def _page_table(matrix: Matrix, phase: str) -> str:
    """A grid for one phase; one cell of it takes the keyboard's focus at a time, arrows move it."""
    columns = "".join(f'<th scope="col">{length_text(length)}</th>' for length in matrix.lengths)
    rows = []
    for head_dim in HEAD_DIMS:
        cells = "".join(_page_cell(matrix, phase, head_dim, length) for length in matrix.lengths)
        rows.append(f'<tr><th scope="row">{head_dim}</th>{cells}</tr>')
    text = "forward alone" if phase == "forward" else "forward and backward"
    head = f'<tr><th class="corner" scope="col">dim \\ len</th>{columns}</tr>'
    return (
        f'<section><h2>{phase.capitalize()} <small>{text}</small></h2><div class="scroll">'
        f'<table id="{phase}" aria-label="{phase}: chosen backend by head dim and length">'
        f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _page_cell(matrix: Matrix, phase: str, head_dim: int, length: int) -> str:
    name = chosen_name(matrix.cells[phase, head_dim, length])
    first = phase == PHASES[0] and head_dim == HEAD_DIMS[0] and length == matrix.lengths[0]
    label = f"head dim {head_dim}, length {length}: {_label(name)}"
    attributes = f'type="button" class="b-{name}" tabindex="{0 if first else -1}" aria-label="{label}"'
    return f"<td><button {attributes}>{LOOKS[name][0]}</button></td>"


def _page_data(matrix: Matrix) -> dict[str, Any]:
    """What the page's script needs: per cell a verdict for each backend, everything that repeats held once."""
    rules, verdicts = Pool(), Pool()
    cells = {
        phase: [_cell_data(matrix.cells[phase, d, n], rules, verdicts) for d in HEAD_DIMS for n in matrix.lengths]
        for phase in PHASES
    }
    return {
        "dims": HEAD_DIMS,
        "lengths": matrix.lengths,
        "own": {"seqlen_q": matrix.seqlen_q, "head_dim_v": _fixed_head_dim_v(matrix)},
        "backends": list(Backend.__members__),
        "letters": {name: letter for name, (letter, _, _) in LOOKS.items()},
        "ways": {**WAYS, "chosen": CHOSEN, "eligible": NOT_PREFERRED},
        "rules": rules.values,
        "verdicts": verdicts.values,
        "cells": cells,
    }


def _fixed_head_dim_v(matrix: Matrix) -> int | None:
    """The head dim of v where it is not that of q and k."""
    found = {cell.problem.head_dim_v for cell in matrix.cells.values()}
    return found.pop() if len(found) == 1 else None


def _cell_data(decision: Decision, rules: Pool, verdicts: Pool) -> list[int]:
    """Positions of the verdicts, best backend first."""
    reasons = decision.reasons
    found = []
    for backend in preference(decision):
        state = "chosen" if backend == decision.backend else "eligible" if not reasons[backend] else "excluded"
        found.append(verdicts.add([int(backend), state, [_reason_data(reason, rules) for reason in reasons[backend]]]))
    return found


def _reason_data(reason: Reason, rules: Pool) -> list[Any]:
    """[rule, given, fix]."""
    rule = rules.add([reason.rule, reason.way, reason.required, reason.evidence])
    given = [[name, None if name in OWN else value] for name, value in reason.actual]
    fix = None if reason.fix is None else reason.fix.text + (" (enough by itself)" if reason.fix.makes_eligible else "")
    return [rule, given, fix]
