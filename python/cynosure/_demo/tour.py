# SPDX-License-Identifier: Apache-2.0
"""`cynosure demo --explain`: real models on machines that are not here, and one compiled function. Ten seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cynosure import _calls, diff
from cynosure._core import Backend
from cynosure._demo.stage import Part, claim, set_variable, text, without_settings
from cynosure.api import select
from cynosure.decision import Decision
from cynosure.device import Device
from cynosure.explain import hypothetical, render
from cynosure.problem import Problem
from cynosure.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

MACHINES = ("a100", "h100", "h200", "b200", "rtx5090")
CALLS: dict[str, dict[str, Any]] = {
    "Llama-3 8B, training 8k": {"model": "Llama-3 8B", "batch": 2, "seqlen_q": 8192},
    "Llama-3 8B, decode": {"model": "Llama-3 8B", "batch": 32, "seqlen_q": 1, "seqlen_k": 8192, "training": False},
    "Gemma-2 9B, training 8k": {"model": "Gemma-2 9B", "batch": 2, "seqlen_q": 8192},
    "DeepSeek-V3, training 4k": {"model": "DeepSeek-V3", "batch": 1, "seqlen_q": 4096},
    "GPT-OSS 120B, training 8k": {"model": "GPT-OSS 120B", "batch": 1, "seqlen_q": 8192},
}
SETTINGS = Settings()
INSTRUCTIVE = ("Gemma-2 9B, training 8k", "h200")
UPGRADES = (("9.10.1", "9.21.0"), ("9.19.0", "9.26.0"))
LENGTHS = tuple(128 + 61 * i for i in range(16))


def problem(name: str) -> Problem:
    """A call of the demonstration."""
    call = dict(CALLS[name])
    return _calls.call(call.pop("model"), **call)


# --- the parts; each yields what is shown


def _overview() -> Iterator[RenderableType]:
    """Models down, machines across."""
    from rich.text import Text

    from cynosure._render import table_of
    from cynosure.matrix import LOOKS

    table = table_of("call", *MACHINES)
    for name in CALLS:
        cells = []
        for machine in MACHINES:
            decision = hypothetical(problem(name), Device.named(machine), SETTINGS)
            _check(decision)
            chosen = "none" if decision.backend is None else decision.backend.name
            cells.append(Text(f" {chosen} ", f"{LOOKS[chosen][2]} on {LOOKS[chosen][1]}"))
        table.add_row(Text(name), *cells)
    yield text(
        "Asked from here about other machines: a decision is a pure function of call, settings and machine.", "dim"
    )
    yield table


def _check(decision: Decision) -> None:
    """The choice is eligible, leads the order, has no reason against it; every other backend has a reason or a rank."""
    name = decision.call_text()
    claim(decision.backend is not None and decision.order[0] == decision.backend, f"no choice for {name}")
    reasons = decision.reasons
    claim(
        all((backend in decision.eligible) == (not reasons[backend]) for backend in Backend),
        f"a verdict without reasons for {name}",
    )
    claim(Decision.from_json(decision.to_json()) == decision, f"a decision that does not repeat for {name}")


def _one_in_full() -> Iterator[RenderableType]:
    """The soft cap, the window and head dim 256 together leave few backends."""
    decision = hypothetical(problem(INSTRUCTIVE[0]), Device.named(INSTRUCTIVE[1]), SETTINGS)
    claim(
        any(reason.rule == "cudnn.softcap" for reason in decision.reasons[Backend.cudnn]),
        "cuDNN is not refused for the soft cap",
    )
    yield text(
        f"{INSTRUCTIVE[0]} on {INSTRUCTIVE[1]}: the preferred backend would drop the soft cap, so it is not eligible.",
        "dim",
    )
    yield render(decision)


def _upgrades() -> Iterator[RenderableType]:
    """What newer releases of cuDNN change."""
    from rich.text import Text

    from cynosure._render import table_of

    table = table_of("cuDNN", "machine", "changed", "choice before -> after, and the rules that went or came")
    total = 0
    for old, new in UPGRADES:
        for machine in ("h200", "b200"):
            result = diff.over_grid(f"cudnn={old}", f"cudnn={new}", machine, SETTINGS)
            found = diff.groups(result)
            count = sum(len(group.cases) for group in found)
            total += count
            lines = "\n".join(_group_line(group) for group in found) or "nothing"
            table.add_row(
                Text(f"{old} -> {new}"), Text(machine), Text(f"{count} of {len(result.cases)}", "bold"), Text(lines)
            )
    claim(total > 0, "no upgrade changes any choice")
    yield table


def _group_line(group: diff.Group) -> str:
    rules = [f"-{rule}" for rule, _ in group.against_new()[:2]] + [f"+{rule}" for rule, _ in group.against_old()[:2]]
    return f"{len(group.cases)} {group.old} -> {group.new}: {', '.join(rules)}"


def _this_machine() -> Iterator[RenderableType]:
    """The same call here."""
    from cynosure._render import pairs
    from cynosure.errors import no_backend
    from cynosure.explain import describe_device

    name, here = "Llama-3 8B, training 8k", Device.this()
    decision = hypothetical(problem(name), here, SETTINGS)
    rows: list[tuple[str, Any]] = [("machine", describe_device(here)), ("call", name)]
    if decision.backend is not None:
        rows.append(("backend", decision.backend.name))
    else:
        rows.append(("backend", str(no_backend(decision)).splitlines()[0]))
        later = hypothetical(problem(name), here.replace(built=list(Backend.__members__)), SETTINGS)
        rows.append(("if built", "none" if later.backend is None else later.backend.name))
    yield pairs(rows)


def _compiled() -> Iterator[RenderableType]:
    """One graph over many lengths; one more for a changed variable."""
    if importlib.util.find_spec("torch") is None:
        yield text("torch is not installed here, so this part is left out: pip install 'cynosure[torch]'")
        return
    counts, chosen = _trace()
    yield text(
        f"select inside torch.compile(fullgraph=True), machine: h200, "
        f"{len(LENGTHS)} lengths from {LENGTHS[0]} to {LENGTHS[-1]}"
    )
    yield text(f"  {chosen[0]:<8} {counts[0]} frame compiled for all lengths")
    yield text(f"  {chosen[1]:<8} {counts[1] - counts[0]} more after NVTE_FUSED_ATTN=0")
    yield text(
        f"  {chosen[2]:<8} {counts[2] - counts[1]} more after it was unset again: nothing stale, nothing compiled twice"
    )
    claim(counts == [1, 2, 2], f"{counts} frames in all after each change, expected 1, 2, 2")
    claim(chosen[0] == chosen[2] == "cudnn" != chosen[1], f"the choices were {', '.join(chosen)}")


def _trace() -> tuple[list[int], list[str]]:
    """(frames compiled so far, choice) as the environment is, with cuDNN off, and as it was."""
    import torch

    frames = 0

    def count(graph: Any, inputs: Any) -> Callable[..., Any]:
        nonlocal frames
        frames += 1
        return graph.forward  # type: ignore[no-any-return]

    device = Device.named("h200")

    def chooses(x: Any) -> tuple[Any, Any]:
        call = Problem(heads=32, kv_heads=8, head_dim=128, batch=x.shape[0], seqlen_q=x.shape[1], causal=True)
        return x + 1, select(call, device).backend

    compiled = torch.compile(chooses, fullgraph=True, backend=count)

    def run() -> str:
        found = set()
        for length in LENGTHS:
            x = torch.zeros(2, length)
            torch._dynamo.mark_dynamic(x, 1)
            found.add(compiled(x)[1])
        return " and ".join(sorted("none" if backend is None else Backend(backend).name for backend in found))

    counts, chosen = [], []
    with without_settings():
        for value in (None, "0", None):
            set_variable("NVTE_FUSED_ATTN", value)
            chosen.append(run())
            counts.append(frames)
    return counts, chosen


def _hints() -> Iterator[RenderableType]:
    """What to try next."""
    yield text(
        "  cynosure explain --heads 64 --seqlen 8192 --head-dim 64 --sinks --causal --device b200\n"
        "  cynosure matrix --device h200 --causal --html matrix.html\n"
        "  cynosure diff --from cudnn=9.19.0 --to cudnn=9.26.0 --device b200\n"
        "  cynosure env"
    )


PARTS: tuple[Part, ...] = (
    ("What runs where", _overview),
    ("One decision in full", _one_in_full),
    ("What an upgrade of cuDNN changes", _upgrades),
    ("The same call on this machine", _this_machine),
    ("In a compiled graph", _compiled),
    ("Try next", _hints),
)
