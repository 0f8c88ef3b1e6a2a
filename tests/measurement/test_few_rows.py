"""Attention sinks: a few tokens of one huge feature decide a linear index, unless they are left out."""

import numpy as np
import pytest
import torch

from suture import compare, indices
from suture.common.errors import DataError, SutureWarning


def unrelated(sink: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (40, 16, 32) of two layers that have nothing in common but a feature of the first token."""
    drawn = torch.randn(2, 40, 16, 32, generator=torch.Generator().manual_seed(0))
    drawn[:, :, 0, 5] += sink
    return drawn[0], drawn[1]


def value(x, y, **settings) -> float:
    return float(compare(x, y, samples_as="pixels", permutations=0, **settings)["value"].iloc[0])


def test_a_sink_makes_unrelated_layers_alike_with_a_warning_that_names_it():
    x, y = unrelated(100.0)
    with pytest.warns(SutureWarning, match=r"32 of 640 samples, mostly tokens \[0\].*mutual_knn.*ignore=\[0\]"):
        assert value(x, y) > 0.98  # the wrong number
    assert abs(value(x, y, ignore=[0])) < 0.05  # the truth, and no warning
    assert value(x, y, by=indices.mutual_knn) < 0.1  # the index that the warning names


def test_tokens_left_out_are_those_that_were_never_there():
    x, y = unrelated(100.0)
    mask = torch.zeros(16, dtype=torch.bool).index_fill(0, torch.tensor([0, 7]), True)
    kept = [i for i in range(16) if i not in (0, 7)]
    wanted = value(x[:, kept], y[:, kept])
    for ignore in ([0, 7], mask, mask.expand(40, 16), np.array([0, -9])):
        assert value(x, y, ignore=ignore) == wanted


def test_tokens_may_be_left_out_of_each_sample():
    x, y = unrelated()
    places = torch.arange(40) % 16
    mask = torch.nn.functional.one_hot(places, 16).bool()
    x, y = x + 100 * mask[..., None], y + 100 * mask[..., None]
    pooled = [torch.stack([row[~out].mean(0) for row, out in zip(side, mask, strict=True)]) for side in (x, y)]
    assert abs(value(x, y, ignore=mask)) < 0.05
    found = compare(x, y, samples_as="mean", ignore=mask, permutations=0)["value"].iloc[0]
    assert found == pytest.approx(compare(*pooled, permutations=0)["value"].iloc[0], abs=1e-5)


def test_what_cannot_be_left_out_is_refused():
    x, y = unrelated()
    for ignore, why in (
        ([16], "not among 16"),
        (torch.ones(16, dtype=torch.bool), "no token"),
        (torch.ones(3, dtype=torch.bool), "is true for those"),
        ([0.5], "is true for those"),
    ):
        with pytest.raises(DataError, match=why):
            value(x, y, ignore=ignore)
    with pytest.raises(DataError, match="samples_as='pixels' or 'mean'"):
        compare(x, y, ignore=torch.eye(40, 16).bool(), permutations=0)
