"""``suture compare``, ``localise``, ``complexity`` and ``explain`` as their user meets them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from suture import load_data
from suture.cli.localise import EXAMPLES, read_trait
from suture.cli.main import main
from suture.common.errors import DataError, SutureError
from suture.common.names import make_all, split_names
from suture.data.changes import Covered
from suture.measurement import indices
from suture.measurement.scores.traits import FGSM, accuracy_on, confuses, falls_to, knows, triggered
from suture.measurement.tables.similarities import COLUMNS
from suture.reports.show import plot
from suture_papers import complexity
from suture_papers.cli.complexity import measures_of
from suture_papers.networks.architectures import convnet
from suture_papers.variants import Relabelled

NET = "zoo:convnet,width=2"
A, B = f"{NET}@a.safetensors", f"{NET}@b.safetensors"
FEW = "--data digits --fit-samples 60 --score-samples 50"
QUICK = f"curve {A} {B} {FEW} --fit least-squares --at stage3.pool,flatten --workers 1"
Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, and a run that stitched them at two cuts."""
    folder = tmp_path_factory.mktemp("networks")
    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        save_file(convnet(width=2).state_dict(), folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command among the networks, 80 columns wide; its exit code, output and messages."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")

    def command(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


@pytest.fixture
def measured(run: Run) -> str:
    """The folder of a run."""
    if not Path("run").exists():
        assert run(f"{QUICK} --controls itself,untrained-sender --out run")[0] == 0
    return "run"


def test_compare_writes_a_table_and_a_figure_and_prints_a_grid(run: Run) -> None:
    by = "--by linear_cka,procrustes_angle --at pool,flatten --samples 40 --permutations 19"
    code, out, err = run(f"compare {A} {B} --data digits {by} --out c")
    assert code == 0
    assert "a → b: rows are sender cuts, columns receiver cuts" in out
    assert "on 40 images of digits/score[:40]; an image is a sample" in out
    assert "procrustes_angle, calibrated" in out
    assert max(map(len, out.splitlines())) <= 80
    found = pd.read_parquet("c/similarities.parquet")
    assert list(found) == list(COLUMNS)
    assert len(found) == 2 * 4
    for value in found["calibrated"]:
        assert f"{value:.2f}" in out
    assert all(f"wrote c/similarities.{kind}" in err for kind in ("parquet", "png", "pdf", "svg"))


@pytest.mark.slow
def test_compare_beside_a_run(run: Run, measured: str) -> None:
    line = f"compare {A} {B} --data digits --samples 40 --at stage3.pool,flatten"
    code, out, _ = run(f"{line} --by linear_cka --beside {measured} --out {measured} --json")
    assert code == 0
    content = json.loads(out)
    assert [Path(file).name for file in content["files"]][-4:] == [
        "beside.parquet",
        "beside.png",
        "beside.pdf",
        "beside.svg",
    ]
    joined = pd.read_parquet(f"{measured}/beside.parquet")
    values = {(row["sender_cut"], row["receiver_cut"]): row["calibrated"] for row in content["rows"]}
    plain = joined[joined["control"] == ""]
    assert [values[cut, cut] for cut in plain["receiver_cut"]] == pytest.approx(list(plain["linear_cka"]))
    code, out, err = run(f"{line} --preprocess mean=0.5 --beside {measured}")
    assert (code, out) == (2, "")
    assert "it stitched another network called a, with other weights or preprocessing" in err


@pytest.mark.slow
def test_compare_beside_a_matrix_has_no_figure_of_a_curve(run: Run) -> None:
    assert run(f"matrix {A} {B} {FEW} --fit least-squares --at flatten --controls none --workers 1 --out grid")[0] == 0
    line = f"compare {A} {B} --data digits --samples 40 --at flatten --by linear_cka --beside grid --out sim"
    code, out, err = run(line)
    assert (code, "linear_cka" in out) == (0, True)
    assert "beside.parquet" in err
    assert "beside.png" not in err
    assert len(plot("grid").axes) > 1


@pytest.mark.slow
def test_complexity_of_a_run_and_what_explain_makes_of_it(run: Run, measured: str) -> None:
    code, out, _ = run(f"complexity {measured} --data digits --samples 20 --by numerical-rank,flops --out {measured}")
    assert code == 0
    assert "complexity on 20 images of digits/score" in out
    assert "numerical rank" in out
    found = pd.read_parquet(f"{measured}/complexity.parquet")
    counts = found.groupby(["control", "receiver_cut", "measure"]).size()
    assert set(counts) == {1, 2}
    assert set(found.loc[found["receiver_cut"] == "", "sender"]) == {"a", "b"}
    assert set(found["control"]) == {"", "itself"}
    code, out, err = run(f"complexity {measured} --data digits --networks zoo:convnet,width=2")
    assert (code, out) == (2, "")
    assert "has stitched no such network with these weights; its networks: a, b" in err
    code, out, _ = run(f"explain {measured} --full")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "a → b" in out
    assert "numerical rank:" not in out  # it is no longer missing
    assert "clustered noise: would rule out" in " ".join(out.split())


def test_complexity_of_networks(run: Run) -> None:
    by = "--by gradient-norm,normalised=True,parameters"
    code, out, _ = run(f"complexity {A} {B} --data digits --samples 20 {by} --json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [(row["sender"], row["measure"], row["normalised"]) for row in rows] == [
        ("a", "gradient norm", True),
        ("a", "parameters", False),
        ("b", "gradient norm", True),
        ("b", "parameters", False),
    ]


def test_explain_as_json(run: Run, measured: str) -> None:
    code, out, _ = run(f"explain {measured} --margin 5 --chance 0.1 --json")
    assert code == 0
    content = json.loads(out)
    assert set(content) == {"title", "verdict", "answers", "warnings", "not_concluded", "missing"}
    assert content["warnings"][0].startswith("Warning: a alone is right on ")
    code, _, err = run(f"explain {measured} --margin -1")
    assert (code, "a penalty that counts as none is at least 0" in err) == (2, True)


@pytest.mark.slow
def test_localise_says_where_a_trait_lies(run: Run) -> None:
    line = f"localise confusion:0>1 {A} {B} {FEW} --fit least-squares --at stage3.pool,flatten --workers 1"
    code, out, err = run(f"{line} --controls itself --fit-variant without,classes=0 --out traits")
    assert code == 0
    assert "0 taken for 1: " in out
    assert "a → b" in out
    assert "b → a" in out
    table = pd.read_parquet("traits/table.parquet")
    assert set(table["fit_data"]) == {"digits without 0/fit[:60]"}
    assert set(table["score"]) == {"0 taken for 1", "accuracy"}
    assert "wrote" in err
    assert "conveys of the difference" in run("table traits")[1]
    assert plot("traits").axes
    code, out, _ = run(f"{line} --controls none --json")
    assert code == 0
    assert "NaN" not in out
    content = json.loads(out)
    assert {"trait", "verdict", "between", "levels", "sending", "receiving"} <= set(content)


# --- names


def data() -> Any:
    return load_data("digits").limited(fit=20, score=20)


def test_traits_by_name() -> None:
    for text, expected in (
        ("accuracy:3", knows(data(), "3")),
        ("confusion:0>1", confuses(data(), "0", "1")),
        ("blackout:top", accuracy_on(Covered(0, 0, 4, 8))),
        ("blackout:bottom", accuracy_on(Covered(4, 0, 4, 8))),
        ("blackout:left", accuracy_on(Covered(0, 0, 8, 4))),
        ("blackout:right", accuracy_on(Covered(0, 4, 8, 4))),
        ("blackout:1,2,3,4", accuracy_on(Covered(1, 2, 3, 4))),
        ("trigger:5@0,0,2,2,1.0", triggered(data(), "5", Covered(0, 0, 2, 2, 1.0))),
        ("fgsm:0.03", falls_to(FGSM(0.03))),
        ("variant:relabelled,label=0,to=1", accuracy_on(Relabelled("0", "1"))),
    ):
        assert read_trait(text)(data()) == expected, text
        assert text.partition(":")[0] in EXAMPLES
    with pytest.raises(SutureError, match="an attack of strength 2"):
        read_trait("fgsm:2")


def test_a_class_that_the_data_lack_is_refused() -> None:
    with pytest.raises(DataError, match="no class 'truck'"):
        read_trait("accuracy:truck")(data())


def test_indices_and_measures_by_name() -> None:
    found = make_all("index", split_names("linear_cka,debiased=True,procrustes,mutual_knn,k=3,nearest=euclidean"))
    assert found == (indices.LinearCKA(True), indices.procrustes, indices.MutualKNN(3, "euclidean"))
    assert measures_of("size,mean-sharpness,epsilon=0.01") == (*complexity.SIZE, complexity.MeanSharpness(0.01))


def test_wrong_input(run: Run) -> None:
    Path("file").touch()
    for line, offender in (
        (f"compare {A} {B} --data digits --at layer9", "'layer9' matches no cut of a"),
        (f"compare {A} {B} --data digits --beside nothing", "nothing does not exist"),
        (f"compare {A} {B} --data digits --out file", "cannot write to file"),
        (f"complexity {A} --data digits --by numerical-rank --samples 9", "this is not a stitched network"),
        (f"complexity {A} --data digits --out file", "cannot write to file"),
        (f"localise accuracy:9 {A} {A} --data digits", "carrier and reference are one network"),
        (f"localise accuracy:11 {A} {B} --data digits", "no class '11'"),
        (f"localise accuracy:9 {A} {B} --data digits --at a:b:c", "--at a:b:c"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert err.startswith("suture: "), line
        assert offender in err, (line, err)


def test_compare_takes_files_of_arrays(run: Run, folder: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 6)), random.normal(size=(40, 3))
    np.save(folder / "v1.npy", x)
    np.savez(folder / "both.npz", one=x, two=y)
    code, out, err = run("compare v1.npy both.npz --permutations 19 --out arrays")
    assert code == 0
    assert out.startswith("v1 → both: rows are of v1, columns of both\non 40 samples\n")
    assert "wrote arrays/similarities.png" in err
    found = pd.read_parquet("arrays/similarities.parquet")
    assert found["receiver_cut"].tolist() == ["one", "two"]
    assert found["value"][0] == pytest.approx(1)
    code, out, _ = run("compare v1.npy v1.npy --samples 30 --by procrustes_angle,linear_cka")
    assert (code, out.splitlines()[:2]) == (0, ["x → y", "on 30 samples"])
    assert "procrustes_angle (distance) 0.000" in out
    assert len(plot(found).axes) > 1


@pytest.mark.slow
def test_compare_leaves_out_the_tokens_that_are_named(run: Run, folder: Path) -> None:
    """Two layers that share a sink at their first token alone."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(30, 5, 4)), random.normal(size=(30, 5, 4))
    x[:, 0, 0] = y[:, 0, 0] = 100 + random.normal(size=30)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    values = []
    for given in ("", " --ignore 0", " --ignore 0,4"):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if given else "ignore")
            line = "compare x.npy y.npy --samples-as pixels --by linear_cka --permutations 0 --out sinks"
            assert run(line + given)[0] == 0
        values.append(pd.read_parquet("sinks/similarities.parquet")["value"][0])
    assert values[0] > 0.9
    assert max(values[1:]) < 0.3
    assert values[1] != values[2]
    code, _, err = run("compare x.npy y.npy --samples-as pixels --ignore 7")
    assert (code, "--ignore [7] names a token that is not among 5" in err) == (2, True)
    assert "-1: give at least 0" in run("compare x.npy y.npy --ignore=-1")[2]
