# SPDX-License-Identifier: Apache-2.0
"""The tests' own reference and cases: held against torch's attention, and against each other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import FEATURES, Case, Inputs, edges, make, one_at_a_time, pairwise, possible, random_cases
from reference import Results, magnitudes, plain, reference, sdpa, sdpa_can

WITHOUT: dict[str, Any] = {
    "poison": False,
    "lse": "",
    "dropout": 0.0,
    "softcap": 0.0,
    "sinks": "",
    "alibi": "",
    "window": (-1, -1),
}
CASES = [case for case in one_at_a_time() + edges() if sdpa_can(make(case))]
CASES += [case for case in (replace(case, **WITHOUT) for case in random_cases(60, seed=1)) if sdpa_can(make(case))]


def _all(results: Results) -> list[tuple[str, torch.Tensor]]:
    return [("out", results.out), *results.gradients.items()]


def test_pairwise_meets_every_pair() -> None:
    cases = pairwise()
    assert len(cases) < 300
    met = {(name, value) for case in cases for name, value in vars(case).items() if name != "seed"}
    for values in itertools.chain.from_iterable(FEATURES.values()):
        assert set(values.items()) <= met, f"no case has {values}"


def test_equal_cases_give_equal_tensors() -> None:
    case = next(case for case in pairwise() if case.mask and case.gradients)
    first, second = make(case), make(case)
    for name, leaf in first.leaves.items():
        torch.testing.assert_close(leaf, second.leaves[name], rtol=0, atol=0, equal_nan=True)
    assert eval(repr(case), {"Case": Case}) == case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_torch(case: Case) -> None:
    inputs = make(case)
    doubled = _doubled(inputs)
    out, _ = sdpa(doubled, doubled.leaves)
    ref = reference(inputs)
    torch.testing.assert_close(out.detach(), ref.out, rtol=1e-12, atol=1e-12)
    wanted = {name: leaf for name, leaf in doubled.leaves.items() if leaf.requires_grad}
    if wanted:
        found = torch.autograd.grad(out, list(wanted.values()), doubled.dout, allow_unused=True)
        for (name, leaf), gradient in zip(wanted.items(), found, strict=True):
            expected = torch.zeros_like(leaf) if gradient is None else gradient
            torch.testing.assert_close(ref.gradients[name], expected, rtol=1e-11, atol=1e-11)


def _doubled(inputs: Inputs) -> Inputs:
    leaves = {
        name: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for name, x in inputs.leaves.items()
    }
    case = replace(inputs.case, dtype="float64")
    return replace(inputs, case=case, leaves=leaves, dout=inputs.dout.double())


@pytest.mark.parametrize("case", pairwise()[::2], ids=str)
def test_is_finite_and_the_plain_program_is_near(case: Case) -> None:
    """No NaN reaches a result although places that nobody attends hold it; and the two programs mean the same."""
    inputs = make(case)
    keep = None
    if case.dropout:
        g = torch.Generator().manual_seed(case.seed)
        lengths = zip(inputs.lengths_q, inputs.lengths_k, strict=True)
        keep = [torch.rand(case.heads, rows, keys, generator=g) >= case.dropout for rows, keys in lengths]
    ref, m, size = reference(inputs, keep), plain(inputs, keep), magnitudes(inputs, keep)
    units = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9, torch.float64: 1e-14}
    for (name, x), (_, near), (_, scale) in zip(_all(ref), _all(m), _all(size), strict=True):
        assert torch.isfinite(x).all(), name
        assert (x.abs() <= scale * (1 + 1e-9) + 1e-12).all(), f"{name}: larger than the sum of its terms"
        error, unit = (near.double() - x).norm(), max(units[near.dtype], units[case.torch_dtype])
        assert error <= 16 * unit * scale.norm() * max(1, ref_size(ref)), f"{name}: {error} of {scale.norm()}"


def ref_size(ref: Results) -> float:
    finite = ref.lse[torch.isfinite(ref.lse)]
    return float(finite.abs().max()) if finite.numel() else 1.0


def test_by_hand() -> None:
    """Two rows, three keys: alignment, window, sink and LSE in numbers written here."""
    case = Case(batch=1, heads=1, kv_heads=1, sq=2, sk=3, dqk=1, dv=1, causal=True, sinks="same", lse="grad", scale=1.0)
    inputs = make(case)
    q, k, v, sink = (inputs.leaves[name].detach().double().flatten().tolist() for name in ("q", "k", "v", "sinks"))
    ref = reference(inputs)
    for i, columns in enumerate(((0, 1), (0, 1, 2))):
        weights = [torch.tensor(q[i] * k[j]).exp().item() for j in columns]
        total = sum(weights) + torch.tensor(sink[0]).exp().item()
        expected = sum(w * v[j] for w, j in zip(weights, columns, strict=True)) / total
        assert ref.out.flatten()[i].item() == pytest.approx(expected)
        assert ref.lse.flatten()[i].exp().item() == pytest.approx(total)
    top = reference(make(replace(case, align="top_left", window=(0, 0), sinks="")))
    assert top.out.flatten().tolist() == pytest.approx(v[:2])  # row i attends column i alone


def test_possible_knows_what_cannot_be() -> None:
    assert not possible({"strides": "same", "heads": 6, "kv_heads": 2})
    assert possible({"strides": "same", "heads": 2, "kv_heads": 2})
