"""The benchmark of language: its labels and scores, on a small text, and that the page is made of the tables."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks import kjv

VERSE = "And it came to pass, that Saul went up with the people of Israel to the river, and he said, Behold. "


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


def test_a_name_is_a_capital_amid_a_sentence(small):
    labels, windows = kjv.mark_names("score"), kjv.windows("score")
    for marked, window in zip(labels, windows.values(), strict=True):
        text = bytes(window.tolist()).decode()
        for word, expected in (("Saul", 1), ("Israel", 1), ("people", 0), ("Behold", -1)):
            for begin in range(kjv.SEEN, len(text) - len(word)):
                if text[begin - 2 : begin + len(word)].endswith(word) and text[begin - 1] == " ":
                    assert marked[begin : begin + 2].eq(-1).all()
                    assert marked[begin + 2 : begin + len(word)].eq(expected).all()
    new = [name.startswith("Mat") for name in windows]
    assert (kjv.mark_testaments("score")[:, -1] == torch.tensor(new).long()).all()


def test_the_area_is_that_of_scikit_learn_and_documents_weigh_by_how_often_they_are_drawn():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, (30, 9), generator=draw)
    readings = torch.randn(30, 9, generator=draw, dtype=torch.float64) + labels
    weights = torch.randint(0, 4, (3, 30), generator=draw)
    for row, found in zip(weights, kjv.auroc(readings, labels, weights), strict=True):
        there = labels >= 0
        often = row[:, None].expand_as(labels)[there]
        assert found == pytest.approx(roc_auc_score(labels[there], readings[there], sample_weight=often))


def test_a_step_does_what_a_hook_in_the_model_does(small):
    torch.manual_seed(0)
    model = kjv.MODELS[0].build().eval()
    network = kjv.suture.Network(model, example=kjv.load().example, name=kjv.MODELS[0].name)
    texts, where = kjv.write_in(kjv.load().score.images, "Jesus")
    assert {bytes(text[at.bool()].tolist()) for text, at in zip(texts, where, strict=True)} == {b"Jesus"}
    step = torch.randn(32)
    told = []
    with torch.no_grad():
        for moved in (0 * step, step):
            hook = model.transformer.h[0].register_forward_hook(lambda _module, _given, out, moved=moved: out + moved)
            chances = model(texts).logits.log_softmax(-1)[:, :-1].gather(2, texts[:, 1:, None])[..., 0]
            told.append((chances * where[:, 1:]).sum(1))
            hook.remove()
    found = kjv.likelier(network, [0 * step, step], texts, where)
    torch.testing.assert_close(found, torch.stack([0 * told[0], told[1] - told[0]]), rtol=0, atol=1e-4)


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
