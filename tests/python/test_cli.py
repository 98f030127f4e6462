# SPDX-License-Identifier: Apache-2.0
"""Every command through `main`, and the program as users start it."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import cynosure
from cynosure import _core, cli, diff
from cynosure._demo import stage, tour
from cynosure.cli import main

GOLDEN = Path(__file__).parents[1] / "data" / "te_decisions.jsonl.gz"
CALL = ["--heads", "32", "--kv-heads", "8", "--seqlen", "4096", "--head-dim", "128", "--causal"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _core.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def run(capsys: Capture, *argv: str) -> str:
    """A command that succeeds, without a word on stderr."""
    assert main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def run_json(capsys: Capture, *argv: str) -> Any:
    return json.loads(run(capsys, *argv))


def refused(capsys: Capture, *argv: str) -> str:
    """A command that is refused with one line, and at most a hint."""
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("cynosure: error: ")
    assert all(line.startswith("try: cynosure") for line in lines[1:])
    assert len(lines) <= 2
    return lines[0]


class TestProgram:
    def test_version(self, capsys: Capture) -> None:
        assert run(capsys, "--version") == f"cynosure {cynosure.__version__}\n"

    def test_cmake_dir(self, capsys: Capture) -> None:
        assert run(capsys, "--cmake-dir").rstrip().endswith(str(Path("lib") / "cmake" / "cynosure"))

    def test_help(self, capsys: Capture) -> None:
        text = run(capsys, "--help")
        for command in ("env", "explain", "select", "matrix", "diff", "rules", "replay", "demo"):
            assert command in text
            assert "usage: cynosure" in run(capsys, command, "--help")

    def test_as_a_module(self) -> None:
        command = [sys.executable, "-m", "cynosure", "explain", *CALL, "--device", "h200", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["backend"] == "cudnn"
        assert done.stderr == ""

    def test_output_that_is_not_unicode(self) -> None:
        command = [sys.executable, "-m", "cynosure", "explain", *CALL, "--device", "h200"]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        assert b"cudnn" in done.stdout

    def test_closed_pipe_is_quiet(self) -> None:
        command = [sys.executable, "-m", "cynosure", "rules", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == 0

    def test_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: Any) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(cli, "_run_rules", stop)
        assert main(["rules"]) == 130

    @pytest.mark.parametrize(
        ("argv", "named"),
        [
            ([], "expected a command"),
            (["nothing"], "nothing"),
            (["explain"], "--head"),
            (["explain", "--heads", "x"], "--heads"),
            (["explain", "--heads", "8", "--head-dim", "64"], "--seqlen"),
            (["explain", *CALL, "--device", "h2000"], "h2000"),
            (["explain", *CALL, "--cudnn", "new"], "cudnn"),
            (["explain", *CALL, "--dtype", "int8"], "dtype"),
            (["explain", *CALL, "--layout", "shbd"], "layout"),
            (["explain", *CALL, "--dropout", "2"], "dropout"),
            (["explain", *CALL, "--window", "1"], "--window"),
            (["explain", *CALL, "--backend", "flash9"], "flash9"),
            (["explain", *CALL, "--policy", "slowest"], "--policy"),
            (["explain", *CALL, "--set", "colour=red"], "colour"),
            (["explain", *CALL, "--set", "causal=true"], "expected --causal, the option for causal"),
            (["explain", *CALL, "--set", "fp8_recipe=red"], "fp8_recipe"),
            (["explain", *CALL, "--seqlen", "-5"], "seqlen"),
            (["select", "--policy", "slowest"], "--policy"),
            (["matrix", "--device", "h2000"], "h2000"),
            (["matrix", "--html", "/nowhere/at/all.html"], "/nowhere/at/all.html"),
            (["diff", "--from", "cudnn=9.19.0"], "--to"),
            (["diff", "--from", "cudnn", "--to", "cudnn=9.26.0"], "--from"),
            (["diff", "--from", "colour=1", "--to", "cudnn=9.26.0"], "colour"),
            (["diff", "--from", "cudnn=1.0", "--to", "cudnn=x"], "--to"),
            (["diff", "--from", "cudnn=9.0.0,cudnn=9.1.0", "--to", "sm=90"], "twice"),
            (["diff", "--from", "cudnn=9.0.0", "--to", "cudnn=9.1.0", "/nowhere.jsonl"], "/nowhere.jsonl"),
            (["demo", "--seconds", "0"], "--seconds"),
            (["replay"], "FILE"),
            (["replay", "/nowhere.json"], "/nowhere.json"),
            (["bench"], "not part of this release"),
        ],
    )
    def test_errors_are_one_line(self, capsys: Capture, argv: list[str], named: str) -> None:
        assert named in refused(capsys, *argv)

    def test_unreadable_variable(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVTE_FUSED_ATTN", "perhaps")
        assert "NVTE_FUSED_ATTN" in refused(capsys, "explain", *CALL)


class TestExplain:
    def test_table(self, capsys: Capture) -> None:
        text = run(capsys, "explain", *CALL, "--device", "h200", "--flash3", "none")
        assert "32 heads over 8 KV heads" in text
        assert "flash3.not_installed" in text

    def test_json(self, capsys: Capture) -> None:
        found = run_json(capsys, "explain", *CALL, "--device", "h200", "--backend", "require(flash2)", "--json")
        assert found["backend"] == "flash2"
        assert set(found["reasons"]) == set(cynosure.Backend.__members__)
        assert found["overrides"][0].startswith("require(flash2) removed cudnn")
        assert found["remedies"]["cudnn"]

    def test_options_reach_the_problem(self, capsys: Capture) -> None:
        argv = [
            "--heads",
            "8",
            "--seqlen-q",
            "16",
            "--seqlen-k",
            "32",
            "--head-dim",
            "64",
            "--head-dim-v",
            "32",
            "--batch",
            "3",
        ]
        argv += ["--dtype", "fp16", "--layout", "sbhd", "--align", "top_left", "--window", "-1", "5", "--softcap", "30"]
        argv += [
            "--dropout",
            "0.1",
            "--bias",
            "1hss",
            "--mask",
            "boolean",
            "--sinks",
            "--inference",
            "--padding",
            "--deterministic",
        ]
        found = run_json(
            capsys, "explain", *argv, "--set", "return_lse=true", "--device", "h200", "--policy", "te", "--json"
        )
        expected: dict[str, Any] = {
            "batch": 3,
            "seqlen_q": 16,
            "seqlen_k": 32,
            "heads": 8,
            "head_dim_qk": 64,
            "head_dim_v": 32,
            "dtype": "float16",
        }
        expected |= {
            "layout": "sbhd_sbhd_sbhd",
            "align": "top_left",
            "window_left": -1,
            "window_right": 5,
            "bias_shape": "1hss",
        }
        expected |= {"attn_mask": "boolean", "softmax": "learnable", "training": False}
        expected |= dict.fromkeys(("softcap", "dropout", "padding", "return_lse"), True)
        assert {name: found["problem"][name] for name in expected} == expected
        assert found["settings"]["deterministic"] is True
        assert found["settings"]["policy"] == "te"

    def test_alibi(self, capsys: Capture) -> None:
        assert (
            run_json(capsys, "explain", *CALL, "--alibi", "--device", "h200", "--json")["problem"]["bias_type"]
            == "alibi"
        )

    def test_this_machine(self, capsys: Capture) -> None:
        found = run_json(capsys, "explain", *CALL, "--json")
        assert found["device"] == cynosure.Device.this().to_dict()

    def test_environment_counts(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
        assert run_json(capsys, "explain", *CALL, "--device", "h200", "--json")["backend"] == "flash3"


class TestSelect:
    @staticmethod
    def answers(capsys: Capture, monkeypatch: pytest.MonkeyPatch, text: bytes, *argv: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return [json.loads(line) for line in run(capsys, "select", *argv).splitlines()]

    def test_all_golden_records(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        text = gzip.decompress(GOLDEN.read_bytes())
        records = [json.loads(line) for line in text.splitlines()]
        answers = self.answers(capsys, monkeypatch, text, "--policy", "te", "--jsonl")
        assert len(answers) == len(records) == 20000
        wrong = [
            i
            for i, (record, answer) in enumerate(zip(records, answers, strict=True))
            if not self.agrees(record["expect"], answer)
        ]
        assert wrong == []

    @staticmethod
    def agrees(expect: dict[str, Any], answer: dict[str, Any]) -> bool:
        if "error" in expect:
            return bool(answer["error"]["field"]) and bool(answer["error"]["message"])
        chosen = answer["chosen"]
        return (
            answer["expect"] == expect
            and set(answer["reasons"]) == {"cudnn", "cudnn_fp8", "flash2", "flash3", "flash4", "unfused"}
            and (chosen is None or answer["reasons"][chosen] == [])
        )

    def test_fastest_leaves_expect_out(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        (answer,) = self.answers(
            capsys, monkeypatch, b'{"device": {"sm": 90, "cudnn": 91900}, "env": {}, "params": {}}'
        )
        assert set(answer) == {"chosen", "reasons"}

    def test_bad_lines_stop_nothing(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        good = b'{"device": {"sm": 90, "cudnn": 91900}}'
        lines = [
            good,
            b"",
            b"{",
            b"[1]",
            b"\xff\xfe",
            b'{"device": {"sm": 90}, "params": {"colour": 1}}',
            b"null",
            good,
        ]
        answers = self.answers(capsys, monkeypatch, b"\n".join(lines))
        assert ["error" in answer for answer in answers] == [False, True, True, True, True, True, True, False]
        assert answers[5]["error"]["field"] == "colour"
        assert answers[0] == answers[-1]

    def test_line_ends(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        good = b'{"device": {"sm": 90}}'
        assert len(self.answers(capsys, monkeypatch, good + b"\r\n" + good + b"\n")) == 2
        assert self.answers(capsys, monkeypatch, b"") == []

    def test_own_environment_is_not_read(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
        (answer,) = self.answers(capsys, monkeypatch, b'{"device": {"sm": 90, "cudnn": 91900}}', "--policy", "te")
        assert "cudnn.switched_off" not in answer["reasons"]["cudnn"]

    def test_answers_come_line_by_line(self) -> None:
        command = [sys.executable, "-m", "cynosure", "select"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(2):
                process.stdin.write(b'{"device": {"sm": 90}}\n')
                process.stdin.flush()
                assert b"chosen" in process.stdout.readline()
            process.stdin.close()
            assert process.wait() == 0


class TestRules:
    def test_json_is_the_table(self, capsys: Capture) -> None:
        rows = run_json(capsys, "rules", "--json")
        assert len(rows) == len({row["id"] for row in rows}) > 200

    @pytest.mark.parametrize("policy", ["fastest", "te"])
    def test_filters(self, capsys: Capture, policy: str) -> None:
        rows = run_json(capsys, "rules", "--policy", policy, "--backend", "flash3", "--json")
        assert rows
        assert all(policy in row["policies"] and "flash3" in row["backends"] for row in rows)

    def test_table(self, capsys: Capture) -> None:
        text = run(capsys, "rules")
        assert all(row["id"] in text for row in run_json(capsys, "rules", "--json"))


class TestEnv:
    def test_text(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
        text = run(capsys, "env")
        assert "NVTE_FLASH_ATTN=0" in text
        assert "switched_off=(" in text
        assert all(name in text for name in (*cynosure.Backend.__members__, "cudnn", "torch"))

    def test_json(self, capsys: Capture) -> None:
        found = run_json(capsys, "env", "--json")
        assert set(found["backends"]) == set(cynosure.Backend.__members__)
        for backend in found["backends"].values():
            assert backend["usable"] == (not backend["why_not"])
        for library in found["libraries"].values():
            assert (library["version"] is None) != (library["why_not"] is None)

    def test_unreadable_variable_is_shown(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CYNOSURE_POLICY", "slowest")
        assert main(["env"]) == 2
        out, err = capsys.readouterr()
        assert "unreadable" in out
        assert "CYNOSURE_POLICY=slowest" in out
        assert err.startswith("cynosure: error: CYNOSURE_POLICY")


class Page(HTMLParser):
    """Checks that elements nest, and collects what a page refers to."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.focusable = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        values = dict(attrs)
        assert len(values) == len(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.references += [value for name, value in attrs if name in ("src", "href") and value]
        self.focusable += tag == "button" and "aria-label" in values and values.get("tabindex") == "0"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class TestMatrix:
    ARGV = ("matrix", "--device", "h200", "--cudnn", "9.19.0", "--causal", "--heads", "32", "--kv-heads", "8")

    def test_terminal(self, capsys: Capture) -> None:
        text = run(capsys, *self.ARGV)
        assert max(len(line) for line in text.splitlines()) <= 100
        assert text.count("head dim down") == 2
        assert "Evidence" in text

    def test_json_agrees_with_select(self, capsys: Capture) -> None:
        found = run_json(capsys, *self.ARGV, "--json")
        device = cynosure.Device.named("h200", cudnn="9.19.0")
        for cell in found["cells"][::37]:
            problem = cynosure.Problem(
                heads=32,
                kv_heads=8,
                head_dim=cell["head_dim"],
                seqlen_q=cell["length"],
                causal=True,
                training=cell["phase"] == "training",
            )
            chosen = cynosure.select(problem, device, cynosure.Settings()).backend
            assert cell["backend"] == ("none" if chosen is None else chosen.name)

    def test_page(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "matrix.html"
        assert str(path) in run(capsys, *self.ARGV, "--html", str(path))
        text = path.read_text(encoding="utf-8")
        page = Page(text)
        assert page.open == []
        assert len(page.ids) == len(set(page.ids))
        assert page.references == ["data:,"]
        assert page.focusable == 1
        assert "http" not in text.replace("https://", "http").split("<script")[0]
        assert "@" not in text.split("<style>")[0]
        assert len(text) < 400_000

    def test_page_data_agrees(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "matrix.html"
        run(capsys, *self.ARGV, "--html", str(path))
        data = json.loads(path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])
        cells = run_json(capsys, *self.ARGV, "--json")["cells"]
        chosen = []
        for cell in data["cells"]["forward"] + data["cells"]["training"]:
            names = [data["backends"][data["verdicts"][i][0]] for i in cell if data["verdicts"][i][1] == "chosen"]
            chosen.append(names[0] if names else "none")
        assert chosen == [cell["backend"] for cell in cells]

    def test_names_are_escaped(self) -> None:
        from cynosure import matrix

        swept = matrix.sweep(
            lambda **sizes: cynosure.Problem(heads=1, **sizes),
            cynosure.Device.named("cpu"),
            cynosure.Settings(),
            "<b>&",
            None,
        )
        assert "<b>&" not in matrix.html(swept)

    def test_decode(self, capsys: Capture) -> None:
        found = run_json(capsys, *self.ARGV, "--seqlen-q", "1", "--json")
        assert "1 query" in found["call"]

    def test_nothing_built(self, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bare = cynosure.Device.this().replace(built=[])
        monkeypatch.setattr(cynosure.Device, "this", lambda index=None: bare)
        assert "no backend" in run(capsys, "matrix", "--html", str(tmp_path / "m.html")) + run(capsys, "matrix")


class TestDiff:
    def test_an_upgrade(self, capsys: Capture) -> None:
        argv = ("diff", "--from", "cudnn=9.10.1", "--to", "cudnn=9.21.0", "--device", "h200")
        found = run_json(capsys, *argv, "--json")
        assert found["changed"] == sum(group["count"] for group in found["groups"]) > 100
        assert found["groups"][0]["to"] == "cudnn"
        assert "cudnn_f16.blocked_release" in found["groups"][0]["rules_gone_from_new"]
        text = run(capsys, *argv)
        assert f"{found['changed']} of {found['cases']} calls choose another backend" in text

    def test_nothing_changes(self, capsys: Capture) -> None:
        found = run_json(capsys, "diff", "--from", "cudnn=9.21.0", "--to", "cudnn=9.21.0", "--json")
        assert found["changed"] == 0
        assert found["groups"] == found["eligibility"] == []
        assert "0 of " in run(capsys, "diff", "--from", "cudnn=9.21.0", "--to", "cudnn=9.21.0")

    def test_there_and_back(self, capsys: Capture) -> None:
        there = run_json(capsys, "diff", "--from", "device=a100", "--to", "device=b200", "--json")
        back = run_json(capsys, "diff", "--from", "device=b200", "--to", "device=a100", "--json")
        assert {(g["from"], g["to"], g["count"]) for g in there["groups"]} == {
            (g["to"], g["from"], g["count"]) for g in back["groups"]
        }

    def test_records(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "records.jsonl"
        lines = gzip.decompress(GOLDEN.read_bytes()).splitlines()[:300]
        path.write_bytes(b"\n".join([*lines, b"{", b"[]", b"7"]))
        found = run_json(
            capsys, "diff", "--from", "cudnn=9.10.1", "--to", "cudnn=9.21.0", "--policy", "te", str(path), "--json"
        )
        assert found["cases"] + found["refused"] == 303
        assert found["refused"] >= 3
        assert found["changed"] > 0
        assert "cannot be decided" in run(capsys, "diff", "--from", "cudnn=none", "--to", "device=b200", str(path))

    @pytest.mark.parametrize(
        "content",
        [b"", b"hello\n", b"\xff\xfe junk\x00", b'[1]\n3\n"x"\n{}\n', b'{"device": {"sm": 90}, "params": []}'],
    )
    def test_a_file_without_a_record(self, capsys: Capture, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "junk"
        path.write_bytes(content)
        text = refused(capsys, "diff", "--from", "cudnn=9.19.0", "--to", "cudnn=9.26.0", str(path))
        assert f"{path}: not a file of records: " in text

    def test_settings_are_not_for_records(self, capsys: Capture, tmp_path: Path) -> None:
        path = tmp_path / "records.jsonl"
        path.write_text("")
        assert "--deterministic" in refused(
            capsys, "diff", "--from", "sm=80", "--to", "sm=90", "--deterministic", str(path)
        )

    @pytest.mark.parametrize(("version", "integer"), [("9.19.0", 91900), ("8.9.7", 8907), ("9.2.1", 90201)])
    def test_cudnn_integers(self, version: str, integer: int) -> None:
        assert diff.cudnn_integer(version) == integer


class TestDemo:
    """The part that only asks; the main job is in test_demo.py."""

    def test_holds(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = next(part for part in tour.PARTS if part[1] is tour._compiled)
        monkeypatch.setattr(tour, "PARTS", tuple(part for part in tour.PARTS if part is not compiled))
        text = run(capsys, "demo", "--explain")
        for name in (*tour.MACHINES, *tour.CALLS):
            assert name in text

    def test_one_graph(self) -> None:
        pytest.importorskip("torch")
        assert tour._trace() == ([1, 2, 2], ["cudnn", "flash3", "cudnn"])

    def test_fails_when_a_claim_does(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        def part() -> Any:
            stage.claim(False, "the moon is round")
            yield ""

        monkeypatch.setattr(tour, "PARTS", (("Claims", part),))
        assert main(["demo", "--explain"]) == 1
        assert "the moon is round" in capsys.readouterr().err

    def test_without_torch(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setattr(tour, "PARTS", (("In a compiled graph", tour._compiled),))
        text = run(capsys, "demo")
        assert "torch is not installed" in text
        assert "there is no model to train" in text


def test_what_set_offers_is_taken(capsys: Capture) -> None:
    """The fields that the message names; those with an option of their own are not among them."""
    text = refused(capsys, "explain", *CALL, "--set", "colour=red")
    offered = text.split("one of ")[1].split(", ")
    values = {"integer": "1", "boolean": "false"}
    for row in _core.field_table():
        if row["of"] != "features":
            continue
        value = values.get(row["type"]) or row["choices"][0]
        status = main(["explain", *CALL, "--set", f"{row['name']}={value}"])
        problems = capsys.readouterr().err
        assert ("the option for" in problems) == (row["name"] not in [name.strip() for name in offered]), row["name"]
        assert status == 0 or ("multiple values" not in problems and "given together" not in problems), problems
