# SPDX-License-Identifier: Apache-2.0
"""`cynosure demo`: its main job in small, and that it fails where what it says does not hold."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from cynosure import cli, demo
from cynosure.cli import main

torch = pytest.importorskip("torch")

from cynosure._demo import chart, comparison, model, text, training  # noqa: E402
from cynosure._demo.stage import ClaimError  # noqa: E402

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute in a few seconds."""
    torch._dynamo.reset()
    monkeypatch.setattr(training, "compiler", lambda: "aot_eager")
    monkeypatch.setattr(training, "LEAST_STEPS", 10)
    monkeypatch.setattr(training, "FLIPPED_STEPS", 2)
    monkeypatch.setattr(model, "LAYERS", 1)
    monkeypatch.setattr(text, "LONGEST", 64)
    monkeypatch.setattr(demo, "BATCHES_FOR_SDPA", 3)
    monkeypatch.setattr(demo, "SECONDS_A_CONTEST", 0.01)


@pytest.mark.usefixtures("small")
class TestMainJob:
    def test_holds(self, capsys: Capture, tmp_path: Path) -> None:
        assert main(["demo", "--seconds", "0.1", "--seed", "3", "--out", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert max(len(line) for line in out.splitlines()) <= 100
        for said in ("CYNOSURE_BACKEND=unfused", "unfused 2 + 2", "SDPA / cynosure", "cudnn.dtype"):
            assert said in out
        ElementTree.parse(tmp_path / "loss.svg")
        assert main(["replay", str(tmp_path / "ledger.json")]) == 0
        capsys.readouterr()

    def test_quiet(self, capsys: Capture) -> None:
        assert main(["demo", "--seconds", "0.1", "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")

    def test_a_loss_that_stays_fails(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(demo, "FALL", 100.0)
        assert main(["demo", "--seconds", "0.1", "--quiet"]) == 1
        assert "expected to fall" in capsys.readouterr().err


class TestClaims:
    """Each claim about a run, on a run that breaks it."""

    @pytest.fixture
    def job(self) -> Any:
        phases = [
            training.Phase(None, 20, 1, {"cpu": (40, 40)}),
            training.Phase("unfused", 3, 1, {"unfused": (3 * model.LAYERS,) * 2}),
            training.Phase(None, 20, 0, {"cpu": (40, 40)}),
        ]
        job = demo.MainJob(cli.console(), demo.Options())
        batches = [text.batch_of([b"a" * n, b"b" * 30]) for n in (24, 40)]
        job._run = training.Run("eager", [5.0, 2.0], batches, phases, held_out=(5.0, 2.0))
        return job

    def test_hold(self, job: Any) -> None:
        list(job.flip())

    def test_frames(self, job: Any) -> None:
        job._run.phases[0].frames = 2
        with pytest.raises(ClaimError, match="2 graphs"):
            list(job.graphs())

    @pytest.mark.parametrize(
        ("phase", "field", "value"),
        [
            (1, "calls", {"cpu": (6, 6)}),
            (1, "calls", {"unfused": (1, 1)}),
            (1, "calls", {"unfused": (6, 6), "cpu": (1, 0)}),
            (1, "frames", 0),
            (1, "frames", 2),
            (2, "frames", 1),
            (2, "calls", {"unfused": (40, 40)}),
        ],
    )
    def test_flip(self, job: Any, phase: int, field: str, value: Any) -> None:
        setattr(job._run.phases[phase], field, value)
        with pytest.raises(ClaimError):
            list(job.flip())


class TestText:
    def test_batches(self) -> None:
        batch = text.batch_of([b"def f", b"ab"])
        assert batch.lengths == [5, 2]
        assert batch.cu_seqlens.dtype == torch.int32
        assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1]
        assert batch.targets.tolist() == [*b"ef f", -100, ord("b"), -100]

    def test_the_library_is_there(self) -> None:
        corpus = text.standard_library()
        assert len(corpus.train) > 1000
        assert len(corpus.held_out) > 50
        assert all(text.SHORTEST <= len(piece) <= text.LONGEST for piece in corpus.train)
        first, again = (text.draw(corpus.train, random.Random(5)) for _ in range(2))
        assert torch.equal(first.tokens, again.tokens)

    def test_sdpa_one_by_one_is_the_same(self) -> None:
        x = torch.randn(9, 2, 8)
        cu = torch.tensor([0, 4, 9], dtype=torch.int32)
        expected = comparison.one_by_one(x, x, x, [4, 5])
        assert (comparison.ragged(x, x, x, cu) - expected).abs().max() < 1e-5


class TestChart:
    @pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [3.0, 1.0, 2.0], [n / 100 for n in range(300)]])
    @pytest.mark.parametrize("unicode", [True, False])
    def test_size(self, values: list[float], unicode: bool) -> None:
        lines = chart.curve(values, 30, 6, unicode=unicode)
        assert len(lines) == 6
        assert all(len(line) <= 37 for line in lines)
        assert unicode or "".join(lines).isascii()

    def test_axis(self) -> None:
        line, names = chart.axis(40, {"here": (0.5, 0.6)}, "10 steps")
        assert "▀" in line
        assert "here" in names
        assert names.endswith("10 steps")

    def test_svg(self) -> None:
        ElementTree.fromstring(chart.svg("Loss", [3.0, 2.0, 1.0], {"a": (0.1, 0.2)}))
