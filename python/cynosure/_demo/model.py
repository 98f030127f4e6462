# SPDX-License-Identifier: Apache-2.0
"""A small transformer over ragged batches. Its attention is the one line that a user writes."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, gelu

import cynosure
from cynosure._demo.text import LONGEST, VOCABULARY

LAYERS, HEADS, HEAD_DIM = 2, 4, 32
WIDTH = HEADS * HEAD_DIM


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor, longest: int | None) -> torch.Tensor:
    """[T, H, D], one call for sequences of any lengths up to `longest`."""
    out: torch.Tensor = cynosure.attention(
        q,
        k,
        v,
        layout="thd",
        causal=True,
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )
    return out


def longest_on(device: str) -> int | None:
    """Lengths on a GPU are not read by the host, so their bound is stated there; else the number of tokens is it."""
    return None if device == "cpu" else LONGEST


class Layer(torch.nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, longest: int | None) -> None:
        super().__init__()
        self.longest = longest
        self.attention_norm = torch.nn.RMSNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.join = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = torch.nn.RMSNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        """[T, WIDTH] -> [T, WIDTH]."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, HEAD_DIM)).unbind(1)
        x = x + self.join(attend(q, k, v, cu, self.longest).flatten(-2))
        result: torch.Tensor = x + self.down(gelu(self.up(self.mlp_norm(x))))
        return result


class LanguageModel(torch.nn.Module):
    """Bytes in, the loss of predicting the next ones out. longest: see longest_on()."""

    def __init__(self, longest: int | None = None) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(LONGEST, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(longest) for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, cu: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """The mean loss over all tokens that have a target."""
        x = self.tokens(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, cu)
        return cross_entropy(self.head(self.norm(x)), targets)
