# SPDX-License-Identifier: Apache-2.0
"""explain: a decision in words, and the table of verdicts and reasons.

This module finds the words; `_render` lays them out. Nothing here prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cynosure import _core
from cynosure._core import Backend
from cynosure.backend import BackendArgument
from cynosure.decision import Decision, Reason, decision_of, make_decision
from cynosure.device import Device
from cynosure.problem import Problem
from cynosure.settings import Settings, settings_of_word

if TYPE_CHECKING:
    from rich.console import RenderableType

LIBRARIES = {
    "cudnn": "cuDNN",
    "flash2": "flash-attn",
    "flash3": "flash-attn-3",
    "flash4": "flash-attn-4",
    "torch": "torch",
}

# The ways not to run that rows of the table give, in the order in which a user can do something about them. One more
# is an eligible backend that is not preferred.
WAYS = {
    "switched_off": "switched off",
    "not_required": "not required",
    "not_installed": "not installed",
    "not_built": "not built in this release",
    "not_eligible": "not eligible",
}
CHOSEN = "chosen"
NOT_PREFERRED = "eligible, not preferred"


# --- the public functions


class Explanation(str):
    """The table as text; `decision` is what it explains. rich prints it in colour and in the terminal's width."""

    decision: Decision

    def __new__(cls, decision: Decision) -> Explanation:
        """The text for a decision."""
        explanation = super().__new__(cls, explanation_text(decision))
        explanation.decision = decision
        return explanation

    def __rich__(self) -> RenderableType:
        return render(self.decision)

    def __reduce__(self) -> tuple[type[Explanation], tuple[Decision]]:
        return Explanation, (self.decision,)

    def __repr__(self) -> str:  # so that an interactive session shows the table
        return str(self)


def explain(
    *args: Any,
    device: Device | None = None,
    settings: Settings | None = None,
    backend: BackendArgument | None = None,
    policy: str | None = None,
    **kwargs: Any,
) -> Explanation:
    """Which backend runs a call, and every reason against each of the others.

    Args:
        args: a `Problem`, or q, k, v.
        device: the machine; None: the one that the tensors are on, or this one.
        settings: the user's choice; None: the current environment's, with `backend` and `policy`.
        backend: as in `attention`.
        policy: as in `attention`.
        kwargs: `attention`'s other arguments.

    Returns:
        The table: a str, with the `decision` it is about. Nothing is printed.
    """
    if settings is not None and (backend is not None or policy is not None):
        raise ValueError("settings: given together with backend or policy, expected either")
    if len(args) == 1 and isinstance(args[0], Problem):
        if kwargs:
            raise TypeError(f"{next(iter(kwargs))}: given together with a Problem, which describes the whole call")
        problem = args[0]
    else:
        problem = Problem.of(*args, **kwargs)
        device = _device_of(args[0] if args else None) if device is None else device
    if settings is None:
        settings = Settings.current(backend=backend, policy=policy)
    machine = Device.this() if device is None else device
    return Explanation(hypothetical(problem, machine, settings))


def explanation_text(decision: Decision, width: int = 100, color: bool = False) -> str:
    """The table as text of that width; with ANSI colours if asked for."""
    from cynosure._render import text_of

    return text_of(render(decision), width, color)


def render(decision: Decision) -> RenderableType:
    """The table for rich, which gives it the width and the colours of a terminal."""
    from cynosure._render import explanation

    return explanation(decision)


def hypothetical(problem: Problem, device: Device, settings: Settings) -> Decision:
    """The decision for these values, as a question: `select` without a line in the log."""
    lengths = (problem.batch, problem.seqlen_q, problem.seqlen_k)
    return decision_of(problem.key, lengths, settings.word, device.key, None)


def _device_of(tensor: Any) -> Device | None:
    """The machine as a call on this tensor meets it; None where that is simply this machine."""
    device = getattr(tensor, "device", None)
    kind = getattr(device, "type", None)
    if kind == "cpu":
        return Device.this().replace(device_kind="cpu", sm=0, sm_count=0)
    return Device.this(device.index) if kind == "cuda" and device is not None else None


# --- the call, the machine and the settings in one line each


def describe_call(values: dict[str, Any]) -> str:
    """A problem's fields as one readable line; what has its default value is left out."""
    v = dict(values)
    default = _core.features_dict(_core.pack_features({}))
    parts = [f"{v.pop('dtype')} {_layout_text(v.pop('layout'))}", _heads_text(v), _lengths_text(v), _head_dims_text(v)]
    if v.pop("causal"):
        parts.append("causal")
    if v.pop("window_given") or v["window_left"] != -1 or v["window_right"] not in (-1, default["window_right"]):
        parts.append(f"window ({v['window_left']}, {v['window_right']})")
    del v["window_left"], v["window_right"]
    training = v.pop("training")
    for name, value in v.items():
        if value != default[name]:
            parts.append(name if value is True else f"{name}=no" if value is False else f"{name}={value}")
    parts.append("training" if training else "inference")
    return ", ".join(parts)


def _layout_text(layout: str) -> str:
    """`bshd` for three times the same."""
    parts = layout.split("_")
    return parts[0] if len(parts) == 3 and len(set(parts)) == 1 else layout


def _heads_text(v: dict[str, Any]) -> str:
    heads, kv_heads = v.pop("heads"), v.pop("kv_heads")
    return f"{heads} heads" if heads == kv_heads else f"{heads} heads over {kv_heads} KV heads"


def _lengths_text(v: dict[str, Any]) -> str:
    batch, q, k = v.pop("batch"), v.pop("seqlen_q"), v.pop("seqlen_k")
    return "symbolic batch and lengths" if q == "symbolic" else f"batch {batch}, {q} x {k}"


def _head_dims_text(v: dict[str, Any]) -> str:
    qk, value = v.pop("head_dim_qk"), v.pop("head_dim_v")
    return f"head dim {qk}" if qk == value else f"head dims {qk} and {value}"


def describe_device(device: Device) -> str:
    """A machine in one line."""
    d = device.to_dict()
    sm = d["sm"]
    cuda = d["device_kind"] == "cuda"
    parts = [f"CUDA, compute capability {sm // 10}.{sm % 10}, {d['sm_count']} SMs" if cuda else f"CPU, {d['cpu_isa']}"]
    for field, name in LIBRARIES.items():
        if d[field] is not None:
            parts.append(f"{name} {d[field]}")
        elif cuda:
            parts.append(f"no {name}")
    missing = [name for name in Backend.__members__ if name not in d["built"]]
    if missing:
        parts.append(f"built in this release: {', '.join(d['built']) or 'no backend'}")
    if not d["interpreter"]:
        parts.append("no Python interpreter")
    return "; ".join(parts)


def describe_settings(settings: Settings) -> str:
    """What differs from the defaults."""
    s = settings.to_dict()
    default = _core.settings_dict(_core.default_settings())
    parts = [] if s["policy"] == default["policy"] else [f"policy {s['policy']}"]
    parts += [override.text for override in _parts(settings.word)]
    for name in ("matmul_precision", "emulate_fp8", "onnx_export", "enforce"):
        if s[name] != default[name]:
            parts.append(name if s[name] is True else f"{name}={s[name]}")
    return "; ".join(parts) or "defaults"


# --- the verdicts


def symbolic(decision: Decision) -> bool:
    """The decision was made while torch traced: over length facts instead of lengths."""
    return decision._answers is not None


def verdicts(decision: Decision, backend: Backend, reasons: tuple[Reason, ...]) -> tuple[str, ...]:
    """The words for one backend: chosen; eligible, not preferred; or each way in which it cannot run."""
    if backend == decision.backend:
        return (CHOSEN,)
    if not reasons:
        return (NOT_PREFERRED,)
    return tuple(text for way, text in WAYS.items() if any(reason.way == way for reason in reasons))


@dataclass(frozen=True)
class Ground:
    """Where the order comes from: the policy's row."""

    policy: str
    row: str
    when: str
    best_first: tuple[Backend, ...]
    evidence: str


def ground(decision: Decision) -> Ground:
    """The policy's row for this decision, a contract apart."""
    policy, row, when, best_first, evidence = decision._native().policy_ground()
    return Ground(policy, row, when, tuple(Backend[name] for name in best_first), evidence)


def preference(decision: Decision) -> tuple[Backend, ...]:
    """All backends, best first, eligible or not: the contract's, then the policy's, then those it does not rank."""
    named = tuple(Backend[name] for name in decision.settings.to_dict()["named"])
    policy = ground(decision)
    return tuple(dict.fromkeys([*named, *policy.best_first, *Backend]))


def because(decision: Decision) -> str:
    """Why the chosen backend comes first, in words."""
    order = _order_text(decision)
    if decision.backend is None:
        return f"nothing is eligible; {order}"
    before = preference(decision)[: preference(decision).index(decision.backend)]
    if not before:
        return f"the first choice: {order}"
    names = [backend.name for backend in before]
    return f"the first that is eligible ({_listed(names)} {'is' if len(names) == 1 else 'are'} not): {order}"


def _order_text(decision: Decision) -> str:
    contract = _contract_text(decision.settings)
    policy = ground(decision)
    if decision.settings.to_dict()["contract"] == "require":
        return f"{contract} allows no other"
    order = f"policy {policy.policy} ({policy.when}) prefers {', '.join(backend.name for backend in policy.best_first)}"
    return f"{contract} comes first; then {order}" if contract else order


def best_remedy(decision: Decision) -> tuple[Backend, str] | None:
    """The backend that the fewest verified changes make eligible, with these changes."""
    found = [
        (text.count("; "), rank, backend, text)
        for rank, backend in enumerate(preference(decision))
        if (text := decision.remedy(backend))
    ]
    return min(found)[2:] if found else None


# --- what settings removed


@dataclass(frozen=True)
class Override:
    """A part of the settings that restricts the choice, and the word without it."""

    kind: str
    text: str
    without: int


def _contract_text(settings: Settings) -> str:
    s = settings.to_dict()
    return "" if s["contract"] == "auto" else f"{s['contract']}({', '.join(s['named'])})"


def _parts(word: int) -> list[Override]:
    """The restricting parts of a settings word."""
    settings = settings_of_word(word)
    s = settings.to_dict()
    parts = []
    if contract := _contract_text(settings):
        parts.append(Override(s["contract"], contract, _core.settings_with(word, contract="auto", names=[])))
    off = s["switched_off"]
    if off:
        every = list(Backend.__members__)
        parts.append(
            Override("switched_off", f"switched off: {', '.join(off)}", _core.settings_with(word, enabled=every))
        )
    if s["deterministic"]:
        parts.append(Override("deterministic", "deterministic", _core.settings_with(word, deterministic=False)))
    if s["rules_digest"]:
        text = f"added fault rows (rule set {s['rules_digest']})"
        parts.append(Override("faults", text, _core.settings_with(word, rules_digest=0)))
    return parts


def _again(decision: Decision, word: int) -> Decision:
    """The decision about the same call and machine with other settings."""
    answers = decision._answers
    if answers is None:
        return hypothetical(decision.problem, decision.device, settings_of_word(word))
    device = decision.device.key
    native = _core.decide_again(decision.problem.key, decision.settings.word, device, answers, word)
    return make_decision(decision.problem, word, device, answers, native.chosen, native.eligible)


def overrides(decision: Decision) -> list[str]:
    """What each restricting setting removed, found by deciding again without it."""
    parts = _parts(decision.settings.word)
    lines = [_override_line(decision, part) for part in parts]
    if len(parts) > 1:
        free = decision
        for part in _all_removed(decision.settings.word):
            free = _again(decision, part)
        if free.backend != decision.backend and free.backend is not None:
            lines.append(f"without all of these {_chooser(free)} would have chosen {free.backend.name}")
    return lines


def _all_removed(word: int) -> list[int]:
    """The words on the way to one without any restricting part."""
    words = []
    while parts := _parts(word):
        word = parts[0].without
        words.append(word)
    return words


def _override_line(decision: Decision, part: Override) -> str:
    free = _again(decision, part.without)
    subject = {
        "switched_off": f"switching off {part.text.removeprefix('switched off: ')}",
        "deterministic": "deterministic mode",
    }.get(part.kind, part.text)
    removed = [backend.name for backend in free.order if backend not in decision.eligible]
    would = None if free.backend is None or free.backend == decision.backend else free.backend.name
    if would is None and part.kind == "prefer":
        return f"{subject} changes nothing: the policy's first choice is the same"
    if would is None:
        what = f"removed {_listed(removed)}" if removed else "removed nothing that could run"
        return f"{subject} {what}; the choice is the same without it"
    if would not in removed:
        assert decision.backend is not None
        return f"{subject} put {decision.backend.name} before {would}, which {_chooser(free)} would have chosen"
    others = [name for name in removed if name != would]
    also = f"; it removed {_listed(others)} too" if others else ""
    return f"{subject} removed {would}, which {_chooser(free)} would have chosen{also}"


def _chooser(decision: Decision) -> str:
    return _contract_text(decision.settings) or f"policy {decision.settings.to_dict()['policy']}"


def _listed(names: list[str]) -> str:
    """A, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
