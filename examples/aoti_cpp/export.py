# SPDX-License-Identifier: Apache-2.0
"""Writes attend.pt2, a model for a program without Python, and cases.pt: inputs, and what eager code makes of them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import cynosure

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 32
WIDTH = HEADS * HEAD_DIM


class Block(torch.nn.Module):
    """Causal grouped-query attention over padded batches; `lengths` says how much of each sequence is valid."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.query = torch.nn.Linear(WIDTH, HEADS * HEAD_DIM)
        self.key = torch.nn.Linear(WIDTH, KV_HEADS * HEAD_DIM)
        self.value = torch.nn.Linear(WIDTH, KV_HEADS * HEAD_DIM)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """[B, S, WIDTH] and int32 [B] -> [B, S, WIDTH]."""
        y = self.norm(x)
        q = self.query(y).unflatten(-1, (HEADS, HEAD_DIM))
        k = self.key(y).unflatten(-1, (KV_HEADS, HEAD_DIM))
        v = self.value(y).unflatten(-1, (KV_HEADS, HEAD_DIM))
        attended = cynosure.attention(q, k, v, causal=True, seqlens_q=lengths, seqlens_k=lengths)
        result: torch.Tensor = x + self.out(attended.flatten(-2))
        return result


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch; its last sequence is empty."""
    lengths = torch.randint(1, length + 1, (batch,), dtype=torch.int32)
    lengths[-1] = 0
    return torch.randn(batch, length, WIDTH), lengths


def main() -> None:
    """Exports with dynamic batch and length; the backend is decided in the program, at each call."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("build"))
    folder: Path = options.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = Block().eval()
    batch, length = torch.export.Dim("batch", min=2, max=1024), torch.export.Dim("length", min=2, max=65536)
    with torch.no_grad():
        program = torch.export.export(
            model, inputs(3, 40), dynamic_shapes={"x": {0: batch, 1: length}, "lengths": {0: batch}}
        )
        package = folder / "attend.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        cases = []
        for size in ((2, 2), (3, 40), (5, 129), (16, 7), (2, 1000)):
            x, lengths = inputs(*size)
            cases.append((x, lengths, model(x, lengths)))
        torch.save(cases, folder / "cases.pt")
    print(f"wrote {package} and {folder / 'cases.pt'}")


if __name__ == "__main__":
    main()
