"""Every experiment of the four papers, at tiny scale: it runs, its claims can be read, its figure draws."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from suture.common.errors import DataError, SutureError
from suture.runs.runners import Local
from suture.runs.store.store import Store
from suture_papers import STUDIES, Result, Scale, run_study, scale_named, study_named
from suture_papers.base.cells import TRIALS
from suture_papers.base.count import Networks, count
from suture_papers.base.quantities import DIVISOR_IS_0, NOTHING_THERE
from suture_papers.base.scale import stand_in
from suture_papers.reports.figures import figure

#: The list of experiments, row by row.
ROWS = """
bansal-2A bansal-2A-disjoint bansal-2A-random bansal-5 bansal-2B bansal-6 bansal-3A bansal-2C bansal-3B bansal-3C
bansal-4 bansal-7 bansal-8 bansal-9 bansal-probe bansal-invariance bansal-fold
hernandez-2 hernandez-2d hernandez-3 hernandez-random-both hernandez-random-receiver hernandez-random-sender
hernandez-copy hernandez-triangle
oxford-4.1-mlp oxford-4.1-cnn oxford-4.2 oxford-4.3a oxford-4.3b oxford-4.4-fig5 oxford-4.4-fig6 oxford-6.1 oxford-6.2
oxford-control oxford-alone
smith-4.1 smith-1c smith-4.2 smith-4.2-noise smith-C1 smith-C5 smith-C2
"""
#: Those of which the list says to report, and claims nothing that a threshold could decide.
REPORTS = {"bansal-2B", "bansal-6", "hernandez-3", "hernandez-copy", "oxford-6.1", "oxford-6.2"}
#: One of each paper, with trials and a table beside them where the paper has such: these run by default.
SMALLEST = ("bansal-5", "hernandez-random-sender", "oxford-6.2", "smith-4.2")
RUN = pytest.mark.parametrize(
    "name", [name if name in SMALLEST else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES]
)


@pytest.fixture(scope="module")
def tiny() -> Scale:
    return scale_named("tiny")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, tiny: Scale) -> Iterator["Results"]:
    """What studies give, each run when it is first asked for, all into one store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suture.core.network.network.check_sizes", lambda *_: None)  # tests/core tries it
        yield Results(tiny, tmp_path_factory.mktemp("studies"))


class Results(dict[str, Result]):
    def __init__(self, scale: Scale, store: Path) -> None:
        self.scale, self.store = scale, Store.make(store)

    def __missing__(self, name: str) -> Result:
        self[name] = run_study(study_named(name), self.scale, self.store, on=Local(workers=1))
        shutil.rmtree(self.store.activations, ignore_errors=True)
        return self[name]


def test_every_row_of_the_list_is_a_study() -> None:
    assert list(STUDIES) == ROWS.split()
    assert len(STUDIES) == 43  # two of them ask of a paper what the paper does not


@RUN
def test_it_runs_its_claims_can_be_read_and_its_figure_draws(name: str, results: Results) -> None:
    study, result = STUDIES[name], results[name]
    assert result.scale == "tiny"
    assert result.tables
    if TRIALS in result.tables:
        failed = result.tables[TRIALS].query("status != 'ok'")
        assert failed.empty, failed["error"].iloc[0]
        assert set(result.tables[TRIALS]["study"]) == {name}
    decided = [claim.decide(result.tables) for claim in study.claims]
    unread = [one for one in decided if one.figure is None and not one.reason.endswith((DIVISOR_IS_0, NOTHING_THERE))]
    assert [f"{one.claim.statement}: {one.reason}" for one in unread] == []
    with pytest.raises(DataError, match="no verdict is computed"):
        result.decide(study)
    axes = [axes for axes in figure(study, result.tables).axes if axes.has_data()]
    assert len(axes) >= bool(study.panels)


def test_what_studies_say_of_themselves() -> None:
    for name, study in STUDIES.items():
        assert (study.id, study.title.strip()) == (name, study.title)
        assert study.title, name
        assert study.question.endswith("?"), name
        assert study.source, name
        assert study.panels, name
        assert study.claims, name
        assert len({(claim.statement, claim.fit) for claim in study.claims}) == len(study.claims), name
        assert all(claim.statement and claim.source for claim in study.claims), name
        assert (all(claim.threshold is None for claim in study.claims)) == (name in REPORTS), name
        assert all(text.strip() == text and text for text in (*study.deviations, *study.small)), name


@pytest.mark.slow
def test_all_studies_are_planned_and_counted_at_small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many trials, networks and further tables as were planned when the committed results were measured."""
    monkeypatch.setattr("suture.core.network.network.check_sizes", lambda *_: None)  # of 45 networks, for a minute
    planned = json.loads(Path(__file__).with_name("planned.json").read_text(encoding="utf-8"))
    made: Networks = {}
    for name, study in STUDIES.items():
        if study.needs:
            with pytest.raises(SutureError, match=f"{name} needs"):
                count(study, "small", made)
            continue
        found = count(study, "small", made)
        counts = {"networks": found.networks, "trials": found.trials, "beside": found.beside}
        assert counts == planned[name], name


def test_the_count_is_what_is_run_at_tiny(tiny: Scale, results: Results) -> None:
    name = "hernandez-random-sender"
    found = count(STUDIES[name], "tiny")
    card = results[name].card
    assert (sum(found.trials.values()), sum(found.networks.values())) == (card["trials"], card["networks"])


def test_an_id_that_is_not_there() -> None:
    with pytest.raises(
        SutureError, match=r"no study 'smith-c5'; did you mean smith-C5\? suture studies lists them all"
    ):
        study_named("smith-c5")


def test_planning_needs_no_data_but_what_stands_in() -> None:
    assert Scale("small", stand_in).stands_in
    assert not scale_named("small").stands_in
