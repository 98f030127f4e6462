# SPDX-License-Identifier: Apache-2.0
"""Ledgers: every distinct decision that operators made in this process, with counts; saved, and replayed elsewhere.

`cynosure.ledger()` takes a snapshot. `cynosure.ledgers` has what else there is: `clear()` and `replay(path)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cynosure import _core
from cynosure._core import Backend
from cynosure._json import read_object
from cynosure.decision import Decision, decision_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cynosure.device import Device


@dataclass(frozen=True)
class Entry:
    """One decision, and how often it was made in each direction."""

    decision: Decision
    forward: int
    backward: int

    @property
    def backend(self) -> Backend | None:
        """The chosen backend."""
        return self.decision.backend

    @property
    def count(self) -> int:
        """How often it was made."""
        return self.forward + self.backward

    def to_dict(self) -> dict[str, Any]:
        """What `Ledger.save` writes for it."""
        return {
            "backend": _name(self.decision.backend),
            "forward": self.forward,
            "backward": self.backward,
            "problem": self.decision.problem.to_dict(),
            "device": self.decision.device.to_dict(),
            "settings": self.decision.settings.to_dict(),
        }


@dataclass(frozen=True)
class PlanBuilds:
    """Execution plans that a backend's library built within calls of one direction, and how long the calls waited."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0  # seconds

    def to_dict(self) -> dict[str, Any]:
        """What `Ledger.save` writes for it."""
        return {"count": self.count, "seconds": self.seconds, "longest": self.longest}


@dataclass(frozen=True)
class Group:
    """Decisions that differ in batch and lengths only, and have one outcome. A row of the printed table."""

    first: int  # the index of its first decision in the ledger
    decisions: tuple[Decision, ...]
    forward: int
    backward: int


class Ledger:
    """A snapshot, in the order in which decisions were first made in this process.

    `str` gives a table with a row for each group. Every decision is there by its index, and by iteration.
    """

    def __init__(
        self,
        entries: tuple[Entry, ...],
        unlisted: int = 0,
        forward_builds: PlanBuilds = PlanBuilds(),
        backward_builds: PlanBuilds = PlanBuilds(),
    ) -> None:
        self.entries = entries
        self.forward_builds, self.backward_builds = forward_builds, backward_builds
        self.unlisted = unlisted  # calls whose decisions came when the ledger was full

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def groups(self) -> tuple[Group, ...]:
        """The decisions, those together that differ in batch and lengths only and have one outcome."""
        kinds: dict[Any, list[int]] = {}
        for index, entry in enumerate(self.entries):
            kinds.setdefault((entry.backend, *kind_of(entry.decision)), []).append(index)
        return tuple(
            Group(
                indices[0],
                tuple(self.entries[i].decision for i in indices),
                sum(self.entries[i].forward for i in indices),
                sum(self.entries[i].backward for i in indices),
            )
            for indices in kinds.values()
        )

    def save(self, path: str | Path) -> None:
        """Writes JSON that `cynosure replay` and `replay` read."""
        text = json.dumps(
            {
                "cynosure": _core.VERSION,
                "ledger": [entry.to_dict() for entry in self.entries],
                "unlisted": self.unlisted,
                "plan_builds": {"forward": self.forward_builds.to_dict(), "backward": self.backward_builds.to_dict()},
            },
            indent=1,
        )
        Path(path).write_text(text + "\n", encoding="utf-8")

    def __rich__(self) -> RenderableType:
        from cynosure._render import ledger_table

        return ledger_table(self)

    def __str__(self) -> str:
        from cynosure._render import text_of

        return text_of(self.__rich__(), 100, color=False)

    def __repr__(self) -> str:
        return f"<Ledger of {len(self.entries)} decisions>"


def ledger() -> Ledger:
    """What operators decided in this process so far, in eager and compiled code, forward and backward."""
    rows, unlisted, *builds = _core.ledger_snapshot()
    entries = [
        Entry(decision_of(key, (batch, q, k), word, device, None), forward, backward)
        for key, batch, q, k, word, device, forward, backward in rows
    ]
    return Ledger(tuple(entries), unlisted, *(PlanBuilds(*build) for build in builds))


def clear() -> None:
    """Counts from nothing again. A decision that was made before keeps its place in the order, and in the bound."""
    _core.clear_ledger()


def kind_of(decision: Decision) -> tuple[bytes, int, bytes]:
    """All that a decision is about, without batch and lengths."""
    return decision.problem.key, decision.settings.word, decision.device.key


def _name(backend: Backend | None) -> str | None:
    return None if backend is None else backend.name


# --- replay


@dataclass(frozen=True)
class Change:
    """A recorded decision that comes out differently now."""

    recorded: str | None
    now: Decision

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"recorded": self.recorded, "now": self.now.to_dict()}


@dataclass(frozen=True)
class Replay:
    """What `replay` found."""

    decisions: int
    unlisted: int  # calls of the recorded run that its ledger could not hold
    changes: tuple[Change, ...]

    def __rich__(self) -> RenderableType:
        from cynosure._render import replay_report

        return replay_report(self)

    def __str__(self) -> str:
        from cynosure._render import text_of

        return text_of(self.__rich__(), 100, color=False)


def replay(path: str | Path, *, here: bool = False) -> Replay:
    """Makes every decision of a saved ledger again.

    Args:
        path: what `Ledger.save` wrote.
        here: for this machine as it is now; otherwise for the recorded machine, so that only the release matters.

    Raises:
        ValueError: for a file that is not a saved ledger, or one without a decision; the message says what is wrong.
    """
    recorded, unlisted = _read(path)
    changes = []
    for number, row in enumerate(recorded):
        try:
            backend, now = _again(row, here)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"ledger: entry {number} of {str(path)!r} cannot be read: {error!r}") from None
        except ValueError as error:
            raise ValueError(f"ledger: entry {number} of {str(path)!r}: {error}") from None
        if _name(now.backend) != backend:
            changes.append(Change(backend, now))
    return Replay(len(recorded), unlisted, tuple(changes))


def _read(path: str | Path) -> tuple[list[Any], int]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"ledger: {str(path)!r} is not text") from None
    value = read_object(text, "ledger")
    rows, unlisted = value.get("ledger"), value.get("unlisted", 0)
    if not isinstance(rows, list) or not isinstance(unlisted, int):
        raise ValueError(f"ledger: got {str(path)!r}, expected a file that Ledger.save wrote: an object with 'ledger'")
    if not rows:
        raise ValueError(f"ledger: {str(path)!r} holds no decision, so there is nothing to replay")
    return rows, unlisted


def _again(row: Any, here: bool) -> tuple[str | None, Decision]:
    """The recorded choice, and the decision as it is made now."""
    from cynosure.device import Device
    from cynosure.explain import hypothetical
    from cynosure.problem import Problem
    from cynosure.settings import Settings

    recorded = row["backend"]
    if recorded is not None and recorded not in Backend.__members__:
        raise ValueError(f"backend: got {recorded!r}, expected null or one of {', '.join(Backend.__members__)}")
    problem, device = Problem.from_dict(row["problem"]), Device.from_dict(row["device"])
    settings = Settings.from_word(int(row["settings"]["word"], 0))
    if here:
        device = _this_like(device)
    return recorded, hypothetical(problem, device, settings)


def _this_like(recorded: Device) -> Device:
    """This machine, as calls on the recorded kind of device meet it."""
    from cynosure.device import Device, built_for

    if recorded.device_kind == "cpu":
        return Device.this().replace(device_kind="cpu", sm=0, sm_count=0, built=built_for("cpu"))
    return Device.this()


def changes_by_kind(changes: Iterable[Change]) -> list[list[Change]]:
    """Changes that differ in batch and lengths only, together."""
    kinds: dict[Any, list[Change]] = {}
    for change in changes:
        kinds.setdefault((change.recorded, change.now.backend, *kind_of(change.now)), []).append(change)
    return list(kinds.values())
