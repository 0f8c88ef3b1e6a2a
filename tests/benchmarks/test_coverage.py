"""The table of architectures: what it says of a model, and that the page is made of the rows."""

import json
from pathlib import Path

import pytest
import timm
import torch
from benchmarks.coverage import models, page, sheet, try_model
from torch import nn

ROOT = Path(__file__).parents[2]


class Kept(nn.Module):
    """A model with a parameter that nothing resets."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(3 * 8 * 8, 5), nn.Parameter(torch.rand(5))

    def forward(self, x):
        return self.inner(x.flatten(1)) * self.scale


@pytest.mark.slow
def test_a_row_says_what_became_of_a_model():
    image = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    row = try_model(lambda: (Kept(), [image]))
    assert (row["how"], row["input"], row["parameters"]) == ("torch.fx", "3×8×8", 970)
    assert "Kept cannot be made untrained" in row["untrained"]
    picture = torch.randint(0, 256, (3, 3, 160, 160), dtype=torch.uint8)
    row = try_model(lambda: (timm.create_model("test_vit"), [image, picture]))
    assert (row["untrained"], row["input"]) == ("drawn", "3×160×160")
    refused = try_model(lambda: (nn.Sequential(nn.Flatten()), [image]))
    assert "cannot be cut" in refused["error"]


def test_the_page_is_made_of_the_rows():
    rows = [
        json.loads(line)
        for line in (ROOT / "benchmarks/results/coverage.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert page(rows) == (ROOT / "docs/coverage.md").read_text(encoding="utf-8")
    assert sheet(rows) == (ROOT / "benchmarks/results/coverage.csv").read_text(encoding="utf-8")
    tried = {(row["library"], row["model"]) for row in rows}
    assert tried == {(library, name) for library, name, _ in models()}
    for library, least in (("transformers", 40), ("timm", 60), ("torchvision", 18)):
        assert sum(row["library"] == library and row.get("untrained") == "drawn" for row in rows) >= least, library
