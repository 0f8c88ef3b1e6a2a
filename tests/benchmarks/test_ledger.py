"""What a store has measured and no table has yet survives the store."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from benchmarks.ledger import (
    RESULTS,
    add_rows,
    keep_stitches,
    keep_unfinished,
    measure_lacking,
    plan_lacking,
    plan_trials,
    take_measured,
    take_unfinished,
)
from safetensors.torch import load_file, save_file

import suture
from benchmarks import rejudge
from suture.common.sealed import SEAL
from suture.extend import read_text as to_text
from suture.extend import write_json
from suture.fits import Converged
from suture.measurement.tables.described import Described
from suture.measurement.tables.table import COLUMNS, add_later_columns, table_of
from suture.runs.store.store import TRIALS, Store
from suture_papers import STUDIES, load_result, run_study, scale_named
from suture_papers.base.run import _TOLD


def measured(store: Store, key: str, converged: bool | None = True) -> None:
    """Put a trial into a store, as a run does."""
    record = {"trial": key, "status": "ok", "scores": {}, "curve": [1.0, 0.5], "converged": converged}
    store.keep(TRIALS, key, record, b"stitch")


def test_another_store_takes_what_no_table_has(tmp_path: Path) -> None:
    store, kept = Store.make(tmp_path / "first"), tmp_path / "unfinished.tar.xz"
    for key in ("a", "b"):
        measured(store, key)
    measured(store, "open", converged=False)
    pd.DataFrame({"trial": ["b"]}).to_parquet(tmp_path / "x.trials.parquet")
    assert keep_unfinished(store, kept, tmp_path) == 1

    other = Store.make(tmp_path / "other")
    assert take_unfinished(other, kept) == 1
    assert other.finished() == {"a"}
    assert other.record(TRIALS, "a") == store.record(TRIALS, "a")
    assert other.tensors(TRIALS, "a") == b"stitch"
    assert take_unfinished(other, kept) == 0, "it has it"


def test_nothing_unfinished_is_no_file(tmp_path: Path) -> None:
    store, kept = Store.make(tmp_path / "store"), tmp_path / "unfinished.tar.xz"
    kept.write_bytes(b"of before")
    assert keep_unfinished(store, kept, tmp_path) == 0
    assert not kept.exists()
    assert take_unfinished(store, kept) == 0


def test_a_table_gives_its_trials_back(tmp_path: Path) -> None:
    """The rows of a store that took its trials from a table are the table's own; open fits are left out."""
    shown = add_later_columns(pd.read_parquet(RESULTS / "bansal-2A-random.trials.parquet"))
    today = shown["versions"].str.replace("Converged 3", f"Converged {Converged.version}")
    shown = shown.assign(versions=today, gained=0.25, gained_error=0.125)
    shown.to_parquet(tmp_path / "x.trials.parquet")
    store = Store.make(tmp_path / "store")
    assert shown["versions"].str.contains(f"Converged {Converged.version}").all()
    closed = shown[shown["converged"]]
    assert 0 < take_measured(store, tmp_path) == len(closed) < len(shown)

    of_cuts = [f"{side}{what}" for side in ("sender", "receiver") for what in ("", "_cut", "_depth")]
    of_fits = ["stitch", "fit", "control", "network_seed", "seed", "fit_data", "score_data", "task", "versions"]
    found = []
    for row in closed.to_dict("records"):
        trial = Described(
            row["trial"], {name: row[name] for name in ("study", *of_cuts, *of_fits)}, ((row["score"], row["unit"]),)
        )
        found.append((trial, store.record(TRIALS, trial.key)))
    again = table_of(found)
    pd.testing.assert_frame_equal(again, closed[list(again)].reset_index(drop=True).astype(COLUMNS))


def test_tables_of_other_versions_give_nothing(tmp_path: Path) -> None:
    shown = pd.read_parquet(RESULTS / "bansal-2A-random.trials.parquet")
    shown.assign(versions=shown["versions"].str.replace("Converged 3", "Converged 2")).to_parquet(
        tmp_path / "x.trials.parquet"
    )
    assert take_measured(Store.make(tmp_path / "store"), tmp_path) == 0


def digits_trial() -> suture.Trial:
    """A quick trial of two small networks on digits."""
    data = suture.load_data("digits")
    torch.manual_seed(0)
    networks = [
        suture.Network(
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)),
            example=data.example,
            name=name,
        )
        for name in "AB"
    ]
    (trial,) = suture.curve(*networks, data=data, at=["2"], controls=(), fit=suture.fits.Quick(steps=70))
    return trial


@pytest.mark.slow
def test_a_stitch_that_was_kept_is_judged_again(tmp_path: Path) -> None:
    """As it was kept it scores as it did but for rounding; warmed it has no greater validation loss."""
    trial = digits_trial()
    store = suture.Store.make(tmp_path / "store")
    table = suture.run([trial], store=store)
    table.assign(published=False).to_parquet(tmp_path / "x.trials.parquet")
    assert keep_stitches("x", store, tmp_path, tmp_path).startswith("kept 1 stitches of x")
    file = tmp_path / "x.safetensors"
    assert rejudge.list_kept(file) == {trial.key}

    own = rejudge.Kept(str(file), trial.key)
    as_kept = suture.measure(replace(trial, fit=own)).scores["accuracy"].value
    assert as_kept == pytest.approx(float(table["stitched"].iloc[0]), abs=0.005)
    losses = [suture.measure(replace(trial, fit=rejudge.warm(own, steps))).validation_loss for steps in (1, 140)]
    assert losses[1] < losses[0]

    spoiled = {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}
    save_file(spoiled, file)
    assert suture.measure(replace(trial, fit=own)).scores["accuracy"].value < as_kept - 0.1


@pytest.mark.slow
def test_a_table_gets_the_trials_that_it_lacks(tmp_path: Path) -> None:
    """Rows that were taken out, and those by a version by which nothing stands, are measured; the others are kept."""
    name, scale, store = "bansal-probe", scale_named("tiny"), suture.Store.make(tmp_path / "store")
    run_study(STUDIES[name], scale, store).save(tmp_path)
    path = tmp_path / f"{name}.trials.parquet"
    whole = pd.read_parquet(path)
    assert measure_lacking(name, scale, store, tmp_path) == f"{name} lacks nothing"
    card = json.loads((tmp_path / f"{name}.json").read_text())
    fewer = {key: value for key, value in card.items() if key not in SEAL} | {"networks": 0, "of": {}}
    write_json(tmp_path / f"{name}.json", to_text(fewer))

    plugged, probes = (whole["control"] == control for control in ("plugged in", "linear probe"))
    assert [bool(each.any()) for each in (plugged, probes, ~(plugged | probes))] == [True] * 3
    spoiled = whole[~plugged].assign(stitched=-1.0)
    old = spoiled["versions"].str.replace("Logistic 1", "Logistic 0")
    spoiled.assign(versions=old).to_parquet(path)
    count = whole[plugged | probes]["trial"].nunique()
    planned, lacking = plan_trials(name, scale, store), pd.read_parquet(path)
    kinds = [plan_lacking(planned, scale, lacking, kind) for kind in ("default", "recipe")]
    assert [len(plan) for plan in kinds] == [0, count]
    assert measure_lacking(name, scale, store, tmp_path).startswith(f"{name}: {count} trials added")

    found = load_result(tmp_path, name)
    assert found is not None
    table = found.tables["trials"].set_index(["trial", "score"]).sort_index()
    wanted = whole.set_index(["trial", "score"]).sort_index()
    assert table.index.equals(wanted.index)
    again = table["control"].isin(["plugged in", "linear probe"])
    pd.testing.assert_series_equal(table[again]["stitched"], wanted[again]["stitched"])
    assert (table[~again]["stitched"] == -1.0).all(), "they stand"
    counted = ("trials", "networks", "of")
    assert [found.card[key] for key in counted] == [whole["trial"].nunique(), *(card[key] for key in counted[1:])]


def test_new_rows_replace_those_of_old_versions_whatever_their_seeds() -> None:
    """A row of another place or another stitch stays, if verdicts stand by its version."""
    versions = {True: "Logistic 1, cuts 2, measurement 1", False: "Logistic 0, cuts 2, measurement 1"}

    def rows(*told: tuple[str, int, bool]) -> pd.DataFrame:
        made = [
            dict.fromkeys(_TOLD, "") | {"sender": sender, "seed": seed, "versions": versions[stands]}
            for sender, seed, stands in told
        ]
        return pd.DataFrame(made)

    before = rows(("a", 0, True), ("a", 1, True), ("b", 0, False), ("b", 1, False), ("c", 0, False))
    after = add_rows(before, rows(("a", 0, True), ("b", 0, True)))
    assert [*after[["sender", "seed"]].itertuples(index=False, name=None)] == [("a", 1), ("c", 0), ("a", 0), ("b", 0)]
