"""Which index tells networks that should be alike from those that should not? A small ReSi of the indices themselves.

    python -m benchmarks.resi run DATA      trains 45 networks, compares them, writes results/resi.csv: ten minutes
    python -m benchmarks.resi table         the table of docs/which-index.md, as Markdown

After Klabunde et al. 2025 (ReSi), whose tests by design these are: *groups* of five networks that differ in what they
were trained on, so that two of one group are more alike than two of different groups. ``DATA`` is a folder with
``mnist/`` in the hub's parquet layout. Networks are ``zoo.mlp``, four layers of 64, trained on 3,000 images; layers are
the last before the output, on 1,000 test images that are the same for all groups of a test.

- ``labels``: a share of 0, 50 or 100 % of the labels is random.
- ``shortcut``: the background's colour tells the class, is drawn at random, or is what is to be told.
- ``augmented``: images as they are, moved by up to 4 pixels, or covered in their upper half.
- ``layers``: of every five networks' layers i < j < k, j is more like i (and like k) than i and k are like each other.

The score of a group test is the area under the precision-recall curve of all pairs of networks, those of one group
being the positives (``sklearn.metrics.average_precision_score``; 0.29 by chance); of ``layers`` the share of triples
that hold (0.5). An index whose order matters is the mean of both. Distances count backwards. Ranks are over indices,
ties shared.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import suture
from suture import zoo
from suture.data import changes
from suture.data.changes import vary
from suture.fits.optimisers import SGD
from suture.measurement import indices
from suture_papers import variants
from suture_papers.training import CropFlip, Recipe, train

RESULTS = Path(__file__).parent / "results" / "resi.csv"
SEEDS, FIT, SCORE = 5, 3_000, 1_000
RECIPE = Recipe(epochs=20, optimiser=SGD(lr=0.02, nesterov=True, weight_decay=5e-4))
BY = (*indices.INDICES.values(), indices.LinearCKA(debiased=True), indices.RBFCKA(debiased=True))
#: By test: each group's change of the data, and whether its images are moved; the last gives the images to compare on.
GROUPS: dict[str, tuple[tuple[tuple[changes.Variant, ...], bool], ...]] = {
    "labels": tuple(((variants.RandomLabels(p),), False) for p in (1.0, 0.5, 0.0)),
    "shortcut": (((variants.Correlated(),), False), ((variants.Colour(),), False), ((variants.Digit(),), False)),
    "augmented": (((changes.Covered(0, 0, 14, 28),), False), ((), True), ((), False)),
}


def layers_of(model: nn.Module, images: Tensor, example: Tensor, names: slice) -> list[Tensor]:
    """Return the outputs of a network's ReLUs."""
    network = suture.Network(model, example=example, name="n")
    cuts = [cut for cut in network.cuts.names if cut.endswith("relu")][names]
    samples = suture.data.Samples("images", images, torch.zeros(len(images), dtype=torch.long), ("none",))
    cache = suture.core.activations.cache.Activations()
    return [cache.at(network, cut, samples) for cut in cuts]


def of_test(data: suture.Data, test: str) -> tuple[list[list[Tensor]], list[int]]:
    """All layers of all networks of a test, and the group of each."""
    made, groups = [], []
    images = vary(data, *GROUPS[test][-1][0]).score.images
    for group, (those, moved) in enumerate(GROUPS[test]):
        changed = vary(data, *those)
        inputs = changed.example[0].numel()
        recipe = RECIPE if not moved else replace(RECIPE, augment=CropFlip(4, flip=False))
        for seed in range(SEEDS):
            model = train(lambda inputs=inputs: zoo.mlp(64, 4, inputs=inputs), changed.fit, recipe, seed)
            made.append(layers_of(model, images, changed.example, slice(None)))
            groups.append(group)
        print(f"{test}: group {group} trained", flush=True)
    return made, groups


def likeness(index: indices.Index, xs: list[Tensor]) -> Tensor:
    """The index at all pairs, higher for more alike, the order of the two not mattering."""
    values = index.all(xs)
    return (values + values.T) / 2 * (-1 if index.distance else 1)


def separation(index: indices.Index, last: list[Tensor], groups: list[int]) -> float:
    alike = likeness(index, last)
    pairs = list(combinations(range(len(groups)), 2))
    return float(
        average_precision_score([groups[i] == groups[j] for i, j in pairs], [float(alike[i, j]) for i, j in pairs])
    )


def monotony(index: indices.Index, networks: list[list[Tensor]]) -> float:
    held = []
    for layers in networks:
        alike = likeness(index, layers)
        for i, j, k in combinations(range(len(layers)), 3):
            held += [bool(alike[i, j] > alike[i, k]), bool(alike[j, k] > alike[i, k])]
    return sum(held) / len(held)


def run(folder: Path) -> None:
    data = suture.load_data(str(folder / "mnist")).limited(fit=FIT, score=SCORE)
    tests: dict[str, Callable[[indices.Index], float]] = {}
    for test in GROUPS:
        networks, groups = of_test(data, test)
        last = [layers[-1] for layers in networks]
        tests[test] = lambda index, last=last, groups=groups: separation(index, last, groups)
    tests["layers"] = lambda index, networks=networks[-SEEDS:]: monotony(index, networks)
    rows = []
    for index in BY:
        rows += [{"index": index.name, "test": test, "score": round(score(index), 4)} for test, score in tests.items()]
        print(pd.DataFrame(rows[-len(tests) :]).to_string(index=False, header=False), flush=True)
    pd.DataFrame(rows).to_csv(RESULTS, index=False)


def table() -> list[str]:
    """The table of the page, best mean rank first, as lines of Markdown."""
    scores = pd.read_csv(RESULTS).pivot(index="index", columns="test", values="score")[[*GROUPS, "layers"]]
    ranks = scores.rank(ascending=False)
    order = ranks.mean(axis=1).sort_values(kind="stable").index
    lines = [f"| index | {' | '.join(scores)} | mean rank |", "| --- |" + " --- |" * (len(scores.columns) + 1)]
    for name in order:
        cells = " | ".join(f"{scores.loc[name, of]:.2f} ({ranks.loc[name, of]:g})" for of in scores)
        lines.append(f"| `{name}` | {cells} | {ranks.loc[name].mean():.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    given = parser.parse_args()
    if given.what == "run":
        run(given.data)
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
