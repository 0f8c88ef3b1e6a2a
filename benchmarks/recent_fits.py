"""The fits of the last years beside the default, and how many of the working cuts are in distribution.

    python -m benchmarks.recent_fits run DATA FOLDER     measures what is missing; the store is FOLDER
    python -m benchmarks.recent_fits collect FOLDER      writes results/recent_fits/{fits,triangle,noise}.parquet
    python -m benchmarks.recent_fits tables              the tables of results/recent_fits/tables.md, as Markdown
    python -m benchmarks.recent_fits cost DATA           the share of a trial that the AUROC costs, interleaved

``DATA`` is a folder with ``cifar10/`` and ``mnist/`` in the hub's parquet layout; the networks are those of
``papers/results/networks``. Stitches are fitted on the first 2,000 images to fit, validated on 1,024 and scored on
1,000, so that all takes half an hour of one core; the published fits take 10 epochs of these, 150 steps of 128, instead
of theirs of 50,000, except where they say otherwise. One thread; a run goes on where it was stopped.

- ``fits``: 25 seams, each by every fit; none is of the reference table. At four also functional latent alignment on
  images that the sender cannot tell from the data's own, its successor's forward and backward match.
- ``triangle``: hernandez2022's matrix at the ends of stages, resnet18-10 → resnet18-11, by ``Quick``.
- ``noise``: clustered noise in the sender's place (smith2024), and each receiver's own trial beside it, by ``Quick``.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import torch

import suture
from benchmarks.reference import kind_of, load_data, load_network
from suture import controls
from suture.core.stitches import Conv
from suture.fits import Converged, Fit, LeastSquares, Quick
from suture.measurement.scores.in_distribution import MEASURES
from suture.measurement.tables.table import MARGIN, load, save, told_from_own
from suture.measurement.trials import measure as measuring
from suture.measurement.trials.plans import Settings, plan_seam
from suture.runs.runners import Lines
from suture_papers import recipes
from suture_papers.fits_of_others import MatchPenultimate, RelativeRepresentations

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "recent_fits"
FIT, VALIDATION, SCORE, EPOCHS = 2_000, 1_024, 1_000, 10

_PENULTIMATE = recipes.mai2026.start
assert isinstance(_PENULTIMATE, MatchPenultimate)
_FULA = recipes.for_epochs(recipes.athanasiadis2025, EPOCHS, FIT)
_MATCH = recipes.for_epochs(_PENULTIMATE, EPOCHS, FIT)
FITS: dict[str, Fit] = {
    "Converged (default)": Converged(),
    "LeastSquares": LeastSquares(),
    "RelativeRepresentations": RelativeRepresentations(),
    "FunctionalLatentAlignment": _FULA,
    "MatchPenultimate": _MATCH,
    "MatchPenultimate, then TaskLoss": replace(recipes.for_epochs(recipes.mai2026, EPOCHS, FIT), start=_MATCH),
}
AWARE = "FunctionalLatentAlignment, invariance aware"
#: Pairs of networks, sender cut and receiver cut; one name is both.
SEAMS: dict[tuple[str, str], str] = {
    ("mlp-10", "mlp-11"): "block2.relu block4.relu block6.relu block8.relu block1.relu block3.relu block5.relu "
    "block7.relu block6.relu:block3.relu block3.relu:block6.relu block8.relu:block7.relu block2.relu:block1.relu "
    "block5.relu:block2.relu block2.relu:block5.relu block7.relu:block5.relu block4.relu:block6.relu "
    "block9.relu block9.relu:block8.relu block8.relu:block6.relu block3.relu:block4.relu",
    ("cnn-10", "cnn-11"): "fc1_relu",
    ("resnet18-10", "resnet18-11"): "layer4.1 layer4.0 layer3.1 layer4.0:layer3.1",
}
AWARE_CUTS = 4  #: of the first pair
STAGES = tuple(f"layer{stage}.1" for stage in (1, 2, 3, 4))  #: their ends
NOISE = {
    "mlp-11": ("block2.relu", "block4.relu", "block6.relu", "block8.relu"),
    "cnn-11": ("fc1_relu",),
    "resnet18-11": ("layer4.1", "layer3.1", "layer2.1"),
}


@cache
def _load(data: Path, name: str) -> tuple[suture.Data, suture.Network]:
    images = load_data(data, kind_of(name)).limited(fit=FIT, score=SCORE)
    images = replace(images, validation=images.validation.first(VALIDATION))
    return images, load_network(name, images.example)


def _seams(data: Path, pair: tuple[str, str], cuts: str) -> Iterator[tuple[suture.Seam, suture.Data]]:
    images, sender = _load(data, pair[0])
    for at in cuts.split():
        start, _, end = at.partition(":")
        yield suture.Seam(sender, _load(data, pair[1])[1], start, end or start), images


def plan_fits(data: Path, kinds: str = "mlp cnn resnet18") -> Iterator[suture.Trial]:
    """Yield every seam of some kinds of networks by every fit."""
    for pair, cuts in SEAMS.items():
        for seam, images in _seams(data, pair, cuts) if pair[0].split("-")[0] in kinds.split() else ():
            family = suture.stitches.stitch_for(*seam.shapes)
            family = replace(family, batchnorm=False) if isinstance(family, Conv) else family  # as in the papers
            for fit in FITS.values():
                yield from plan_seam(seam, images, Settings(stitch=family, fit=fit, controls=()))


def plan_aware(data: Path) -> Iterator[suture.Trial]:
    """Yield the first seams by functional latent alignment on images that the sender cannot tell from the data's."""
    pair, cuts = next(iter(SEAMS.items()))
    for seam, images in _seams(data, pair, " ".join(cuts.split()[:AWARE_CUTS])):
        (trial,) = plan_seam(seam, images, Settings(fit=_FULA, controls=()))
        yield controls.invariance_aware(trial)


def plan_triangle(data: Path) -> Iterator[suture.Trial]:
    """Yield the matrix of the ends of stages."""
    images, sender = _load(data, "resnet18-10")
    receiver = _load(data, "resnet18-11")[1]
    for start, end in product(STAGES, STAGES):
        yield from plan_seam(suture.Seam(sender, receiver, start, end), images, Settings(fit=Quick(), controls=()))


def plan_noise(data: Path) -> Iterator[suture.Trial]:
    """Yield every receiver cut with noise, and with the other network of its kind, in the sender's place."""
    for name, cuts in NOISE.items():
        images, receiver = _load(data, name)
        sender = _load(data, name.replace("-11", "-10"))[1]
        for cut in cuts:
            settings = Settings(fit=Quick(), controls=(controls.clustered_noise,))
            yield from plan_seam(suture.Seam(sender, receiver, cut, cut), images, settings)


def run(data: Path, folder: Path) -> None:
    """Measure the missing trials, the cheapest first."""
    for name, trials in (
        ("fits", plan_fits(data, "mlp cnn")),
        ("noise", plan_noise(data)),
        ("triangle", plan_triangle(data)),
        ("fits", plan_fits(data, "resnet18")),
        ("fits", plan_aware(data)),
    ):
        one = suture.Local(workers=1)
        suture.run(list(trials), store=folder / name, on=one, extend=True, progress=Lines())
        _collect(folder, name)


def _collect(folder: Path, name: str) -> None:
    save(suture.Store(folder / name).table(), RESULTS / f"{name}.parquet")


# --- what is shown ----------------------------------------------------------------------------------------------------


def _accuracy(name: str) -> pd.DataFrame:
    table = load(RESULTS / f"{name}.parquet")
    return table[(table["score"] == "accuracy") & (table["status"] == "ok")]


def _named(table: pd.DataFrame) -> pd.DataFrame:
    names = {str(fit): name for name, fit in FITS.items()}
    return table.assign(
        by=[AWARE if kind else names[fit] for fit, kind in zip(table["fit"], table["control"], strict=True)]
    )


_HEADS = ("seams", "penalty, pp", "AUROC, Mahalanobis", "AUROC, k-NN", "works", "of them apart")


def tables() -> Iterator[str]:
    """Yield the lines of the tables: medians over seams, and the least and the largest AUROC."""
    table = _named(_accuracy("fits"))
    yield from _heading("fit", *_HEADS, "representation error", "s")
    for kind in ("", "resnet18"):
        held = table[table["receiver"].str.startswith(kind)]
        for by in [*FITS, AWARE]:
            rows = held[held["by"] == by]
            if len(rows):
                middle = rows[["representation_error", "seconds"]].median()
                name = f"{by}, {kind}" if kind else by
                yield _line(name, *_cells(rows), f"{middle.iloc[0]:.2f}", f"{middle.iloc[1]:.1f}")
    yield ""
    yield from _heading("triangle", *_HEADS)
    held = _accuracy("triangle")
    ahead = (held["sender_depth"] - held["receiver_depth"]).round(9)
    for name, where in (("late → early", ahead > 0), ("the same cut", ahead == 0), ("early → late", ahead < 0)):
        yield _line(name, *_cells(held[where]))
    yield ""
    yield from _heading("receiver", "sender", *_HEADS)
    for receiver, held in _accuracy("noise").groupby("receiver", sort=False):
        for control, sender in (("clustered noise", "clustered noise"), ("", "the other network")):
            yield _line(receiver, sender, *_cells(held[held["control"] == control]))


def _heading(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield _line(*["---"] * len(names))


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cells(rows: pd.DataFrame) -> list[str]:
    works = rows["penalty_high"] <= MARGIN
    apart = works & told_from_own(rows)
    spread = [rows[f"apart_{name}"].agg(["median", "min", "max"]) for name in MEASURES]
    aurocs = [f"{middle:.2f} ({least:.2f} … {most:.2f})" for middle, least, most in spread]
    return [str(len(rows)), f"{rows['penalty'].median():.1f}", *aurocs, str(works.sum()), str(apart.sum())]


# --- what it costs ----------------------------------------------------------------------------------------------------


def cost(data: Path, repeats: int = 3) -> None:
    """Print the share of a trial's processor time that the AUROC takes, each trial alone, several times in turns."""
    spent: list[float] = []
    plain = measuring._tell_apart

    def timed(*given: object) -> object:
        began = time.process_time()
        found = plain(*given)  # type: ignore[arg-type]
        spent.append(time.process_time() - began)
        return found

    measuring._tell_apart = timed  # type: ignore[assignment]
    torch.set_num_threads(1)
    for pair, cut in (
        (("mlp-10", "mlp-11"), "block5.relu"),
        (("resnet18-10", "resnet18-11"), "layer4.1"),
    ):
        ((seam, images),) = _seams(data, pair, cut)
        shares: dict[str, list[float]] = {}
        for _ in range(repeats):
            for fit in (Converged(), Quick(), LeastSquares()):
                (trial,) = plan_seam(seam, images, Settings(fit=fit, controls=()))
                began = time.process_time()
                measuring.measure(trial)
                whole = time.process_time() - began
                shares.setdefault(str(fit), []).append(100 * spent[-1] / whole)
        said = ", ".join(f"{fit} {statistics.median(found):.2f} %" for fit, found in shares.items())
        print(f"{seam}: {said} of a trial; {1000 * statistics.median(spent):.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "collect", "tables", "cost"))
    parser.add_argument("paths", nargs="*", type=Path)
    given = parser.parse_args()
    if given.what == "run":
        torch.set_num_threads(1)
        run(*given.paths)
    elif given.what == "collect":
        for name in ("fits", "noise", "triangle"):
            _collect(given.paths[0], name)
    elif given.what == "tables":
        print("\n".join(tables()))
    else:
        cost(*given.paths)


if __name__ == "__main__":
    main()
