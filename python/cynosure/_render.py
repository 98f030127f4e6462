# SPDX-License-Identifier: Apache-2.0
"""The layout of explanations, in rich's renderables. The words come from explain.py.

Every string goes through `Text`: what is printed may come from a file of faults, and holds no markup.
"""

from __future__ import annotations

import io

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cynosure._core import Backend
from cynosure.decision import Decision, Reason
from cynosure.explain import (
    CHOSEN,
    NOT_PREFERRED,
    WAYS,
    because,
    describe_call,
    describe_device,
    describe_settings,
    ground,
    overrides,
    preference,
    symbolic,
    verdicts,
)

STYLES = {
    CHOSEN: "bold green",
    NOT_PREFERRED: "green",
    WAYS["switched_off"]: "magenta",
    WAYS["not_required"]: "magenta",
    WAYS["not_installed"]: "cyan",
    WAYS["not_built"]: "blue",
    WAYS["not_eligible"]: "yellow",
}


def text_of(renderable: RenderableType, width: int, color: bool) -> str:
    """A renderable as text, without blanks at the ends of lines."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        _environ={},
    )
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def pairs(rows: list[tuple[str, Text | str]]) -> Table:
    """Labels and what they say, below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for label, content in rows:
        grid.add_row(label, content if isinstance(content, Text) else Text(content))
    return grid


def table_of(*columns: str) -> Table:
    """An empty table in the house's look."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def explanation(decision: Decision) -> RenderableType:
    """The head and the table of verdicts."""
    return Group(pairs(_head(decision)), Text(), _verdict_table(decision))


def _head(decision: Decision) -> list[tuple[str, Text | str]]:
    rows: list[tuple[str, Text | str]] = [
        ("call", describe_call(decision._actual(decision.problem.to_dict()))),
        ("device", describe_device(decision.device)),
        ("settings", describe_settings(decision.settings)),
    ]
    if symbolic(decision):
        rows.append(("lengths", _facts_text(decision)))
    chosen = "none: no backend may run this call" if decision.backend is None else decision.backend.name
    rows.append(("backend", Text(chosen, "bold red" if decision.backend is None else "bold green")))
    rows.append(("because", because(decision)))
    policy = ground(decision)
    if decision.settings.to_dict()["contract"] != "require":
        rows.append(("evidence", Text(policy.evidence, "dim")))
    rows += [("override", Text(line, "magenta")) for line in overrides(decision)]
    return rows


def _facts_text(decision: Decision) -> str:
    """The length facts that a traced decision rests on."""
    facts = decision.facts
    if not facts:
        return "symbolic: one choice for all of them"
    text = "; ".join(f"{fact}: {'unknown' if holds is None else 'yes' if holds else 'no'}" for fact, holds in facts)
    unknown = any(holds is None for _, holds in facts)
    note = (
        " (unknown: torch cannot decide it here, so only backends that are eligible either way remain)"
        if unknown
        else ""
    )
    return f"symbolic, guarded by {text}{note}"


def _verdict_table(decision: Decision) -> Table:
    table = Table(
        box=box.HORIZONTALS, pad_edge=False, padding=(0, 2, 0, 0), show_lines=True, header_style="bold", expand=False
    )
    table.add_column("backend", no_wrap=True)
    table.add_column("verdict", min_width=9, max_width=16)
    table.add_column("why, and what would change it", overflow="fold", ratio=1)
    reasons = decision.reasons
    for backend in preference(decision):
        words = verdicts(decision, backend, reasons[backend])
        style = STYLES[words[0]]
        verdict = Text("\n").join([Text(word, STYLES[word]) for word in words])
        table.add_row(Text(backend.name, style), verdict, _why(decision, backend, reasons[backend]))
    return table


def _why(decision: Decision, backend: Backend, reasons: tuple[Reason, ...]) -> RenderableType:
    """All reasons against one backend, and what it takes to remove them."""
    if not reasons:
        return Text(f"rank {decision.order.index(backend) + 1} of the {len(decision.order)} that are eligible", "dim")
    rows: list[tuple[str, Text | str]] = []
    for reason in reasons:
        rows += _reason_rows(reason)
    if len(reasons) > 1 and (remedy := decision.remedy(backend)):
        rows.append(("remedy", Text(f"{remedy}: all of it together makes {backend.name} eligible", "green")))
    return pairs(rows)


def _reason_rows(reason: Reason) -> list[tuple[str, Text | str]]:
    rows: list[tuple[str, Text | str]] = [("needs", reason.required)]
    given = ", ".join(f"{name}={value}" for name, value in reason.actual)
    if given:
        rows.append(("given", given))
    if reason.undecided:
        rows.append(("unknown", "whether this holds depends on lengths that torch cannot decide here"))
    if reason.fix is not None:
        alone = " (enough by itself)" if reason.fix.makes_eligible else ""
        rows.append(("fix", Text(reason.fix.text + alone, "green")))
    rows.append(("rule", Text(f"{reason.rule} | {reason.evidence}" if reason.evidence else reason.rule, "dim")))
    return rows
