# SPDX-License-Identifier: Apache-2.0
"""The words and the layout of explanations."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from typing import Any

import pytest
from rich.console import Console

import cynosure
from cynosure import Backend, Decision, Device, Problem, Settings, prefer, require, select
from cynosure.decision import decision_of
from cynosure.errors import NoBackendError, no_backend
from cynosure.explain import (
    CHOSEN,
    NOT_PREFERRED,
    WAYS,
    Explanation,
    best_remedy,
    describe_call,
    explanation_text,
    ground,
    overrides,
    preference,
    verdicts,
)

H200 = Device.named("h200")
LLAMA: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "seqlen_q": 4096, "causal": True}
CALLS = {
    "llama": LLAMA,
    "gemma": {
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 256,
        "seqlen_q": 8192,
        "causal": True,
        "softcap": 50.0,
        "window_size": (4095, 0),
    },
    "odd": {"heads": 8, "head_dim": 100, "seqlen_q": 77, "dropout_p": 0.1, "attn_mask": "boolean"},
    "decode": {"heads": 8, "head_dim": 128, "seqlen_q": 1, "seqlen_k": 4096, "training": False},
    "float64": {"heads": 8, "head_dim": 64, "seqlen_q": 64, "dtype": "float64"},
}
MACHINES = {
    "h200": H200,
    "a100": Device.named("a100", flash2=None),
    "rtx5090": Device.named("rtx5090", cudnn=None),
    "v100": Device.named("v100"),
    "nothing built": Device.named("b200", built=[]),
    "cpu": Device.named("cpu"),
}
SETTINGS = {
    "defaults": Settings(),
    "te": Settings(policy="te"),
    "require": Settings(backend=require("flash2")),
    "prefer": Settings(backend=prefer("flash4"), switched_off=["cudnn"], deterministic=True),
}
EVERY = list(itertools.product(CALLS, MACHINES, SETTINGS))


def decision(call: str = "llama", device: Device = H200, settings: Settings | None = None) -> Decision:
    return select(Problem(**CALLS[call]), device, settings or Settings())


def squeezed(text: str) -> str:
    """Without layout: wrapped lines of one cell stand far apart, so only letters and digits count."""
    return "".join(text.split())


def cell_text(text: str) -> str:
    """The last column of the table, unwrapped: labels and rules lose their line breaks."""
    start = (
        text.index("why, and what would change it")
        - text.rindex("\n", 0, text.index("why, and what would change it"))
        - 1
    )
    return squeezed(
        "".join(line[start + 7 :] for line in text.splitlines() if len(line) > start and not line.startswith(" ─"))
    )


@pytest.mark.parametrize(("call", "machine", "settings"), EVERY)
def test_every_reason_is_in_the_text(call: str, machine: str, settings: str) -> None:
    found = decision(call, MACHINES[machine], SETTINGS[settings])
    text = explanation_text(found, width=220)
    everything = squeezed(text)
    cells = cell_text(text)
    for backend in Backend:
        assert f" {backend.name} " in text
        for reason in found.reasons[backend]:
            assert squeezed(reason.rule) in cells
            assert squeezed(reason.required) in cells
            assert squeezed(reason.evidence) in cells
            for name, value in reason.actual:
                assert squeezed(f"{name}={value}") in everything
            if reason.fix is not None:
                assert squeezed(reason.fix.text) in cells


@pytest.mark.parametrize(("call", "machine", "settings"), EVERY)
def test_order_of_preference(call: str, machine: str, settings: str) -> None:
    found = decision(call, MACHINES[machine], SETTINGS[settings])
    ranked = preference(found)
    assert sorted(ranked) == sorted(Backend)
    assert [backend for backend in ranked if backend in found.eligible] == list(found.order)
    row = ground(found)
    assert row is not None
    assert row.evidence in select(found.problem, found.device, Settings(policy=row.policy)).ground


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_fits_the_width_and_keeps_ids_whole(width: int) -> None:
    found = decision("gemma", settings=Settings(backend=prefer("flash3"), deterministic=True))
    text = explanation_text(found, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert "…" not in text
    if width >= 80:
        for reasons in found.reasons.values():
            assert all(reason.rule in text for reason in reasons)


def test_color_only_when_asked_for() -> None:
    assert "\x1b[" not in explanation_text(decision())
    assert "\x1b[" in explanation_text(decision(), color=True)


def test_environment_does_not_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = explanation_text(decision())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert explanation_text(decision()) == plain


def test_the_five_ways_stay_apart() -> None:
    device = Device.named("h200", flash3=None, built=["cudnn", "flash2", "flash3", "unfused"])
    found = decision(device=device, settings=Settings(switched_off=["flash2"]))
    reasons = found.reasons
    words = {backend.name: verdicts(found, backend, reasons[backend]) for backend in Backend}
    assert words["cudnn"] == (CHOSEN,)
    assert words["unfused"] == (NOT_PREFERRED,)
    assert words["flash2"] == (WAYS["switched_off"],)
    assert words["flash3"] == (WAYS["not_installed"],)
    assert words["flash4"] == (WAYS["not_built"],)
    assert words["cpu"] == (WAYS["not_built"], WAYS["not_eligible"])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (Settings(backend=require("flash2")), "require(flash2) removed cudnn, which policy fastest would have chosen"),
        (
            Settings(backend=prefer("flash4")),
            "prefer(flash4) put flash4 before cudnn, which policy fastest would have chosen",
        ),
        (Settings(switched_off=["cudnn"]), "switching off cudnn removed cudnn, which policy fastest would have chosen"),
        (
            Settings(switched_off=["unfused"]),
            "switching off unfused removed unfused; the choice is the same without it",
        ),
        (Settings(backend=prefer("cudnn")), "prefer(cudnn) changes nothing: the policy's first choice is the same"),
        (
            Settings(policy="te", switched_off=["cudnn"]),
            "switching off cudnn removed cudnn, which policy te would have chosen",
        ),
    ],
)
def test_overrides_are_named(settings: Settings, line: str) -> None:
    found = decision(settings=settings)
    assert overrides(found)[0].startswith(line)
    assert line.split()[0] in explanation_text(found)
    assert squeezed(line) in squeezed(explanation_text(found, width=300))


def test_deterministic_mode_is_an_override() -> None:
    found = decision("gemma", settings=Settings(deterministic=True))
    assert overrides(found) == ["deterministic mode removed flash3, which policy fastest would have chosen"]


def test_two_overrides_that_hide_each_other() -> None:
    found = decision(settings=Settings(backend=require("flash2"), switched_off=["cudnn"]))
    assert overrides(found)[-1] == "without all of these policy fastest would have chosen cudnn"


def test_no_override_without_restriction() -> None:
    assert overrides(decision()) == []


def test_added_faults_are_an_override() -> None:
    try:
        cynosure.faults.add(
            id="mine", backends="cudnn", library="cudnn", since="9.0.0", until="9.99.0", effect="all wrong"
        )
        found = decision()
        assert found.backend == Backend.flash3
        assert overrides(found)[0].endswith("removed cudnn, which policy fastest would have chosen")
        assert "all wrong" in explanation_text(found)
    finally:
        cynosure.faults.clear()


def test_symbolic_lengths_are_explained() -> None:
    problem = Problem(heads=8, head_dim=128, seqlen_q=1, training=False, window_size=(100, 0))
    answers: tuple[bool | None, ...] = ()
    device = Device.named("b200", cudnn="9.21.0")
    while True:
        try:
            step = cynosure._core.step(problem.key, Settings().word, device.key, answers)
        except ValueError:
            pytest.fail("step")
        if step[0] < 0:
            break
        answers = (*answers, None)
    assert answers
    found = decision_of(problem.key, None, Settings().word, device.key, answers)
    text = squeezed(explanation_text(found, width=200))
    assert squeezed("symbolic batch and lengths") in text
    assert squeezed("unknown: torch cannot decide it here") in text
    for fact, _ in found.facts:
        assert squeezed(f"{fact}: unknown") in text
    undecided = [reason for reasons in found.reasons.values() for reason in reasons if reason.undecided]
    assert undecided
    assert squeezed("depends on lengths that torch cannot decide here") in text
    assert overrides(found) == []


def test_fixes_say_whether_they_are_enough() -> None:
    found = decision(device=Device.named("h200", cudnn="9.10.1"))
    (reason,) = found.reasons[Backend.cudnn]
    assert reason.fix is not None
    assert reason.fix.makes_eligible
    assert f"{reason.fix.text} (enough by itself)" in explanation_text(found, width=200)


def test_remedies_hold() -> None:
    device = Device.named("h200", cudnn=None, flash2=None)
    found = decision(device=device, settings=Settings(switched_off=["flash2"]))
    assert "all of it together makes flash2 eligible" in explanation_text(found, width=300)


class TestNoBackend:
    def test_says_what_to_do_first(self) -> None:
        found = decision(settings=Settings(backend=require("flash4"), switched_off=["flash4"]))
        error = no_backend(found)
        assert isinstance(error, NoBackendError)
        first, blank, *_ = str(error).splitlines()
        assert first.startswith(
            "no backend may run this call: flash4 is required and switched off. To run flash4: switch"
        )
        assert blank == ""
        assert "flash4.switched_off" in str(error)

    def test_smallest_remedy_comes_first(self) -> None:
        found = decision(
            "gemma", device=Device.named("h200", flash3=None), settings=Settings(backend=require("flash3"))
        )
        assert best_remedy(found) is not None
        assert "To run flash3: flash-attn-3" in str(no_backend(found)).splitlines()[0]

    def test_release_without_kernels(self) -> None:
        found = decision(device=Device.named("cpu", built=[]))
        assert "no kernels for this machine" in str(no_backend(found)).splitlines()[0]

    def test_nothing_known_helps(self) -> None:
        found = decision("float64", settings=Settings(backend=require("flash2")))
        assert "no backend may run this call" in str(no_backend(found)).splitlines()[0]


class TestExplain:
    def test_is_text_with_its_decision(self) -> None:
        found = cynosure.explain(Problem(**LLAMA), device=H200, settings=Settings())
        assert isinstance(found, str)
        assert isinstance(found, Explanation)
        assert found.decision == decision()
        assert repr(found) == found == explanation_text(decision())

    def test_copies(self) -> None:
        found = cynosure.explain(Problem(**LLAMA), device=H200, settings=Settings())
        for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert other == found
            assert other.decision == found.decision

    def test_prints_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        cynosure.explain(Problem(**LLAMA))
        assert capsys.readouterr() == ("", "")

    def test_rich_lays_it_out_anew(self) -> None:
        file = io.StringIO()
        Console(file=file, width=70).print(cynosure.explain(Problem(**LLAMA), device=H200, settings=Settings()))
        assert max(len(line) for line in file.getvalue().splitlines()) <= 70

    def test_contract_and_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CYNOSURE_BACKEND", "flash4")
        found = cynosure.explain(Problem(**LLAMA), device=H200, backend=prefer("flash2"), policy="te")
        assert found.decision.settings.describe().startswith("policy=te enabled=all contract=prefer(flash2)")
        assert cynosure.explain(Problem(**LLAMA), device=H200).decision.backend == Backend.flash4

    def test_settings_exclude_contract(self) -> None:
        with pytest.raises(ValueError, match="settings"):
            cynosure.explain(Problem(**LLAMA), settings=Settings(), policy="te")

    def test_problem_excludes_arguments(self) -> None:
        with pytest.raises(TypeError, match="causal"):
            cynosure.explain(Problem(**LLAMA), causal=True)

    def test_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        q = torch.zeros(2, 64, 8, 64, dtype=torch.bfloat16)
        k = torch.zeros(2, 96, 4, 64, dtype=torch.bfloat16)
        found = cynosure.explain(q, k, k, causal=True, backend="prefer(unfused)").decision
        assert found.device.device_kind == "cpu"
        assert "8 heads over 4 KV heads, batch 2, 64 x 96, head dim 64, causal" in describe_call(
            found.problem.to_dict()
        )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "bfloat16 bshd, 8 heads, batch 1, 64 x 64, head dim 32, training"),
        (
            {"training": False, "kv_heads": 2},
            "bfloat16 bshd, 8 heads over 2 KV heads, batch 1, 64 x 64, head dim 32, inference",
        ),
        (
            {"head_dim_v": 16, "causal": True},
            "bfloat16 bshd, 8 heads, batch 1, 64 x 64, head dims 32 and 16, causal, training",
        ),
        ({"window_size": (7, 0)}, "bfloat16 bshd, 8 heads, batch 1, 64 x 64, head dim 32, window (7, 0), training"),
        (
            {"sinks": True, "softcap": 1.0, "training": False},
            "bfloat16 bshd, 8 heads, batch 1, 64 x 64, head dim 32, softcap, softmax=learnable, inference",
        ),
        (
            {"layout": "sbhd_sb2hd", "dtype": "float16"},
            "float16 sbhd_sb2hd, 8 heads, batch 1, 64 x 64, head dim 32, training",
        ),
    ],
)
def test_call_in_one_line(fields: dict[str, Any], text: str) -> None:
    assert describe_call(Problem(heads=8, seqlen_q=64, head_dim=32, **fields).to_dict()) == text
