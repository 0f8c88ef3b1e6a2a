"""The benchmark of language: its labels and scores, on a small text, and that the page is made of the tables."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks import kjv

VERSE = "And it came to pass, that Saul went up with the people of Israel to the river, and he walketh, Behold. "


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Forty chapters, half of them new, and three networks of a few steps."""
    books = {
        f"{book}{n}": f"{VERSE[n:]}{VERSE}{word}\n" * 2
        for book, word in (("Ge", "LORD"), ("Mat", "Jesus"))
        for n in range(1, 21)
    }
    cached = (kjv.roles, kjv.load, kjv.network)
    for each in cached:
        each.cache_clear()
    monkeypatch.setattr(kjv, "chapters", lambda: books)
    monkeypatch.setattr(kjv, "SCORED", 12)
    monkeypatch.setattr(kjv, "VALIDATED", 8)
    monkeypatch.setattr(kjv, "NETWORKS", tmp_path)
    monkeypatch.setattr(kjv, "FOLDER", tmp_path)
    models = tuple(replace(model, width=32, depth=2) for model in kjv.MODELS[:4])
    monkeypatch.setattr(kjv, "MODELS", models)
    monkeypatch.setattr(kjv, "CARRIED", tuple((models[0].name, other.name) for other in models[1:]))
    yield books
    for each in cached:
        each.cache_clear()


def test_no_chapter_has_two_roles_and_each_gives_a_window_of_its_own(small):
    drawn = [name for names in kjv.roles().values() for name in names]
    assert sorted(drawn) == sorted(small)
    assert [len(kjv.roles()[role]) for role in ("score", "validation", "fit")] == [12, 8, 20]
    for role in kjv.roles():
        for name, window in kjv.windows(role).items():
            assert bytes(window.tolist()).decode() in small[name]
            assert len(window) == kjv.LENGTH


def test_a_name_is_a_capital_amid_a_sentence_and_an_ending_is_told_before_it_is_there(small):
    for row, window in enumerate(kjv.windows("score").values()):
        text = bytes(window.tolist()).decode()
        found = {name: mark("score")[row] for name, mark in kjv.PROBES.items()}
        for word, name, ending in (("Israel", 1, 0), ("people", 0, 0), ("walketh", 0, 1), ("Behold", -1, -1)):
            begin = text.find(f" {word}", kjv.SEEN) + 1
            if begin:
                assert found["name"][begin : begin + 2].tolist() == [-1, -1]
                assert set(found["name"][begin + 2 : begin + len(word)].tolist()) == {name}
                assert set(found["ending"][begin + 2 : begin + len(word) - 3].tolist()) == {ending}
                assert set(found["ending"][begin + len(word) - 3 : begin + len(word)].tolist()) == {-1}
        names, others = (each[row].nonzero()[:, 0].tolist() for each in kjv.before_names(kjv.load().score.images))
        assert all(text[place] == " " and text[place + 1].islower() and text[place - 1].islower() for place in others)
        assert names == [at for at in range(kjv.SEEN, 127) if text[at : at + 2] in (" S", " I") and text[at - 1] != ","]


def test_the_area_is_that_of_scikit_learn_and_documents_weigh_by_how_often_they_are_drawn():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, (30, 9), generator=draw)
    readings = torch.randn(30, 9, generator=draw, dtype=torch.float64) + labels
    weights = torch.randint(0, 4, (3, 30), generator=draw)
    for row, found in zip(weights, kjv.auroc(readings, labels, weights), strict=True):
        there = labels >= 0
        often = row[:, None].expand_as(labels)[there]
        assert found == pytest.approx(roc_auc_score(labels[there], readings[there], sample_weight=often))


@pytest.mark.slow
def test_a_step_does_what_a_hook_in_the_model_does(small):
    torch.manual_seed(0)
    model = kjv.MODELS[0].build().eval()
    network = kjv.suture.Network(model, example=kjv.load().example, name=kjv.MODELS[0].name)
    texts = kjv.write_in(kjv.load().score.images, "Jesus")
    begins = [bytes(text.tolist()).rindex(b" Jesus") + 1 for text in texts]
    step, told = torch.randn(32), []
    with torch.no_grad():
        for moved in (0 * step, step):
            hook = model.transformer.h[0].register_forward_hook(lambda _module, _given, out, moved=moved: out + moved)
            chances = model(texts).logits.log_softmax(-1)
            told.append(
                [
                    sum(chance[at + i - 1, byte] for i, byte in enumerate(b"Jesus"))
                    for chance, at in zip(chances, begins, strict=True)
                ]
            )
            hook.remove()
    more = kjv.read_steps(network, [0 * step, step], texts, lambda logits, batch: kjv.read_word(logits, batch, "Jesus"))
    torch.testing.assert_close(more[1], torch.tensor(told[1]) - torch.tensor(told[0]), rtol=0, atol=1e-4)
    assert more[0].abs().max() == 0


def test_the_page_is_made_of_the_tables():
    assert kjv.page() == kjv.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_networks_are_trained_and_probes_and_directions_carried(small, monkeypatch):
    monkeypatch.setattr(kjv, "FITS", {"task loss": kjv.fits.Quick(steps=2, batch=2), "least squares": kjv.LEAST})
    monkeypatch.setattr(kjv, "DRAWS", 20)
    for model in kjv.MODELS:
        kjv.train(model, kjv.Recipe(steps=2))
    kjv.carry()
    found = pd.read_csv(kjv.FOLDER / "carried.csv")
    assert set(found["by"]) == {*kjv.WAYS, "in its owner"}
    assert found.groupby(["owner", "reader", "kind", "what"]).ngroups == 3 * 4
    assert ((found["low"] <= found["value"] + 0.05) & (found["value"] <= found["high"] + 0.05)).all()
