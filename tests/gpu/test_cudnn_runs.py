# SPDX-License-Identifier: Apache-2.0
"""The backend `cudnn` in its surroundings: CUDA graphs, torch.compile, streams, threads, seeds, hostile lengths."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from calls import ints, tensors
from checks import Ran
from torch import Tensor

import cynosure


def attend(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Any:
    return cynosure.attention(q, k, v, backend="cudnn", **more)


def test_cudnn_is_what_runs_unless_something_else_is_asked_for() -> None:
    q, k, v = tensors(2, 128, 4, 64, grad=True)
    with Ran() as chosen:
        cynosure.attention(q, k, v, causal=True).sum().backward()
    assert chosen.only == "cudnn"
    assert sum(chosen.counts.values()) == 2  # forward and backward, and so from autograd's thread


def test_a_captured_call_replays_with_new_inputs_after_other_plans_ran() -> None:
    q, k, v = tensors(2, 100, 4, 64)
    attend(q, k, v, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v, causal=True)
    for heads in range(1, 9):  # others, while the captured one stays
        attend(*tensors(1, 64, heads, 64))
    for x in (q, k, v):
        x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(out, attend(q, k, v, causal=True))


def test_a_captured_forward_and_backward_advances_its_dropout() -> None:
    q, k, v = tensors(2, 64, 4, 64, grad=True)
    seed = torch.tensor([3, 0], device="cuda")

    def step() -> tuple[Tensor, ...]:
        out = attend(q, k, v, dropout_p=0.5, dropout_seed=seed)
        return (out, *torch.autograd.grad(out, [q, k, v], torch.ones_like(out)))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        found = step()
        seed[1] += 4
    graph.replay()
    first = [x.clone() for x in found]
    graph.replay()
    assert not torch.equal(first[0], found[0])
    seed[1] -= 8
    graph.replay()
    assert torch.equal(first[0], found[0])
    assert torch.equal(first[3], found[3])


def test_a_plan_that_is_not_built_is_a_clear_error_in_a_capture() -> None:
    q, k, v = tensors(3, 72, 4, 64)
    with pytest.raises(RuntimeError, match="Run the same call once before the capture"):  # noqa: SIM117
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            attend(q, k, v)
    assert attend(q, k, v).isfinite().all()


def test_the_ledger_counts_the_plans_that_are_built() -> None:
    q, k, v = tensors(3, 77, 5, 56, grad=True)  # a shape of this test alone
    before = cynosure.ledger()
    for _ in range(3):
        attend(q, k, v, causal=True).sum().backward()
    after = cynosure.ledger()
    assert after.forward_builds.count == before.forward_builds.count + 1
    assert after.backward_builds.count == before.backward_builds.count + 1
    for was, builds in (
        (before.forward_builds, after.forward_builds),
        (before.backward_builds, after.backward_builds),
    ):
        assert was.seconds < builds.seconds
        assert 0 < builds.longest <= builds.seconds


def test_other_streams_and_many_threads() -> None:
    inputs = [tensors(1, 64 + 8 * i, 4, 64, grad=True) for i in range(4)]
    expected = [attend(*x, causal=True).detach() for x in inputs]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for round_ in range(20):
                x = inputs[(number + round_) % 4]
                out = attend(*x, causal=True)
                torch.autograd.grad(out, x, torch.ones_like(out))
                stream.synchronize()
                if not torch.equal(out, expected[(number + round_) % 4]):
                    wrong.append(f"thread {number}, round {round_}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_padded_lengths_beyond_the_tensor_are_those_of_the_tensor() -> None:
    q, k, v = tensors(2, 64, 4, 64)
    out = attend(q, k, v, seqlens_q=ints(64, 1000), seqlens_k=ints(2**31 - 1, 64))
    assert torch.equal(out, attend(q, k, v, seqlens_q=ints(64, 64), seqlens_k=ints(64, 64)))


def test_dropout_repeats_with_its_seed_and_not_otherwise() -> None:
    q, k, v = tensors(2, 128, 4, 64)
    seeds = [torch.tensor(pair, device="cuda") for pair in ((3, 0), (3, 0), (3, 1), (4, 0))]
    same, again, *others = (attend(q, k, v, dropout_p=0.3, dropout_seed=seed) for seed in seeds)
    assert torch.equal(same, again)
    assert not any(torch.equal(same, other) for other in others)
    torch.manual_seed(5)
    drawn = attend(q, k, v, dropout_p=0.3)
    torch.manual_seed(5)
    assert torch.equal(drawn, attend(q, k, v, dropout_p=0.3))


def test_deterministic_gradients_are_bitwise_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    q, k, v = tensors(2, 1024, 8, 64, grad=True)
    runs = []
    for _ in range(5):
        out = attend(q, k, v, causal=True)
        runs.append(torch.autograd.grad(out, [q, k, v], torch.ones_like(out)))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_nothing_waits_for_the_device() -> None:
    q, k, v = tensors(256, 4, 64, grad=True)
    cu = ints(0, 100, 256)
    more = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 156, "max_seqlen_k": 156}

    def step() -> None:
        out = attend(q, k, v, layout="thd", causal=True, **more)
        torch.autograd.grad(out, [q, k, v], torch.ones_like(out))

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
