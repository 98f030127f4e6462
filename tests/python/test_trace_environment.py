# SPDX-License-Identifier: Apache-2.0
"""Settings under torch.compile: a changed, newly set or unset variable or flag recompiles once and is never stale."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dynamo = pytest.importorskip("torch._dynamo")

from cynosure import (  # noqa: E402
    AttentionParams,
    Backend,
    Device,
    Problem,
    Settings,
    _core,
    faults,
    get_attention_backend,
    prefer,
    select,
)

H200 = Device.named("h200")
X = torch.zeros(2, 128, dtype=torch.bfloat16)
RECORD = AttentionParams(core_attention_bias_shape=None, qkv_layout="bshd_bshd_bshd", head_dim_qk=128, head_dim_v=128)
NUMBERS = ("0", "1")
VALUES = {
    "CYNOSURE_POLICY": ("te", "fastest"),
    "CYNOSURE_BACKEND": ("flash2", "prefer(flash3,flash2)"),
    "CYNOSURE_LOG": ("decisions", "reasons"),
    "CYNOSURE_CPU_ISA": ("generic", "avx2"),
    "CYNOSURE_FAULTS": (".toml", ".json"),
}
UNREADABLE = {
    name: "maybe" for name in _core.ENVIRONMENT if name not in ("CYNOSURE_FAULTS", "NVTE_UnfusedDPA_Emulate_FP8")
} | {"CYNOSURE_FAULTS": "/nowhere/faults.toml"}


def ask(x: Any) -> Any:
    """Both public selections, with everything that depends on the environment in their answers."""
    decision = select(Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=128, dtype=x.dtype), H200)
    return x + 1, decision.backend, decision.eligible, decision.settings.word, get_attention_backend(RECORD, H200)


def here(x: Any) -> Any:
    decision = select(Problem(heads=8, seqlen_q=x.shape[1], head_dim=128, dtype=x.dtype))
    return x + 1, decision.backend, decision.device.key, decision.settings.word


@pytest.fixture
def fault_files(tmp_path: Path) -> dict[str, str]:
    toml = (
        '[[faults]]\nid = "mine"\nbackends = ["cudnn"]\nlibrary = "cudnn"\nsince = "9.0.0"\neffect = "wrong numbers"\n'
    )
    json = '{"faults": [{"id": "mine", "backends": ["flash3"], "library": "flash3", "since": "2.0.0", "effect": "x"}]}'
    (tmp_path / "faults.toml").write_text(toml)
    (tmp_path / "faults.json").write_text(json)
    return {suffix: str(tmp_path / f"faults{suffix}") for suffix in (".toml", ".json")}


def put(patch: pytest.MonkeyPatch, name: str, value: str | None) -> None:
    if value is None:
        patch.delenv(name, raising=False)
    else:
        patch.setenv(name, value)


@pytest.mark.parametrize("name", _core.ENVIRONMENT)
def test_every_variable_through_absent_two_values_and_absent(
    compiled: Any, many_graphs: None, clean_environment: pytest.MonkeyPatch, fault_files: dict[str, str], name: str
) -> None:
    first, second = (fault_files.get(value, value) for value in VALUES.get(name, NUMBERS))
    function = here if name == "CYNOSURE_CPU_ISA" else ask
    run = compiled(function)
    found = []
    for step, value in enumerate((None, first, second, None, second, first, None)):
        put(clean_environment, name, value)
        traced = run(X)[1:]
        assert traced == function(X)[1:], value
        found.append(traced)
        assert run.graphs == min(step + 1, 3), value  # one a value; flipping back reuses
    assert found[0] == found[3] == found[6]
    clean_environment.setenv("SOMETHING_ELSE", "1")
    clean_environment.setenv("NVTE_SOMETHING_ELSE", "1")
    assert run(X)[1:] == found[0]
    assert run.graphs == 3


CHANGES = {
    "NVTE_FLASH_ATTN": "0",
    "NVTE_FLASH_ATTN_V2": "0",
    "NVTE_FLASH_ATTN_V3": "0",
    "NVTE_FUSED_ATTN": "0",
    "NVTE_UNFUSED_ATTN": "0",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "CYNOSURE_BACKEND": "flash2",
    "CYNOSURE_POLICY": "te",
}


def test_changes_are_seen_in_the_choice(
    compiled: Any, many_graphs: None, clean_environment: pytest.MonkeyPatch
) -> None:
    """A5: set after the trace, and unset again; what changes is more than a word."""
    run = compiled(ask)
    default = run(X)[1:]
    for name, value in CHANGES.items():
        clean_environment.setenv(name, value)
        changed = run(X)[1:]
        assert changed != default, name
        assert changed == ask(X)[1:]
        clean_environment.delenv(name)
        assert run(X)[1:] == default
    assert run.graphs == 1 + len(CHANGES)
    clean_environment.setenv("CYNOSURE_BACKEND", "flash2")
    assert run(X)[1] is Backend.flash2
    clean_environment.setenv("NVTE_FLASH_ATTN_V2", "0")
    assert run(X)[1] is None


def test_set_before_the_first_trace(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    run = compiled(ask)
    assert run(X)[1] is Backend.flash3
    clean_environment.delenv("NVTE_FUSED_ATTN")
    assert run(X)[1] is Backend.cudnn
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    assert run(X)[1] is Backend.flash3
    assert run.graphs == 2


def test_several_sites_share_the_guards(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    def sites(x: Any) -> Any:
        return x + 1, [ask(x)[1] for _ in range(3)], here(x)[1], Settings.current().word

    run = compiled(sites)
    assert run(X)[1:] == sites(X)[1:]
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    assert run(X)[1:] == sites(X)[1:]
    assert run(X)[1] == [Backend.flash3] * 3
    assert run.graphs == 2


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_variable(compiled: Any, clean_environment: pytest.MonkeyPatch, name: str) -> None:
    clean_environment.setenv(name, UNREADABLE[name])
    with pytest.raises(ValueError, match=name) as eager:
        ask(X)
    assert UNREADABLE[name] in str(eager.value)
    with pytest.raises(Exception, match=name):  # torch's own type
        compiled(ask)(X)
    with pytest.raises(ValueError, match=name):
        compiled(ask, fullgraph=False)(X)
    clean_environment.delenv(name)
    dynamo.reset()  # it remembers what it could not compile
    assert compiled(ask)(X)[1:] == ask(X)[1:]


def test_bytes_that_are_no_text(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("CYNOSURE_POLICY", os.fsdecode(b"te\xff"))
    with pytest.raises(ValueError, match="CYNOSURE_POLICY"):
        ask(X)
    with pytest.raises(Exception, match="CYNOSURE_POLICY"):
        compiled(ask)(X)


# --- torch's flags


def test_deterministic_algorithms(compiled: Any) -> None:
    run = compiled(ask)
    words = []
    for step, flag in enumerate((False, True, False, True)):
        torch.use_deterministic_algorithms(flag)
        assert run(X)[1:] == ask(X)[1:]
        words.append(run(X)[3])
        assert run.graphs == min(step + 1, 2)
    assert words[0] == words[2] != words[1] == words[3]
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert run(X)[1:] == ask(X)[1:]


def test_deterministic_algorithms_changed_in_the_traced_code(compiled: Any) -> None:
    def both(x: Any) -> Any:
        before = ask(x)[3]
        torch.use_deterministic_algorithms(True)
        after = ask(x)[3]
        torch.use_deterministic_algorithms(False)
        return x + 1, before, after, ask(x)[3]

    assert compiled(both)(X)[1:] == both(X)[1:]


def test_float32_matmul_precision(compiled: Any) -> None:
    run = compiled(ask)
    words = []
    for precision in ("highest", "high", "medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        assert run(X)[1:] == ask(X)[1:]
        words.append(run(X)[3])
    assert words[0] == words[3] != words[1] == words[2]  # torch guards no finer
    assert run.graphs == 2


# --- fault rows


def test_rows_added_in_the_process(compiled: Any) -> None:
    run = compiled(ask)
    assert run(X)[1] is Backend.cudnn
    faults.add(id="mine", backends="cudnn", library="cudnn", since="9.0.0", effect="wrong numbers")
    assert run(X)[1:] == ask(X)[1:]
    assert run(X)[1] is Backend.flash3
    assert run.graphs == 2
    faults.add(id="mine too", backends="flash3", library="flash3", since="2.0.0", effect="wrong numbers")
    assert run(X)[1:] == ask(X)[1:]
    assert run(X)[1] not in (Backend.cudnn, Backend.flash3)
    faults.clear()
    assert run(X)[1] is Backend.cudnn
    assert run.graphs == 3


def test_rows_of_a_file_and_rows_added(
    compiled: Any, clean_environment: pytest.MonkeyPatch, fault_files: dict[str, str]
) -> None:
    run = compiled(ask)
    clean_environment.setenv("CYNOSURE_FAULTS", fault_files[".toml"])
    assert run(X)[1] is Backend.flash3
    faults.add(id="mine too", backends="flash3", library="flash3", since="2.0.0", effect="wrong numbers")
    assert run(X)[1:] == ask(X)[1:]
    assert run(X)[1] not in (Backend.cudnn, Backend.flash3)
    assert run.graphs == 2


# --- Settings in traced code


def test_settings_current_with_arguments(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    """In traced code, too: an argument goes before CYNOSURE_*."""

    def call(x: Any) -> Any:
        problem = Problem(heads=8, seqlen_q=128, head_dim=64)
        choices = (
            Settings.current(backend="flash2", policy="te"),
            Settings.current(backend=["flash3", Backend.flash2]),
            Settings.current(backend=PREFERENCE),
            Settings.current(backend=Backend.unfused),
            Settings(backend="require(flash2)", deterministic=True, switched_off=("cudnn",)),
            Settings(),
        )
        return x + 1, [select(problem, H200, settings) for settings in choices]

    run = compiled(call)
    clean_environment.setenv("CYNOSURE_BACKEND", "cudnn")
    assert run(X)[1] == call(X)[1]
    assert run(X)[1][0].backend is Backend.flash2
    assert run.graphs == 1


PREFERENCE = prefer("aten_flash")


@pytest.mark.parametrize(
    "fields", [{"policy": "best"}, {"backend": "flash9"}, {"switched_off": ["flash9"]}, {"deterministic": 1}]
)
def test_settings_that_are_refused(compiled: Any, fields: dict[str, Any]) -> None:
    name = next(iter(fields))

    def call(x: Any) -> Any:
        return x + 1, select(Problem(heads=8, seqlen_q=128, head_dim=64), H200, Settings(**fields))

    with pytest.raises(ValueError, match=f"{name}: got") as eager:
        call(X)
    with pytest.raises(Exception, match=f"{name}: got"):
        compiled(call)(X)
    assert "expected" in str(eager.value)
