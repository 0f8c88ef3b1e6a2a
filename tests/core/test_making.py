"""Making a network: few runs of the whole model, and shapes that are read without values.

Evidence: rows counted by the model itself; the same network made with values and without; operations counted by hand.
"""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from loops import each
from models import images
from suture import Network
from suture.core.network import batches, shapes

IDS = torch.randint(1, 20, (4, 9), generator=torch.Generator().manual_seed(0))
MASKED = {"ids": IDS, "mask": (torch.arange(9) < torch.tensor([9, 7, 9, 4])[:, None]).long()}


class Masked(nn.Module):
    """A transformer that makes its mask once and reads it in two layers; it notes how many rows it computes."""

    rows: ClassVar[list[int]] = []

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layers = nn.Embedding(20, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, ids, mask):
        if type(ids) is Tensor and not ids.is_meta:
            self.rows.append(len(ids))
        seen, h = mask[:, None, :] != 0, self.words(ids)
        for layer in self.layers:
            h = h + (h @ layer(h).mT).masked_fill(~seen, -1e9).softmax(-1) @ h
        return self.head(h[:, 0])


class Viewed(nn.Module):
    """Changes its input in place, and takes a view that only one layout in memory allows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.head = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Linear(144, 5)

    def forward(self, x):
        return self.head(self.act(self.conv(x)).view(len(x), -1))


class Moved(nn.Module):
    """Features last, as in Swin."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.LayerNorm(4), nn.Linear(4, 5)

    def forward(self, x):
        x = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return self.head((x + x.relu()).mean((1, 2)))


class Cached(nn.Module):
    """Keeps a table for each device, as LeViT does in evaluation mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bias, self.head = nn.Conv2d(3, 4, 3), nn.Parameter(torch.rand(4)), nn.Linear(4, 5)
        self.tables = {}

    def forward(self, x):
        key = str(x.device)
        if key not in self.tables:
            self.tables[key] = self.bias[[3, 2, 1, 0]].view(4, 1, 1)
        return self.head((self.conv(x) + self.tables[key]).relu().mean((2, 3)))


def test_a_mask_that_every_segment_makes_anew_costs_no_run_of_a_thousand_samples():
    Masked.rows.clear()
    network = Network(Masked().eval(), example=MASKED)
    assert len(network.cuts) > 3
    assert max(Masked.rows) <= 4
    assert sum(Masked.rows) < 30


@each(("build", "example"), [(Masked, MASKED), (Viewed, images(3, 8)), (Moved, images(3, 8)), (Cached, images(3, 8))])
def test_what_is_read_without_values_is_what_runs_show(build, example, monkeypatch):
    made = []
    for large in (2**40, 0):
        monkeypatch.setattr(shapes, "LARGE", large)
        network = Network(build().eval(), example=example)
        segments = [(one.copies, one.dtype, one.order, one.fixed) for one in network._traced.segments]
        made.append((network.fingerprint, network.cuts.names, dict(network.cuts.dropped), segments))
    assert made[0] == made[1]


def test_a_run_without_values_leaves_none_in_a_cache():
    network = Network(Cached().eval(), example=images(3, 8))
    assert not any(tensor.is_meta for tensor in network._model.tables.values() if isinstance(tensor, Tensor))
    assert torch.isfinite(network(images(2, 8))).all()


@each(
    ("run", "products"),
    [
        (lambda x: x * 2 + x * 2, 1),
        (lambda x: x * 2 + x * 3, 2),
        (lambda x: (x * 2) * 2, 2),
        (lambda x: x * 2 + x.clone() * 2, 1),
        (lambda x: x * 2 + x.clone().add_(1) * 2, 2),
        (lambda x: (lambda own: own * 2 + own[:0].add_(1).sum() + own * 2)(x.clone()), 2),
    ],
)
def test_an_operation_done_again_on_the_same_values_counts_once(run, products):
    found = batches._count(run, [torch.rand(3, 2)])
    assert sum(count for key, count in found.items() if key[0] == "mul") == products


def test_a_branch_on_the_number_of_samples_is_still_found():
    class Branch(Masked):
        def forward(self, ids, mask):
            out = super().forward(ids, mask)
            return out * 2 if len(ids) > 100 else out

    with pytest.raises(Exception, match=r"different outputs for one image in a batch of 257|Constraints violated"):
        Network(Branch().eval(), example=MASKED)
