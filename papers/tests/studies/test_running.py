"""Running studies: what is shared, kept, taken up again, and read back."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from torch import nn

from faulty import Faulty
from suture.common.errors import DataError, FitError, RunnerError
from suture.core.network.network import Network
from suture.fits import Converged, Fit, FitReport, Problem, Random
from suture.measurement.indices import linear_cka
from suture.measurement.trials import controls
from suture.measurement.trials.trial import Trial
from suture.runs.runners import Interrupted, Local
from suture.runs.store.store import NETWORKS, TRIALS, Store
from suture_papers import Claim, Result, Scale, Study, load_result, run_study, scale_named
from suture_papers.base.plans import pair_in_circle, plan_curves
from suture_papers.base.quantities import Mean
from suture_papers.base.scale import stand_in
from suture_papers.base.study import Beside, Deferred, Made, Part
from suture_papers.networks.base_model import BaseModel

CUTS = ("block3.relu", "block6.relu")


@pytest.fixture(scope="module")
def tiny() -> Scale:
    return scale_named("tiny")


def study(*parts: Callable[[Scale], list[Part]], id_: str = "oxford-9") -> Study:
    """A study of planted parts, with a claim about its penalty."""
    claim = Claim("it is small", "section 1", Mean("penalty"), "≤", 1000.0)
    return Study(
        id_, "title", "question", "section 1", lambda scale: [p for part in parts for p in part(scale)], (claim,)
    )


def mlps(scale: Scale, cuts: tuple[str, ...] = CUTS) -> list[Part]:
    return [*plan_curves(scale, "mlp", "mlp", scale.data("cifar10"), cuts=cuts, controls=(controls.itself,))]


def sizes(scale: Scale, made: list[str]) -> list[Part]:
    """A table beside the trials, which says when it is made."""

    def make(stitched: Made, network: Network) -> pd.DataFrame:
        made.append(network.name)
        return pd.DataFrame({"network_seed": [0], "cuts": [len(network.cuts)]})

    return [Beside("networks", "sizes", (scale.base("cnn", 0),), make)]


@dataclass(frozen=True)
class Broken(Fit):
    """A fit that goes wrong."""

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        raise FitError("broken")


def timeless(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=["seconds", "study"])


def keys(store: Store, kind: str = TRIALS) -> set[str]:
    return set(store.finished(kind))


# One store


def test_the_table_has_a_row_for_each_trial(tiny: Scale, tmp_path: Path) -> None:
    result = run_study(study(mlps), tiny, tmp_path)
    table = result.tables["trials"]
    assert set(table["study"]) == {"oxford-9"}
    assert set(table["status"]) == {"ok"}
    assert set(zip(table["receiver_cut"], table["control"], table["network_seed"], strict=True)) == {
        *((cut, "", pair) for cut in CUTS for pair in (10_011, 11_010)),
        *((cut, "itself", 10_011) for cut in CUTS),
    }
    card = result.card
    assert (card["trials"], card["failed"], card["networks"], card["tables"]) == (6, 0, 2, ["trials"])
    assert card["seconds"] == pytest.approx(table["seconds"].sum())
    assert card["training_seconds"] > 0


def test_two_studies_share_a_store_and_nothing_is_measured_twice(
    tiny: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.make(tmp_path)
    first = run_study(study(mlps), tiny, store)
    trained, measured = keys(store, NETWORKS), keys(store)

    def measure(*args: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr("suture.runs.runners.tasks.attempt", measure)
        other = run_study(
            study(lambda scale: mlps(scale, ("block6.relu",)), id_="oxford-8"), tiny, store, on=Local(workers=1)
        )
    assert (keys(store, NETWORKS), keys(store)) == (trained, measured)
    assert set(other.tables["trials"]["study"]) == {"oxford-8"}
    expected = first.tables["trials"].query("receiver_cut == 'block6.relu'").reset_index(drop=True)
    assert_frame_equal(timeless(other.tables["trials"]), timeless(expected))


def test_what_is_beside_is_made_once(tiny: Scale, tmp_path: Path) -> None:
    made: list[str] = []
    told: list[str] = []
    beside = study(mlps, lambda scale: sizes(scale, made))
    first, again = (run_study(beside, tiny, tmp_path, told=told.append) for _ in range(2))
    assert made == ["cnn"]
    assert told == ["networks 1 of 1: sizes"]
    assert_frame_equal(first.tables["networks"], again.tables["networks"])
    assert len(first.tables["networks"]) == 1
    assert (first.card["networks"], list(first.tables)) == (3, ["trials", "networks"])


def test_what_is_beside_is_made_again_for_other_settings_and_where_it_is_damaged(tiny: Scale, tmp_path: Path) -> None:
    made: list[str] = []

    def parts(scale: Scale, settings: tuple[object, ...]) -> list[Part]:
        return [replace(part, settings=settings) for part in sizes(scale, made) if isinstance(part, Beside)]

    for settings in ((linear_cka, 5), (linear_cka, 6), (linear_cka, 5)):
        run_study(study(partial(parts, settings=settings)), tiny, tmp_path)
    assert len(made) == 2
    for kept in (tmp_path / "beside").iterdir():
        kept.write_bytes(kept.read_bytes()[:-20])
    result = run_study(study(partial(parts, settings=(linear_cka, 5))), tiny, tmp_path)
    assert len(made) == 3
    assert len(result.tables["networks"]) == 1


def test_a_study_may_have_no_trials(tiny: Scale, tmp_path: Path) -> None:
    result = run_study(study(lambda scale: sizes(scale, [])), tiny, tmp_path)
    assert list(result.tables) == ["networks"]
    assert (result.card["trials"], result.card["seconds"]) == (0, 0.0)


def first_trials(scale: Scale, fit: Fit | None = None) -> list[Part]:
    """The plain trials of the first pair of ``mlps``, by another fit if so wanted."""
    part, *_ = mlps(scale)
    assert isinstance(part, Deferred)

    def make(*networks: Network) -> list[Trial]:
        plain = [trial for trial in part.make(*networks) if not trial.control]
        return plain if fit is None else [replace(trial, fit=fit) for trial in plain]

    return [Deferred(part.bases, make)]


def joined(scale: Scale, made: list[str], fit: Fit | None = None) -> list[Part]:
    """The output of the first stitched network of ``first_trials``; ``made`` notes each making."""
    (part,) = first_trials(scale, fit)
    assert isinstance(part, Deferred)

    def make(stitched: Made, *networks: Network) -> pd.DataFrame:
        made.append("joined")
        trial = next(iter(part.make(*networks)))
        with pytest.raises(DataError, match="is not among the trials that this part of the study names"):
            stitched(replace(trial, seed=5))
        outputs = stitched(trial)(scale.data("cifar10").score.images[:2])
        return pd.DataFrame({"network_seed": [0], "output": [outputs.sum().item()]})

    return [Beside("networks", "x", part.bases, make, trials=part.make)]


def test_beside_has_the_stitched_networks_of_its_study(tiny: Scale, tmp_path: Path) -> None:
    made: list[str] = []
    first, again = (run_study(study(mlps, partial(joined, made=made)), tiny, tmp_path) for _ in range(2))
    assert made == ["joined"]
    assert_frame_equal(first.tables["networks"], again.tables["networks"])


def test_what_is_beside_is_made_again_for_other_trials(tiny: Scale, tmp_path: Path) -> None:
    made: list[str] = []
    tables = [
        run_study(study(partial(first_trials, fit=fit), partial(joined, made=made, fit=fit)), tiny, tmp_path).tables
        for fit in (None, Random())
    ]
    assert len(made) == 2
    assert not tables[0]["networks"]["output"].equals(tables[1]["networks"]["output"])


def test_a_stitched_network_that_is_not_there_is_named(tiny: Scale, tmp_path: Path) -> None:
    """One that the study does not plan, and one whose trial failed."""
    with pytest.raises(DataError, match=r"was not measured; add it to the study's plan"):
        run_study(study(first_trials, partial(joined, made=[], fit=Random())), tiny, tmp_path)
    broken = (partial(first_trials, fit=Broken()), partial(joined, made=[], fit=Broken()))
    with pytest.raises(DataError, match=r"failed, and its stitched .*\(FitError: broken\).*again with --retry"):
        run_study(study(*broken), tiny, tmp_path)


def test_an_interrupted_study_goes_on(tiny: Scale, tmp_path: Path) -> None:
    whole = run_study(study(mlps), tiny, tmp_path / "whole")
    with pytest.raises(Interrupted, match="continue with: suture run it"):
        run_study(study(mlps), tiny, tmp_path / "part", on=Faulty(stops_after=4), command="suture run it")
    kept = keys(store := Store(tmp_path / "part"))
    assert 0 < len(kept) < 6
    result = run_study(study(mlps), tiny, store)
    assert kept < keys(store)
    assert_frame_equal(timeless(result.tables["trials"]), timeless(whole.tables["trials"]))


def test_an_interruption_while_networks_are_trained_says_so(tiny: Scale, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"1 of 2 networks are trained and kept in .*; continue with: suture run it"):
        run_study(study(mlps), tiny, tmp_path, on=Faulty(stops_after=1), command="suture run it")
    assert run_study(study(mlps), tiny, tmp_path).card["networks"] == 2


def test_where_a_network_fails_all_else_is_measured_and_the_failure_named(
    tiny: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(scale: Scale) -> list[Part]:
        pairs = plan_curves(scale, "cnn", "cnn", scale.data("cifar10"), cuts=("conv1",), seeds=[(10, 11)])
        return [*pairs, *mlps(scale), *sizes(scale, [])]

    train = BaseModel.train

    def without_luck(model: BaseModel, *given: Any) -> Any:
        if (model.name, model.seed) == ("cnn", 11):
            raise FitError("no luck")
        return train(model, *given)

    with monkeypatch.context() as patch:
        patch.setattr(BaseModel, "train", without_luck)
        for _ in range(2):
            with pytest.raises(
                RunnerError,
                match=r"^1 part of the plan could not be measured: training cnn .*: no luck; all else is measured$",
            ):
                run_study(study(plan), tiny, tmp_path, on=Local(workers=1))
            assert len(keys(Store(tmp_path))) == 6
    result = run_study(study(plan), tiny, tmp_path, on=Local(workers=1), retry=True)
    assert list(result.tables) == ["trials", "networks"]
    assert list(result.tables["trials"]["receiver"].unique()) == ["another cnn", "another mlp"]  # in the plan's order


def test_the_papers_fits_are_told_from_those_of_baselines(tiny: Scale, tmp_path: Path) -> None:
    from suture.measurement.trials.baselines import linear_probe
    from suture_papers.recipes import oxford2025

    def plan(scale: Scale) -> list[Part]:
        settings = {"published": scale.published(oxford2025), "also": (linear_probe,), "cuts": ("block3.relu",)}
        return [*plan_curves(scale, "mlp", "mlp", scale.data("cifar10"), **settings)]  # type: ignore[arg-type]

    table = run_study(study(plan), tiny, tmp_path).tables["trials"]
    assert len(table) == 5  # two pairs, each with its probe, and the published fit of the first
    assert set(table[table["published"]]["fit"]) == {str(tiny.published(oxford2025))}
    assert set(table[~table["published"]]["control"]) == {"", "linear probe"}


# Kept


def test_saved_and_read_back(tiny: Scale, tmp_path: Path) -> None:
    result = run_study(study(mlps, lambda scale: sizes(scale, [])), tiny, tmp_path / "run")
    files = result.save(tmp_path / "kept")
    assert sorted(path.name for path in files) == [
        "oxford-9.json",
        "oxford-9.networks.parquet",
        "oxford-9.trials.parquet",
    ]
    read = load_result(tmp_path / "kept", "oxford-9")
    assert read is not None
    assert (read.study, read.scale, read.card) == (result.study, "tiny", json.loads(json.dumps(result.card)))
    for kind, table in result.tables.items():
        assert_frame_equal(read.tables[kind], table)


def test_what_is_not_there_and_what_is_damaged(tmp_path: Path) -> None:
    assert load_result(tmp_path, "oxford-9") is None
    Result("oxford-9", "small", {"trials": pd.DataFrame({"x": [1]})}, {"scale": "small", "tables": ["trials"]}).save(
        tmp_path
    )
    (tmp_path / "oxford-9.trials.parquet").unlink()
    with pytest.raises(DataError, match=r"oxford-9\.trials\.parquet is missing, which oxford-9\.json names"):
        load_result(tmp_path, "oxford-9")
    (tmp_path / "oxford-9.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        load_result(tmp_path, "oxford-9")


@pytest.mark.slow
def test_what_is_near_its_threshold_is_stitched_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scale, "fit", Converged(cap=140))  # of which every seed draws other batches
    scale, store = Scale("small", stand_in), Store.make(tmp_path)

    def run_with(threshold: float) -> pd.DataFrame:
        def plan(scale: Scale) -> list[Part]:
            pairs = pair_in_circle(scale, "mlp")  # of five networks, which can decide it
            return [*plan_curves(scale, "mlp", "mlp", scale.data("cifar10"), cuts=CUTS[:1], seeds=pairs)]

        claim = Claim("it is small", "section 1", Mean("penalty"), "≤", threshold)
        result = run_study(Study("oxford-9", "t", "q", "s", plan, (claim,)), scale, store, on=Local(workers=1))
        assert result.card["of"] == {"mlp": [10, 11, 12, 13, 14]}
        return result.tables["trials"]

    far = run_with(1000.0)
    near = run_with(float(far["penalty"].mean()) + 1.9)
    assert far["seed"].tolist() == [0] * 5
    assert sorted(near["seed"]) == [0] * 5 + [1] * 5 + [2] * 5
    assert near["validation_loss"].notna().all()
    assert near["validation_loss"].nunique() > 5
