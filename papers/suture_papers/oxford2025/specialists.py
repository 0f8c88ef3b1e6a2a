"""oxford-6.2: specialists stitched into an expert for one combination, beside fine-tuning as long on it.

Section 6.2 of oxford2025 is an outlook, without an experiment. An input is M pictures, each of one of ten categories,
and all M are to be named; some time T before the task, one combination is marked as important. Either a network is
fine-tuned on it for T, or of 10·M specialists, one for each category of each picture, the M that are concerned are
stitched together. This is the simplest honest version of it, with M = 2.

* *The task*: an MNIST digit above a CIFAR-10 picture, drawn independently; a class for each of the 100 combinations.
* *The general network*: the CNN of section 4.3 with 100 outputs, trained on that.
* *Specialists*, made before T: the general network trained on for ``AHEAD`` epochs, on all images with its category and
  as many others. Two are needed: one for the marked digit, one for the marked picture.
* *T* is ``STEPS`` steps of ``BATCH`` images: all images of the marked combination and as many others. Fine-tuning
  spends them on all weights of the general network, stitching on the stitch, from its closed form. A step of the latter
  is the cheaper one, so stitching takes no longer.
* *The marked combination* is the commonest of the test images, since its accuracy is read from those alone.

The digits' specialist sends. Both networks are scored on the same images, by accuracy on the marked combination and on
all of them; with 1 point for an input and 1,000 for a marked one, the first is what counts.
"""

from dataclasses import dataclass, replace
from typing import final

import pandas as pd
import torch

from suture import Data, Network, Samples
from suture.data.changes import Variant
from suture.extend import keyed_as
from suture.fits import SGD, Constant, Fit, LeastSquares, TaskLoss
from suture.measurement.scores.scores import Accuracy
from suture.measurement.scores.traits import Trait
from suture_papers.base.cells import NETWORKS, Where
from suture_papers.base.claims import Claim, Roles
from suture_papers.base.plans import FitAtSeams, plan_pair, predict
from suture_papers.base.quantities import Difference, Mean
from suture_papers.base.scale import PAPER, TINY, Scale
from suture_papers.base.study import Beside, Made, Part
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import OXFORD2025, OXFORD_SMALL
from suture_papers.oxford2025.plans import STACKED
from suture_papers.variants import Decorrelated, order_of

SOURCE = "zoo:cnn,dense=3,image=(64,32),classes=100"
AHEAD, STEPS, BATCH = 3, 300, 32
MARKED = "accuracy on the marked combination"
GENERAL, TUNED, OF_DIGIT, OF_PICTURE = "general", "fine-tuned", "digit specialist", "picture specialist"
BY_THEMSELVES = (GENERAL, TUNED, OF_DIGIT, OF_PICTURE)
_OPTIMISER = SGD(lr=4e-3, momentum=0.9)


@keyed_as("Combinations")
@final
@dataclass(frozen=True)
class Combinations(Variant):
    """MNIST-CIFAR with digits at random, labelled by both: ``10 · digit + picture``. Changes every role."""

    @property
    def summary(self) -> str:
        """The name of the variant."""
        return "combinations"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with a class for each combination."""
        count = len(data.classes)
        classes = tuple(f"{digit} & {picture}" for digit in range(count) for picture in data.classes)
        drawn = Decorrelated().change(samples, data)
        # a digit's label is that of the image that ``Decorrelated`` takes the digit from
        order = order_of(samples, "decorrelated", 0).to(samples.labels.device)
        return replace(drawn, labels=count * samples.labels[order] + samples.labels, classes=classes)


@keyed_as("Emphasised")
@final
@dataclass(frozen=True)
class Emphasised(Variant):
    """Training data of some classes, and as many samples of the others, the first there are. ``of`` says which."""

    labels: tuple[int, ...]
    of: str

    everywhere = False

    @property
    def summary(self) -> str:
        """The name of the emphasised part."""
        return f"emphasising {self.of}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples of those classes, and as many of the others."""
        meant = torch.isin(samples.labels.cpu(), torch.tensor(self.labels))
        chosen, others = torch.where(meant)[0], torch.where(~meant)[0]
        kept = torch.cat([chosen, others[: max(2, len(chosen))]]).sort().values
        return samples.take(kept.to(samples.labels.device), samples.name)


def find_marked(data: Data) -> int:
    """Return the commonest label of the score samples; the first of several."""
    return int(torch.bincount(data.score.labels, minlength=len(data.classes)).argmax())


def seeds_of(scale: Scale) -> tuple[int, ...]:
    """Return the seeds of the general network."""
    return (10, 11) if scale.name == TINY else (10, 11, 12, 13, 14)


def plan_specialists(scale: Scale) -> list[Part]:
    """Return the general networks, their specialists, the seams of these, and the accuracy of each."""
    data = Combinations()(scale.whole("mnist+cifar10"))
    label = find_marked(data)
    digit, picture = divmod(label, 10)
    here = Emphasised((label,), "the marked combination")(data)
    with_digit = Emphasised(tuple(range(10 * digit, 10 * digit + 10)), "the marked digit")(data)
    with_picture = Emphasised(tuple(range(picture, 100, 10)), "the marked picture")(data)
    scores = (Accuracy(), Trait(MARKED, Accuracy((label,))))
    parts: list[Part] = []
    of_general = OXFORD2025 if scale.name == PAPER else OXFORD_SMALL
    ahead = replace(OXFORD_SMALL, epochs=AHEAD, stop=None)
    tuning = replace(OXFORD_SMALL, optimiser=_OPTIMISER, batch=BATCH, epochs=None, steps=STEPS, stop=None)
    if scale.name == TINY:
        of_general, ahead, tuning = (
            replace(recipe, epochs=None, steps=2, stop=None) for recipe in (of_general, ahead, tuning)
        )
    for seed in seeds_of(scale):
        general = BaseModel(SOURCE, data.training, of_general, seed, name=GENERAL)
        on = [(OF_DIGIT, with_digit, ahead), (OF_PICTURE, with_picture, ahead), (TUNED, here, tuning)]
        made = [BaseModel(SOURCE, of.training, recipe, seed, name=name, start=general) for name, of, recipe in on]
        parts.append(plan_pair(seed, made[:2], here, [FitAtSeams(_fit_of(scale), STACKED)], scores))
        parts += [_plan_accuracy(base, data.score, label, seed) for base in (general, *made)]
    return parts


def _fit_of(scale: Scale) -> Fit:
    steps = 2 if scale.name == TINY else STEPS
    settings = {"schedule": Constant(), "batch": BATCH, "steps": steps, "check": steps, "patience": None, "retries": 0}
    return TaskLoss(start=LeastSquares(), optimiser=_OPTIMISER, **settings)  # type: ignore[arg-type]


def _plan_accuracy(base: BaseModel, score: Samples, label: int, seed: int) -> Beside:
    """Return how a network does on all test images and on those of the marked combination."""

    def make(stitched: Made, network: Network) -> pd.DataFrame:
        right, meant = Accuracy().per_sample(predict(network, score), score.labels), score.labels == label
        shared = {"network_seed": seed, "sender": network.name, "unit": "fraction", "measure": ""}
        rows = [("accuracy", right), (MARKED, right[meant])]
        return pd.DataFrame(
            [shared | {"measure": name, "accuracy": float(of.mean()), "n": len(of)} for name, of in rows]
        )

    return Beside(NETWORKS, f"{base.name}, {seed}", (base,), make, (score, label))


def claim_specialists() -> tuple[Claim, ...]:
    """Report the expert at each cut, less the fine-tuned network, and every network by itself."""
    made = list[Claim]()
    roles = Roles("images of the marked combination and as many others", "test images", "the fine-tuned network")
    for score, words in ((MARKED, "the marked combination"), ("accuracy", "all combinations")):
        tuned = Mean("accuracy", Where(table=NETWORKS, sender=TUNED, measure=score))
        for at, _ in STACKED:
            expert = Mean(
                "stitched", Where(score=score, sender=OF_DIGIT, receiver=OF_PICTURE, sender_cut=str(at), fit="any")
            )
            less = f"accuracy of the stitched expert at {at} minus that of the fine-tuned network: {words}"
            made.append(
                Claim(less, "section 6.2", Difference(expert, tuned), fit="task loss, as many steps", roles=roles)
            )
        for name in BY_THEMSELVES:
            own = Mean("accuracy", Where(table=NETWORKS, sender=name, measure=score))
            made.append(Claim(f"accuracy of the {name} network: {words}", "section 6.2", own, unit="%", roles=roles))
    return tuple(made)
