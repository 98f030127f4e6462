# SPDX-License-Identifier: Apache-2.0
"""Text that is on every machine with Python: the functions of its standard library, as ragged batches of bytes."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch

SHORTEST, LONGEST = 24, 384  # bytes of a sequence; longer functions are cut
VOCABULARY = 256
HELD_OUT = 10  # one file of so many is kept back, to measure the loss on
_BOUNDARY = re.compile(rb"\n(?=[ \t]*(?:async def|def|class) )")
_IGNORED = -100  # cross_entropy's ignore_index


@dataclass(frozen=True)
class Corpus:
    """Functions and classes, one a sequence."""

    folder: Path
    files: int
    size: int
    train: tuple[bytes, ...]
    held_out: tuple[bytes, ...]


def standard_library() -> Corpus:
    """The functions of this Python's standard library."""
    folder = Path(os.__file__).parent
    paths = sorted(folder.glob("*.py"))
    train: list[bytes] = []
    held_out: list[bytes] = []
    size = 0
    for number, path in enumerate(paths):
        source = path.read_bytes()
        size += len(source)
        pieces = [piece[:LONGEST] for piece in _BOUNDARY.split(source) if len(piece) >= SHORTEST]
        (held_out if number % HELD_OUT == 0 else train).extend(pieces)
    return Corpus(folder, len(paths), size, tuple(train), tuple(held_out))


@dataclass(frozen=True)
class Batch:
    """Sequences one after the other, without padding."""

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T], within its sequence
    targets: torch.Tensor  # int64 [T], the next byte; none at the end of a sequence
    cu_seqlens: torch.Tensor  # int32 [B + 1]

    @property
    def lengths(self) -> list[int]:
        """Of its sequences."""
        found: list[int] = self.cu_seqlens.diff().tolist()
        return found

    def inputs(self, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """The model's arguments; torch is told that their sizes vary, so that the first graph serves all."""
        tensors = tuple(t.to(device) for t in (self.tokens, self.positions, self.cu_seqlens, self.targets))
        for tensor in tensors:
            torch._dynamo.mark_dynamic(tensor, 0)
        return tensors


def batch_of(sequences: list[bytes]) -> Batch:
    """A ragged batch."""
    lengths = torch.tensor([len(s) for s in sequences])
    tokens = torch.frombuffer(bytearray(b"".join(sequences)), dtype=torch.uint8).long()
    ends = lengths.cumsum(0)
    targets = tokens.roll(-1)
    targets[ends - 1] = _IGNORED
    positions = torch.cat([torch.arange(n) for n in lengths.tolist()])
    return Batch(tokens, positions, targets, torch.nn.functional.pad(ends, (1, 0)).int())


def draw(sequences: tuple[bytes, ...], source: random.Random) -> Batch:
    """A batch of 4 to 12 random sequences."""
    return batch_of(source.choices(sequences, k=source.randint(4, 12)))
