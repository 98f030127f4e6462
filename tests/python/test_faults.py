# SPDX-License-Identifier: Apache-2.0
"""Fault rows of one's own: from Python, from a file, their digest in the word, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cynosure import Backend, Device, Problem, Settings, faults, select

H200 = Device.named("h200", cudnn="9.18.1")
ROW: dict[str, Any] = {
    "id": "site.cudnn_dk_nan",
    "backends": ["cudnn"],
    "library": "cudnn",
    "since": "9.18.0",
    "until": "9.19.0",
    "when": {"training": True, "seqlen_k": {"not_multiple_of": 128}},
    "effect": "NaN in the gradient of k",
    "link": "https://example.org/17",
}
TOML = """
[[faults]]
id = "site.cudnn_dk_nan"
backends = ["cudnn"]
library = "cudnn"
since = "9.18.0"
until = "9.19.0"
effect = "NaN in the gradient of k"
link = "https://example.org/17"

[faults.when]
training = true
seqlen_k = { not_multiple_of = 128 }
"""


@pytest.fixture(autouse=True)
def _clean(clean_environment: pytest.MonkeyPatch) -> None:
    pass


def call(seqlen_k: int = 1000, *, training: bool = True) -> Problem:
    return Problem(heads=8, seqlen_q=1024, seqlen_k=seqlen_k, head_dim=128, training=training)


def excluded(problem: Problem, device: Device = H200) -> bool:
    rules = [reason.rule for reason in select(problem, device).reasons[Backend.cudnn]]
    return any("site.cudnn_dk_nan" in rule for rule in rules)


def check() -> None:
    """The row holds exactly where it says."""
    assert excluded(call())
    assert not excluded(call(1024))
    assert not excluded(call(training=False))
    assert not excluded(call(), H200.replace(cudnn="9.19.0"))
    assert not excluded(call(), H200.replace(cudnn="9.17.1"))
    assert not excluded(call(), H200.replace(cudnn=None))


def test_rows_from_python() -> None:
    before = Settings.current()
    assert select(call(), H200).backend is Backend.cudnn
    faults.add(**ROW)
    check()
    decision = select(call(), H200)
    assert decision.backend is not Backend.cudnn
    (reason,) = [reason for reason in decision.reasons[Backend.cudnn] if "site.cudnn_dk_nan" in reason.rule]
    assert "NaN in the gradient of k" in reason.required
    assert "https://example.org/17" in reason.evidence
    assert dict(reason.actual)["cudnn"] == "9.18.1"
    assert faults.added() == [ROW]
    assert Settings.current() != before
    assert Settings.current().to_dict()["rules_digest"] != 0
    faults.clear()
    assert faults.added() == []
    assert Settings.current() == before
    assert not excluded(call())


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_rows_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"faults{suffix}"
    path.write_text(TOML if suffix == ".toml" else json.dumps({"faults": [ROW]}))
    assert len(faults.load(path)) == 1
    monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
    check()
    of_file = Settings.current()
    monkeypatch.delenv("CYNOSURE_FAULTS")
    faults.add(**ROW)
    assert Settings.current() == of_file  # the digest is of the content, not of where it comes from
    assert Settings() == of_file  # rows added in the process are in every Settings made after


def test_rows_of_a_file_and_rows_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(TOML)
    monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
    faults.add(id="other", backends="flash3", library="flash3", since="1.0.0", effect="wrong numbers")
    check()
    assert any("other" in reason.rule for reason in select(call(), H200).reasons[Backend.flash3])


def test_an_empty_path_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Settings.current()
    monkeypatch.setenv("CYNOSURE_FAULTS", "")
    assert Settings.current() == before


def test_policy_te_is_left_alone_unless_named() -> None:
    te = Settings(policy="te")
    faults.add(**ROW)
    assert select(call(), H200, Settings(policy="te")).backend is select(call(), H200, te).backend is Backend.cudnn
    faults.clear()
    faults.add(**ROW, policies=["te", "fastest"])
    assert select(call(), H200, Settings(policy="te")).backend is not Backend.cudnn


def test_conditions() -> None:
    forms: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({"causal": True}, {"causal": True}, {"causal": False}),
        ({"causal": {"not": True}}, {"causal": False}, {"causal": True}),
        ({"dtype": ["float16"]}, {"dtype": "float16"}, {"dtype": "bfloat16"}),
        ({"dtype": {"none_of": ["float16"]}}, {"dtype": "bfloat16"}, {"dtype": "float16"}),
        ({"seqlen_q": {"at_least": 1025, "at_most": 4096}}, {"seqlen_q": 1025}, {"seqlen_q": 1024}),
        ({"seqlen_q": {"multiple_of": 64}}, {"seqlen_q": 128}, {"seqlen_q": 129}),
        ({"head_dim_qk": 64}, {"head_dim": 64}, {"head_dim": 128}),
        (
            {"batch": {"product_over_int32": {"factor": 8, "lengths": ["batch", "seqlen_q"]}}},
            {"batch": 2**20},
            {"batch": 2},
        ),
    ]
    for when, holds, does_not in forms:
        faults.clear()
        faults.add(**{**ROW, "since": "9.0.0", "when": when})
        base = {"heads": 8, "seqlen_q": 1024, "head_dim": 128}
        assert excluded(Problem(**{**base, **holds})), when
        assert not excluded(Problem(**{**base, **does_not})), when


def test_compute_capabilities() -> None:
    faults.add(**{**ROW, "sm": (100, 103)})
    assert not excluded(call())
    assert excluded(call(), H200.replace(sm=103))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backends", ["flash9"]),
        ("backends", []),
        ("library", "numpy"),
        ("since", "new"),
        ("sm", (90,)),
        ("when", {"colour": "blue"}),
        ("when", {"training": "yes"}),
        ("when", {"seqlen_k": {"about": 128}}),
        ("when", {"seqlen_k": {"multiple_of": 0}}),
        ("policies", ["slowest"]),
        ("id", ""),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: Any) -> None:
    """Nothing is added, and the message names the field."""
    before = Settings.current()
    word = next(iter(value)) if isinstance(value, dict) else field
    with pytest.raises(ValueError, match=word):
        faults.add(**{**ROW, field: value})
    assert faults.added() == []
    assert Settings.current() == before
    path = tmp_path / "faults.json"
    path.write_text(json.dumps({"faults": [{**ROW, field: value}]}))
    monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
    with pytest.raises(ValueError, match=word) as error:
        Settings.current()
    assert "CYNOSURE_FAULTS" in str(error.value)
    assert str(path) in str(error.value)


def test_two_rows_of_one_id_are_refused() -> None:
    faults.add(**ROW)
    with pytest.raises(ValueError, match=r"site\.cudnn_dk_nan"):
        faults.add(**{**ROW, "effect": "something else"})
    assert faults.added() == [ROW]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("faults.toml", "[[faults"),
        ("faults.json", "{"),
        ("faults.toml", "faults = 3"),
        ("faults.json", "[]"),
        ("faults.toml", "[[faults]]\nid = 2020-01-01"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
    for _ in range(2):
        with pytest.raises(ValueError, match="CYNOSURE_FAULTS") as error:
            select(call(), H200)
        assert str(path) in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    for path in (tmp_path, tmp_path / "absent.toml", tmp_path / "latin.toml"):
        monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
        with pytest.raises(ValueError, match=f"CYNOSURE_FAULTS: cannot read '{path}'"):
            Settings.current()


def test_a_file_is_read_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(TOML)
    monkeypatch.setenv("CYNOSURE_FAULTS", str(path))
    before = Settings.current()
    path.write_text(TOML.replace("9.18.0", "9.1.0"))
    monkeypatch.setenv("NVTE_FUSED_ATTN", "1")
    assert Settings.current() == before


def test_a_process_without_the_rows_says_so() -> None:
    """A word, or a decision, made with rows that this process lacks is refused, naming where rows come from."""
    faults.add(**ROW)
    word = Settings.current().word
    ask = f"c.select(c.Problem(heads=8, seqlen_q=8, head_dim=64), c.Device.named('h200'), c.Settings.from_word({word}))"
    code = f"import cynosure as c; {ask}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode != 0
    assert "CYNOSURE_FAULTS" in result.stderr.splitlines()[-1]
