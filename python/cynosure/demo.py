# SPDX-License-Identifier: Apache-2.0
"""`cynosure demo`: a small language model, trained for a minute in one compiled graph, and what its attention did."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cynosure._demo import tour
from cynosure._demo.stage import ClaimError, Part, claim, text, torch_is_there, without_settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from cynosure._demo.comparison import Contest, Frames
    from cynosure._demo.text import Corpus
    from cynosure._demo.training import Run
    from cynosure.ledgers import Ledger

CHART_WIDTH, CHART_HEIGHT = 84, 10
FALL = 0.5  # nats that the loss has to fall by, on text that is not trained on
BATCHES_FOR_SDPA = 16
SECONDS_A_CONTEST = 2.0
ELSEWHERE = "h200"  # the machine that the last part asks about


@dataclass(frozen=True)
class Options:
    """Of the command."""

    explain: bool = False
    seconds: float = 45
    seed: int = 0
    out: Path | None = None
    quiet: bool = False
    color: bool = True
    device: str | None = None  # "cpu" or "cuda"; None: a GPU where torch has one


def run(options: Options) -> int:
    """The demonstration; 1 if something it says does not hold."""
    from cynosure import cli

    console = cli.console()
    console.no_color = not options.color
    console.quiet = options.quiet
    if options.explain:
        return _show(console, tour.PARTS)
    if not torch_is_there():
        status = _show(console, tour.PARTS)
        console.print(
            text("\nWithout torch and the operators there is no model to train: this was the part that only asks.")
        )
        console.print(text("pip install 'cynosure[torch]', then again: cynosure demo"))
        return status
    with without_settings(), _quiet_torch():
        return _show(console, MainJob(console, options).parts())


def _show(console: Console, parts: tuple[Part, ...]) -> int:
    """Parts one after the other; a claim that fails ends its part and fails the demonstration."""
    from cynosure._render import text_of

    failed = False
    for title, part in parts:
        console.print(text(f"== {title}", "bold cyan"))
        try:
            for shown in part():
                if console.is_terminal:
                    console.print(shown)
                else:
                    console.print(text_of(shown, console.width, False), soft_wrap=True)
            console.print()
        except ClaimError as error:
            failed = True
            print(f"cynosure: error: demo: {error}", file=sys.stderr)
    return 1 if failed else 0


class _quiet_torch:  # noqa: N801  # reads as what it does
    """What torch says about the machine (no CUDA toolkit, ...) stays out of the picture meanwhile."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("torch")
        self._level = self._logger.level
        self._extension = logging.getLogger("torch.utils.cpp_extension")
        self._extension_level = self._extension.level
        for logger in (self._logger, self._extension):
            logger.setLevel(logging.ERROR)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *error: Any) -> None:
        self._warnings.__exit__(*error)
        self._logger.setLevel(self._level)
        self._extension.setLevel(self._extension_level)


class MainJob:
    """The parts around the training run, which comes first."""

    def __init__(self, console: Console, options: Options) -> None:
        import torch

        self.console, self.options = console, options
        self.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._corpus: Corpus | None = None
        self._run: Run | None = None
        self._ledger: Ledger | None = None

    def parts(self) -> tuple[Part, ...]:
        """In the order in which they are shown."""
        return (
            ("A language model on the source of this Python", self.train),
            ("The loss", self.loss),
            ("Graphs compiled", self.graphs),
            ("A variable, set and unset again in mid-run", self.flip),
            ("The ledger: every decision of the run", self.ledger),
            ("Time against torch SDPA, forward and backward", self.time),
            *((("Why not cuDNN?", self.refused),) if self.device == "cpu" else ()),
            ("Try next", self.hints),
        )

    @property
    def result(self) -> Run:
        """The run; a part whose training failed has nothing to show."""
        claim(self._run is not None, "there was no training run")
        assert self._run is not None
        return self._run

    def train(self) -> Iterator[RenderableType]:
        """The main job, with a bar."""
        from cynosure._demo import text as texts
        from cynosure._demo.training import Training

        corpus = texts.standard_library()
        functions = len(corpus.train) + len(corpus.held_out)
        yield text(
            f"{corpus.files} files, {corpus.size / 1e6:.1f} MB, {functions:,} functions of "
            f"{texts.SHORTEST} to {texts.LONGEST} bytes, from {corpus.folder}.",
            "dim",
        )
        yield text(
            "Each function is a sequence. A batch is 4 to 12 of them, one after the other, without padding (thd).",
            "dim",
        )
        training = Training(corpus, self.options.seconds, self.options.seed, device=self.device)
        self._progress(training)
        run = training.run
        import cynosure

        self._run, self._ledger = run, cynosure.ledger()
        yield text(
            f"{run.parameters:,} parameters, {run.compiler}: {len(run.losses)} steps, {run.tokens:,} tokens in "
            f"{run.seconds:.0f} s, and {run.compiling:.0f} s of compiling."
        )

    def _progress(self, training: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}", style="dim"),
        )
        run = training.run
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task("compiling", total=1.0, what="one graph for all lengths, forward and backward")
            for share in training.steps():
                value = run.phases[-1].value if run.phases else None
                recent = run.losses[-10:]
                what = f"loss {sum(recent) / len(recent):.2f}" if recent else ""
                if value is not None:
                    what += f", CYNOSURE_BACKEND={value}" + ("" if run.phases[-1].steps else ": one new graph")
                bar.update(task, completed=share, description="training", what=what)

    def loss(self) -> Iterator[RenderableType]:
        """The picture."""
        from cynosure._demo import chart

        run = self.result
        marks = self._marks()
        unicode = (getattr(self.console.file, "encoding", None) or "ascii").lower().startswith("utf")
        lines = chart.curve(chart.smoothed(run.losses), CHART_WIDTH, CHART_HEIGHT, unicode=unicode)
        lines += chart.axis(CHART_WIDTH, marks, f"{len(run.losses)} steps", unicode=unicode)
        yield text("\n".join(lines))
        before, after = run.held_out
        yield text(
            f"On functions it has not seen: {before:.2f} before, {after:.2f} after "
            f"({before / 0.6931:.1f} and {after / 0.6931:.1f} bits a byte)."
        )
        if self.options.out is not None:
            self.options.out.mkdir(parents=True, exist_ok=True)
            path = self.options.out / "loss.svg"
            path.write_text(chart.svg("Loss, nats a byte", run.losses, marks), encoding="utf-8")
            yield text(f"wrote {path}", "dim")
        claim(before - after >= FALL, f"the loss went from {before:.2f} to {after:.2f}, expected to fall by {FALL}")

    def _marks(self) -> dict[str, tuple[float, float]]:
        """Where on the curve the variable was set."""
        run = self.result
        start = run.phases[0].steps
        last = max(len(run.losses) - 1, 1)
        return {f"CYNOSURE_BACKEND={run.phases[1].value}": (start / last, (start + run.phases[1].steps - 1) / last)}

    def graphs(self) -> Iterator[RenderableType]:
        """Ours, and what SDPA needs for the same batches."""
        from cynosure._demo import comparison

        run = self.result
        found = comparison.frames(run.batches[:BATCHES_FOR_SDPA])
        yield self._graph_table(found)
        yield text(
            "Padded SDPA needs no more graphs than we do, when told that sizes vary: its price is the padding.\n"
            "One call a sequence has no padding, and needs a graph for each number of sequences.",
            "dim",
        )
        frames = run.phases[0].frames
        claim(frames == 1, f"{frames} graphs were compiled for the model before the variable changed, expected 1")

    def _graph_table(self, found: Frames) -> RenderableType:
        from rich.text import Text

        from cynosure._render import table_of

        run = self.result
        sizes = {(len(batch.lengths), batch.tokens.numel()) for batch in run.batches}
        table = table_of("attention", "batches", "graphs", "rows computed for each token")
        for column in table.columns[1:]:
            column.justify = "right"
        rows = (
            ("cynosure, ragged: this model", f"{len(sizes)} sizes", str(run.phases[0].frames), "1.00"),
            ("torch SDPA, padded", str(found.batches), str(found.padded), f"{found.padding:.2f}"),
            ("torch SDPA, one call a sequence", str(found.batches), str(found.one_by_one), "1.00"),
        )
        for number, row in enumerate(rows):
            table.add_row(*[Text(cell, "bold" if number == 0 else "") for cell in row])
        return table

    def flip(self) -> Iterator[RenderableType]:
        """The ledger proves that the variable took effect at the next call."""
        from rich.text import Text

        from cynosure._demo.model import LAYERS
        from cynosure._demo.training import FLIPPED_STEPS, FLIPPED_TO
        from cynosure._render import table_of

        run = self.result
        table = table_of("CYNOSURE_BACKEND", "steps", "new graphs", "what ran, by the ledger: forward + backward calls")
        for column in table.columns[1:3]:
            column.justify = "right"
        for phase in run.phases:
            ran = ", ".join(f"{name} {forward:,} + {backward:,}" for name, (forward, backward) in phase.calls.items())
            style = "magenta" if phase.value else ""
            table.add_row(Text(phase.value or "not set", style), str(phase.steps), str(phase.frames), Text(ran, style))
        yield table
        calls = [set(phase.calls) for phase in run.phases]
        claim(
            calls[1] == {FLIPPED_TO} and run.phases[1].calls[FLIPPED_TO] == (FLIPPED_STEPS * LAYERS,) * 2,
            f"with CYNOSURE_BACKEND={FLIPPED_TO} the ledger counts {run.phases[1].calls}",
        )
        claim(calls[0] == calls[2] and FLIPPED_TO not in calls[0], f"after it was unset the ledger counts {calls[2]}")
        if self.device == "cuda":
            claim(calls[0] == {"cudnn"}, f"the ledger counts {calls[0]}, expected cudnn alone")
        new = [phase.frames for phase in run.phases[1:]]
        claim(new == [1, 0], f"{new[0]} and {new[1]} new graphs after setting and unsetting, expected 1 and 0")

    def ledger(self) -> Iterator[RenderableType]:
        """As it was when the training ended."""
        claim(self._ledger is not None, "there is no ledger of a run")
        assert self._ledger is not None
        yield self._ledger.__rich__()
        if self.options.out is not None:
            path = self.options.out / "ledger.json"
            self._ledger.save(path)
            yield text(f"wrote {path}; make its decisions again: cynosure replay {path}", "dim")

    def time(self) -> Iterator[RenderableType]:
        """Interleaved, so that both have the same share of this machine."""
        from cynosure._demo import comparison

        run = self.result
        widest = max(run.batches, key=lambda batch: batch.tokens.numel())
        yield _contest_table(comparison.contests(widest, SECONDS_A_CONTEST, self.device))
        dtype = "float32" if self.device == "cpu" else "bfloat16"
        yield text(
            f"Medians of interleaved eager calls, {dtype}. Over 1: cynosure is faster.",
            "dim",
        )

    def refused(self) -> Iterator[RenderableType]:
        """A decision of the run on another machine: one verdict in full, and its fix tried out."""
        from cynosure._core import Backend
        from cynosure._render import verdict
        from cynosure.device import Device
        from cynosure.explain import hypothetical
        from cynosure.problem import Problem
        from cynosure.settings import Settings

        claim(self._ledger is not None and len(self._ledger) > 0, "the ledger of the run is empty")
        assert self._ledger is not None
        problem, machine = self._ledger[0].decision.problem, Device.named(ELSEWHERE)
        decision = hypothetical(problem, machine, Settings())
        claim(bool(decision.reasons[Backend.cudnn]), "cuDNN is not refused")
        chosen = "none" if decision.backend is None else decision.backend.name
        yield text(f"The first call of the run, asked about an {ELSEWHERE.upper()}. It would get {chosen}:", "dim")
        yield verdict(decision, Backend.cudnn)
        fixed = hypothetical(Problem.from_dict({**problem.to_dict(), "dtype": "bfloat16"}), machine, Settings())
        claim(fixed.backend == Backend.cudnn, "the fix that was named does not make cuDNN the choice")
        yield text(f"The same call in bfloat16 gets {Backend.cudnn.name}.", "dim")

    def hints(self) -> Iterator[RenderableType]:
        """What to try next."""
        yield text(
            "  cynosure demo --explain           real models on five GPUs, none of which has to be here\n"
            "  cynosure demo --out FOLDER        the curve as a picture, and the ledger as a file\n"
            "  cynosure replay FOLDER/ledger.json\n"
            "  cynosure explain --heads 32 --kv-heads 8 --seqlen 4096 --head-dim 128 --causal --device h200\n"
            "  cynosure env"
        )


def _contest_table(contests: list[Contest]) -> RenderableType:
    from rich.text import Text

    from cynosure._render import table_of

    table = table_of("shapes", "cynosure", "SDPA", "", "SDPA / cynosure")
    for column in (table.columns[1], table.columns[2], table.columns[4]):
        column.justify = "right"
        column.no_wrap = True
    for contest in contests:
        first = True
        for name, seconds in contest.theirs.items():
            ratio = seconds / contest.ours
            table.add_row(
                Text(contest.what if first else ""),
                Text(f"{contest.ours * 1e3:.2f} ms" if first else ""),
                Text(f"{seconds * 1e3:.2f} ms"),
                Text(name if len(contest.theirs) > 1 else "no padding needed", "dim"),
                Text(f"{ratio:.2f}", "bold green" if ratio >= 1 else "bold yellow"),
            )
            first = False
    return table
