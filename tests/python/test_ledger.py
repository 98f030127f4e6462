# SPDX-License-Identifier: Apache-2.0
"""The ledger: what it counts, its bound, how it prints, replay, and CYNOSURE_LOG=decisions."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cynosure
from cynosure import ledgers
from cynosure.cli import main

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("clean_environment")
Capture = pytest.CaptureFixture[str]
CAPACITY = 4096  # include/cynosure/ledger.hpp: kLedgerCapacity


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    ledgers.clear()
    yield
    ledgers.clear()


def attend(length: int = 5, *, batch: int = 1, grad: bool = False, dtype: Any = None, **options: Any) -> Any:
    q = torch.randn(batch, length, 2, 8, dtype=dtype or torch.float32, requires_grad=grad)
    return cynosure.attention(q, q, q, **options)


def counts() -> list[tuple[str | None, int, int]]:
    return [(None if e.backend is None else e.backend.name, e.forward, e.backward) for e in cynosure.ledger()]


def test_plan_builds_are_printed_saved_and_ignored_by_replay(tmp_path: Path) -> None:
    attend()
    entries = cynosure.ledger().entries
    assert cynosure.ledger().forward_builds == ledgers.PlanBuilds()  # nothing on a CPU builds plans
    assert "built for" not in str(cynosure.ledger())
    taken = ledgers.Ledger(entries, 0, ledgers.PlanBuilds(3, 0.25, 0.125), ledgers.PlanBuilds(1, 0.5, 0.5))
    assert "3 plans built for forward: 0.250 s, the longest 0.125 s" in str(taken)
    assert "1 plan built for backward: 0.500 s, the longest 0.500 s" in str(taken)
    taken.save(tmp_path / "ledger.json")
    saved = json.loads((tmp_path / "ledger.json").read_text())["plan_builds"]
    assert saved["forward"] == {"count": 3, "seconds": 0.25, "longest": 0.125}
    assert saved["backward"] == {"count": 1, "seconds": 0.5, "longest": 0.5}
    assert ledgers.replay(tmp_path / "ledger.json").changes == ()


class TestCounts:
    def test_empty(self) -> None:
        assert len(cynosure.ledger()) == 0
        assert str(cynosure.ledger()) == "no operator has made a decision yet"

    def test_forward_and_backward(self) -> None:
        attend(grad=True).sum().backward()
        attend(grad=True)
        attend()
        assert sorted(counts()) == [("cpu", 1, 0), ("cpu", 2, 1)]

    def test_questions_are_not_counted(self) -> None:
        q = torch.randn(1, 5, 2, 8)
        cynosure.select(cynosure.Problem.of(q, q, q))
        cynosure.explain(q, q, q)
        assert len(cynosure.ledger()) == 0

    def test_each_choice_is_a_decision(self) -> None:
        attend()
        attend(backend="unfused")
        attend(dtype=torch.float64)
        assert sorted(counts()) == [("cpu", 1, 0), ("unfused", 1, 0), ("unfused", 1, 0)]

    def test_a_refusal_is_recorded(self) -> None:
        with pytest.raises(cynosure.NoBackendError):
            attend(dtype=torch.float64, backend="cpu")
        (entry,) = cynosure.ledger()
        assert entry.backend is None
        assert "cpu.dtype" in str(cynosure.ledger())

    def test_compiled_calls(self, compiled: Any) -> None:
        call = compiled(lambda q: cynosure.attention(q, q, q, causal=True).sum())
        for _ in range(3):
            q = torch.randn(2, 6, 2, 8, requires_grad=True)
            call(q).backward()
        assert counts() == [("cpu", 3, 3)]

    def test_a_variable_in_compiled_code(self, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        call = compiled(lambda q: cynosure.attention(q, q, q))
        q = torch.randn(2, 6, 2, 8)
        call(q)
        monkeypatch.setenv("CYNOSURE_BACKEND", "unfused")
        call(q)
        monkeypatch.delenv("CYNOSURE_BACKEND")
        call(q)
        assert sorted(counts()) == [("cpu", 2, 0), ("unfused", 1, 0)]
        assert call.graphs == 2

    def test_clear(self) -> None:
        attend()
        ledgers.clear()
        assert len(cynosure.ledger()) == 0
        attend()
        assert counts() == [("cpu", 1, 0)]

    def test_threads(self) -> None:
        q = torch.randn(1, 3, 2, 8)
        start = threading.Barrier(4)

        def work(number: int) -> None:
            start.wait()
            for i in range(100):
                cynosure.attention(q, q, q, backend=("cpu", "unfused")[(i + number) % 2])
                if i % 10 == 0:
                    cynosure.ledger()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counts(), key=str) == [("cpu", 200, 0), ("unfused", 200, 0)]

    def test_bounded(self) -> None:
        """In a process of its own: a full ledger keeps its slots."""
        import subprocess
        import sys

        program = f"""
import torch, cynosure
for n in range({CAPACITY} + 10):
    q = torch.zeros(1, 1, 1, 8).expand(1, n + 1, 1, 8)
    cynosure.attention(q[:, :1], q, q)
found = cynosure.ledger()
assert len(found) == {CAPACITY} and found.unlisted == 10, (len(found), found.unlisted)
assert len(found.groups()) == 1
assert "10 more calls are not listed" in str(found)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class TestTable:
    def test_lengths_are_one_row(self) -> None:
        for length in (3, 70, 12):
            attend(length, batch=2)
        attend(causal=True)
        found = cynosure.ledger()
        assert sorted((len(group.decisions), group.forward) for group in found.groups()) == [(1, 1), (3, 3)]
        text = str(found)
        assert "batch 2, 3-70 x 3-70" in text
        assert "(3 different)" in text
        assert "4 decisions in 2 rows" in text

    def test_every_decision_is_within_reach(self) -> None:
        for length in (3, 70, 12):
            attend(length)
        found = cynosure.ledger()
        lengths = [entry.decision.problem.seqlen_q for entry in found]
        assert sorted(lengths) == [3, 12, 70]
        assert "70 x 70" in found[lengths.index(70)].decision.explain()
        assert {decision for group in found.groups() for decision in group.decisions} == {e.decision for e in found}

    def test_fits_a_terminal(self) -> None:
        attend(300, batch=3, causal=True, window_size=(12, 0), softcap=20.0, grad=True).sum().backward()
        attend(dtype=torch.float64, backend=cynosure.prefer("cpu"))
        assert max(len(line) for line in str(cynosure.ledger()).splitlines()) <= 100

    def test_repr(self) -> None:
        attend()
        assert repr(cynosure.ledger()) == "<Ledger of 1 decisions>"


class TestReplay:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        for length in (3, 70):
            attend(length, grad=True).sum().backward()
        attend(dtype=torch.float64)
        path = tmp_path / "ledger.json"
        cynosure.ledger().save(path)
        return path

    def changed(self, path: Path) -> Path:
        """As another release would have written it."""
        value = json.loads(path.read_text())
        for row in value["ledger"]:
            row["backend"] = {"cpu": "unfused", "unfused": "cpu"}[row["backend"]]
        path.write_text(json.dumps(value))
        return path

    def test_the_same(self, capsys: Capture, saved: Path) -> None:
        assert main(["replay", str(saved)]) == 0
        assert capsys.readouterr().out == "3 decisions replayed: all the same\n"

    def test_here(self, capsys: Capture, saved: Path) -> None:
        assert main(["replay", "--here", str(saved)]) == 0
        capsys.readouterr()

    def test_changes(self, capsys: Capture, saved: Path) -> None:
        assert main(["replay", str(self.changed(saved))]) == 1
        out = capsys.readouterr().out
        assert "3 decisions replayed, 3 changed" in out
        assert "3-70 x 3-70" in out
        assert "cpu needs float32, bfloat16 or float16 (cpu.dtype)" in " ".join(out.split())

    def test_changes_as_data(self, capsys: Capture, saved: Path) -> None:
        assert main(["replay", "--json", str(self.changed(saved))]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["decisions"] == 3
        changes = [(change["recorded"], change["now"]["backend"]) for change in found["changes"]]
        assert sorted(changes) == [("cpu", "unfused"), ("unfused", "cpu"), ("unfused", "cpu")]

    def test_replaying_is_not_running(self, saved: Path) -> None:
        ledgers.clear()
        assert ledgers.replay(saved).changes == ()
        assert len(cynosure.ledger()) == 0

    def test_the_settings_of_the_run_count(self, capsys: Capture, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CYNOSURE_BACKEND", "unfused")
        assert main(["replay", str(saved)]) == 0
        capsys.readouterr()

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("", "not JSON"),
            ("[]", "expected a JSON object"),
            ("{}", "expected a file that Ledger.save wrote"),
            ('{"ledger": 3}', "expected a file that Ledger.save wrote"),
            ('{"ledger": []}', "holds no decision"),
            ('{"ledger": [3]}', "entry 0"),
            ('{"ledger": [{}]}', "entry 0"),
            ('{"ledger": [{"backend": "x", "problem": {}, "device": {}, "settings": {"word": "0"}}]}', "entry 0"),
            ('{"ledger": [{"backend": null, "problem": 3, "device": {}, "settings": {"word": "0"}}]}', "entry 0"),
            ('{"ledger": [{"backend": null, "problem": {}, "device": {}, "settings": {"word": "x"}}]}', "entry 0"),
            ('{"ledger": [{"backend": [1], "problem": {}, "device": {}, "settings": 5}]}', "entry 0"),
            ("\x00\x01", "not JSON"),
        ],
    )
    def test_bad_files(self, capsys: Capture, tmp_path: Path, text: str, named: str) -> None:
        path = tmp_path / "bad.json"
        path.write_text(text)
        assert main(["replay", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("cynosure: error: ")
        assert named in err

    def test_no_text_and_no_file(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
        for name, said in (("bytes", "is not text"), ("nothing", "nothing"), (".", "directory")):
            assert main(["replay", str(tmp_path / name)]) == 2
            assert said in capsys.readouterr().err


class TestLog:
    @pytest.fixture
    def lines(self, caplog: pytest.LogCaptureFixture) -> Any:
        caplog.set_level(logging.INFO, "cynosure")
        return lambda: [record.getMessage() for record in caplog.records if record.name == "cynosure"]

    def test_quiet(self, lines: Any, capsys: Capture) -> None:
        attend(21)
        assert lines() == []
        assert capsys.readouterr() == ("", "")

    def test_eager(self, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CYNOSURE_LOG", "decisions")
        for _ in range(3):
            attend(22)
        attend(23)
        assert len(lines()) == 2
        assert all(line.startswith("chose cpu of cpu, unfused for ") for line in lines())
        monkeypatch.delenv("CYNOSURE_LOG")
        attend(24)
        assert len(lines()) == 2

    def test_compiled(self, compiled: Any, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        call = compiled(lambda q: cynosure.attention(q, q, q), dynamic=True)
        monkeypatch.setenv("CYNOSURE_LOG", "decisions")
        for length in (31, 31, 32, 33, 32):
            call(torch.randn(2, length, 2, 8))
        assert len([line for line in lines() if "seqlen_q=3" in line]) == 3
        before = len(lines())
        monkeypatch.delenv("CYNOSURE_LOG")
        call(torch.randn(2, 34, 2, 8))
        assert len(lines()) == before
