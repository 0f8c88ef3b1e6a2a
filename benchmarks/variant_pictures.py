"""One picture of all variants of data that can be seen: docs/images/variants.png.

python benchmarks/variant_pictures.py path/to/mnist path/to/cifar10 docs/images/variants.png
"""

import argparse
from pathlib import Path

from suture import load_data
from suture.data import Data
from suture.data.changes import stack, vary
from suture.reports.figures.curve import save
from suture.reports.figures.samples import sample_grid
from suture_papers.variants import (
    BlackedOut,
    Colour,
    ColourOnly,
    Correlated,
    Decorrelated,
    Digit,
    Grey3,
    RandomLabels,
    Relabelled,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mnist")
    parser.add_argument("cifar10")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    mnist, cifar = load_data(given.mnist, name="mnist"), load_data(given.cifar10, name="cifar10")
    stacked = stack(mnist, cifar)
    shown: list[tuple[str, Data]] = [
        (name, vary(mnist, variant))
        for name, variant in (
            ("grey3", Grey3()),
            ("correlated", Correlated()),
            ("digit", Digit()),
            ("colour", Colour()),
            ("colour-only", ColourOnly()),
        )
    ]
    shown += [
        ("mnist+cifar10", stacked),
        ("mnist+cifar10, decorrelated", vary(stacked, Decorrelated())),
        ("mnist+cifar10, blacked-out,side=mnist", vary(stacked, BlackedOut("mnist"))),
        ("cifar10, random-labels,p=1.0", vary(cifar, RandomLabels(1.0))),
        ("cifar10, relabelled,label=automobile,to=cat", vary(cifar, Relabelled("automobile", "cat"))),
    ]
    print(*save(sample_grid(shown, rows=1), given.out.with_suffix("")), sep="\n")
