# SPDX-License-Identifier: Apache-2.0
"""Problem, Device, Settings, Decision and Reason as values, bad input, processes and threads, a world without torch."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import cynosure
from cynosure import Backend, Decision, Device, Fix, Problem, Reason, Settings, Version, prefer, require, select

H200 = Device.named("h200")
SIZES: dict[str, Any] = {"heads": 8, "seqlen_q": 128, "head_dim": 64}


@pytest.fixture(autouse=True)
def _clean(clean_environment: pytest.MonkeyPatch) -> None:
    pass


PROBLEMS = [
    Problem(**SIZES),
    Problem(
        batch=2,
        heads=32,
        kv_heads=8,
        seqlen_q=4096,
        seqlen_k=8192,
        head_dim=192,
        head_dim_v=128,
        causal=True,
        align="top_left",
    ),
    Problem(**SIZES, window_size=(64, 0), softcap=30.0, dropout_p=0.1, sinks=True, dtype="float16", training=False),
    Problem(**SIZES, layout="thd", alibi_slopes=True, return_lse=True),
    Problem(**SIZES, attn_bias="1hss", attn_mask="boolean", bias_requires_grad=True),
    Problem(heads=1, seqlen_q=0, seqlen_k=2**31 - 1, head_dim=1, batch=0),
]
DEVICES = [
    Device(),
    H200,
    Device.named("a100", cudnn=None, flash2="2.7.4.post1"),
    Device.named("CPU", cpu_isa="amx"),
    Device.this(),
    H200.replace(built=["cudnn", "unfused"], interpreter=False),
]
SETTINGS = [
    Settings(),
    Settings(backend="cudnn", policy="te"),
    Settings(backend=prefer("flash3", Backend.flash2), deterministic=True),
    Settings(backend=["flash2", "unfused"], switched_off=["cpu"]),
    Settings.current(),
]
DECISIONS = [
    select(problem, device, settings)
    for problem, device, settings in zip(PROBLEMS, DEVICES, itertools.cycle(SETTINGS), strict=False)
]
REASONS = [reason for decision in DECISIONS for reasons in decision.reasons.values() for reason in reasons]
VALUES: list[list[Any]] = [
    PROBLEMS,
    DEVICES[:-2] + DEVICES[-1:],
    SETTINGS[:-1],
    DECISIONS,
    list(dict.fromkeys(REASONS)),
]


def kind(values: list[Any]) -> str:
    return type(values[0]).__name__


@pytest.mark.parametrize("values", VALUES, ids=kind)
def test_values_print_compare_hash_and_travel(values: list[Any]) -> None:
    for i, value in enumerate(values):
        again = [
            pickle.loads(pickle.dumps(value)),
            copy.copy(value),
            copy.deepcopy(value),
            type(value).from_json(value.to_json()),
        ]
        for other in again:
            assert other == value
            assert not other != value  # noqa: SIM202
            assert hash(other) == hash(value)
            assert repr(other) == repr(value)
            assert other.to_json() == value.to_json()
        assert type(value).__name__ in repr(value)
        assert value != "something else"
        for j, other in enumerate(values):
            assert (value == other) is (i == j)
    assert len(set(values)) == len(values)


def test_json_is_plain_data() -> None:
    for value in (PROBLEMS[1], H200, SETTINGS[2], DECISIONS[1], REASONS[0]):
        assert isinstance(json.loads(value.to_json()), dict)
        assert json.loads(json.dumps(value.to_dict())) == value.to_dict()


def test_json_is_short() -> None:
    assert "softcap" not in json.loads(Problem(**SIZES).to_json())
    assert json.loads(PROBLEMS[2].to_json())["softcap"] is True


def test_fields_by_name() -> None:
    problem = PROBLEMS[1]
    assert (problem.batch, problem.seqlen_q, problem.seqlen_k) == (2, 4096, 8192)
    assert (problem.heads, problem.kv_heads, problem.head_dim_qk, problem.head_dim_v) == (32, 8, 192, 128)
    assert (problem.causal, problem.align, problem.dtype) == (True, "top_left", "bfloat16")
    assert (H200.sm, H200.device_kind, H200.cudnn is not None) == (90, "cuda", True)
    for value, name in ((problem, "head"), (H200, "cores")):
        with pytest.raises(AttributeError, match=f"has no field '{name}'"):
            getattr(value, name)


def test_decisions_of_one_problem_differ_by_machine_and_settings() -> None:
    made = [
        select(PROBLEMS[0], device, settings) for device in (H200, Device.named("a100")) for settings in SETTINGS[:3]
    ]
    assert len(set(made)) == 6
    assert made[0] == select(PROBLEMS[0], Device.named("h200"), Settings())
    with pytest.raises(TypeError, match=r"made by cynosure\.select"):
        Decision()


def test_reasons() -> None:
    decision = select(Problem(**SIZES, dtype="float32"), H200)
    found = decision.reasons
    assert set(found) == set(Backend)
    assert found[Backend.unfused] == ()
    reason = found[Backend.flash2][0]
    assert (reason.backend, reason.way, reason.undecided) == (Backend.flash2, "not_eligible", False)
    assert dict(reason.actual)["dtype"] == "float32"
    assert reason.required
    assert reason.evidence
    fixed = Reason.from_json(reason.to_json())
    assert fixed == reason
    assert fixed.fix == reason.fix
    assert reason.fix is None or isinstance(reason.fix, Fix)


# --- bad input

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"heads": 7, "kv_heads": 2}, "heads: got 7 with kv_heads 2, expected a multiple of kv_heads"),
    ({"heads": 0}, "heads: got 0, expected"),
    ({"heads": "8"}, "heads: got '8', expected an int"),
    ({"heads": 8.0}, "heads: got 8.0, expected an int"),
    ({"heads": True}, "heads: got True, expected an int"),
    ({"heads": 2**31}, "heads: got 2147483648, expected at most 2147483647"),
    ({"heads": 2**70}, "heads: got 1180591620717411303424, expected at most"),
    ({"kv_heads": 0}, "kv_heads: got 0, expected"),
    ({"head_dim": 0}, "head_dim_qk: got 0, expected an integer from 1 up"),
    ({"head_dim": None}, "head_dim_qk: got None, expected an int"),
    ({"head_dim": 64, "head_dim_qk": 32}, "head_dim: given together with head_dim_qk"),
    ({"head_dim_v": -1}, "head_dim_v: got -1, expected"),
    ({"seqlen_q": -1}, "seqlen_q: got -1, expected an integer from 0 up"),
    ({"seqlen_q": None}, "seqlen_q: got None, expected an int"),
    ({"seqlen_k": 2**63}, "seqlen_k: got 9223372036854775808, expected at most 2147483647"),
    ({"seqlen_q": 2**31}, "seqlen_q: got 2147483648, expected at most 2147483647"),
    ({"batch": 2**31}, "batch: got 2147483648, expected at most 2147483647"),
    ({"attn_bias": True}, "attn_bias: got True, expected 4 sizes .* or a word such as '1hss'"),
    ({"attn_bias": 5}, "attn_bias: got 5, expected 4 sizes"),
    ({"batch": 1.5}, "batch: got 1.5, expected an int"),
    ({"window_size": (-2, 0)}, "window_left: got -2, expected an integer from -1 up"),
    ({"window_size": (5, -3)}, "window_right: got -3, expected an integer from -1 up"),
    ({"window_size": 5}, r"window_size: got 5, expected \(left, right\)"),
    ({"window_size": (1, 2, 3)}, r"window_size: got \(1, 2, 3\), expected \(left, right\)"),
    ({"window_size": ("a", 0)}, "window_size: got 'a', expected an int"),
    ({"causal": True, "window_size": (4, 4)}, r"window_size: got \(4, 4\) with causal, expected 0 or -1"),
    ({"causal": 1}, "causal: got 1, expected True or False"),
    ({"training": 1}, "training: got 1, expected True or False"),
    ({"sinks": "maybe"}, "sinks: got 'maybe', expected True or False"),
    ({"layout": "xyz"}, "layout: got 'xyz', expected one of"),
    ({"layout": 3}, "layout: got 3, expected one of"),
    ({"dtype": "int8"}, "dtype: got 'int8', expected one of bfloat16"),
    ({"align": "left"}, "align: got 'left', expected one of top_left, bottom_right"),
    ({"attn_mask": "x"}, "attn_mask: got 'x', expected one of none, boolean, additive"),
    ({"attn_bias": "zz"}, "bias_shape: got 'zz', expected one of"),
    ({"attn_bias": (1, 2)}, r"attn_bias: got \(1, 2\), expected 4 sizes"),
    ({"attn_bias": "1hss", "alibi_slopes": True}, "alibi_slopes: given together with attn_bias"),
    ({"dropout_p": float("nan")}, "dropout_p: got nan, expected a probability from 0 to 1"),
    ({"dropout_p": 1.5}, "dropout_p: got 1.5, expected a probability"),
    ({"dropout_p": "x"}, "dropout_p: got 'x', expected a float"),
    ({"softcap": -1.0}, "softcap: got -1.0, expected 0"),
    ({"softcap": float("inf")}, "softcap: got inf, expected 0"),
    ({"softcap": True}, "softcap: got True, expected a float"),
    ({"nonsense": 3}, "nonsense: is no field of a Problem"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_impossible_problems(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Problem(**{**SIZES, **fields})


class Tensor0d:
    device, dtype, shape = "cuda", "int32", ()

    def __index__(self) -> int:
        return 128


@pytest.mark.parametrize("name", ["batch", "seqlen_q", "seqlen_k", "heads", "head_dim_v"])
def test_sizes_as_tensors(name: str) -> None:
    """A13: refused, with the remedy."""
    with pytest.raises(TypeError, match=rf"{name}: got a tensor, expected an int; pass int\({name}\)"):
        Problem(**{**SIZES, name: Tensor0d()})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sm": 1.5}, "sm: got 1.5, expected an integer"),
        ({"sm": True}, "sm: got True, expected an integer"),
        ({"sm": -1}, "sm: got -1, expected an integer from 0"),
        ({"sm": 2**70}, "sm: got 1180591620717411303424, expected an integer"),
        ({"cudnn": "abc"}, "cudnn: got 'abc', expected a version"),
        ({"cudnn": 9}, "cudnn: got 9, expected a version"),
        ({"device_kind": "tpu"}, "device_kind: got 'tpu', expected one of cpu, cuda"),
        ({"cpu_isa": "sse"}, "cpu_isa: got 'sse', expected one of generic"),
        ({"built": ["flash9"]}, "built: got 'flash9', expected"),
        ({"built": 3}, "built: got 3, expected a list of backend names"),
        ({"cores": 3}, "cores: is no field of a Device"),
    ],
)
def test_impossible_devices(fields: dict[str, Any], message: str) -> None:
    for make in (Device, H200.replace, lambda **rest: Device.named("h200", **rest)):
        with pytest.raises(ValueError, match=message):
            make(**fields)


@pytest.mark.parametrize("name", ["h900", "", 3, None])
def test_unknown_machines(name: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"device: got .*a100"):
        Device.named(name)


@pytest.mark.parametrize(
    "text", ["{", "[]", '"x"', "null", "3", '{"word": 1}', '{"nonsense": 1}', '{"backend": "cudnn"}']
)
@pytest.mark.parametrize("value", [Problem, Device, Settings, Decision, Reason])
def test_json_that_is_none_of_ours(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r": (got|not JSON|is no field|missing)"):
        value.from_json(text)


def test_a_decision_of_another_release_is_noticed() -> None:
    text = DECISIONS[1].to_dict()
    assert DECISIONS[1].backend is not Backend.unfused
    with pytest.raises(ValueError, match=r"this release chooses .*, the text says unfused"):
        Decision.from_json(json.dumps({**text, "backend": "unfused"}))


def test_keys_of_another_release_are_refused() -> None:
    from cynosure.problem import problem_of_key

    with pytest.raises(ValueError, match="another release of Cynosure"):
        select(problem_of_key(b"old", 1, 1, 1), H200)


# --- Problem.of


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd"])
def test_problem_of_layouts(torch: Any, layout: str) -> None:
    def tensor(*bshd: int) -> Any:
        return torch.zeros([bshd["bshd".index(letter)] for letter in layout], dtype=torch.float16)

    problem = Problem.of(
        tensor(2, 128, 8, 64), tensor(2, 256, 4, 64), tensor(2, 256, 4, 32), layout=layout, causal=True
    )
    expected = {
        "batch": 2,
        "heads": 8,
        "kv_heads": 4,
        "seqlen_q": 128,
        "seqlen_k": 256,
        "head_dim_qk": 64,
        "head_dim_v": 32,
        "dtype": "float16",
    }
    assert {name: getattr(problem, name) for name in expected} == expected
    assert problem == Problem(
        batch=2,
        heads=8,
        kv_heads=4,
        seqlen_q=128,
        seqlen_k=256,
        head_dim=64,
        head_dim_v=32,
        dtype="float16",
        causal=True,
        layout=layout,
        training=False,
    )


def test_problem_of_ragged(torch: Any) -> None:
    q, k = torch.zeros(100, 8, 64), torch.zeros(300, 2, 64)
    cu = torch.zeros(5, dtype=torch.int32)
    bounded = Problem.of(q, k, k, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=40, max_seqlen_k=90)
    assert (bounded.batch, bounded.seqlen_q, bounded.seqlen_k, bounded.padding, bounded.same_lengths) == (
        4,
        40,
        90,
        True,
        True,
    )
    unbounded = Problem.of(q, k, k, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu.clone())
    assert (unbounded.seqlen_q, unbounded.seqlen_k, unbounded.same_lengths) == (100, 300, False)
    with pytest.raises(ValueError, match="cu_seqlens_q and cu_seqlens_k: missing"):
        Problem.of(q, k, k, layout="thd")
    with pytest.raises(TypeError, match=r"seqlen_q: got a tensor, expected an int; pass int\(seqlen_q\)"):
        Problem.of(q, k, k, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=torch.tensor(40))


@pytest.mark.parametrize(("layout", "rank"), [("bshd", 4), ("sbhd", 4), ("bhsd", 4), ("thd", 3)])
def test_problem_of_ranks(torch: Any, layout: str, rank: int) -> None:
    """B1: the rank is in the message."""
    right = torch.zeros([2] * rank)
    for wrong in range(1, 6):
        if wrong == rank:
            continue
        for i, name in enumerate("qkv"):
            tensors = [right, right, right]
            tensors[i] = torch.zeros([2] * wrong)
            with pytest.raises(ValueError, match=f"{name}: rank {wrong}, need {rank} for layout '{layout}'"):
                Problem.of(*tensors, layout=layout)


def test_problem_of_gradients(torch: Any) -> None:
    q, k, v = (torch.zeros(1, 16, 2, 8, requires_grad=flag) for flag in (False, False, True))
    bias = torch.zeros(1, 2, 16, 16, requires_grad=True)
    assert not Problem.of(q, k, k).training
    assert Problem.of(q, k, v).training
    assert Problem.of(q, k, k, attn_bias=bias).bias_requires_grad
    with torch.no_grad():
        assert not Problem.of(q, k, v).training
    with torch.inference_mode():
        assert not Problem.of(q, k, v).training


def test_problem_of_features(torch: Any) -> None:
    q = torch.zeros(3, 16, 2, 8, dtype=torch.float16)
    bias = torch.zeros(1, 2, 16, 16)
    problem = Problem.of(
        q, q, q, attn_bias=bias, softcap=2.0, sinks=torch.zeros(2), window_size=(8, 0), dropout_p=0.5, lse_grad=True
    )
    assert (problem.bias_shape, problem.bias_float32, problem.softcap, problem.softmax) == (
        "1hss",
        True,
        True,
        "learnable",
    )
    assert (problem.window_left, problem.dropout, problem.return_lse) == (8, True, True)
    for dtype, word in ((torch.bool, "boolean"), (torch.float32, "additive")):
        assert Problem.of(q, q, q, attn_mask=torch.zeros(16, 16, dtype=dtype)).attn_mask == word
    assert Problem.of(q, q, q, alibi_slopes=torch.zeros(2)).alibi_slopes
    assert Problem.of(q, q, q, seqlens_q=torch.zeros(3), seqlens_k=torch.zeros(3)).padding
    with pytest.raises(ValueError, match="layout: got 'hsbd', expected one of bshd"):
        Problem.of(q, q, q, layout="hsbd")
    with pytest.raises(ValueError, match=r"attn_bias: got \(2, 2\), expected 4 sizes"):
        Problem.of(q, q, q, attn_bias=torch.zeros(2, 2))


# --- processes and threads


def run(code: str, **variables: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NVTE_", "CYNOSURE_"))}
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**clean, "PYTHONPATH": paths, **variables}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


WORD = """
import cynosure
print(cynosure.Settings.current().word, cynosure.Problem(heads=8, seqlen_q=128, head_dim=64).key.hex())
"""


def test_equal_words_in_two_processes() -> None:
    """A1: the settings are part of a graph's identity, in every process alike; another choice is another word."""
    default = run(WORD, PYTHONHASHSEED="1")
    assert run(WORD, PYTHONHASHSEED="2") == default
    here = f"{Settings().word} {Problem(**SIZES).key.hex()}\n"
    assert default == here
    words = {run(WORD, CYNOSURE_BACKEND=backend).split()[0] for backend in ("auto", "flash2", "cudnn", "prefer(cudnn)")}
    assert len(words) == 4
    assert run(WORD, CYNOSURE_BACKEND="auto") == default


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import cynosure
from cynosure import *
problem = Problem(heads=8, seqlen_q=128, head_dim=64, dtype="float16")
print(select(problem, Device.named("h200")).backend.name, select(problem).device.device_kind)
print(get_attention_backend(AttentionParams(core_attention_bias_shape=None), Device.named("h200"))[2])
assert select(problem, Device.named("h200")).explain() and cynosure.explain(problem)
assert Settings.current().describe()
assert sys.modules["torch"] is None
"""


def test_without_torch() -> None:
    assert run(WITHOUT_TORCH).split()[0::2] == ["cudnn", "True"]


def test_nothing_heavy_is_imported() -> None:
    """Neither torch nor an attention package, by importing, by selecting, nor by asking what is here."""
    code = (
        "import cynosure, sys\n"
        "p = cynosure.Problem(heads=8, seqlen_q=128, head_dim=64)\n"
        "cynosure.select(p); cynosure.select(p, cynosure.Device.named('h200')).explain()\n"
        "cynosure.get_attention_backend(cynosure.AttentionParams())\n"
        "heavy = ('torch', 'numpy', 'flash_attn', 'flash_attn_interface', 'transformer_engine', 'triton')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code) == "[]\n"


def test_a_broken_package_is_never_imported(tmp_path: Path) -> None:
    """A15: a switched-off package, or one that cannot be imported, does no harm."""
    for package, module in (
        ("flash-attn", "flash_attn"),
        ("flash-attn-4", "flash_attn_4"),
        ("transformer-engine", "transformer_engine"),
    ):
        folder = tmp_path / module
        folder.mkdir()
        (folder / "__init__.py").write_text("raise ImportError('undefined symbol: broken')")
        metadata = tmp_path / f"{package.replace('-', '_')}-2.8.3.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.8.3\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import cynosure\n"
        "p = cynosure.Problem(heads=8, seqlen_q=128, head_dim=64)\n"
        "print(cynosure.select(p).backend is None, cynosure.select(p, cynosure.Device.named('h200')).backend.name)\n"
        "print([m for m in ('flash_attn', 'flash_attn_4', 'transformer_engine') if m in sys.modules])"
    )
    assert run(code, NVTE_FLASH_ATTN="0").splitlines()[1] == "[]"
    assert run(code).splitlines()[1] == "[]"


def test_eight_threads_and_a_changing_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is that of one of the environments there were, and the last one's once it stays."""
    problem = Problem(**SIZES)
    record = cynosure.AttentionParams(core_attention_bias_shape=None)
    allowed = set()
    for value in ("0", "1"):
        monkeypatch.setenv("NVTE_FUSED_ATTN", value)
        allowed.add(select(problem, H200))
    seen: set[Decision] = set()
    wrong: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                seen.add(select(problem, H200))
                cynosure.get_attention_backend(record, H200)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(400):
        os.environ["NVTE_FUSED_ATTN"] = "01"[turn % 2]
        expected = Backend.flash3 if turn % 2 == 0 else Backend.cudnn
        assert select(problem, H200).backend is expected
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen <= allowed
    assert select(problem, H200).backend is Backend.cudnn


def test_a_remembered_word_is_of_the_values_it_was_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that changes while the word is worked out does not leave the old word for the new value."""
    from cynosure import settings

    monkeypatch.setenv("NVTE_FUSED_ATTN", " 1")  # not what an earlier test has left in memory
    made = settings._word_of

    def slow(*args: Any) -> int:
        word = made(*args)
        os.environ["NVTE_FUSED_ATTN"] = "0"  # as another thread would
        return word

    monkeypatch.setattr(settings, "_word_of", slow)
    assert Settings.current().to_dict()["switched_off"] == []
    monkeypatch.setattr(settings, "_word_of", made)
    assert "cudnn" in Settings.current().to_dict()["switched_off"]


def test_versions_and_names_are_public() -> None:
    for name in cynosure.__all__:
        assert hasattr(cynosure, name)
    assert Version(cynosure.__version__) >= (0, 1)
    assert require("cudnn") == require(Backend.cudnn) != prefer("cudnn")


def _values() -> dict[str, Any]:
    return {
        "Problem": Problem(**SIZES),
        "Device": H200,
        "Settings": Settings(),
        "Decision": select(Problem(**SIZES), H200),
        "Version": Version("2.8.3"),
    }


@pytest.mark.parametrize("kind", ["Problem", "Device", "Settings", "Decision", "Version"])
def test_values_cannot_be_changed(kind: str) -> None:
    value = _values()[kind]
    before = repr(value)
    properties = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
    assert len(properties) > {"Problem": 30, "Device": 10}.get(kind, 0)
    for name in properties:
        with pytest.raises(AttributeError, match=f"{name}: cannot be set to 3; a {kind} is a value, make another one"):
            setattr(value, name, 3)
    with pytest.raises(AttributeError):
        value.something_else = 3
    assert repr(value) == before


def test_fields_are_read_as_attributes() -> None:
    problem = Problem(**SIZES, causal=True, softcap=3.0)
    assert {name: getattr(problem, name) for name in problem.to_dict()} == problem.to_dict()
    assert {name: getattr(H200, name) for name in H200.to_dict()} == H200.to_dict()
    with pytest.raises(AttributeError, match="Problem has no field 'colour'"):
        problem.colour  # noqa: B018


def test_a_compute_capability_says_that_it_is_a_cuda_device() -> None:
    assert Device(sm=90).device_kind == "cuda"
    assert Device.named("cpu").replace(sm=90).device_kind == "cuda"
    assert Device(sm=0).device_kind == Device().device_kind == "cpu"
    message = "sm: got 0 with device_kind cuda, expected the compute capability times 10"
    for fields in ({}, {"sm": 0}):
        with pytest.raises(ValueError, match=message):
            Device(device_kind="cuda", **fields)
    with pytest.raises(ValueError, match=message):
        H200.replace(sm=0)


def test_edited_settings_are_refused() -> None:
    text = Settings(policy="te", backend="cudnn", switched_off=["flash2"]).to_json()
    assert Settings.from_json(text).to_json() == text
    for name, wrong in (("policy", "fastest"), ("contract", "auto"), ("switched_off", []), ("named", ["flash3"])):
        edited = json.dumps({**json.loads(text), name: wrong})
        with pytest.raises(ValueError, match=rf"{name}: got .*, but the word 0x\w+ says"):
            Settings.from_json(edited)
    described = {"word": json.loads(text)["word"], "describe": Settings().describe()}
    with pytest.raises(ValueError, match=r"describe: got 'policy=fastest .*, but the word"):
        Settings.from_json(json.dumps(described))
    with pytest.raises(ValueError, match="settings: got the key 'polciy', expected one of word, "):
        Settings.from_json(json.dumps({**json.loads(text), "polciy": "te"}))
