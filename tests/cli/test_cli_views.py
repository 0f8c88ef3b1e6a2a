"""``--receiver-data``: two networks that read two views, on the command line as in Python."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import suture
from loops import each

Run = Callable[[str], tuple[int, str, str]]
MODELS = """
import torch
from torch import nn


def net(side):
    torch.manual_seed(side)
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 6), nn.ReLU(), nn.Linear(6, 2))
"""
A, B = "m.py:net,side=4", "m.py:net,side=6"
FEW = "--data small --receiver-data large --split 24"


@pytest.fixture
def views(run: Run, tmp_path: Path) -> Run:
    """Folders of the same 60 pictures, at two sizes and turned round, and of one fewer."""
    (tmp_path / "m.py").write_text(MODELS)
    random = np.random.default_rng(0)
    for i in range(60):
        picture = Image.fromarray(random.integers(0, 256, (6, 6), np.uint8))
        folder = f"{'ab'[i % 2]}/{i:02}.png"
        made = {"small": picture.resize((4, 4)), "large": picture.rotate(90), "fewer": picture if i else None}
        for name, view in made.items():
            if view is not None:
                path = tmp_path / name / folder
                path.parent.mkdir(parents=True, exist_ok=True)
                view.save(path)
    return run


@pytest.mark.slow
def test_a_curve_of_two_views_is_that_of_python(views: Run) -> None:
    code, _, err = views(f"curve {A} {B} {FEW} --at 2 --fit least-squares --controls shuffled-pairs --out r")
    assert code == 0, err
    data = suture.load_views("small", "large", split=24)
    sender, receiver = (
        suture.load_network(model, example=view.example, name=model[-1])
        for model, view in ((A, data.for_sender), (B, data.for_receiver))
    )
    table = suture.run(
        suture.curve(sender, receiver, data=data, at="2", fit="least-squares", controls="shuffled-pairs")
    )
    found = pd.read_parquet("r/table.parquet")
    assert found["stitched"].tolist() == table["stitched"].tolist()
    assert set(found["control"]) == {"", "shuffled pairs"}
    assert "24 to score" in err


def test_stitches_comparisons_and_plans_take_two_views(views: Run) -> None:
    for line in (
        f"stitch {A} {B} {FEW} --at 2 --fit least-squares --controls none",
        f"compare {A} {B} {FEW} --at 2",
        f"plan curve {A} {B} {FEW} --at 2 --fit least-squares",
    ):
        code, out, err = views(line)
        assert code == 0, err
        assert out


@each(
    ("line", "said"),
    [
        (f"curve {A} {B} --data small --receiver-data fewer --split 24", "60 samples"),
        (f"curve {A} {B} --data small --receiver-data m.py --split 24", "m.py is a file"),
        (f"matrix {A} {B} {FEW}", "--receiver-data"),
        ("compare x.npy y.npy --receiver-data small", "--receiver-data is for networks"),
        (f"curve {A} {A} {FEW}", "whose example became (1, 4, 4)"),
    ],
)
def test_views_that_do_not_fit_are_refused(views: Run, line: str, said: str) -> None:
    for name in "xy":
        np.save(f"{name}.npy", np.eye(5))
    code, out, err = views(line)
    assert (code, out) == (2, ""), err
    assert said in err
