"""The page about the trained networks says what their table has."""

from pathlib import Path

import pandas as pd

from suture.data import load_data
from suture_papers.ledger import LEDGER, make_models
from suture_papers.ledger.inventory import join, load
from suture_papers.reports.ledger import record
from suture_papers.reports.pages.zoo import page

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "papers" / "results" / "small"


def test_the_page_is_what_the_table_gives() -> None:
    throughput = (RESULTS / "throughput.txt").read_text(encoding="utf-8").splitlines()
    made = page(join([load(RESULTS / "networks.parquet")], LEDGER), LEDGER, throughput)
    assert (ROOT / "docs" / "papers" / "zoo.md").read_text(encoding="utf-8") == made


def test_networks_that_a_study_scores_in_its_own_way_are_left_out() -> None:
    table = load(RESULTS / "networks.parquet")
    scored = table[table["accuracy"].notna()]
    unscored = scored.head(3).assign(name="of a study", key="0" * 20, accuracy=None, worst=None, worst_class=None)
    assert page(pd.concat([scored, unscored]).astype(table.dtypes), LEDGER) == page(scored, LEDGER)


def test_the_ledger_fits_into_its_hours() -> None:
    assert record(LEDGER, workers=2)["fits"]


def test_names_in_the_ledger_are_their_own_and_what_networks_start_from_is_there() -> None:
    names = [entry.name for entry in LEDGER]
    assert len(set(names)) == len(names)
    for entry in LEDGER:
        if entry.start is not None:
            (first,) = [other for other in LEDGER if other.name == entry.start]
            assert set(entry.seeds) <= set(first.seeds)


def test_an_entry_is_one_base_model_for_each_seed() -> None:
    digits = load_data("digits")
    by_name = {entry.name: entry for entry in LEDGER}
    late, early = by_name["resnet18 epoch 160"], by_name["resnet18 epoch 40"]
    made = make_models([early, late], lambda name: digits)
    assert [(m.name, m.seed, m.until) for m in made] == [(e.name, s, e.until) for e in (early, late) for s in e.seeds]
    assert len({model.key for model in made}) == len(made)
