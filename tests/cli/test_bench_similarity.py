"""The benchmark of linear CKA: what it counts, what it compares, and what it says."""

import json
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor

from suture.cli import bench_similarity as similarity
from suture.cli.bench_similarity import add_arguments
from suture.cli.options import new_parser
from suture.common.errors import CutError, DataError, OutputError, SutureError
from suture.runs.bench import pairwise_cka as pairwise
from suture.runs.bench.pairwise_cka import compare, each_shape, usual_pair


def layers(seed: int, n: int = 60) -> list[Tensor]:
    """Three layers, two of one size, far from centred."""
    random = torch.Generator().manual_seed(seed)
    base = torch.randn(n, 6, generator=torch.Generator().manual_seed(99))
    shapes = ((4, 5, 5), (4, 5, 5), (7,))
    made = [base @ torch.randn(6, int(np.prod(s)), generator=random) for s in shapes]
    return [(x + torch.randn(x.shape, generator=random)).relu().add(3).reshape(n, *s) for x, s in zip(made, shapes)]  # noqa: B905


@pytest.mark.parametrize(("n", "features"), [(60, False), (300, True)])
def test_the_usual_pair_is_the_definition_in_either_form(n, features):
    x, y = layers(1, n)[0], layers(2, n)[1]
    assert pairwise._features_are_cheaper(n, 100, 100) == features
    a, b = (of.flatten(1).double().numpy() for of in (x, y))
    a, b = a - a.mean(0), b - b.mean(0)
    products = [np.square(p.T @ q).sum() for p, q in ((a, b), (a, a), (b, b))]
    assert usual_pair(x, y) == pytest.approx(products[0] / np.sqrt(products[1] * products[2]), abs=1e-5)


def test_kept_grams_change_no_bit():
    xs, ys = layers(1), layers(2)
    grams: dict[int, Tensor] = {}
    for _ in range(2):
        assert [usual_pair(x, y, grams) for x in xs for y in ys] == [usual_pair(x, y) for x in xs for y in ys]
    assert len(grams) == 6


def test_one_pair_stands_for_all_of_its_sizes():
    assert each_shape(layers(1), layers(2)[1:]) == {(0, 0): 2, (0, 1): 2, (2, 0): 1, (2, 1): 1}


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[object] = []

    def begin(self, total: int, done: int, networks: int = 0) -> None:
        self.lines.append(total)

    def more(self, count: int, done: int) -> None:
        self.lines.append(("more", count))

    def working_on(self, what: str) -> None:
        pass

    def done(self, what: str, error: str | None, kind: str = "trials") -> None:
        self.lines.append(what)

    def end(self) -> None:
        self.lines.append("end")


def test_methods_take_turns():
    told = Told()
    compare(layers(1), layers(2), repeats=2, half=True, progress=told)
    turn = ["all pairs at once", "all at once, bfloat16", "loop, Grams kept", "usual loop"]
    assert told.lines == [9, "float64", *turn, *turn, "end"]


@pytest.mark.parametrize("some", [False, True])
def test_the_loop_counts_every_pair_as_often_as_it_stands_for(some, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(pairwise, "process_time", lambda: next(clock))
    xs, ys = layers(1), layers(2)
    found = compare(xs, ys, repeats=1, timed=each_shape(xs, ys) if some else None)
    loop = found.ways[-1]
    assert loop.cpu == [9]  # each pair takes one tick of this clock
    assert len(loop.values) == (4 if some else 9)


def test_errors_are_the_distances_from_float64():
    xs, ys = layers(1), layers(2)
    found = compare(xs, ys, repeats=3)
    for way, record in zip(found.ways, found.records(), strict=True):
        errors = [abs(way.values[i, j] - float(found.reference[i, j])) for i in range(3) for j in range(3)]
        assert record["largest_error"] == max(errors)
        assert record["mean_error"] == pytest.approx(np.mean(errors))
        assert record["cpu"] == median(way.cpu)
        assert record["times_faster"] == pytest.approx(median(found.ways[-1].cpu) / median(way.cpu))
        assert len(way.cpu) == len(way.wall) == 3


@pytest.mark.parametrize("n", [60, 300])
def test_all_at_once_is_at_least_as_exact_as_the_loop(n):
    errors = {"all pairs at once": 0.0, "usual loop": 0.0}
    for seed in range(3):
        found = compare(layers(seed, n), layers(seed + 10, n), repeats=1)
        for record in found.records():
            if record["name"] in errors:
                errors[record["name"]] += record["mean_error"]
    assert errors["all pairs at once"] <= errors["usual loop"] < 1e-4


# --- the command ------------------------------------------------------------------------------------------------------

MLPS = "zoo:mlp,width=8 zoo:mlp,width=12,depth=2 --data digits"


def run(line: str, command: str = "suture bench similarity") -> int:
    parser = new_parser("", prog=command)
    add_arguments(parser)
    return similarity.run(parser.parse_args(line.split()), command)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def test_it_prints_a_table_and_writes_what_is_in_it(capsys, tmp_path):
    assert run(f"{MLPS} --samples 50 --repeats 2 --out new/cka.json", "suture bench similarity …") == 0
    said = capsys.readouterr()
    record = json.loads((tmp_path / "new/cka.json").read_text())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cka.json"]
    assert record["command"] == "suture bench similarity …"
    assert (record["samples"], record["data"], record["repeats"]) == (50, "digits/score[:50]", 2)
    sides = [len(network["cuts"]) for network in record["networks"]]
    assert np.array(record["values"]).shape == tuple(sides)
    assert record["pairs"] == record["pairs_timed"] == np.prod(sides)
    assert record["activations"]["bytes"] == sum(
        4 * 50 * np.prod(cut["shape"]) for network in record["networks"] for cut in network["cuts"]
    )
    assert record["processor"]
    rows = [line for line in said.out.splitlines() if "×" in line]
    assert [row.split("  ")[0] for row in rows] == [method["name"] for method in record["methods"]]
    for row, method in zip(rows, record["methods"], strict=True):
        assert f"{method['times_faster']:.1f}×" in row
        assert f"{method['largest_error']:.1e}" in row
    assert "wrote new/cka.json" in said.err
    assert "is a random network" in said.err


def test_json_cuts_and_one_pair_of_each_shape(capsys):
    assert run(f"{MLPS} --cuts *1* --each-shape --bfloat16 --json --repeats 1") == 0
    record = json.loads(capsys.readouterr().out)
    assert all("1" in cut["name"] for network in record["networks"] for cut in network["cuts"])
    assert record["pairs_timed"] == 1 < record["pairs"]
    assert len(record["methods"]) == 4
    assert record["methods"][-1]["pairs_compared"] == 1
    assert record["samples"] == 597


def test_a_network_may_be_compared_with_itself(capsys):
    assert run("zoo:mlp,width=8 zoo:mlp,width=8 --data digits --samples 30 --repeats 1 --json") == 0
    np.testing.assert_allclose(np.diag(json.loads(capsys.readouterr().out)["values"]), 1)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("zoo:mlp --data digits", SutureError, "1 networks are given: give two"),
        ("zoo:mlp zoo:cnn", SutureError, "missing --data"),
        ("--data cifar10", SutureError, "the small networks are for digits"),
        ("--samples 1", SutureError, "--samples 1: give at least 2"),
        ("--repeats 0", SutureError, "--repeats 0: give at least 1"),
        ("--out cka.txt", OutputError, "--out cka.txt: give a file whose name ends in .json"),
        ("--out file/cka.json", OutputError, "--out file/cka.json: .*; name another file"),
        (f"{MLPS} --samples 598", DataError, "cannot limit .* to 598; valid: 2 to 597"),
        (f"{MLPS} --cuts 0*,nothing", CutError, "'.*' matches no cut of .*; its cuts: "),
    ],
)
def test_wrong_input_is_refused_before_any_work(line, error, message, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(similarity, "compare", None)
    monkeypatch.setattr(similarity, "two_networks", None)
    with pytest.raises(error, match=message):
        run(line)


def test_what_memory_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr(similarity, "physical_memory", lambda: 10_000)
    with pytest.raises(SutureError, match=r"597 images take .*, and there is room for 7\.0 kB: give fewer --samples"):
        run(MLPS)


@pytest.mark.slow
def test_without_networks_there_are_small_ones(capsys):
    assert run("--samples 200 --repeats 1 --cuts stage?.conv") == 0
    said = capsys.readouterr()
    assert "training A, a small convolutional network, on 1,080 digits from seed 0" in said.err
    assert "digits/score[:200]" in said.out
