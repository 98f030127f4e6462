# SPDX-License-Identifier: Apache-2.0
"""The layout of explanations, in rich's renderables. The words come from explain.py.

Every string goes through `Text`: what is printed may come from a file of faults, and holds no markup.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cynosure._core import Backend, settings_with
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
from cynosure.ledgers import changes_by_kind
from cynosure.settings import settings_of_word

if TYPE_CHECKING:
    from cynosure.ledgers import Change, Ledger, Replay

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
    return _verdicts(decision, preference(decision))


def verdict(decision: Decision, backend: Backend) -> RenderableType:
    """The row of one backend."""
    return _verdicts(decision, (backend,))


def _verdicts(decision: Decision, backends: Sequence[Backend]) -> Table:
    table = Table(
        box=box.HORIZONTALS, pad_edge=False, padding=(0, 2, 0, 0), show_lines=True, header_style="bold", expand=False
    )
    table.add_column("backend", no_wrap=True)
    table.add_column("verdict", min_width=9, max_width=16)
    table.add_column("why, and what would change it", overflow="fold", ratio=1)
    reasons = decision.reasons
    for backend in backends:
        words = verdicts(decision, backend, reasons[backend])
        style = STYLES[words[0]]
        said = Text("\n").join([Text(word, STYLES[word]) for word in words])
        table.add_row(Text(backend.name, style), said, _why(decision, backend, reasons[backend]))
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


def ledger_table(ledger: Ledger) -> RenderableType:
    """A row for each group of decisions, with ranges of batch and lengths."""
    table = table_of("#", "backend", "forward", "backward", "calls")
    for column in table.columns[2:4]:
        column.justify = "right"
    for column in table.columns[:4]:
        column.no_wrap = True
    machines = len({entry.decision.device for entry in ledger})
    groups = ledger.groups()
    for group in groups:
        table.add_row(
            Text(str(group.first), "dim"),
            _backend_text(group.decisions[0].backend),
            Text(f"{group.forward:,}"),
            Text(f"{group.backward:,}"),
            Text("\n").join(_group_lines(group.decisions, machines > 1)),
        )
    parts: list[RenderableType] = [table, Text()] if groups else []
    if ledger.unlisted:
        text = f"{ledger.unlisted:,} more calls are not listed: the ledger was full when their decisions came"
        parts.append(Text(text, "yellow"))
    for direction, builds in (("forward", ledger.forward_builds), ("backward", ledger.backward_builds)):
        if builds.count:
            text = f"{_counted(builds.count, 'plan')} built for {direction}: {builds.seconds:.3f} s"
            parts.append(Text(f"{text}, the longest {builds.longest:.3f} s", "dim"))
    parts.append(Text(_ledger_foot(len(ledger), len(groups)), "dim"))
    return Group(*parts)


def _ledger_foot(decisions: int, groups: int) -> str:
    if not decisions:
        return "no operator has made a decision yet"
    what = f"{_counted(decisions, 'decision')} in {_counted(groups, 'row')}"
    return f"{what}; cynosure.ledger()[#].decision.explain() gives every reason"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _backend_text(backend: Backend | None) -> Text:
    return Text("none", "bold red") if backend is None else Text(backend.name, "bold green")


def _group_lines(decisions: Sequence[Decision], name_machine: bool) -> list[Text]:
    """What calls have in common, the ranges of what they have not, and the rules against other backends here."""
    lines = [Text(describe_call(_ranges(decisions)))]
    if len(decisions) > 1:
        lines[0].append(f"  ({len(decisions):,} different)", "dim")
    settings = describe_settings(settings_of_word(settings_with(decisions[0].settings.word, enforce=False)))
    if settings != "defaults":
        lines.append(Text(settings, "magenta"))
    if name_machine:
        lines.append(Text(describe_device(decisions[0].device), "dim"))
    against = _against(decisions)
    if against:
        lines.append(Text(f"not {against}", "dim"))
    return lines


def _ranges(decisions: Sequence[Decision]) -> dict[str, Any]:
    """A problem's fields, with batch and lengths as ranges."""
    values = decisions[0].problem.to_dict()
    for name in ("batch", "seqlen_q", "seqlen_k"):
        found = [getattr(decision.problem, name) for decision in decisions]
        values[name] = str(found[0]) if min(found) == max(found) else f"{min(found)}-{max(found)}"
    return values


def _against(decisions: Sequence[Decision]) -> str:
    """The rules that exclude backends which this machine could run."""
    rules: dict[str, dict[str, None]] = {}
    for decision in decisions[:_MOST_EXPLAINED]:
        for backend, reasons in decision.reasons.items():
            if any(reason.way != "not_eligible" or reason.rule.endswith(".device") for reason in reasons):
                continue
            for reason in reasons:
                rules.setdefault(backend.name, {})[reason.rule] = None
    return "; not ".join(f"{name}: {', '.join(found)}" for name, found in rules.items())


_MOST_EXPLAINED = 64  # of a group: rules that lengths decide seldom differ within one


def replay_report(replay: Replay) -> RenderableType:
    """One line where nothing changed; else a row for each kind of change."""
    full = f", {replay.unlisted:,} calls beyond it were not recorded" if replay.unlisted else ""
    if not replay.changes:
        return Text(f"{_counted(replay.decisions, 'decision')} replayed: all the same{full}")
    table = table_of("was", "is now", "calls, and why")
    for changes in changes_by_kind(replay.changes):
        decisions = [change.now for change in changes]
        lines = [*_group_lines(decisions, False)[:1], Text(_why_changed(changes[0]), "dim")]
        was = changes[0].recorded
        table.add_row(Text("none" if was is None else was), _backend_text(decisions[0].backend), Text("\n").join(lines))
    head = f"{replay.decisions:,} decisions replayed, {len(replay.changes):,} changed{full}"
    return Group(table, Text(), Text(head, "bold red"))


def _why_changed(change: Change) -> str:
    """What is against the recorded backend now, or what came before it."""
    now = change.now
    if change.recorded is None:
        return f"nothing was eligible; now {because(now)}"
    backend = Backend[change.recorded]
    reasons = now.reasons[backend]
    if not reasons:
        return f"{backend.name} is still eligible; {because(now)}"
    return "; ".join(f"{backend.name} needs {reason.required} ({reason.rule})" for reason in reasons)
