"""``suture compare``, ``localise``, ``complexity`` and ``explain`` as their user meets them."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from suture import load_data
from suture.cli import evidence_commands_options as arguments
from suture.cli.main import main
from suture.cli.names import GROUPS, MEASURES, TRAITS, indices_named, measures_named, trait_named
from suture.cli.parser import COMMANDS
from suture.common.errors import DataError, SutureError
from suture.data.variants import Covered, Relabelled
from suture.measurement import complexity, indices
from suture.measurement.compare import COLUMNS
from suture.measurement.scores.traits import FGSM, accuracy_on, confuses, falls_to, knows, triggered
from suture.zoo import convnet

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
    by = "--by linear_cka,procrustes_angle --at pool,flatten --samples 40"
    code, out, err = run(f"compare {A} {B} --data digits {by} --out c")
    assert code == 0
    assert "a → b: rows are sender cuts, columns receiver cuts" in out
    assert "on 40 images of digits/score[:40]; an image is a sample" in out
    assert "procrustes_angle (distance: 0 is alike)" in out
    assert max(map(len, out.splitlines())) <= 80
    found = pd.read_parquet("c/similarities.parquet")
    assert list(found) == list(COLUMNS)
    assert len(found) == 2 * 4
    for value in found["value"]:
        assert f"{value:.2f}" in out
    assert all(f"wrote c/similarities.{kind}" in err for kind in ("parquet", "png", "pdf", "svg"))


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
    values = {(row["sender_cut"], row["receiver_cut"]): row["value"] for row in content["rows"]}
    plain = joined[joined["control"] == ""]
    assert [values[cut, cut] for cut in plain["receiver_cut"]] == pytest.approx(list(plain["linear_cka"]))


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
    code, out, _ = run(f"explain {measured}")
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
    assert list(content) == ["holds", "not_concluded", "missing"]
    assert "5 pp" in " ".join(content["holds"])


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
    code, out, _ = run(f"{line} --controls none --json")
    assert code == 0
    content = json.loads(out)
    assert {"trait", "verdict", "between", "levels", "sending", "receiving"} <= set(content)


# --- names


def data() -> Any:
    return load_data("digits").limited(fit=20, score=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy:3", lambda d: knows(d, "3")),
        ("confusion:0>1", lambda d: confuses(d, "0", "1")),
        ("blackout:top", lambda d: accuracy_on(Covered(0, 0, 4, 8))),
        ("blackout:bottom", lambda d: accuracy_on(Covered(4, 0, 4, 8))),
        ("blackout:left", lambda d: accuracy_on(Covered(0, 0, 8, 4))),
        ("blackout:right", lambda d: accuracy_on(Covered(0, 4, 8, 4))),
        ("blackout:1,2,3,4", lambda d: accuracy_on(Covered(1, 2, 3, 4))),
        ("trigger:5@0,0,2,2,1.0", lambda d: triggered(d, "5", Covered(0, 0, 2, 2, 1.0))),
        ("fgsm:0.03", lambda d: falls_to(FGSM(0.03))),
        ("variant:relabelled,label=0,to=1", lambda d: accuracy_on(Relabelled("0", "1"))),
    ],
)
def test_traits_by_name(text: str, expected: Callable[[Any], Any]) -> None:
    assert trait_named(text)(data()) == expected(data())
    assert text.partition(":")[0] in TRAITS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy:3", "no trait 'acuracy'; did you mean 'accuracy'"),
        ("accuracy", "trait accuracy: write what it is of, such as accuracy:truck"),
        ("confusion:0", "trait confusion:0: write both, such as confusion:car>cat"),
        ("blackout:middle", "write it with numbers, such as blackout:top or blackout:0,0,4,8"),
        ("blackout:0,0,1.5,2", "write it with numbers"),
        ("trigger:1@0,0", "write it with numbers, such as trigger:cat@0,0,3,3,1.0"),
        ("fgsm:strong", "such as fgsm:0.03"),
        ("fgsm:2", "an attack of strength 2"),
        ("variant:nothing", "no variant 'nothing'"),
    ],
)
def test_a_trait_that_is_none_is_refused_before_there_are_data(text: str, said: str) -> None:
    with pytest.raises(SutureError, match=said):
        trait_named(text)


def test_a_class_that_the_data_lack_is_refused() -> None:
    with pytest.raises(DataError, match="no class 'truck'"):
        trait_named("accuracy:truck")(data())


def test_indices_and_measures_by_name() -> None:
    assert indices_named("linear_cka,debiased=True,procrustes") == (indices.LinearCKA(True), indices.procrustes)
    assert indices_named("all") == tuple(indices.INDICES.values())
    assert indices_named("mutual_knn,k=3,nearest=euclidean") == (indices.MutualKNN(3, "euclidean"),)
    assert measures_named("size,mean-sharpness,epsilon=0.01") == (*complexity.SIZE, complexity.MeanSharpness(0.01))
    assert tuple(indices.INDICES) == arguments.INDICES
    assert tuple(MEASURES) == arguments.MEASURES
    assert tuple(GROUPS) == arguments.GROUPS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"compare {A} {B}", "missing --data; see suture compare --help"),
        (f"compare {A} {B} --data digits --by cka", "no index 'cka'; .*valid indices: linear_cka, rbf_cka"),
        (f"compare {A} {B} --data digits --by rbf_cka,width=2", "--by rbf_cka,width=2: rbf_cka has no setting 'width'"),
        (f"compare {A} {B} --data digits --samples 1", "--samples 1: give at least 2"),
        (f"compare {A} {B} --data digits --samples-as dots", "--samples-as dots: give flattened or pixels"),
        (f"compare {A} {B} --data digits --at layer9", "'layer9' matches no cut of a"),
        (f"compare {A} {B} --data digits --beside nothing", "nothing does not exist"),
        (f"complexity {A} --data digits --by rank", "no measure 'rank'; .*valid measures: gradient-norm"),
        (f"complexity {A} --data digits --networks {B}", "--networks: these are for the folder of a run"),
        (f"complexity {A} --data digits --by numerical-rank --samples 9", "this is no stitched network"),
        (f"complexity {A} --data digits --out file", "cannot write to file: there is a file in its place"),
        (f"compare {A} {B} --data digits --out file", "cannot write to file: there is a file in its place"),
        ("complexity", "missing RUN or NETWORK, --data"),
        ("explain nothing", "nothing does not exist"),
        ("explain", "missing FOLDER; see suture explain --help"),
        (f"localise speed:9 {A} {B} --data digits", "no trait 'speed'"),
        (f"localise accuracy:9 {A} {A} --data digits", "carrier and reference network are one network"),
        (f"localise accuracy:11 {A} {B} --data digits", "no class '11'"),
        (
            f"localise accuracy:9 {A} {B} --data digits --at a:b:c",
            "--at a:b:c: give one cut, or CARRIER_CUT:REFERENCE_CUT",
        ),
        (f"localise accuracy:9 {A} {B} --data digits --fit-variant no", "no variant 'no'"),
        ("localise", "missing TRAIT, CARRIER, REFERENCE, --data"),
    ],
)
def test_wrong_input(run: Run, line: str, said: str) -> None:
    Path("file").touch()
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert err.startswith("suture: ")
    assert re.search(said, err), err


@pytest.mark.parametrize("name", ["compare", "localise", "complexity", "explain"])
def test_help_fits_the_screen_and_its_examples_are_accepted(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(f"{name} --help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert f"  suture {name} " in out
    monkeypatch.setattr("suture.cli.main._COMMANDS", [lambda chosen, line: 0] * len(COMMANDS))
    for example in re.findall(r"(?m)^  suture (.*)$", out):
        assert main(shlex.split(example)) == 0
