# SPDX-License-Identifier: Apache-2.0
"""Settings: the constructor, the environment, who wins over whom, and the word."""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from cynosure import (
    Backend,
    Contract,
    Device,
    NoBackendError,
    Problem,
    Settings,
    _core,
    _tracing,
    prefer,
    require,
    select,
)
from cynosure.errors import no_backend

H200 = Device.named("h200")
PROBLEM = Problem(heads=8, seqlen_q=1024, head_dim=128, causal=True)


@pytest.fixture(autouse=True)
def _clean(clean_environment: pytest.MonkeyPatch) -> None:
    pass


def test_traced_keys_are_those_of_the_core() -> None:
    """traced_word spells every key out, because torch guards literal keys one by one."""
    spelt = re.findall(r'get\(b"(\w+)"\)', inspect.getsource(_tracing.Traceable._traced_word))
    assert tuple(spelt) == tuple(_core.ENVIRONMENT)
    assert _tracing.ENVIRONMENT is os.environ._data  # type: ignore[attr-defined]


# --- the constructor


@pytest.mark.parametrize(
    ("backend", "contract", "names"),
    [
        ("auto", "auto", []),
        ("cudnn", "require", ["cudnn"]),
        ("flash2,cudnn", "require", ["flash2", "cudnn"]),
        ("require(flash2, cudnn)", "require", ["flash2", "cudnn"]),
        ("prefer(flash2,cudnn)", "prefer", ["flash2", "cudnn"]),
        (Backend.flash3, "require", ["flash3"]),
        (["flash2", Backend.cudnn], "require", ["flash2", "cudnn"]),
        (("flash2",), "require", ["flash2"]),
        (prefer("flash2", Backend.cudnn), "prefer", ["flash2", "cudnn"]),
        (require(*Backend), "require", [backend.name for backend in Backend]),
        (Contract("auto"), "auto", []),
    ],
)
def test_contracts(monkeypatch: pytest.MonkeyPatch, backend: Any, contract: str, names: list[str]) -> None:
    for made in (Settings(backend=backend), Settings.current(backend=backend)):
        assert (made.to_dict()["contract"], made.to_dict()["named"]) == (contract, names)
    if isinstance(backend, str):
        monkeypatch.setenv("CYNOSURE_BACKEND", backend)
        assert Settings.current() == Settings(backend=backend)


@pytest.mark.parametrize(
    "backend",
    [
        "flash9",
        "",
        "prefer(cudnn",
        "prefer()",
        "cudnn,cudnn",
        [],
        ["cudnn", "cudnn"],
        ["flash9"],
        [3],
        3,
        None.__class__,
    ],
)
def test_contracts_that_are_refused(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    for make in (Settings, Settings.current):
        with pytest.raises((ValueError, TypeError), match="backend: "):
            make(backend=backend)
    if isinstance(backend, str):
        monkeypatch.setenv("CYNOSURE_BACKEND", backend)
        with pytest.raises(ValueError, match="CYNOSURE_BACKEND"):
            Settings.current()


def test_the_constructor_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Settings()
    monkeypatch.setenv("CYNOSURE_BACKEND", "flash2")
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    assert Settings() == before != Settings.current()


def test_switched_off() -> None:
    made = Settings(switched_off=["cudnn", "flash2"])
    assert made.to_dict()["switched_off"] == ["cudnn", "flash2"]
    assert Settings(switched_off="cudnn") == Settings(switched_off=("cudnn",))
    reasons = select(PROBLEM, H200, made).reasons
    assert {reason.way for reason in reasons[Backend.cudnn]} >= {"switched_off"}
    with pytest.raises(ValueError, match=r"switched_off: got 'flash9', expected one of cpu"):
        Settings(switched_off=["flash9"])
    with pytest.raises(ValueError, match=r"switched_off: got 5, expected a name or a list of cpu, cudnn"):
        Settings(switched_off=5)  # type: ignore[arg-type]
    left_out = select(PROBLEM, H200, Settings(backend="cudnn")).reasons[Backend.flash3]
    assert [(reason.rule, reason.way) for reason in left_out] == [("flash3.not_required", "not_required")]


@pytest.mark.parametrize(
    ("field", "value"), [("policy", "best"), ("policy", 3), ("deterministic", "no"), ("deterministic", 1)]
)
def test_values_that_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}: got {value!r}, expected"):
        Settings(**{field: value})


# --- the environment


SWITCHES = {
    "NVTE_FLASH_ATTN": {"flash2", "flash3", "flash4", "aten_flash"},
    "NVTE_FLASH_ATTN_V2": {"flash2"},
    "NVTE_FLASH_ATTN_V3": {"flash3"},
    "NVTE_FLASH_ATTN_V4": {"flash4"},
    "NVTE_FUSED_ATTN": {"cudnn", "cudnn_fp8"},
    "NVTE_UNFUSED_ATTN": {"unfused"},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_switches(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    default = Settings.current()
    monkeypatch.setenv(name, "0")
    off = set(Settings.current().to_dict()["switched_off"])
    assert SWITCHES[name] <= off | {"aten_flash"}
    assert not off - SWITCHES[name] - {"aten_flash"}
    for value in ("1", "2", " 1 "):
        monkeypatch.setenv(name, value)
        assert Settings.current() == default, value


def test_policy_determinism_and_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, field, expected in (
        ("CYNOSURE_POLICY", "te", "policy", "te"),
        ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", "deterministic", True),
        ("NVTE_UnfusedDPA_Emulate_FP8", "1", "emulate_fp8", True),
    ):
        assert Settings.current().to_dict()[field] != expected
        monkeypatch.setenv(name, value)
        assert Settings.current().to_dict()[field] == expected
        monkeypatch.delenv(name)


READABLE = {
    "CYNOSURE_FAULTS": "/nowhere/faults.toml",
    "NVTE_DEBUG": "on",
    "CYNOSURE_LOG": "verbose",
    "CYNOSURE_CPU_ISA": "sse2",
    "CYNOSURE_CHECK": "maybe",
}


@pytest.mark.parametrize("name", [name for name in _core.ENVIRONMENT if name != "NVTE_UnfusedDPA_Emulate_FP8"])
def test_unreadable_values_name_the_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    default = Settings.current()
    value = READABLE.get(name, "yes")
    monkeypatch.setenv(name, value)
    for ask in (Settings.current, lambda: select(PROBLEM, H200), lambda: select(PROBLEM)):
        with pytest.raises(ValueError, match=name) as error:
            ask()
        assert value in str(error.value)
    assert select(PROBLEM, H200, Settings()).backend is not None  # given settings read nothing
    monkeypatch.delenv(name)
    assert Settings.current() == default


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A17: the argument, then CYNOSURE_*, then NVTE_*; a conflict is explained."""
    monkeypatch.setenv("NVTE_FUSED_ATTN", "1")
    monkeypatch.setenv("CYNOSURE_BACKEND", "flash2")
    monkeypatch.setenv("CYNOSURE_POLICY", "te")
    current = Settings.current().to_dict()
    assert (current["contract"], current["named"], current["policy"]) == ("require", ["flash2"], "te")
    argued = Settings.current(backend=prefer("flash3"), policy="fastest").to_dict()
    assert (argued["contract"], argued["named"], argued["policy"]) == ("prefer", ["flash3"], "fastest")
    assert Settings.current(backend="auto").to_dict()["named"] == []
    assert select(PROBLEM, H200).backend is Backend.flash2
    assert select(PROBLEM, H200, Settings.current(backend="auto", policy="fastest")).backend is Backend.cudnn


def test_a_required_backend_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, and both sides of the conflict are named."""
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    monkeypatch.setenv("CYNOSURE_BACKEND", "cudnn")
    decision = select(PROBLEM, H200)
    assert decision.backend is None
    assert decision.eligible == ()
    (reason, *_) = [reason for reason in decision.reasons[Backend.cudnn] if reason.way == "switched_off"]
    assert reason.required
    assert "cudnn" in decision.explain()
    others = {reason.way for backend in (Backend.flash3, Backend.unfused) for reason in decision.reasons[backend]}
    assert others == {"not_required"}
    error = no_backend(decision)
    assert isinstance(error, NoBackendError)
    assert isinstance(error, RuntimeError)
    assert "cudnn is required and switched off" in str(error)


# --- the word


def test_words_travel() -> None:
    for made in (
        Settings(),
        Settings(backend=require(*reversed(Backend)), policy="te", deterministic=True, switched_off=["cpu"]),
    ):
        assert Settings.from_word(made.word) == made
        assert Settings.from_word(made.word & (1 << 64) - 1) == made
        assert int(made.to_dict()["word"], 16) == made.word & (1 << 64) - 1
        assert -(1 << 63) <= made.word < 1 << 63


def test_words_of_another_layout_are_refused() -> None:
    for version in (0, 2, 63):
        word = (Settings().word & ~63) | version
        with pytest.raises(
            ValueError,
            match=f"layout version {version}, this release reads version 1; export or compile the model again",
        ):
            Settings.from_word(word)
    with pytest.raises(ValueError, match="settings: got"):
        Settings.from_json('{"word": "0x0"}')


def test_words_differ_wherever_settings_do() -> None:
    made = [
        Settings(),
        Settings(policy="te"),
        Settings(deterministic=True),
        *(Settings(switched_off=[b.name]) for b in Backend),
    ]
    made += [Settings(backend=contract(b)) for contract in (prefer, require) for b in Backend]
    made += [Settings(backend=prefer("cudnn", "flash2")), Settings(backend=prefer("flash2", "cudnn"))]
    assert len({settings.word for settings in made}) == len(made)


def test_describe() -> None:
    text = Settings(
        backend=prefer("flash2", "cudnn"), policy="te", deterministic=True, switched_off=["flash3"]
    ).describe()
    assert "\n" not in text
    for part in ("te", "prefer", "flash2", "cudnn", "flash3", "deterministic"):
        assert part in text
    assert "flash3" not in Settings().describe()


# --- logs


@pytest.mark.parametrize(
    ("variables", "lines", "reasons"),
    [
        ({}, 0, False),
        ({"CYNOSURE_LOG": "decisions"}, 1, False),
        ({"CYNOSURE_LOG": "reasons"}, 1, True),
        ({"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "1"}, 1, False),
        ({"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2"}, 1, True),
        ({"NVTE_DEBUG": "0", "NVTE_DEBUG_LEVEL": "2"}, 0, False),
    ],
)
def test_log_lines(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    lines: int,
    reasons: bool,
) -> None:
    from cynosure import log

    log._seen.clear()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "cynosure"):
        for _ in range(3):
            select(PROBLEM, H200)
            select(PROBLEM, H200, Settings())
    assert len([line for line in caplog.messages if line.startswith("chose cudnn of ")]) == lines
    assert any(" not: " in line for line in caplog.messages) is reasons


def test_memory_of_logged_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from cynosure import log

    monkeypatch.setenv("CYNOSURE_LOG", "decisions")
    monkeypatch.setattr(log, "_MOST_REMEMBERED", 8)
    monkeypatch.setattr(log.logger, "disabled", True)
    for length in range(1, 40):
        select(Problem(heads=8, seqlen_q=length, head_dim=64), H200)
        assert len(log._seen) <= 8


# --- torch's flags, eager


def test_torch_flags() -> None:
    torch = pytest.importorskip("torch")
    default = Settings.current()
    try:
        torch.use_deterministic_algorithms(True)
        assert Settings.current().to_dict()["deterministic"] is True
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("high")
        assert Settings.current().to_dict()["matmul_precision"] != default.to_dict()["matmul_precision"]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    assert Settings.current() == default


# --- what an eager selection remembers of the process


def test_the_eager_answer_follows_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is seen by the next call, and by the one after the change is taken back."""
    problem = Problem(heads=8, seqlen_q=1537, head_dim=128)
    logged = Problem(heads=8, seqlen_q=1538, head_dim=128)
    before = select(problem)
    changes = {"NVTE_UNFUSED_ATTN": "0", "CYNOSURE_POLICY": "te", "CYNOSURE_BACKEND": "cudnn", "CYNOSURE_CHECK": "1"}
    for name, value in changes.items():
        for _ in range(2):
            assert select(problem) == before
        monkeypatch.setenv(name, value)
        for _ in range(2):
            assert select(problem).settings == Settings.current()
        monkeypatch.delenv(name)
    monkeypatch.setenv("CYNOSURE_CPU_ISA", "generic")
    for _ in range(2):
        assert select(problem).device == Device.this() == select(problem, settings=Settings()).device
        assert select(problem).device.cpu_isa == "generic"
    monkeypatch.delenv("CYNOSURE_CPU_ISA")
    assert select(problem, settings=Settings()).device == before.device
    assert select(problem) == before
    for settings in (None, Settings()):
        caplog.clear()
        assert select(logged, H200, settings).backend is Backend.cudnn
        assert not caplog.records
        with caplog.at_level(logging.INFO, logger="cynosure"):
            monkeypatch.setenv("CYNOSURE_LOG", "decisions")
            select(logged, H200, settings)
            assert len(caplog.records) == (1 if settings is None else 0)  # a decision is logged once
            monkeypatch.delenv("CYNOSURE_LOG")


def test_the_eager_answer_follows_torch() -> None:
    """Its flag, and that it has been imported since the last call."""
    pytest.importorskip("torch")
    code = """
import sys, cynosure
problem = cynosure.Problem(heads=8, seqlen_q=128, head_dim=64)
before = [cynosure.select(problem) for _ in range(3)][-1]
assert "torch" not in sys.modules
import torch
found = [cynosure.select(problem) for _ in range(3)][-1]
assert found.device == cynosure.Device.this(), found.device
for flag in (True, False, True):
    torch.use_deterministic_algorithms(flag)
    for _ in range(2):
        assert cynosure.select(problem).settings.to_dict()["deterministic"] is flag
torch.set_float32_matmul_precision("high")
for _ in range(2):
    assert cynosure.select(problem).settings == cynosure.Settings.current() != found.settings
"""
    subprocess.run([sys.executable, "-c", code], check=True)
