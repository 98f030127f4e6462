# SPDX-License-Identifier: Apache-2.0
"""Decision: the chosen backend, and the verdict with every reason on each of the others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cynosure import _core
from cynosure._constant import constant
from cynosure._core import Backend
from cynosure._json import read_object
from cynosure._tracing import Traceable
from cynosure._values import value_class
from cynosure.backend import BACKENDS
from cynosure.device import Device, device_of_key
from cynosure.problem import Problem, problem_of_key
from cynosure.settings import Settings, settings_of_word


@dataclass(frozen=True)
class Fix:
    """A change that removes a reason, verified by selecting again with it."""

    text: str
    makes_eligible: bool  # alone; otherwise other reasons remain


@dataclass(frozen=True)
class Reason:
    """One rule that fired against one backend."""

    backend: Backend
    rule: str
    way: str  # switched_off, not_required, not_installed, not_built or not_eligible
    actual: tuple[tuple[str, str], ...]
    required: str
    evidence: str
    undecided: bool
    fix: Fix | None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data; the backend is the key under which a decision lists it."""
        return {
            "rule": self.rule,
            "way": self.way,
            "actual": dict(self.actual),
            "required": self.required,
            "evidence": self.evidence,
            "undecided": self.undecided,
            "fix": None if self.fix is None else {"text": self.fix.text, "makes_eligible": self.fix.makes_eligible},
        }

    def to_json(self) -> str:
        """`to_dict` and the backend as JSON text."""
        return json.dumps({"backend": self.backend.name, **self.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> Reason:
        """From `to_json`'s text."""
        try:
            values = read_object(text, "reason")
            values["backend"] = Backend[values["backend"]]
            values["actual"] = tuple(values["actual"].items())
            values["fix"] = None if values["fix"] is None else Fix(**values["fix"])
            return cls(**values)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"reason: got {text[:80]!r}, expected what to_json wrote: {error!r}") from None


# For traced code; the arguments are those of decision_of.
@constant
def _explain_text(*call: Any) -> str:
    from cynosure.explain import explanation_text

    return explanation_text(decision_of(*call))


@constant
def _ranking(*call: Any) -> tuple[tuple[str, ...], str]:
    native = decision_of(*call)._native()
    return tuple(native.order()), native.ground()


@constant
def _facts(
    key: bytes, word: int, device: bytes, answers: tuple[bool | None, ...]
) -> tuple[tuple[str, bool | None], ...]:
    return tuple(_core.facts_of(key, word, device, answers))


def decision_of(
    key: bytes, lengths: tuple[int, int, int] | None, word: int, device: bytes, answers: tuple[bool | None, ...] | None
) -> Decision:
    """The decision these packed values stand for; lengths are None where answers to length facts take their place."""
    if answers is None:
        assert lengths is not None
        chosen, eligible = _core.outcome(key, *lengths, word, device)
        return make_decision(problem_of_key(key, *lengths), word, device, None, chosen, eligible)
    native = _core.decide_partial(key, word, device, answers)
    return make_decision(problem_of_key(key, 0, 0, 0), word, device, answers, native.chosen, native.eligible)


def make_decision(
    problem: Problem, word: int, device: bytes, answers: tuple[bool | None, ...] | None, chosen: int, eligible: int
) -> Decision:
    """A Decision around its parts."""
    decision = object.__new__(Decision)
    decision._made = (problem, word, device, answers, eligible, chosen)
    return decision


class Decision(Traceable):
    """What `select` returns."""

    __slots__ = ("__weakref__", "_made")
    # (problem, settings word, device, answers, eligible, chosen): one attribute, because each costs the tracer. The
    # answers are those to the length facts asked while tracing; None: the lengths are known.
    _made: tuple[Problem, int, bytes, tuple[bool | None, ...] | None, int, int]

    def __init__(self) -> None:
        raise TypeError("Decision: made by cynosure.select, not by hand")

    @property
    def backend(self) -> Backend | None:
        """The chosen one, or None when none may run."""
        return BACKENDS[self._made[5]]

    @property
    def problem(self) -> Problem:
        """The call."""
        return self._made[0]

    @property
    def _word(self) -> int:
        return self._made[1]

    @property
    def _device(self) -> bytes:
        return self._made[2]

    @property
    def _answers(self) -> tuple[bool | None, ...] | None:
        return self._made[3]

    @property
    def _eligible(self) -> int:
        return self._made[4]

    @property
    def _call(self) -> tuple[bytes, Any, int, bytes, tuple[bool | None, ...] | None]:
        """The arguments of `decision_of` that give this decision."""
        problem, word, device, answers, _, _ = self._made
        key, batch, seqlen_q, seqlen_k = problem._value
        return key, (batch, seqlen_q, seqlen_k) if answers is None else None, word, device, answers

    @property
    def eligible(self) -> tuple[Backend, ...]:
        """The backends that may run, in enum order."""
        return tuple([backend for backend in BACKENDS[:-1] if self._eligible & (1 << backend)])  # type: ignore[misc, operator]

    @property
    def settings(self) -> Settings:
        """The settings it was made with."""
        return settings_of_word(self._word)

    @property
    def device(self) -> Device:
        """The machine it is about."""
        return device_of_key(self._device)

    @property
    def order(self) -> tuple[Backend, ...]:
        """The eligible backends, best first."""
        return tuple([Backend[name] for name in _ranking(*self._call)[0]])

    @property
    def ground(self) -> str:
        """Why this order: the contract, the policy's row and its evidence."""
        return _ranking(*self._call)[1]

    @property
    def reasons(self) -> dict[Backend, tuple[Reason, ...]]:
        """Every reason against every backend; an eligible one has none."""
        found: dict[Backend, list[Reason]] = {backend: [] for backend in Backend}
        for row in self._native().reasons(True):
            fix = row["fix"]
            reason = Reason(
                backend=Backend[row["backend"]],
                rule=row["rule"],
                way=row["way"],
                actual=tuple(self._actual(row["actual"]).items()),
                required=row["required"],
                evidence=row["evidence"],
                undecided=row["undecided"],
                fix=None if fix is None or self._answers is not None else Fix(**fix),
            )
            found[reason.backend].append(reason)
        return {backend: tuple(reasons) for backend, reasons in found.items()}

    @property
    def facts(self) -> tuple[tuple[str, bool | None], ...]:
        """The length facts this decision rests on where lengths were symbolic; None: undecidable."""
        answers = self._answers
        return () if answers is None else _facts(self.problem.key, self._word, self._device, answers)

    def remedy(self, backend: Backend | str) -> str | None:
        """What it takes to make a backend eligible, verified; None where no way is known or none is needed."""
        if self._answers is not None:
            return None
        result: str | None = self._native().remedy(Backend[backend].name if isinstance(backend, str) else backend.name)
        return result

    def explain(self) -> str:
        """The table of verdicts and reasons as text. Works while torch traces, too."""
        return _explain_text(*self._call)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "backend": None if self.backend is None else self.backend.name,
            "eligible": [backend.name for backend in self.eligible],
            "order": [backend.name for backend in self.order],
            "ground": self.ground,
            "problem": self._actual(self.problem.to_dict()),
            "device": self.device.to_dict(),
            "settings": self.settings.to_dict(),
            "facts": [list(fact) for fact in self.facts],
            "reasons": {
                backend.name: [reason.to_dict() for reason in reasons] for backend, reasons in self.reasons.items()
            },
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """Reads `to_json`'s text back and verifies it: this release must decide the same."""
        from cynosure.api import select

        try:
            value = read_object(text, "decision")
            stated = value["backend"]
            parts = value["problem"], value["device"], int(value["settings"]["word"], 0)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"decision: got {text[:80]!r}, expected what to_json wrote: {error!r}") from None
        decision = select(Problem.from_dict(parts[0]), Device.from_dict(parts[1]), Settings.from_word(parts[2]))
        chosen = None if decision.backend is None else decision.backend.name
        if chosen != stated:
            raise ValueError(f"decision: this release chooses {chosen}, the text says {stated}")
        return decision

    def call_text(self) -> str:
        """The call in one line: the problem, with symbolic lengths shown as such."""
        if self._answers is None:
            return repr(self.problem)
        facts = "; ".join(
            f"{fact}: {'unknown' if holds is None else 'yes' if holds else 'no'}" for fact, holds in self.facts
        )
        return f"{self.problem!r} over symbolic lengths ({facts or 'no fact about them matters'})"

    def _native(self) -> Any:
        p = self.problem
        if self._answers is None:
            return _core.decide(p.key, p.batch, p.seqlen_q, p.seqlen_k, self._word, self._device)
        return _core.decide_partial(p.key, self._word, self._device, self._answers)

    def _actual(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values with symbolic lengths shown as such."""
        if self._answers is None:
            return values
        return {
            name: "symbolic" if name in ("batch", "seqlen_q", "seqlen_k") else value for name, value in values.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        lengths = self.problem if self._answers is None else (self.problem.key, self._answers)
        return lengths, self._word, self._device

    def __repr__(self) -> str:
        chosen = None if self.backend is None else self.backend.name
        return f"<Decision backend={chosen} eligible=({', '.join(backend.name for backend in self.eligible)})>"


value_class(Decision)
