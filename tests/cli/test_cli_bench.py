"""``suture bench`` as its user meets it: what it prints, how it goes on, its messages and exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from suture.cli.bench_commands_options import spelled_out
from suture.cli.main import main
from suture.fits import TaskLoss
from suture.runs.bench import Peaks, matrix

NETS = "zoo:convnet,width=2 zoo:convnet,width=3"
FEW = "--fit-samples 60 --score-samples 50"
BENCH = f"bench {NETS} --data digits {FEW} --cuts stage1,flatten"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = Peaks({"float32": 50.0, "bfloat16": 100.0}, {"2×8×8": {"float32": 20.0, "bfloat16": 40.0}})
    monkeypatch.setattr(matrix, "measure_peaks", lambda networks: peaks)
    monkeypatch.setattr("suture.runs.bench.methods.DEFAULT", TaskLoss(steps=3, check=3))


def test_what_it_prints(run: Run) -> None:
    code, out, err = run(f"{BENCH} --sample 1 --repeats 1 --fit task-loss,steps=2,check=2 --out b")
    assert code == 0
    assert "1 of 4 cells by 4 methods: plain loop, least squares + Adam, default, task-loss,steps=2,check=2" in err
    assert "names no weights, so it is a random network" in err
    assert "4 trials in" in err
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for part in (
        "60 images to fit, 7 to validate, 50 to score; the plain loop fits on 67",
        f"suture {BENCH}",
        "one thread, torch",
        "plain loop",
        "CPU s, matrix of 4",
        "times cheaper",
        "cells ≥ plain − 0.3",
        "peak memory",
        "of convolution, bf16",
        "The matrix has 4 cells; 1 were measured",
        "TaskLoss(steps=2, check=2); worst at",
        "products of 1024³ 50 in fp32, 100 in bf16; 3×3 convolution of 2×8×8 20 and 40",
    ):
        assert part in words, part


def test_it_goes_on_and_then_only_prints(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{BENCH} --sample 1 --repeats 1 --out b"
    measured, plain = [0], matrix.measure_plain

    def interrupted(*given: object) -> object:
        measured[0] += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix, "measure_plain", interrupted)
    code, out, err = run(f"{BENCH} --sample 2 --repeats 1 --out b")  # the second cell begins with another method
    assert (code, out) == (130, "")
    assert "interrupted; 0 of 6 measurements are in b; the same command goes on" in err
    monkeypatch.setattr(matrix, "measure_plain", plain)
    code, first, _ = run(line)
    assert code == 0
    monkeypatch.setattr(matrix, "_record", interrupted)
    code, again, err = run(line)
    assert code == 0
    assert again == first
    assert "trials" not in err
    assert measured == [1]


def test_json(run: Run) -> None:
    code, out, _ = run(f"{BENCH} --sender-at stage1 --sample all --repeats 1 --controls --out b --json")
    assert code == 0
    content = json.loads(out)
    assert (content["grid"], content["measured"], content["failed"], content["folder"]) == (2, 2, 0, "b")
    assert len(content["cells"]) == 2 * 3
    assert len({tuple(cell["seam"]) for cell in content["cells"]}) == 2
    assert [control["control"] for control in content["controls"]][:2] == ["itself", "untrained sender"]
    assert len(content["controls"]) == 6
    files = list(Path("b/measurements").iterdir())
    assert len(files) == 2 * 3 + (4 * 2 + 2 * 2) * 2


def test_controls_are_printed(run: Run) -> None:
    code, out, err = run(f"{BENCH} --sample 1 --repeats 1 --controls --out b")
    assert code == 0
    assert "and 12 measurements of controls" in err
    assert "shuffled pairs" in out
    assert re.search(r"(No control is|More than) .*2 points.* below the plain\s+loop's", " ".join(out.split()))


def test_a_failure_is_said(run: Run) -> None:
    code, _, err = run(f"{BENCH} --sample 1 --repeats 1 --fit match-activations,steps=1,check=1,batch=0 --out b")
    assert code == 2
    assert "batch" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("bench zoo:convnet --data digits", "NETWORK zoo:convnet: give two, a sender and a receiver, or none"),
        (f"bench {NETS}", "missing --data: say on which data"),
        ("bench --data mnist", "our own networks are for the digits as they are; name a sender and a receiver"),
        (f"{BENCH} --repeats 0", "--repeats 0: give at least 1"),
        (f"{BENCH} --sample 0", "--sample 0: give a number of cells from 1, or all"),
        (f"{BENCH} --sample most", "--sample most: give a number of cells from 1, or all"),
        (f"{BENCH} --fit-samples 1", "argument|give at least 2"),
        (f"{BENCH} --fit task-los", "no fit 'task-los'; did you mean 'task-loss'"),
        (f"{BENCH} --sender-cuts layer9", "'layer9' matches no cut of"),
        (f"{BENCH} --variant nothing", "no variant 'nothing'"),
        (f"{BENCH} --speed 3", "see suture bench matrix --help"),
        ("bench zoo:nothing zoo:convnet --data digits", "no model 'nothing' in zoo"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_measured(run: Run, arguments: str, said: str) -> None:
    code, out, err = run(arguments)
    assert (code, out) == (2, "")
    assert re.search("|".join(map(re.escape, said.split("|"))), " ".join(err.split()))
    assert not Path("suture-bench").exists()


def test_a_folder_of_something_else_is_refused(run: Run) -> None:
    Path("b").mkdir()
    Path("b/notes.txt").write_text("mine")
    code, _, err = run(f"{BENCH} --out b")
    assert code == 2
    assert "b is no benchmark's folder, and not empty; give another as --out" in err


def test_another_benchmark_is_refused(run: Run) -> None:
    assert run(f"{BENCH} --sample 1 --repeats 1 --out b")[0] == 0
    code, _, err = run(f"{BENCH.replace('60', '70')} --sample 1 --repeats 1 --out b")
    assert code == 2
    assert "b has the benchmark of other networks or data" in err


def test_bench_alone_is_that_of_a_matrix() -> None:
    assert spelled_out(["bench"]) == ["bench", "matrix"]
    assert spelled_out(["bench", "a", "b"]) == ["bench", "matrix", "a", "b"]
    assert spelled_out(["bench", "--json"]) == ["bench", "matrix", "--json"]
    for given in (["bench", "similarity"], ["bench", "matrix", "a"], ["bench", "--help"], ["matrix", "a"], []):
        assert spelled_out(given) == given


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for line, said in (("bench --help", "similarity"), ("bench matrix --help", "--sample N")):
        assert main(line.split()) == 0
        out = capsys.readouterr().out
        assert said in out
        assert max(map(len, out.splitlines())) <= 98


def test_its_own_networks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suture.cli.demo.WIDTH", 2)
    code, out, err = run(f"bench {FEW} --cuts flatten --sample 1 --repeats 1 --json")
    assert code == 0
    assert "training B, a small convolutional network, on 1,080 digits from seed 1" in err
    content = json.loads(out)
    assert (content["subject"]["sender"], content["subject"]["receiver"]) == ("A", "B")
    assert content["folder"] == "suture-bench"
    assert content["methods"][2]["accuracy"] > 0.5
