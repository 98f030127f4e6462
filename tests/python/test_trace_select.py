# SPDX-License-Identifier: Apache-2.0
"""select under torch.compile(fullgraph=True): the same choice as eager, one graph a decision region, nothing stale."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dynamo = pytest.importorskip("torch._dynamo")

from cynosure import Backend, Decision, Device, FusedAttnBackend, Problem, Settings, _core, prefer, require, select  # noqa: E402
from cynosure._constant import constant  # noqa: E402
from cynosure.problem import FIELDS  # noqa: E402

H200 = Device.named("h200")
A100 = Device.named("a100")
SIZES: dict[str, Any] = {"heads": 8, "seqlen_q": 128, "head_dim": 64}
X = torch.zeros(2, 128, dtype=torch.bfloat16)


def lengths(count: int, *, start: int = 2, stop: int = 8192) -> list[int]:
    """So many lengths over a range: round ones, odd ones and both ends, in an order of their own."""
    rng = random.Random(count)
    found = {start, stop, 64, 127, 128, 129, 512, 1000, 1024, 1025, 2048, 4096, 4097}
    while len(found) < count:
        found.add(rng.randint(start, stop))
    ordered = sorted(found)
    rng.shuffle(ordered)
    return ordered


def same(traced: Decision, eager: Decision) -> bool:
    return (traced.backend, traced.eligible, traced.order, traced.settings, traced.device) == (
        eager.backend,
        eager.eligible,
        eager.order,
        eager.settings,
        eager.device,
    )


# --- one call


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_traces_without_a_break_and_gives_what_eager_gives(compiled: Any, backend: str) -> None:
    def call(x: Any) -> Any:
        decision = select(
            Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=64, causal=True, dtype=x.dtype), H200
        )
        return (x + 1 if decision.backend == Backend.cudnn else x - 1), decision, decision.backend, decision.eligible

    out, decision, chosen, eligible = torch.compile(call, fullgraph=True, backend=backend)(X)
    expected = call(X)
    assert torch.equal(out, expected[0])
    assert decision == expected[1]  # a size that torch specialises leaves a decision over real lengths
    assert chosen is expected[2] is Backend.cudnn
    assert eligible == expected[3]
    assert all(type(item) is Backend for item in eligible)
    assert decision.explain() == expected[1].explain()


def test_this_machine_and_the_current_settings(compiled: Any) -> None:
    def call(x: Any) -> Any:
        return x + 1, select(Problem(heads=8, seqlen_q=x.shape[1], head_dim=64, dtype=x.dtype))

    run = compiled(call)
    assert run(X)[1] == call(X)[1]
    assert run(X)[1].device == Device.this()
    assert run.graphs == 1


def test_a_problem_device_and_settings_from_outside(compiled: Any, many_graphs: None) -> None:
    def call(x: Any, problem: Any, device: Any, settings: Any) -> Any:
        return x + 1, select(problem, device, settings)

    run = compiled(call)
    for seqlen_k in (128, 100, 192, 333, 2049, 4096, 128):
        problem = Problem(batch=2, heads=8, seqlen_q=64, seqlen_k=seqlen_k, head_dim=64)
        assert same(run(X, problem, H200, Settings())[1], select(problem, H200, Settings()))
    before = run.graphs
    for seqlen_k in (3200, 999, 65, 256):  # known to be dynamic by now
        run(X, Problem(batch=2, heads=8, seqlen_q=64, seqlen_k=seqlen_k, head_dim=64), H200, Settings())
    assert run.graphs == before
    others = [
        (A100, Settings()),
        (A100, Settings(backend="flash2")),
        (H200, Settings(policy="te")),
        (H200, Settings(deterministic=True)),
    ]
    for device, settings in others * 2:
        assert same(run(X, problem, device, settings)[1], select(problem, device, settings))
    assert run.graphs == before + len(others)


def test_tensors_of_a_call(compiled: Any) -> None:
    def call(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return q + 1, select(Problem.of(q, k, v, causal=True, attn_bias=bias), H200)

    q = torch.zeros(2, 128, 8, 64, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.zeros(2, 256, 2, d, dtype=torch.bfloat16) for d in (64, 32))
    run = compiled(call)
    for bias in (None, torch.zeros(1, 8, 128, 256), None):
        assert run(q, k, v, bias)[1] == call(q, k, v, bias)[1]
    assert run.graphs == 2
    with torch.no_grad():
        assert not run(q, k, v, None)[1].problem.training


# --- the answer in traced code


def test_the_enum_compares_branches_and_returns(compiled: Any) -> None:
    def call(x: Any) -> Any:
        chosen: Any = select(Problem(**SIZES), H200).backend
        facts = (
            chosen == Backend.cudnn,
            chosen != Backend.flash3,
            chosen == 1,
            chosen in (Backend.cudnn, Backend.flash2),
            chosen is Backend.cudnn,
            chosen is not None,
            chosen < Backend.flash2,
        )
        return (x + 1 if chosen == Backend.cudnn else x), chosen, facts, chosen.name

    out, chosen, facts, name = compiled(call)(X)
    assert chosen is Backend.cudnn
    assert facts == (True,) * 7
    assert name == "cudnn"
    assert out[0, 0] == 1


def test_no_backend_is_none(compiled: Any) -> None:
    def call(x: Any) -> Any:
        decision = select(Problem(**SIZES, softcap=30.0), H200, NONE)
        return (x + 1 if decision.backend is None else x), decision.backend, decision.eligible

    out, chosen, eligible = compiled(call)(X)
    assert (chosen, eligible) == (None, ())
    assert out[0, 0] == 1


NONE = Settings(backend=require("cudnn"), switched_off=["cudnn"])


def test_the_decision_survives_a_graph_break(compiled: Any) -> None:
    def call(x: Any) -> Any:
        decision = select(Problem(heads=8, seqlen_q=x.shape[1], head_dim=64), H200)
        chosen, eligible = decision.backend, decision.eligible
        dynamo.graph_break()
        if chosen == Backend.cudnn and decision.backend is chosen and Backend.flash3 in eligible:
            x = x + 1
        return x, decision

    out, decision = compiled(call, fullgraph=False)(X)
    assert out[0, 0] == 1
    assert decision == select(Problem(**SIZES), H200)


def test_fields_ranking_and_ground_in_traced_code(compiled: Any) -> None:
    def call(x: Any) -> Any:
        decision = select(Problem(heads=8, seqlen_q=128, head_dim=64, dtype=x.dtype, causal=True), H200)
        problem = decision.problem
        return x + 1, (
            decision.order,
            decision.ground,
            decision.facts,
            problem.causal,
            problem.dtype,
            problem.heads,
            problem.seqlen_q,
            H200.sm,
        )

    assert compiled(call)(X)[1] == call(X)[1]


def test_the_fused_enum(compiled: Any) -> None:
    def call(x: Any) -> Any:
        f16 = TABLE[1]
        return (
            x + 1,
            (
                f16 == FusedAttnBackend.F16_arbitrary_seqlen,
                f16 != FusedAttnBackend.FP8,
                f16 == 1,
                f16 == 1,
                f16 is TABLE[1],
                f16,
            ),
            f16.value,
        )

    TABLE = (None, FusedAttnBackend.F16_arbitrary_seqlen)  # noqa: N806
    assert compiled(call)(X)[1:] == call(X)[1:]


# --- every argument


CHOICES: dict[str, Any] = {
    "heads": (8, 16),
    "kv_heads": (8, 2),
    "head_dim": (64, 128),
    "head_dim_v": (64, 128),
    "batch": (2, 3),
    "seqlen_q": (128, 256),
    "seqlen_k": (128, 129),
    "window_size": ((-1, -1), (128, 0)),
    "softcap": (0.0, 30.0),
    "dropout_p": (0.0, 0.1),
    "layout": ("bshd", "thd"),
    "attn_bias": (None, "1hss"),
    "attn_mask": (None, "boolean"),
    "alibi_slopes": (None, True),
    "sinks": (None, True),
    "causal": (False, True),
    "page_size": (256, 128),
    "num_splits": (1, 2),
    "cp_size": (1, 2),
    "fp8_recipe": ("delayed", "current"),
}
SPELT = {"head_dim_qk", "window_left", "window_right", "window_given", "bias_type", "bias_shape", "softmax", "dropout"}


def two_values(field: dict[str, Any]) -> tuple[Any, Any]:
    if field["type"] == "boolean":
        return False, True
    return field["choices"][0], field["choices"][1]


ARGUMENTS = {
    **{
        row["name"]: two_values(row)
        for row in _core.field_table()
        if row["name"] in FIELDS - SPELT and row["type"] != "integer" and row["name"] not in CHOICES
    },
    **CHOICES,
}
# What a value needs beside it to be a possible problem.
WITH: dict[str, dict[str, Any]] = {
    "bias_requires_grad": {"attn_bias": "1hss"},
    "bias_float32": {"attn_bias": "1hss"},
    "lse_grad": {"return_lse": True},
    "score_mod_bprop": {"score_mod": True},
    "fp8": {"fp8_recipe": "delayed"},
}


def test_every_field_is_walked() -> None:
    assert set(ARGUMENTS) | SPELT >= FIELDS


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_through_two_values(compiled: Any, name: str) -> None:
    sizes = {key: value for key, value in {**SIZES, "batch": 2, **WITH.get(name, {})}.items() if key != name}

    def call(x: Any, value: Any) -> Any:
        return x + 1, select(Problem(**sizes, **{name: value}), H200)

    run = compiled(call)
    first, second = ARGUMENTS[name]
    for value in (first, second, first, second):
        traced, eager = run(X, value)[1], call(X, value)[1]
        assert same(traced, eager), value
        if not traced.facts:
            assert traced == eager
    assert run.graphs <= 3  # a length that torch makes dynamic costs one more
    if name not in ("batch", "seqlen_q", "seqlen_k"):
        assert run.graphs == 2


def test_symbolic_floats_and_causal(compiled: Any) -> None:
    """I3: a comparison of symbolic lengths is accepted as `causal`, and specialised."""

    def call(x: Any, dropout: float, cap: float) -> Any:
        causal = x.shape[1] > 1
        return x + 1, select(
            Problem(heads=8, seqlen_q=x.shape[1], head_dim=64, causal=causal, dropout_p=dropout, softcap=cap), H200
        )

    run = compiled(call, dynamic=True)
    for length, dropout, cap in (
        (200, 0.0, 0.0),
        (100, 0.0, 0.0),
        (300, 0.1, 0.0),
        (300, 0.2, 0.0),
        (300, 0.3, 0.0),
        (77, 0.0, 1.0),
        (88, 0.0, 2.5),
    ):
        x = torch.zeros(2, length)
        traced, eager = run(x, dropout, cap)[1], call(x, dropout, cap)[1]
        assert traced.backend is eager.backend
        assert traced.problem.key == eager.problem.key
    assert run.graphs <= 5


# --- lengths


def walk(
    compiled: Any,
    sizes: list[tuple[int, int, int]],
    fields: dict[str, Any],
    device: Device,
    settings: Settings,
    **options: Any,
) -> int:
    """Runs through (batch, query length, key length), each compared with eager; how many graphs that took."""

    def call(q: Any, k: Any) -> Any:
        return q + 1, select(
            Problem(batch=q.shape[0], seqlen_q=q.shape[1], seqlen_k=k.shape[1], **fields), device, settings
        )

    run = compiled(call, **options)
    for batch, seqlen_q, seqlen_k in sizes:
        q, k = torch.zeros(batch, seqlen_q), torch.zeros(batch, seqlen_k)
        traced = run(q, k)[1]
        assert same(traced, call(q, k)[1]), (batch, seqlen_q, seqlen_k)
    return int(run.graphs)


LLAMA: dict[str, Any] = {"heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gemma": {"heads": 16, "kv_heads": 8, "head_dim": 256, "causal": True, "softcap": 50.0, "window_size": (4095, 0)},
    "bias": {"heads": 16, "head_dim": 64, "attn_bias": "1hss"},
    "mask": {"heads": 16, "head_dim": 64, "attn_mask": "boolean", "training": False},
    "padded": {"heads": 16, "head_dim": 64, "padding": True, "causal": True},
    "float32": {"heads": 16, "head_dim": 64, "dtype": "float32"},
}
SETTINGS = {
    "default": Settings(),
    "te": Settings(policy="te"),
    "deterministic": Settings(deterministic=True),
    "prefer": Settings(backend=prefer("flash2")),
    "require": Settings(backend="cudnn"),
}


@pytest.mark.parametrize("machine", ["h200", "a100", "b200"])
def test_64_lengths_of_a_common_problem(compiled: Any, machine: str) -> None:
    device = Device.named(machine)
    assert walk(compiled, [(2, n, n) for n in lengths(64)], LLAMA, device, Settings()) <= 4
    dynamo.reset()
    assert walk(compiled, [(2, n, n) for n in lengths(64)], LLAMA, device, Settings(), dynamic=True) <= 4


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_64_lengths_never_take_more_than_8_graphs(compiled: Any, model: str, settings: str) -> None:
    rng = random.Random(model)
    sizes = [(rng.choice((2, 3, 8)), n, n) for n in lengths(40)] + [(2, rng.randint(2, 8192), n) for n in lengths(24)]
    assert walk(compiled, sizes, MODELS[model], H200, SETTINGS[settings], dynamic=True) <= 8


def test_one_graph_a_decision_region(compiled: Any) -> None:
    """As many graphs as there are answers to the facts that were asked, not one a length."""
    regions = set()

    def call(x: Any) -> Any:
        return x + 1, select(
            Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=64, causal=True), H200, TE
        )

    run = compiled(call, dynamic=True)
    for length in lengths(64):
        regions.add(run(torch.zeros(2, length))[1].facts)
    assert run.graphs == len(regions)


TE = Settings(policy="te")


# --- sizes that torch cannot decide


@pytest.fixture
def unbacked(compiled: Any) -> Any:
    with dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield compiled


@pytest.mark.parametrize("which", ["batch", "seqlen_q", "seqlen_k"])
@pytest.mark.parametrize("model", MODELS)
def test_unbacked_sizes_leave_what_is_eligible_either_way(unbacked: Any, model: str, which: str) -> None:
    fixed: dict[str, Any] = {
        name: size for name, size in {"batch": 2, "seqlen_q": 512, "seqlen_k": 512}.items() if name != which
    }

    def call(x: Any, keep: Any) -> Any:
        rows = x[keep]
        sizes: dict[str, Any] = {**fixed, which: rows.shape[0]}
        decision = select(Problem(**sizes, **MODELS[model]), H200)
        return rows + 1, decision, decision.explain()

    run = unbacked(call)
    keep = torch.ones(8192, dtype=torch.bool)
    _, decision, text = run(torch.zeros(8192, 3), keep)
    unknown = [fact for fact, holds in decision.facts if holds is None]
    for size in (1, 2, 63, 64, 512, 513, 1000, 4096, 8191, 8192):
        sizes: dict[str, Any] = {**fixed, which: size}
        eager = select(Problem(**sizes, **MODELS[model]), H200)
        assert set(decision.eligible) <= set(eager.eligible), size
    for backend, reasons in decision.reasons.items():
        if reasons and all(reason.undecided for reason in reasons):
            assert backend not in decision.eligible
            assert unknown
            assert "unknown" in text
    keep[100:] = False
    run(torch.zeros(8192, 3), keep)
    assert run.graphs == 1


def test_an_unbacked_size_is_told_as_such(unbacked: Any) -> None:
    def call(x: Any) -> Any:
        return x + 1, select(Problem(heads=8, seqlen_q=512, seqlen_k=x.shape[1], head_dim=64, causal=True), H200, TE)

    x = torch.zeros(3, 600)
    dynamo.decorators.mark_unbacked(x, 1)
    decision = unbacked(call)(x)[1]
    assert ("seqlen_q == seqlen_k", None) in decision.facts
    assert "seqlen_q == seqlen_k: unknown" in decision.call_text()
    only_undecided = {
        b for b, reasons in decision.reasons.items() if reasons and all(reason.undecided for reason in reasons)
    }
    assert only_undecided
    assert not only_undecided & set(decision.eligible)


# --- explanations, logs and errors at trace time


def test_the_explanation_while_tracing(compiled: Any) -> None:
    def call(x: Any) -> Any:
        decision = select(Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=64, causal=True), H200)
        return x + 1, decision.explain(), decision

    run = compiled(call, dynamic=True)
    _, text, decision = run(X)
    assert text == decision.explain()
    assert "cudnn" in text
    assert "symbolic" in text


def test_log_lines_come_at_trace_time(
    compiled: Any, clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def call(x: Any) -> Any:
        return x + 1, select(Problem(batch=x.shape[0], heads=24, seqlen_q=x.shape[1], head_dim=72, causal=True), H200)

    clean_environment.setenv("CYNOSURE_LOG", "reasons")
    run = compiled(call, dynamic=True)
    with caplog.at_level(logging.INFO, "cynosure"):
        run(X)
        lines = list(caplog.messages)
        run(X)
        run(torch.zeros(2, 256, dtype=torch.bfloat16))
    assert lines[0].startswith("chose ")
    assert any(" not: " in line for line in lines[1:])
    assert caplog.messages == lines
    assert run.graphs == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 7, "kv_heads": 2}, "heads: got 7 with kv_heads 2"),
        ({"window_size": (-2, 0)}, "window_left: got -2"),
        ({"head_dim": 0}, "head_dim_qk: got 0, expected"),
        ({"layout": "xyz"}, "layout: got 'xyz', expected one of"),
        ({"dtype": "int8"}, "dtype: got 'int8', expected one of"),
        ({"training": 1}, "training: got 1, expected True or False"),
        ({"attn_mask": "x"}, "attn_mask: got 'x', expected one of"),
        ({"attn_bias": "1hss", "alibi_slopes": True}, "alibi_slopes: given together with attn_bias"),
        ({"causal": True, "window_size": (4, 4)}, "window_size: got (4, 4) with causal"),
        ({"nonsense": 3}, "nonsense: is no field of a Problem"),
        ({"seqlen_q": -1}, "seqlen_q: got -1"),
    ],
)
def test_impossible_problems(compiled: Any, fields: dict[str, Any], message: str) -> None:
    def call(x: Any) -> Any:
        return x + 1, select(Problem(**{**SIZES, **fields}), H200)

    with pytest.raises(ValueError, match=r"(got|given|is no field)") as eager:
        call(X)
    with pytest.raises(Exception) as traced:  # noqa: PT011  # torch's own type
        compiled(call)(X)
    assert message in str(eager.value)
    assert message in str(traced.value) or message in str(traced.value.__cause__)
    with pytest.raises(ValueError, match=message.split("(")[0]):  # without fullgraph: ours
        compiled(call, fullgraph=False)(X)


# --- whole models


def test_six_layers_one_graph(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    """I1, A11: no break, and one recompilation where a variable changes."""

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            chosen = select(
                Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], head_dim=64, training=self.training), H200
            ).backend
            return x + 1 if chosen == Backend.cudnn else x + 100

    model = torch.nn.Sequential(*[Layer() for _ in range(6)])
    run = compiled(model)
    assert run(X)[0, 0] == 6
    assert run.graphs == 1
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    assert run(X)[0, 0] == 600
    clean_environment.delenv("NVTE_FUSED_ATTN")
    assert run(X)[0, 0] == 6
    assert run.graphs == 2
    model.eval()
    assert run(X)[0, 0] == 6
    assert run.graphs == 3


def test_under_activation_checkpointing(compiled: Any, clean_environment: pytest.MonkeyPatch) -> None:
    from torch.utils.checkpoint import checkpoint

    def layer(x: Any) -> Any:
        chosen = select(Problem(heads=8, seqlen_q=x.shape[1], head_dim=64), H200).backend
        return x * 2 if chosen == Backend.cudnn else x * 3

    def call(x: Any) -> Any:
        for _ in range(2):
            x = checkpoint(layer, x, use_reentrant=False)
        return x

    run = compiled(call)
    x = torch.ones(2, 128, requires_grad=True)
    assert run(x)[0, 0] == 4
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    assert run(x)[0, 0] == 9
    clean_environment.delenv("NVTE_FUSED_ATTN")
    assert run(x)[0, 0] == 4
    assert run.graphs == 2


@constant
def outside_the_trace() -> int:
    return int(select(Problem(**SIZES), H200).backend or 0)


def test_a_selection_outside_the_trace_is_not_taken_for_one_inside(
    compiled: Any, clean_environment: pytest.MonkeyPatch
) -> None:
    """A user's constant function runs while torch traces, but leaves no guards; the next traced selection must."""

    def call(x: Any) -> Any:
        outside_the_trace()
        first = select(Problem(**SIZES), H200).backend
        return x + 1, first, select(Problem(**SIZES), H200).backend

    run = compiled(call)
    assert run(X)[1:] == (Backend.cudnn, Backend.cudnn)
    clean_environment.setenv("NVTE_FUSED_ATTN", "0")
    assert run(X)[1:] == (Backend.flash3, Backend.flash3)
    clean_environment.delenv("NVTE_FUSED_ATTN")
    assert run(X)[1:] == (Backend.cudnn, Backend.cudnn)
    assert run.graphs == 2


def test_the_environment_is_read_once_a_trace(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cynosure import settings

    reads = []
    read = settings._word_of

    def counted(*args: Any) -> int:
        reads.append(args)
        return read(*args)

    monkeypatch.setattr(settings, "_word_of", counted)

    def call(x: Any) -> Any:
        for _ in range(5):
            x = x + int(select(Problem(**SIZES), H200).backend or 0)
        return x

    compiled(call)(X)
    assert len(reads) == 1


def test_export(compiled: Any) -> None:
    """A7: the typed decision branches in an exported program, too; it is frozen there."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return (
                x + 1
                if select(Problem(heads=8, seqlen_q=x.shape[1], head_dim=64), H200).backend == Backend.cudnn
                else x - 1
            )

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Model(), (X,), dynamic_shapes=({1: length},), strict=True)
    for n in (2, 77, 4096):
        assert program.module()(torch.zeros(2, n, dtype=torch.bfloat16))[0, 0] == 1


@pytest.mark.parametrize("device", ["a100", "h200", "b200"])
def test_facts_that_nobody_asked_leave_nothing_undecided(compiled: Any, device: str) -> None:
    """A backend that is out anyway asks for no fact; its reasons are those that hold."""
    machine = Device.named(device, flash2=None)

    def call(x: Any) -> Any:
        return x + 1, select(
            Problem(batch=x.shape[0], heads=8, seqlen_q=x.shape[1], seqlen_k=x.shape[2], head_dim=320, causal=True),
            machine,
        )

    decision = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)(torch.zeros(3, 640, 1280))[1]
    eager = select(Problem(batch=3, heads=8, seqlen_q=640, seqlen_k=1280, head_dim=320, causal=True), machine)
    assert None not in dict(decision.facts).values()
    for backend, reasons in decision.reasons.items():
        assert not [reason for reason in reasons if reason.undecided]
        assert bool(reasons) == (backend not in decision.eligible)
        assert {reason.rule for reason in reasons} <= {reason.rule for reason in eager.reasons[backend]}
