# SPDX-License-Identifier: Apache-2.0
"""The ledger: every distinct decision that operators made in this process, with counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cynosure import _core
from cynosure._core import Backend
from cynosure._json import read_object
from cynosure.decision import Decision, decision_of

if TYPE_CHECKING:
    from rich.console import RenderableType


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
        backend = self.decision.backend
        return {
            "backend": None if backend is None else backend.name,
            "forward": self.forward,
            "backward": self.backward,
            "problem": self.decision.problem.to_dict(),
            "device": self.decision.device.to_dict(),
            "settings": self.decision.settings.to_dict(),
        }


class Ledger:
    """A snapshot, in the order in which decisions were first made; `str` gives a table."""

    def __init__(self, entries: tuple[Entry, ...], unlisted: int = 0) -> None:
        self.entries = entries
        self.unlisted = unlisted  # calls whose decisions came when the ledger was full

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def save(self, path: str | Path) -> None:
        """Writes JSON that `cynosure replay` and `replay` read."""
        text = json.dumps({"ledger": [entry.to_dict() for entry in self.entries], "unlisted": self.unlisted}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    def __rich__(self) -> RenderableType:
        from cynosure._render import ledger_table

        return ledger_table(self)

    def __str__(self) -> str:
        from cynosure._render import as_text

        return as_text(self.__rich__())

    def __repr__(self) -> str:
        return f"<Ledger of {len(self.entries)} decisions>"


def ledger() -> Ledger:
    """What operators decided in this process so far, in eager and compiled code, forward and backward."""
    entries = [
        Entry(decision_of(key, (batch, q, k), word, device, None), forward, backward)
        for key, batch, q, k, word, device, forward, backward in _core.ledger_rows()
    ]
    return Ledger(tuple(entries), _core.ledger_unlisted())


def clear() -> None:
    """Starts the ledger anew."""
    _core.clear_ledger()


@dataclass(frozen=True)
class Change:
    """A recorded decision that this release makes differently."""

    recorded: str | None
    now: Decision


def replay(path: str | Path) -> tuple[int, list[Change]]:
    """How many decisions a saved ledger holds, and those that come out differently now.

    Raises:
        ValueError: for a file that is not a saved ledger, naming what is wrong.
    """
    from cynosure.api import select
    from cynosure.device import Device
    from cynosure.problem import Problem
    from cynosure.settings import Settings

    rows = read_object(Path(path).read_text(encoding="utf-8"), "ledger").get("ledger")
    if not isinstance(rows, list):
        raise ValueError(f"ledger: got {str(path)!r}, expected a file that Ledger.save wrote: an object with 'ledger'")
    changes = []
    for number, row in enumerate(rows):
        try:
            problem = Problem.from_dict(row["problem"])
            device, word = Device.from_dict(row["device"]), int(row["settings"]["word"], 0)
            recorded = row["backend"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"ledger: entry {number} cannot be read: {error!r}") from None
        now = select(problem, device, Settings.from_word(word))
        if (None if now.backend is None else now.backend.name) != recorded:
            changes.append(Change(recorded, now))
    return len(rows), changes
