"""The table of trained networks, the page made of it, and the commands ``suture zoo``."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch

import suture
from suture.cli.main import main
from suture.common.errors import DataError
from suture.data import Data, Samples, load_data
from suture.measurement.tables.table import save
from suture.runs.store.store import NETWORKS, Store
from suture_papers import ledger
from suture_papers.ledger import LEDGER, Entry, inventory
from suture_papers.ledger import models as ledger_models
from suture_papers.networks.architectures import NETWORKS as KNOWN
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import DIGITS
from suture_papers.reports.ledger import ledger_text, network_rows, record
from suture_papers.reports.pages import zoo as zoo_page
from suture_papers.training import train_networks
from suture_papers.variants import Relabelled, Without

NET = "zoo:convnet,width=2"
SHORT = replace(DIGITS, epochs=1)
SWAPPED = Relabelled("3", "5", everywhere=True)
ENTRIES = (
    Entry("small", NET, "mnist", "digits", (0, 1), ("test-1", "test-2"), deviation="width 2 for 16"),
    Entry("no 3", NET, "mnist", "digits", (0,), ("test-2",), variants=(Without("3"),), also=((SWAPPED,), ())),
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder ``data`` whose ``mnist`` is some of the digits, and a store ``zoo`` of all networks of ``ENTRIES``."""
    root = tmp_path_factory.mktemp("zoo")
    digits = load_data("digits")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(digits.classes)))
    (root / "data" / "mnist").mkdir(parents=True)
    for split, samples, count in (("train", digits.fit, 300), ("test", digits.score, 100)):
        columns: dict[str, list[Any]] = {
            "image": list(samples.images[:count, 0].numpy()),
            "label": samples.labels[:count].tolist(),
        }
        made = datasets.Dataset.from_dict(columns, features=features)
        made.to_parquet(root / "data" / "mnist" / f"{split}.parquet")
    return root


def use(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    monkeypatch.setattr(ledger, "LEDGER", entries)
    monkeypatch.setattr(ledger_models, "LEDGER", entries)


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command beside the data, 80 columns wide, with ``ENTRIES`` as the ledger."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    use(monkeypatch, *ENTRIES)

    def command(line: str) -> tuple[int, str, str]:
        code = main([word.replace("TMP", str(tmp_path)) for word in line.split()])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


TRAIN = "zoo train --out zoo --data data --workers 1"


@pytest.fixture
def trained(run: Run, folder: Path) -> Store:
    if not (folder / "zoo").exists():
        assert run(TRAIN)[0] == 0
    return Store(folder / "zoo")


# Training the ledger


def test_the_networks_are_trained_once_and_in_part(run: Run, tmp_path: Path) -> None:
    line = "zoo train --out TMP/zoo --data data --workers 1"
    code, out, err = run(f"{line} --only small --seeds 1")
    assert code == 0, err
    assert re.search(r"^small +1 +\d+\.\d +\[", out, re.MULTILINE)
    assert "1 network\n1 network in " in err
    assert f"1 of 1 networks are trained, in {tmp_path}/zoo" in err
    code, out, err = run(f"{line} --json")
    assert code == 0
    assert "3 networks, 1 done before\n" in err
    assert sorted((card["name"], card["seed"]) for card in json.loads(out).values()) == [
        ("no 3", 0),
        ("small", 0),
        ("small", 1),
    ]
    assert "3 networks, 3 done before\n" in run(line)[2]


def test_a_network_that_fails_is_said_and_the_others_are_trained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(ENTRIES[0], name="broken", source="zoo:resnet,width=2", seeds=(0,))
    use(monkeypatch, broken, replace(ENTRIES[0], seeds=(0,)))
    code, out, err = run("zoo train --out TMP/zoo --data data --workers 1")
    assert code == 1
    assert "training broken on mnist/training, seed 0: DataError" in err
    assert "1 of 2 networks are trained" in err
    assert "small" in out


def test_a_network_of_a_store_is_a_model(run: Run, trained: Store) -> None:
    key = min(trained.finished(NETWORKS))
    code, out, err = run(f"cuts zoo/networks/{key} --json")
    assert code == 0, err
    assert json.loads(out)["network"]


def test_wrong_input(run: Run, folder: Path) -> None:
    for line, offender in (
        ("zoo train --out x --data nowhere", "--data nowhere is not a folder"),
        ("zoo train --out x --only nix", "--only nix suits no network"),
        ("zoo train --out x --seeds 7", "--seeds 7: none of these"),
        ("zoo table nowhere", "nowhere does not exist"),
        ("zoo table data/mnist/test.parquet", "is not a table of networks"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, ""), line
        assert offender in err, (line, err)
    assert not (folder / "x").exists()


def test_a_store_without_networks_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no trained network; train some with suture zoo train"):
        inventory.gather(Store.make(tmp_path))


# The table


def test_the_table_has_a_row_for_each_network_and_test_set(trained: Store) -> None:
    table = inventory.gather(trained, ENTRIES)
    assert list(table.columns) == list(inventory.COLUMNS)
    assert list(zip(table["name"], table["seed"], table["score_data"], table["own"], strict=True)) == [
        ("small", 0, "mnist/score", True),
        ("small", 1, "mnist/score", True),
        ("no 3", 0, "mnist/score", True),
        ("no 3", 0, "mnist 3 as 5 everywhere/score", False),
    ]
    cards = {key: trained.record(NETWORKS, key) for key in trained.finished(NETWORKS)}
    for _, row in table.iterrows():
        card = cards[row["key"]]
        assert row["accuracy"] == card["scores"][0 if row["own"] else 1]["accuracy"]["value"]
        assert row["low"] <= row["accuracy"] <= row["high"]
        assert row["worst"] == min(c["value"] for c in card["scores"][0 if row["own"] else 1]["classes"].values())
        assert len(row["losses"].split()) == 15
    network = suture.load_network(NET, example=load_data("digits").example)
    assert set(table["cuts"]) == {len(network.cuts)}
    assert set(table["recipe"]) == {"digits"}
    assert list(table["experiments"].unique()) == ["test-1, test-2", "test-2"]
    assert table["until"].isna().all()


def test_a_network_that_is_in_no_ledger_has_its_recipe_by_name(trained: Store) -> None:
    table = inventory.gather(trained)
    assert set(table["recipe"]) == {"digits"}
    assert set(table["deviation"]) == {""}
    assert inventory.name_of_recipe(str(SHORT)) == str(SHORT)


def test_what_a_ledger_has_and_a_table_lacks(trained: Store) -> None:
    table = inventory.gather(trained, ENTRIES)
    more = (replace(ENTRIES[0], seeds=(0, 1, 2, 3)), replace(ENTRIES[0], name="other"))
    assert inventory.find_missing(table, ENTRIES) == {}
    assert inventory.find_missing(table, more) == {"small": (2, 3), "other": (0, 1)}


def test_a_table_is_read_as_it_was_written(trained: Store, tmp_path: Path) -> None:
    table = inventory.gather(trained, ENTRIES)
    save(table, tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(inventory.load(tmp_path / "t.parquet"), table)
    (tmp_path / "cut").write_bytes((tmp_path / "t.parquet").read_bytes()[:100])
    for path in ("cut", "gone"):
        with pytest.raises(DataError, match="is not a table"):
            inventory.load(tmp_path / path)


# The page


def test_the_page_can_be_made_of_the_table_alone(run: Run, trained: Store, tmp_path: Path) -> None:
    code, out, err = run("zoo table zoo --out TMP/t.parquet --page TMP/docs/a.md")
    assert code == 0
    assert f"wrote {tmp_path}/t.parquet" in err
    assert all(len(line) <= 80 for line in out.splitlines())
    assert run("zoo table TMP/t.parquet --page TMP/docs/b.md")[0] == 0
    page = (tmp_path / "docs/a.md").read_text()
    assert page == (tmp_path / "docs/b.md").read_text()
    table = inventory.gather(trained, ENTRIES)
    first = table[table["name"] == "small"]["accuracy"]
    mean, low, high = (f"{100 * value:.1f}" for value in (first.mean(), first.min(), first.max()))
    assert f"| small | `{NET}` | mnist, 300 images | digits, 15 epochs | 2 | {mean} ({low}–{high}) |" in page
    assert "| small | width 2 for 16 |" in page
    assert "## On other test images" in page
    assert "Not trained" not in page


def test_the_page_says_what_is_missing(trained: Store) -> None:
    table = inventory.gather(trained, ENTRIES)
    page = zoo_page.page(table, (*ENTRIES, replace(ENTRIES[0], name="other", seeds=(2, 5))))
    assert "2 of the networks that the experiments need are not in the table." in page
    assert "| other | 2, 5 |" in page


def row(**settings: Any) -> dict[str, Any]:
    blank: dict[str, Any] = dict.fromkeys(inventory.COLUMNS, "") | {
        "name": "n",
        "seed": 0,
        "source": NET,
        "data": "mnist/training",
        "images": 60_000,
        "until": pd.NA,
        "score_data": "mnist/score",
        "own": True,
        "accuracy": 0.9,
        "low": 0.89,
        "high": 0.91,
        "n": 10_000,
        "worst": 0.8,
        "worst_class": "3",
        "seconds": 10.0,
        "processor_seconds": float("nan"),
        "epochs": 4.0,
        "parameters": 1000,
        "cuts": 5,
        "losses": "2 1 0.5",
        "device": "cpu",
    }
    return blank | settings


def table_of(*rows: dict[str, Any]) -> pd.DataFrame:
    """A table of rows, each another network unless they have keys."""
    keyed = [row | {"key": row["key"] or f"network {place}"} for place, row in enumerate(rows)]
    return pd.DataFrame(keyed, columns=list(inventory.COLUMNS)).astype({"until": "Int64"})


RESNET = "zoo:resnet,blocks=(2,2,2,2),width=16"


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [{"source": RESNET, "accuracy": 0.87}, {"source": RESNET, "accuracy": 0.89}],
            "88.0 (87.0–89.0) | reached | n |",
        ),
        ([{"accuracy": 0.8799}], "88.0 | **not reached** | n |"),
        ([{"accuracy": 0.99, "data": "cifar10 half 0/training"}], " | not trained |  |"),
        ([{"accuracy": 0.99, "until": 4}], " | not trained |  |"),
        ([{"accuracy": 0.99, "start": "another"}], " | not trained |  |"),
        ([{"source": RESNET.replace("16", "32"), "accuracy": 0.99}], " | not trained |  |"),
    ],
)
def test_what_had_to_be_reached(rows: list[dict[str, Any]], line: str) -> None:
    made = table_of(*(row(**({"source": RESNET, "data": "cifar10/training"} | settings)) for settings in rows))
    assert f"| ResNet-18 at quarter width, all of CIFAR-10 | 88.0 | {line}" in zoo_page.page(made)


def colours(**accuracies: float) -> pd.DataFrame:
    return table_of(
        *(
            row(source=RESNET, data=f"mnist {name.replace('_', ' ')}/training", accuracy=value)
            | {"score_data": "mnist correlated/score", "own": name == "correlated"}
            for name, value in accuracies.items()
        )
    )


def test_colour_mnist_stands_beside_the_paper() -> None:
    page = zoo_page.page(colours(correlated=0.998, digit=0.97, colour=1.0, colour_only=0.6))
    assert "| digit | 97.8 | 97.0 | 1 |" in page
    assert "| colour only | 68.6 | 60.0 | 1 |" in page
    assert "Colour-only is the lowest, as in the paper." in page
    assert "Colour-only is **not** the lowest" in zoo_page.page(colours(correlated=0.5, colour_only=0.6))


def test_of_one_network_from_one_device_the_later_row_counts_and_nothing_else_is_lost() -> None:
    first = table_of(row(key="a", accuracy=0.5), row(key="b", accuracy=0.6), row(key="a", accuracy=0.7, device="cuda"))
    later = table_of(row(key="a", accuracy=0.8), row(key="c", accuracy=0.9, name="m"))
    made = inventory.join([first, later])
    found = {(row.key, row.device): row.accuracy for row in made.itertuples()}
    assert found == {("a", "cpu"): 0.8, ("b", "cpu"): 0.6, ("a", "cuda"): 0.7, ("c", "cpu"): 0.9}
    assert list(made["name"]) == ["m", "n", "n", "n"]
    entry = replace(ENTRIES[0], name="m", deviation="said otherwise now")
    assert list(inventory.join([made], [entry])["deviation"]) == ["said otherwise now", *made["deviation"][1:]]


def test_a_network_by_an_older_recipe_is_not_the_ledgers(folder: Path) -> None:
    entry = replace(ENTRIES[0], name="old")
    store = Store.make(folder / "old")
    samples = Samples("mnist/training", *_some())
    for recipe in (DIGITS, SHORT):
        model = BaseModel(NET, samples, recipe, 0, name="old", scored_on=(samples,))
        outcome = model.train()
        store.keep(NETWORKS, model.key, outcome.record, outcome.tensors)
    made = inventory.gather(store, [entry])
    assert list(made["name"]) == ["old", "old (other settings)"]
    assert list(made["deviation"]) == [entry.deviation, ""]
    assert inventory.find_missing(made, [entry]) == {"old": (1,)}
    assert list(inventory.gather(store)["name"]) == ["old", "old"]


def test_a_network_that_was_never_scored_has_a_row(folder: Path) -> None:
    store = Store.make(folder / "unscored")
    model = BaseModel(NET, Samples("some", *_some()), SHORT, 0, name="n")
    outcome = model.train()
    store.keep(NETWORKS, model.key, outcome.record, outcome.tensors)
    made = inventory.gather(store)
    assert list(made["name"]) == ["n"]
    assert made["accuracy"].isna().all()


def _some() -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    digits = load_data("digits").fit
    return digits.images[:100], digits.labels[:100], digits.classes


def test_a_network_trained_twice_counts_once_and_seconds_are_the_processors() -> None:
    gpu = row(key="a", accuracy=0.7, device="cuda", seconds=3.0)
    both = zoo_page.page(table_of(gpu, row(key="a", accuracy=0.8, seconds=123.0)))
    assert "| 1 | 80.0 | 3 80.0 | 123 | 1,000 | 5 |" in both
    assert "1 network was trained." in both
    assert "Trained on both a CPU and a GPU, and counted with each: 1; their accuracies differ by up to 10.0." in both
    planned = Entry("n", "zoo:cnn,dense=4", "cifar10", "oxford-small", (0,), ())
    assert f"| ≈ {planned.seconds:,.0f} |" in zoo_page.page(table_of(gpu), [planned])


def test_the_throughput_stands_in_the_page_where_it_was_measured(folder: Path, run: Run) -> None:
    table = save(table_of(row()), folder / "beside" / "networks.parquet")
    (table.parent / "throughput.txt").write_text("one core: 9.87 times as fast\n")
    code, _, _ = run(f"zoo table {table} --page {folder / 'page.md'}")
    assert code == 0
    assert "one core: 9.87 times as fast" in (folder / "page.md").read_text(encoding="utf-8")
    assert "Throughput" not in zoo_page.page(table_of(row()))


def test_no_cell_breaks_the_page() -> None:
    page = zoo_page.page(table_of(row(name="a|b")))
    assert "| a\\|b |" in page


# The ledger and the networks, shown


def test_the_plan_says_what_all_takes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["zoo", "plan"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{entry.name} " in out for entry in LEDGER)
    assert all(len(line) <= 80 for line in out.splitlines())
    assert main(["zoo", "plan", "--only", "smith*", "--json", "--workers", "3"]) == 0
    made = json.loads(capsys.readouterr().out)
    wanted = [entry for entry in LEDGER if any(name.startswith("smith") for name in entry.experiments)]
    assert [entry["name"] for entry in made["entries"]] == [entry.name for entry in wanted]
    assert made["networks"] == sum(len(entry.seeds) for entry in wanted)
    assert made["seconds"] == pytest.approx(sum(entry.seconds * len(entry.seeds) for entry in wanted), abs=0.1)
    assert made["hours"] == pytest.approx(made["seconds"] / 3 / 3600, abs=0.01)


def test_a_plan_takes_no_less_than_its_longest_network() -> None:
    one = [replace(LEDGER[0], seeds=(0,))]
    assert record(one, 8)["hours"] == record(one, 1)["hours"]
    assert "deviation" in record(one, 1)["entries"][0]
    assert max(map(len, ledger_text(LEDGER, 70).splitlines())) <= 70


def test_every_network_is_shown_at_its_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["network"]: row for row in network_rows(LEDGER)}
    assert rows.keys() == KNOWN.keys()
    sizes = {size["source"]: size["parameters"] for size in rows["resnet"]["sizes"]}
    assert sizes["zoo:resnet,blocks=(2,2,2,2),width=64"] == 11_173_962
    assert set(rows["resnet"]["arguments"]) == {"blocks", "width", "classes", "channels", "stem"}
    assert main(["zoo", "networks"]) == 0
    assert "zoo:vgg19 takes width=64" in capsys.readouterr().out
    assert main(["zoo", "recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["smith2024"]["recipe"].startswith("Recipe(epochs=4, batch=128, ")


# Lines for the reader of types


def test_base_models_in_a_store_are_gathered_too(tmp_path: Path) -> None:
    data: Data = load_data("digits").limited(fit=200, score=100)
    model = BaseModel(NET, data.training, SHORT, name="mine", scored_on=(data.score,))
    train_networks([model], tmp_path)
    table = inventory.gather(Store(tmp_path))
    assert (table["name"][0], table["key"][0], table["recipe"][0]) == ("mine", model.key, str(SHORT))
