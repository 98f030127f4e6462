# SPDX-License-Identifier: Apache-2.0
"""The training run: one graph, ragged batches, a variable flipped in the middle."""

from __future__ import annotations

import random
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cynosure
from cynosure._demo import model as models
from cynosure._demo.stage import set_variable
from cynosure._demo.text import Batch, Corpus, draw

LEAST_STEPS = 40
FLIPPED_STEPS = 3
FLIP_AT = 0.6  # of the time
VARIABLE, FLIPPED_TO = "CYNOSURE_BACKEND", "unfused"


@dataclass
class Phase:
    """Steps under one value of the variable."""

    value: str | None
    steps: int = 0
    frames: int = 0  # compiled in this phase
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)  # by backend: forward, backward; from the ledger


@dataclass
class Run:
    """What came of it."""

    compiler: str
    losses: list[float] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0  # of training, without compiling
    compiling: float = 0.0
    held_out: tuple[float, float] = (0.0, 0.0)  # loss before and after
    parameters: int = 0

    def frames(self) -> int:
        """Compiled in all."""
        return sum(phase.frames for phase in self.phases)


def compiler() -> str:
    """Inductor where it can work: that needs a C++ compiler and Python's headers."""
    has_headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    has_compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return "inductor" if has_headers and has_compiler else "aot_eager"


class Counted:
    """A compiler of graphs, and how many it has compiled."""

    def __init__(self, name: str) -> None:
        self.frames = 0
        self._compile = torch._dynamo.lookup_backend(name)

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """torch.compile's backend."""
        self.frames += 1
        compiled: Callable[..., Any] = self._compile(graph, inputs)
        return compiled


def calls() -> dict[str, tuple[int, int]]:
    """By backend, how often the ledger says it ran: forward, backward."""
    found: dict[str, tuple[int, int]] = {}
    for entry in cynosure.ledger():
        name = "none" if entry.backend is None else entry.backend.name
        forward, backward = found.get(name, (0, 0))
        found[name] = forward + entry.forward, backward + entry.backward
    return found


class Training:
    """Steps of one compiled model; each tells how far it is."""

    def __init__(self, corpus: Corpus, seconds: float, seed: int, name: str | None = None, device: str = "cpu") -> None:
        torch.manual_seed(seed)
        self.device = device
        self.corpus, self.limit = corpus, seconds
        self.run = Run(name or compiler())
        self._random = random.Random(seed)
        self._counted = Counted(self.run.compiler)
        self._model = models.LanguageModel(models.longest_on(device)).to(device)
        self.run.parameters = sum(p.numel() for p in self._model.parameters())
        self._compiled = torch.compile(self._model, fullgraph=True, backend=self._counted)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=2e-3)

    def steps(self) -> Iterator[float]:
        """Trains; yields the share that is done after each step."""
        cynosure.ledgers.clear()
        exam = draw(self.corpus.held_out, random.Random(1))
        before = self._examine(exam)
        yield 0.0
        half = FLIP_AT * self.limit
        yield from self._phase(None, lambda: self.run.seconds >= half and self._steps() >= FLIP_AT * LEAST_STEPS)
        yield from self._phase(FLIPPED_TO, lambda: self.run.phases[-1].steps >= FLIPPED_STEPS)
        yield from self._phase(None, lambda: self.run.seconds >= self.limit and self._steps() >= LEAST_STEPS)
        self.run.held_out = before, self._examine(exam)
        yield 1.0

    def _phase(self, value: str | None, done: Callable[[], bool]) -> Iterator[float]:
        phase = Phase(value)
        self.run.phases.append(phase)
        frames, before = (self._counted.frames if len(self.run.phases) > 1 else 0), calls()
        set_variable(VARIABLE, value)
        try:
            yield self._share()
            while not done():
                self._step()
                phase.steps += 1
                yield self._share()
        finally:
            set_variable(VARIABLE, None)
        phase.frames = self._counted.frames - frames
        if len(self.run.phases) == 1:
            before = {}
        for name, (forward, backward) in calls().items():
            old = before.get(name, (0, 0))
            if (forward, backward) != old:
                phase.calls[name] = forward - old[0], backward - old[1]

    def _step(self) -> None:
        batch = draw(self.corpus.train, self._random)
        start, frames = time.perf_counter(), self._counted.frames
        loss = self._loss(batch)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.device != "cpu":
            torch.cuda.synchronize()
        took = time.perf_counter() - start
        if self._counted.frames > frames:
            self.run.compiling += took
        else:
            self.run.seconds += took
            self.run.tokens += batch.tokens.numel()
        self.run.losses.append(loss.item())
        self.run.batches.append(batch)

    def _loss(self, batch: Batch) -> torch.Tensor:
        """By the graph; on a GPU in bfloat16, as far as autocast has it."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            loss: torch.Tensor = self._compiled(*batch.inputs(self.device))
        return loss

    def _examine(self, batch: Batch) -> float:
        """The loss on text that is not trained on, by the same graph."""
        start = time.perf_counter()
        frames = self._counted.frames
        loss: float = self._loss(batch).item()
        if self._counted.frames > frames:
            self.run.compiling += time.perf_counter() - start
        return loss

    def _steps(self) -> int:
        return len(self.run.losses)

    def _share(self) -> float:
        return min(self.run.seconds / self.limit, self._steps() / LEAST_STEPS, 0.999)
