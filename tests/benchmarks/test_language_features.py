"""The benchmarks of features and of tokenisers: counts on a few pairs, and pages that say what the tables give."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import features, kjv, tokenisers

GUIDE = Path(__file__).parents[2] / "docs" / "how-to"


def test_false_alarms_are_counted_both_ways():
    lines = list(features.count_alarms(4))
    assert [line.partition(":")[0] for line in lines] == [
        f"{way}, {measure}" for way in ("chain", "places") for measure in ("auroc", "correlation")
    ]
    assert all(0 <= int(re.search(r": (\d+) of 4", line)[1]) <= 4 for line in lines)


def test_autoencoders_are_of_the_networks_and_as_the_page_says():
    page = " ".join((GUIDE / "features.md").read_text("utf-8").split())
    told = json.loads((features.FOLDER / "autoencoders.json").read_text("utf-8"))
    assert [(one["network"], one["kind"]) for one in told] == list(features.MADE)
    gpt2, relu, llama = (f"{one['explained']:.0%}".rstrip("%") for one in told)
    assert f"They explain {gpt2}, {llama} and {relu} % of the variance" in page
    for name, kind in features.MADE:
        made = features.read(name, kind)
        assert (made.width, len(made.names)) == (128, 256)
        active = (made.encode(100 * torch.randn(20, 128, generator=torch.Generator().manual_seed(0))) > 0).sum(1)
        assert (active == 8).all() if kind == "top-k" else (active > 8).any()


def test_the_page_of_features_says_what_was_carried():
    page = " ".join((GUIDE / "features.md").read_text("utf-8").split())
    told = features.carried().query("measure == 'correlation'").dropna(subset="value")
    medians = told.groupby(["kind", "receiver", "sender", "apart", "control"])["value"].median().round(2)
    family = medians.xs("", level="control").xs("family", level="apart")
    others = medians.xs("", level="control").drop("family", level="apart")
    untrained = medians.xs("untrained sender", level="control")
    assert f"{others.min():.2f} to {others.max():.2f}, one of the other family with {family.min():.2f}" in page
    assert f"to {family.max():.2f}. An untrained sender reaches {untrained.min():.2f} to {untrained.max():.2f}," in page
    assert medians.xs("shuffled pairs", level="control").abs().max() <= 0.01
    found = told[told["p"] <= 0.05].groupby(["control", "kind", "receiver", "sender"]).size()
    assert set(found.xs("", level="control")) == {256}
    chance = found.xs("untrained sender", level="control")
    assert f"so do {chance.min()} to {chance.max()} from an untrained sender" in page


def test_the_page_of_views_has_the_table_of_two_tokenisers():
    page = (GUIDE / "views.md").read_text("utf-8")
    rows = [row for row in tokenisers.rows() if row]
    assert len(rows) == 2 + 20 + 2 + len(tokenisers.CUTS)
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize(("chapter", "part"), [("Ge1", "law"), ("Ps119", "poetry"), ("Mat1", "gospels")])
def test_chapters_are_of_their_parts(monkeypatch, chapter, part):
    names = [f"B{i:02}x1" for i in range(66)]
    places = {"Ge1": 0, "Ps119": 18, "Mat1": 39}
    names = [next((c for c, at in places.items() if at == i), name) for i, name in enumerate(names)]
    monkeypatch.setattr(kjv, "chapters", lambda: dict.fromkeys(names, ""))
    assert [*tokenisers.PARTS][tokenisers.part_of(chapter)] == part
