# SPDX-License-Identifier: Apache-2.0
"""`cynosure diff`: what changes between two machines, over a grid of calls or a file of records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cynosure import _calls, _core
from cynosure._core import Backend
from cynosure.device import Device
from cynosure.explain import describe_device, describe_settings, hypothetical
from cynosure.settings import Settings
from cynosure.version import Version

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_EXAMPLES = 3
NOTHING = "no backend"

# What a record calls the fields of a machine.
RECORD_FIELDS = {"sm": "sm", "cudnn": "cudnn", "flash2": "fa2", "flash3": "fa3", "flash4": "fa4"}


@dataclass(frozen=True)
class Answer:
    """The choice for one call on one machine, and the ids of the rules against every backend."""

    chosen: str
    rules: dict[str, frozenset[str]]

    @property
    def eligible(self) -> frozenset[str]:
        """The backends without a rule against them."""
        return frozenset(name for name, rules in self.rules.items() if not rules)


@dataclass(frozen=True)
class Case:
    """One call with both answers."""

    label: str
    old: Answer
    new: Answer


@dataclass(frozen=True)
class Diff:
    """All cases, and what was compared."""

    old: str
    new: str
    settings: str
    cases: list[Case]
    refused: int  # records that cannot be decided


# --- the machines


def machines(old: str, new: str, base: str | None) -> tuple[Device, Device]:
    """Both machines from FIELD=VALUE,... texts."""
    return machine(old, "--from", base), machine(new, "--to", base)


def machine(text: str, option: str, base: str | None) -> Device:
    """A machine: `device=NAME` or the base, with fields replaced."""
    fields = parse_fields(text, option)
    name = fields.pop("device", base)
    device = default_machine() if name is None else Device.named(name)
    try:
        return device.replace(**{field: _value(value) for field, value in fields.items()})
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def default_machine() -> Device:
    """This machine with all backends built where it has a GPU, else an H200."""
    here = Device.this()
    return (
        here.replace(built=list(Backend.__members__))
        if here.to_dict()["device_kind"] == "cuda"
        else Device.named("h200")
    )


def parse_fields(text: str, option: str) -> dict[str, str]:
    """FIELD=VALUE,FIELD=VALUE as a dict."""
    fields: dict[str, str] = {}
    for item in text.split(","):
        name, sign, value = (part.strip() for part in item.partition("="))
        if not sign or not name or not value:
            raise ValueError(f"{option}: got {item!r}, expected FIELD=VALUE such as cudnn=9.19.0 or device=a100")
        if name in fields:
            raise ValueError(f"{option}: names {name} twice")
        fields[name] = value
    return fields


def _value(text: str) -> Any:
    if text == "none":
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() else text


# --- the cases


def over_grid(old: str, new: str, base: str | None, settings: Settings) -> Diff:
    """The built-in grid on both machines."""
    before, after = machines(old, new, base)
    cases = [
        Case(label, _decided(problem, before, settings), _decided(problem, after, settings))
        for label, problem in _calls.grid()
    ]
    return Diff(describe_device(before), describe_device(after), describe_settings(settings), cases, 0)


def _decided(problem: Any, device: Device, settings: Settings) -> Answer:
    decision = hypothetical(problem, device, settings)
    rules: dict[str, set[str]] = {name: set() for name in Backend.__members__}
    for row in decision._native().reasons():  # without the search for fixes
        rules[row["backend"]].add(row["rule"])
    chosen = NOTHING if decision.backend is None else decision.backend.name
    return Answer(chosen, {name: frozenset(ids) for name, ids in rules.items()})


def over_records(path: Path, old: str, new: str, base: str | None, policy: str) -> Diff:
    """A file of records, each with the machine's changes made to its own machine."""
    before, after = (record_change(text, option, base) for text, option in ((old, "--from"), (new, "--to")))
    word = _core.default_settings()
    cases, refused = [], 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a file of records: no UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        answers = [_answered(line, change, policy, word) for change in (before, after)]
        if answers[0] is None or answers[1] is None:
            refused += 1
        else:
            cases.append(Case(_record_label(line, number), answers[0], answers[1]))
    if not cases:
        raise ValueError(f"{path}: not a file of records: none of its {len(lines)} lines can be decided")
    return Diff(
        f"each record's machine with {old}", f"each record's machine with {new}", f"policy {policy}", cases, refused
    )


Change = Callable[[dict[str, Any]], None]


def record_change(text: str, option: str, base: str | None) -> Change:
    """What to do to a record's machine."""
    fields = parse_fields(text, option)
    name = fields.pop("device", base)
    given: dict[str, Any] = {} if name is None else _core.device_dict(Device.named(name).key)
    device = Device.named("h200").replace(
        **{field: _value(value) for field, value in fields.items()}
    )  # checks the fields
    given.update((field, device.to_dict()[field]) for field in fields)
    unknown = [field for field in fields if field not in RECORD_FIELDS]
    if unknown:
        raise ValueError(
            f"{option}: {unknown[0]} is no field of a record's machine, expected {', '.join(RECORD_FIELDS)} or device"
        )

    def change(record: dict[str, Any]) -> None:
        if name is not None:
            record.clear()
        for field, key in RECORD_FIELDS.items():
            if field in given:
                record.pop(key, None)
                if given[field] is not None:
                    record[key] = cudnn_integer(given[field]) if field == "cudnn" else given[field]

    return change


def cudnn_integer(version: str) -> int:
    """The form that cuDNN itself reports: 91900 for 9.19.0, 8907 for 8.9.7."""
    v = Version(version)
    return (10000 if v.major >= 9 else 1000) * v.major + 100 * v.minor + v.micro


def _answered(line: str, change: Change, policy: str, word: int) -> Answer | None:
    try:
        record = json.loads(line)
        change(record["device"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    answer = json.loads(_core.answer_record(json.dumps(record), policy, word))
    if "error" in answer:
        return None
    return Answer(answer["chosen"] or NOTHING, {name: frozenset(ids) for name, ids in answer["reasons"].items()})


def _record_label(line: str, number: int) -> str:
    params = json.loads(line).get("params", {})
    shown = ("qkv_layout", "attn_mask_type", "num_heads", "head_dim_qk", "max_seqlen_q", "max_seqlen_kv")
    return f"line {number}: " + ", ".join(f"{name}={params[name]}" for name in shown if name in params)


# --- the summary


@dataclass(frozen=True)
class Group:
    """The cases in which the choice went from one backend to another."""

    old: str
    new: str
    cases: list[Case]

    def against_old(self) -> list[tuple[str, int]]:
        """Rules that appeared against the old choice, with counts."""
        return _counted(
            case.new.rules.get(self.old, frozenset()) - case.old.rules.get(self.old, frozenset()) for case in self.cases
        )

    def against_new(self) -> list[tuple[str, int]]:
        """Rules that went away from the new choice, with counts."""
        return _counted(
            case.old.rules.get(self.new, frozenset()) - case.new.rules.get(self.new, frozenset()) for case in self.cases
        )


def _counted(sets: Iterable[Iterable[str]]) -> list[tuple[str, int]]:
    counts = Counter(rule for rules in sets for rule in rules)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def groups(diff: Diff) -> list[Group]:
    """Changed choices, the most frequent first."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in diff.cases:
        if case.old.chosen != case.new.chosen:
            found.setdefault((case.old.chosen, case.new.chosen), []).append(case)
    return [Group(old, new, cases) for (old, new), cases in sorted(found.items(), key=lambda item: -len(item[1]))]


def eligibility(diff: Diff) -> Iterator[tuple[str, str, int, list[tuple[str, int]]]]:
    """(backend, "gained" or "lost", cases, the rules that went or came) where the choice stayed."""
    same = [case for case in diff.cases if case.old.chosen == case.new.chosen]
    for name in Backend.__members__:
        gained = [case for case in same if name in case.new.eligible - case.old.eligible]
        lost = [case for case in same if name in case.old.eligible - case.new.eligible]
        if gained:
            yield name, "gained", len(gained), _counted(case.old.rules[name] for case in gained)
        if lost:
            yield name, "lost", len(lost), _counted(case.new.rules[name] for case in lost)


def to_dict(diff: Diff) -> dict[str, Any]:
    """The summary as plain data."""
    return {
        "from": diff.old,
        "to": diff.new,
        "settings": diff.settings,
        "cases": len(diff.cases),
        "refused": diff.refused,
        "changed": sum(len(group.cases) for group in groups(diff)),
        "groups": [
            {
                "from": group.old,
                "to": group.new,
                "count": len(group.cases),
                "rules_against_old": dict(group.against_old()),
                "rules_gone_from_new": dict(group.against_new()),
                "cases": [case.label for case in group.cases],
            }
            for group in groups(diff)
        ],
        "eligibility": [
            {"backend": name, "change": change, "count": count, "rules": dict(rules)}
            for name, change, count, rules in eligibility(diff)
        ],
    }


def report(diff: Diff) -> RenderableType:
    """The summary as a table."""
    from rich.console import Group as Stack
    from rich.text import Text

    from cynosure._render import pairs, table_of

    found = groups(diff)
    changed = sum(len(group.cases) for group in found)
    head: list[tuple[str, Text | str]] = [("from", diff.old), ("to", diff.new), ("settings", diff.settings)]
    refused = f"; {diff.refused} records cannot be decided" if diff.refused else ""
    head.append(("result", Text(f"{changed} of {len(diff.cases)} calls choose another backend{refused}", "bold")))
    parts: list[RenderableType] = [pairs(head)]
    if found:
        table = table_of("calls", "choice", "why, and for example")
        for group in found:
            table.add_row(
                Text(str(len(group.cases)), "bold"),
                Text(f"{group.old} -> {group.new}", "green"),
                pairs(_group_rows(group)),
            )
        parts += [Text(), table]
    others = list(eligibility(diff))
    if others:
        table = table_of("calls", "same choice, but", "rules")
        for name, change, count, rules in others:
            what = "becomes eligible" if change == "gained" else "is no longer eligible"
            table.add_row(Text(str(count), "bold"), Text(f"{name} {what}"), Text(_rules_text(rules), "dim"))
        parts += [Text(), table]
    return Stack(*parts)


def _group_rows(group: Group) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    if against := group.against_old():
        rows.append(("new rule", f"{group.old}: {_rules_text(against)}"))
    if gone := group.against_new():
        rows.append(("gone", f"{group.new}: {_rules_text(gone)}"))
    if not rows:
        rows.append(("order", "both are eligible on both machines; the policy orders them differently"))
    step = max(1, len(group.cases) // MOST_EXAMPLES)
    return rows + [("e.g.", case.label) for case in group.cases[::step][:MOST_EXAMPLES]]


def _rules_text(rules: list[tuple[str, int]]) -> str:
    return ", ".join(f"{rule} ({count})" for rule, count in rules)
