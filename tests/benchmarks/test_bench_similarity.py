"""The benchmark of linear CKA: what it counts, what it compares, and what it says."""

import json
from statistics import median

import numpy as np
import pytest
import torch
from benchmarks.__main__ import main
from benchmarks.similarity import compare, each_shape, usual_pair
from torch import Tensor

from benchmarks import similarity as pairwise


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


def test_methods_take_turns(monkeypatch):
    told = []
    for name in ("_at_once", "_kept", "_loop"):
        done = getattr(pairwise, name)
        monkeypatch.setattr(pairwise, name, lambda way, *rest, done=done: told.append(way.name) or done(way, *rest))
    compare(layers(1), layers(2), repeats=2)
    assert told == 2 * ["all pairs at once", "loop, Grams kept", "usual loop"]


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

MLPS = "similarity zoo:mlp,width=8 zoo:mlp,width=12,depth=2"


def test_it_prints_a_table_and_writes_what_is_in_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*MLPS.split(), "--samples", "50", "--repeats", "2", "--out", f"{tmp_path}/new/cka.json"]) == 0
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "new/cka.json").read_text())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cka.json"]
    assert (record["samples"], record["data"]) == (50, "digits/score[:50]")
    sides = [len(cuts) for cuts in record["cuts"]]
    assert np.array(record["values"]).shape == tuple(sides)
    assert record["pairs"] == record["pairs_timed"] == np.prod(sides)
    assert record["activations"]["bytes"] == sum(
        4 * 50 * np.prod(shape) for cuts in record["cuts"] for shape in cuts.values()
    )
    rows = [line for line in said.splitlines() if "×" in line]
    assert [row.strip().split("  ")[0] for row in rows] == [method["name"] for method in record["methods"]]
    for row, method in zip(rows, record["methods"], strict=True):
        assert f"{method['times_faster']:.1f}×" in row
        assert f"{method['largest_error']:.1e}" in row


def test_wrong_input_is_refused(capsys, monkeypatch):
    for more, said in (("--cuts nothing", "match no cut"), ("--samples 598", "598")):
        assert main([*MLPS.split(), *more.split()]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setattr(pairwise, "physical_memory", lambda: 10_000)
    assert main(MLPS.split()) == 2
    assert "give fewer --samples" in capsys.readouterr().err
