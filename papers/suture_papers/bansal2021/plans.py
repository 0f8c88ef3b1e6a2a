"""The plans of the studies of bansal2021, at every scale: which networks, at which cuts, on which data.

Networks go by their names in the ledger. Trials that several studies share (the curve of two ResNet-18s above all) have
one key and are measured once.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import pandas as pd

from suture import Data, Network, Trial, baselines, compare, controls
from suture.core.stitches import Conv, Linear
from suture.extend import At
from suture.fits import Adam, Cosine, Fit, TaskLoss
from suture.fits import Random as FromRandom
from suture.measurement.indices import linear_cka
from suture.measurement.trials.controls import Control
from suture_papers.bansal2021 import pretrained
from suture_papers.bansal2021.folds import plan_folds
from suture_papers.bansal2021.invariance import CHANGED, CHANGES, apply_change
from suture_papers.base.cells import SIMILARITIES, number_pair
from suture_papers.base.plans import (
    ACCURACY,
    BLOCKS,
    Cuts,
    FitAtSeams,
    Pair,
    join_at,
    pair_in_circle,
    pair_seeds,
    plan_accuracy,
    plan_curves,
    plan_runs,
    plan_similarities,
    tell_apart,
)
from suture_papers.base.scale import PAPER, SMALL, TINY, Scale
from suture_papers.base.study import Beside, Deferred, Made, Part
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import BANSAL2021
from suture_papers.recipes import bansal2021 as PUBLISHED
from suture_papers.variants import Subset

R18, SAME, FEW = "resnet18", "resnet18 same steps", "resnet18 5000 samples"
LABELS = ("objects-animals", "10 % random labels", "50 % random labels", "100 % random labels")
SUBSETS = (5_000, 10_000, 25_000)
EPOCHS = (40, 80, 160)
WIDTHS = {"0.25": "resnet18 w0.25", "1": R18, "2": "resnet18 w2"}
SELF_STITCHED = (("1", "0.25"), ("0.25", "1"), ("1", "2"))  #: pairs whose receiver is stitched to itself, too
KERNELS = (1, 3, 5, 7, 9)
SMALL_KERNELS = KERNELS[:2]  #: at small scale
FROZEN = ("B.4", "section 6")
SIMCLR = "simclr classifier"
FOLDED = ("myrtle", "vgg19 digit", "mlp", R18)
LATER = ("layer2.1", "layer3.1", "layer4.1")  #: ends of stages behind the first third of ResNet-18
STAGE_ENDS = ("layer1.1", "layer2.1", "layer3.1")
_STAGES, _TOKENS = r"stages\.\d+(\.blocks\.\d+)?", r"blocks\.\d+"
_READ = 10_000  #: training images that a network's memory is tried on
_COMPARED = 1_000  #: images that bansal-invariance compares layers on


def data_of(scale: Scale) -> Data:
    """Return CIFAR-10, as much of it as the scale takes."""
    return scale.data("cifar10")


def paper_fit_of(scale: Scale) -> Fit | None:
    """Return the published fit at the paper's scale, where every seam takes it; none at the others."""
    return PUBLISHED if scale.name == PAPER else None


def find_blocks(pattern: str, first: int = 0, every: int = 1) -> Callable[[Network, Network], Sequence[At]]:
    """Return a function that finds the receiver's cuts by a pattern of names: from ``first`` on, each ``every``-th."""
    return lambda a, b: [name for name in b.cuts.names if re.fullmatch(pattern, name)][first::every]


def pair_few_seeds(scale: Scale, sender: str, receiver: str) -> list[Pair]:
    """Return the pairs of two networks; at tiny scale the first alone."""
    return pair_seeds(scale, sender, receiver)[: 1 if scale.name == TINY else None]


def pair_unlike_seeds(scale: Scale, sender: str, receiver: str) -> list[Pair]:
    """Pair networks that did not begin with the same weights, round in a circle; a single network meets every other."""
    starts, ends = scale.seeds(sender), scale.seeds(receiver)
    if min(len(starts), len(ends)) > 1:
        return pair_seeds(scale, sender, receiver)
    return [(i, j) for i in starts for j in ends if i != j]


# --- section 4 --------------------------------------------------------------------------------------------------------


def plan_connectivity(scale: Scale) -> list[Part]:
    """Plan bansal-2A: pairs of each architecture, at every cut between blocks; at small scale without the largest."""
    data = data_of(scale)
    made: list[Part] = [
        *_plan_alike(
            scale,
            R18,
            data,
            BLOCKS,
            controls=(*controls.DEFAULT, controls.clustered_noise),
            published=scale.published(PUBLISHED),
        ),
        *_plan_alike(scale, "resnet18 w0.5", data, BLOCKS),
        *_plan_alike(scale, "myrtle", data, ("stage?",)),
    ]
    if scale.name != SMALL:
        made += _plan_alike(scale, "resnet18 w2", data, BLOCKS)
        made += _plan_alike(scale, "vit", data, find_blocks(_TOKENS), stitch=Linear())
        made += _plan_alike(scale, "resnet164", data, find_blocks(_STAGES))
    return made


def _plan_alike(scale: Scale, name: str, data: Data, cuts: Cuts, **settings: Any) -> list[Deferred]:
    """Plan the curves of one architecture; five networks of it at small scale go round in a circle, for time."""
    five = scale.name == SMALL and len(scale.seeds(name)) == 5
    pairs = pair_in_circle(scale, name) if five else pair_few_seeds(scale, name, name)
    settings = {"published": paper_fit_of(scale), "seeds": pairs} | settings
    return plan_curves(scale, name, name, data, cuts=cuts, **settings)


def plan_disjoint(scale: Scale) -> list[Part]:
    """Plan bansal-2A-disjoint."""
    halves = ("resnet18 half 0", "resnet18 half 1")
    return [*plan_curves(scale, *halves, data_of(scale), published=scale.published(PUBLISHED))]


def plan_untrained(scale: Scale) -> list[Part]:
    """Plan bansal-2A-random."""
    cuts = ("layer1.[01]", "layer4.1") if scale.name == TINY else BLOCKS  # those of which a claim speaks
    settings: dict[str, Any] = {"also": (controls.untrained_sender,), "published": paper_fit_of(scale), "cuts": cuts}
    pairs = pair_in_circle(scale, R18)
    return [*plan_curves(scale, R18, R18, data_of(scale), seeds=pairs, alike=False, **settings)]


def plan_untrained_cka(scale: Scale) -> list[Part]:
    """Plan bansal-5."""
    return [
        *plan_untrained(scale),
        *plan_similarities(scale, R18, R18, data_of(scale), untrained=True, seeds=pair_in_circle(scale, R18)),
    ]


def plan_kernels(scale: Scale) -> list[Part]:
    """Plan bansal-4."""
    cuts = {PAPER: BLOCKS, TINY: STAGE_ENDS[-1:]}.get(scale.name, STAGE_ENDS)
    settings: dict[str, Any] = {"cuts": cuts, "published": paper_fit_of(scale), "seeds": pair_in_circle(scale, R18)}
    kernels = SMALL_KERNELS if scale.name == SMALL else KERNELS
    return [p for k in kernels for p in plan_curves(scale, R18, R18, data_of(scale), stitch=Conv(kernel=k), **settings)]


# --- section 5 --------------------------------------------------------------------------------------------------------


def plan_imagenet(scale: Scale) -> list[Part]:
    """Plan bansal-2B: of the user's files, or at tiny scale of narrow networks in their place.

    Raises ``SutureError`` if files are missing.
    """
    tiny = scale.name == TINY
    at = join_at(scale, find_blocks(r"layer\d\.\d"))
    if tiny:
        data, source = data_of(scale), "zoo:resnet50,width=4,blocks=(1,1,1,1)"
    else:
        folder, files = pretrained.find_files()
        data = scale.data(folder)

    def task(name: str, seed: int) -> BaseModel:
        return BaseModel(source, data.training, scale.base(R18, 0).recipe, seed, name=name, scored_on=(data.score,))

    def plan(name: str, number: int, *trained: Network) -> list[Trial]:
        both = (name, pretrained.SUPERVISED)
        a, b = trained or (pretrained.load_resnet50(one, files[one], data.fit.images[:4]) for one in both)
        runs = [FitAtSeams(scale.fit, at, (controls.untrained_sender,) if number == 0 else ())]
        runs += [FitAtSeams(PUBLISHED, at)] if scale.name == PAPER else []
        return plan_runs(a, b, number, data, runs, ACCURACY)

    return [
        Deferred((task(name, number + 1), task(pretrained.SUPERVISED, 0)) if tiny else (), partial(plan, name, number))
        for number, name in enumerate(pretrained.SELF_SUPERVISED)
    ]


def plan_simclr(scale: Scale) -> list[Part]:
    """Plan bansal-6: both directions, and a supervised sender of the same seeds into the same receivers."""
    data, there, back = data_of(scale), pair_unlike_seeds(scale, SIMCLR, R18), pair_unlike_seeds(scale, R18, SIMCLR)
    return [
        *plan_curves(scale, SIMCLR, R18, data, seeds=there, alike=True, published=scale.published(PUBLISHED)),
        *plan_curves(scale, R18, SIMCLR, data, seeds=back),
        *plan_curves(scale, R18, R18, data, seeds=there),
        *plan_similarities(scale, SIMCLR, R18, data, seeds=there),
        *plan_similarities(scale, R18, R18, data, seeds=there),
    ]


def _plan_senders(
    scale: Scale, senders: Sequence[str], receiver: str, data: Data, sampled: str, **settings: Any
) -> list[Part]:
    """Plan curves of several senders into one receiver; the published fit takes a sample of those of ``sampled``."""
    parts: list[Part] = []
    for sender in senders:
        published = scale.published(PUBLISHED) if sender == sampled else None
        pairs = {"seeds": pair_in_circle(scale, sender, receiver)} | settings
        parts += plan_curves(scale, sender, receiver, data, published=published, **pairs)
    return parts


def plan_labels(scale: Scale) -> list[Part]:
    """Plan bansal-3A, a sender of as many steps on right labels, and the labels memorised without any right one."""
    senders = [f"{R18} {kind}" for kind in LABELS]
    noisy = [scale.base(senders[-1], seed) for seed in scale.seeds(senders[-1])]
    kept = senders if scale.name != SMALL else senders[:-1]
    return [
        *_plan_senders(scale, kept, R18, data_of(scale), senders[0]),
        *plan_curves(scale, SAME, R18, data_of(scale), names=(SAME, R18)),
        *(
            plan_accuracy(f"{one.name}, {one.seed}", one, one.samples.first(min(_READ, len(one.samples))), one.seed)
            for one in noisy
        ),
    ]


# --- section 6 --------------------------------------------------------------------------------------------------------


def plan_samples(scale: Scale) -> list[Part]:
    """Plan bansal-2C: stitches are fitted to the 10,000 training images of the receiver."""
    senders, data = [f"{R18} {n} samples" for n in SUBSETS], scale.data("cifar10", Subset(10_000))
    return _plan_senders(scale, senders, f"{R18} 10000 samples", data, senders[-1])


def plan_epochs(scale: Scale) -> list[Part]:
    """Plan bansal-3B: of one training, so each pair is one seed."""
    receiver, data, parts = f"{R18} epoch 80", data_of(scale), list[Part]()
    runs = [(seed, seed) for seed in scale.seeds(receiver)]
    for at in EPOCHS:
        sender, names = f"{R18} epoch {at}", (f"epoch {at}", "epoch 80, receiving")
        parts += _plan_senders(scale, [sender], receiver, data, f"{R18} epoch {EPOCHS[0]}", seeds=runs, names=names)
    return parts


def plan_widths(scale: Scale) -> list[Part]:
    """Plan bansal-3C; at small scale with 0.25 and 1 times the width."""
    data, published = data_of(scale), scale.published(PUBLISHED)
    parts: list[Part] = []
    for a, b in permutations(WIDTHS, 2):
        if scale.name == SMALL and "2" in (a, b):
            continue
        sampled = published if (a, b) == ("1", "0.25") else None
        settings: dict[str, Any] = {"seeds": pair_few_seeds(scale, WIDTHS[a], WIDTHS[b]), "published": sampled}
        if (a, b) in SELF_STITCHED:
            settings["controls"] = (controls.itself,)
        parts += plan_curves(scale, WIDTHS[a], WIDTHS[b], data, **settings)
    return parts


def plan_section_6_cka(scale: Scale) -> list[Part]:
    """Plan bansal-7: CKA of the pairs of section 6, and the one stitch that it is set against."""
    data, runs = data_of(scale), [(seed, seed) for seed in scale.seeds(f"{R18} epoch 80")]
    own, itself = scale.data("cifar10", Subset(5_000)), (controls.itself,)
    return [
        *plan_curves(scale, f"{R18} 25000 samples", FEW, own, controls=itself, published=paper_fit_of(scale)),
        *(plan_similarities(scale, WIDTHS["0.25"], WIDTHS["2"], data) if scale.name != SMALL else ()),
        *plan_similarities(scale, R18, R18, data, seeds=pair_in_circle(scale, R18)),
        *plan_similarities(scale, FEW, f"{R18} 25000 samples", data),
        *plan_similarities(scale, f"{R18} epoch 80", f"{R18} epoch 160", data, seeds=runs),
    ]


def plan_fine_tuning(scale: Scale) -> list[Part]:
    """Plan bansal-8: no plain trials; at small scale three cuts of ResNet-18, in disjoint pairs, since its senders are
    untrained."""
    again: Fit = _TRAINED_ANEW if scale.name == PAPER else scale.published(_REDRAWN)

    def redrawn(trial: Trial) -> Trial:
        return baselines.retrained(controls.untrained_sender(trial), fit=again)

    both: tuple[Control, ...] = (controls.untrained_sender, redrawn)
    settings: dict[str, Any] = {"also": both, "published": paper_fit_of(scale), "cuts": find_blocks(_STAGES)}
    name = "resnet164" if scale.name != SMALL else R18
    if scale.name == SMALL:
        settings |= {"cuts": LATER, "seeds": pair_in_circle(scale, R18), "alike": False}
    parts = plan_curves(scale, name, name, data_of(scale), **settings)
    return [Deferred(part.bases, partial(_keep_controls, part)) for part in parts]


_TRAINED_ANEW = TaskLoss(
    start=FromRandom(),
    optimiser=BANSAL2021.optimiser,
    schedule=BANSAL2021.schedule,
    steps=64_000,
    batch=BANSAL2021.batch,
    patience=None,
    retries=0,
)  #: the recipe of the paper's networks, which appendix B.3 does not say; images are as they are
_REDRAWN = TaskLoss(start=FromRandom(), optimiser=Adam(lr=1e-3), schedule=Cosine(), batch=64, patience=None, retries=0)


def _keep_controls(part: Deferred, *networks: Network) -> list[Trial]:
    return [trial for trial in part.make(*networks) if trial.control]


def plan_freezing(scale: Scale) -> list[Part]:
    """Plan bansal-9: the networks, and the curves by which layers are chosen."""
    data = data_of(scale)
    names = (SAME, FEW, *(f"{R18} freeze {name}" for name in FROZEN))
    return [
        *plan_curves(scale, FEW, SAME, data, published=paper_fit_of(scale)),
        *plan_curves(scale, SAME, FEW, scale.data("cifar10", Subset(5_000)), published=paper_fit_of(scale)),
        *(
            plan_accuracy(f"{name}, {seed}", base, base.scored_on[0], seed)
            for name in names
            for seed in scale.seeds(name)
            for base in [scale.base(name, seed)]
        ),
    ]


# --- sections 2, 3 and 4: what is argued there ------------------------------------------------------------------------


def plan_probes(scale: Scale) -> list[Part]:
    """Plan bansal-probe."""
    return [
        *plan_curves(
            *(scale, R18, R18, data_of(scale)),
            also=(baselines.linear_probe, baselines.plugged),
            published=paper_fit_of(scale),
            seeds=pair_in_circle(scale, R18),
        )
    ]


def plan_invariance(scale: Scale) -> list[Part]:
    """Plan bansal-invariance: the sender as it is, and changed in two ways, at three cuts."""
    data = data_of(scale)
    parts: list[Part] = []
    for start, end in pair_in_circle(scale, R18):
        number = number_pair(start, end)
        bases = (scale.base(R18, start), scale.base(R18, end))
        parts.append(Deferred(bases, partial(_plan_changed, scale, data, number)))
        settings = (STAGE_ENDS, _COMPARED, data.fit, data.score)
        cka = partial(_compare_changed, data, number)
        parts.append(Beside(SIMILARITIES, f"changed, {number}", bases, cka, settings))
    return parts


def _change_sender(a: Network, data: Data) -> list[tuple[Network, str, str]]:
    """Return the sender and its changes, each with the cuts of sender and receiver."""
    plain = [(a, cut, cut) for cut in STAGE_ENDS]
    return plain + [(apply_change(a, cut, kind, data.fit), CHANGED, cut) for kind in CHANGES for cut in STAGE_ENDS]


def _plan_changed(scale: Scale, data: Data, number: int, a: Network, b: Network) -> list[Trial]:
    a, b = tell_apart(a, b)
    fits = [fit for fit in (scale.fit, paper_fit_of(scale)) if fit is not None]
    made: list[Trial] = []
    for sender, start, end in _change_sender(a, data):
        runs = [FitAtSeams(fit, [((start, end), None)]) for fit in fits]
        made += plan_runs(sender, b, number, data, runs, ACCURACY)
    return made


def _compare_changed(data: Data, number: int, stitched: Made, a: Network, b: Network) -> pd.DataFrame:
    a, b = tell_apart(a, b)
    settings: dict[str, Any] = {"data": data, "by": linear_cka, "samples": _COMPARED, "permutations": 0}
    rows = [
        compare(sender, b, sender_cuts=(start,), receiver_cuts=(end,), **settings)
        for sender, start, end in _change_sender(a, data)
    ]
    return pd.concat(rows, ignore_index=True).assign(network_seed=number)


def plan_folding(scale: Scale) -> list[Part]:
    """Plan bansal-fold: three networks and random stitches of each kind; trained networks recur if there are fewer."""
    most = 1 if scale.name == TINY else 3
    return [
        plan_folds(scale.base(name, seeds[number % len(seeds)]), number)
        for name in FOLDED
        for seeds in [scale.seeds(name)]
        for number in range(most)
    ]
