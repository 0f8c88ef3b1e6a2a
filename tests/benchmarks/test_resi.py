"""The table of the page is that of what was measured, and its scores find what was planted."""

from pathlib import Path

import torch

from benchmarks import resi
from suture.measurement import indices

PAGE = Path(__file__).parents[2] / "docs" / "which-index.md"


def test_the_page_has_the_table_of_every_index() -> None:
    lines, table = PAGE.read_text(encoding="utf-8").splitlines(), resi.table()
    assert [line for line in table if line not in lines] == []
    assert {line.split("`")[1] for line in table[2:]} >= set(indices.INDICES)


def test_planted_groups_and_layers_are_found_and_noise_is_not() -> None:
    random = torch.Generator().manual_seed(0)

    def noise() -> torch.Tensor:
        return torch.randn(100, 6, generator=random)

    shared = [noise() for _ in range(3)]
    groups = [group for group in range(3) for _ in range(4)]
    alike = [3 * shared[group] + noise() for group in groups]
    walks = [torch.stack([noise() for _ in range(5)]).cumsum(0).unbind() for _ in range(4)]
    for index in (indices.linear_cka, indices.procrustes_angle, indices.linear_regression):
        assert resi.separation(index, alike, groups) == 1
        assert resi.separation(index, [noise() for _ in groups], groups) < 0.6
        assert resi.monotony(index, [list(walk) for walk in walks]) > 0.9
