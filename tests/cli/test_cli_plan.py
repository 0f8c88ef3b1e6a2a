"""``suture plan`` reads few images of a large data set, and prints the same as if it read all."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import suture
from suture.data import reading, sources

Run = Callable[[str], tuple[int, str, str]]
MODELS = """
import torch
from torch import nn


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
"""
LINE = "curve m.py:net,seed=0 m.py:net,seed=1 --data photos --at 1 --controls shuffled-pairs --fit least-squares"
BUDGETS = "--disk 1GB --ram 4GB"  #: else those of the machine, which change
SPLITS = {"train": 90, "test": 60}


@pytest.fixture
def photos(run: Run, tmp_path: Path) -> Run:
    """A folder of encoded images of two classes, all different, and two networks for them."""
    (tmp_path / "m.py").write_text(MODELS)
    random = np.random.default_rng(0)
    for split, count in SPLITS.items():
        for i in range(count):
            path = tmp_path / "photos" / split / "ab"[i % 2] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return run


def test_a_plan_of_few_images_is_that_of_all(photos: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read, decoded = reading.read_picture, list[str]()

    def counted(image: Image.Image, what: str, size: int | None) -> np.ndarray:
        decoded.append(what)
        return read(image, what, size)

    monkeypatch.setattr(sources, "SKETCHED", 10)
    monkeypatch.setattr(reading, "read_picture", counted)
    found = {}
    for whole in (False, True):
        decoded.clear()
        if whole:
            monkeypatch.setattr(sources, "sketch_data", suture.load_data)
        code, out, err = photos(f"plan {LINE} {BUDGETS} --json")
        assert code == 0, err
        found[whole] = json.loads(out)
        assert (len(set(decoded)) > 30) == whole
    timed = ("cpu_range", "range", "seconds")
    few, every = ({key: value for key, value in one.items() if key not in timed} for one in found.values())
    assert few == every
    assert few["images"] == sum(SPLITS.values())


def test_a_sketch_has_the_counts_labels_and_sizes_of_the_data(photos: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SKETCHED", 10)
    sketch = sources.sketch_data("photos", classes=None, split=None, size=None)
    whole = suture.load_data("photos")
    for role in ("fit", "validation", "score"):
        one, other = getattr(sketch, role), getattr(whole, role)
        assert one.images.shape == other.images.shape
        assert (one.name, one.classes, one.task) == (other.name, other.classes, other.task)
        assert not np.array_equal(one.images, other.images)
    assert sketch.training.labels.bincount().tolist() == whole.training.labels.bincount().tolist()


@pytest.mark.slow
def test_what_a_run_has_measured_is_known_by_all_images(photos: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials have keys of their data, so a plan of a run that has begun reads them all."""
    monkeypatch.setattr(sources, "SKETCHED", 10)
    assert photos(f"{LINE} --workers 1 --out run")[0] == 0
    found = json.loads(photos(f"plan {LINE} --out run --json")[1])
    assert (found["done"], found["left"]) == (2, 0)
    assert json.loads(photos(f"plan {LINE} --out other --json")[1])["left"] == 2
