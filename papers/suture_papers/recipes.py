"""The fits of the papers, by name, and the optimisers and schedules that fits and trainings are made of.

A published fit takes as many steps as its paper at that paper's number of samples, from a random start unless it says
otherwise; ``for_epochs`` gives it another length. All of them descend in float32 on features as the sender gives them,
with the stitch's BatchNorms in training mode, take all their steps and keep the last parameters. The authors augment
their images if that is said below; a stitch here is always fitted on unchanged images, so that the frozen prefix
runs once.
"""

from dataclasses import replace
from typing import TypeVar

from suture.common.errors import FitError
from suture.extend import PUBLISHED, set_rate
from suture.fits import (
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    Fit,
    GradientDescent,
    LeastSquares,
    MatchActivations,
    OneCycle,
    Optimiser,
    Random,
    Schedule,
    Steps,
    TaskLoss,
)
from suture_papers.fits_of_others import FunctionalLatentAlignment, MatchPenultimate

__all__ = [
    "RECIPES",
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "OneCycle",
    "Optimiser",
    "Schedule",
    "Steps",
    "athanasiadis2025",
    "bansal2021",
    "csiszarik2021",
    "for_epochs",
    "hernandez2022",
    "hernandez2022_copy",
    "mai2026",
    "oxford2025",
    "set_rate",
    "smith2024",
    "smith2024_noise",
    "smith2024_vgg",
]

_D = TypeVar("_D", bound=GradientDescent)

_CIFAR10, _MNIST = 50_000, 60_000  # training images


def for_epochs(fit: _D, epochs: int, samples: int) -> _D:
    """Return a fit that goes so often through so many samples, whole batches only, and checks once an epoch.

    Raises ``FitError`` for fewer than one epoch or one sample.
    """
    if epochs < 1 or samples < 1:
        raise FitError(f"for_epochs(…, epochs={epochs}, samples={samples}): both must be at least 1")
    epoch = samples // min(fit.batch, samples)
    return replace(fit, steps=epochs * epoch, check=epoch)


_PLAIN = TaskLoss(start=Random(), patience=None, retries=0, standardise=False)

bansal2021 = replace(
    _PLAIN, optimiser=Adam(lr=1e-3), schedule=Cosine(), batch=128, steps=120_000, check=_CIFAR10 // 128
)
"""Appendix A.4: Adam, cosine schedule, initial rate 0.001. The text has neither batch nor length: both are those of the
authors' code, which may also end at a training loss of 1e-6, and augments."""

hernandez2022 = for_epochs(
    replace(_PLAIN, optimiser=SGD(lr=0.01, momentum=0.9, weight_decay=0.01), schedule=Constant(), batch=256),
    4,
    _CIFAR10,
)
"""Section 1.2: gradient descent on the task. The text gives no settings: optimiser, batch and epochs are those of the
authors' code. Its warm-up of ten epochs, which four never end, is not taken over: the constant rate is ours."""

hernandez2022_copy = for_epochs(
    MatchActivations(
        start=Random(),
        optimiser=hernandez2022.optimiser,
        schedule=Constant(),
        batch=256,
        patience=None,
        retries=0,
        standardise=False,
    ),
    4,
    _CIFAR10,
)
"""Section 1.2: "copying", by mean squared error to the receiver's own activations. The settings are those of
``hernandez2022``; that the error is in units of the activations' variance is ours."""

oxford2025 = for_epochs(
    replace(_PLAIN, optimiser=SGD(lr=1e-3, momentum=0.9), schedule=Constant(), batch=4), 7, _CIFAR10
)
"""Section 3 and the listing of the appendix: SGD, rate 0.001, momentum 0.9, batches of 4; seven epochs in the listing,
while section 3 trains networks until the loss plateaus."""

smith2024 = for_epochs(
    replace(_PLAIN, optimiser=SGD(lr=1e-4, momentum=0.9, weight_decay=1e-2), schedule=Constant(), batch=128), 10, _MNIST
)
"""Appendix B.1, stitching between networks: 10 epochs. The paper names no schedule: the constant rate is ours."""

smith2024_noise = for_epochs(replace(smith2024, batch=64), 4, _MNIST)
"""Appendix B.1, stitching from clustered noise: batches of 64 and 4 epochs of 6,000 samples a class, else as
``smith2024``."""

smith2024_vgg = for_epochs(
    replace(_PLAIN, optimiser=SGD(lr=1e-2, momentum=0.9, weight_decay=1e-4), schedule=Constant(), batch=64), 50, _MNIST
)
"""Appendix C.2, VGG19 from clustered noise: 50 epochs."""

csiszarik2021 = for_epochs(
    replace(
        _PLAIN,
        start=LeastSquares(ridges=(1e-8,), rescale=False),
        optimiser=Adam(lr=1e-3),
        schedule=Steps((1 / 3, 2 / 3), 0.1),
        batch=128,
    ),
    30,
    _CIFAR10,
)
"""Csiszárik et al. 2021, arXiv:2110.14633: least squares, then Adam on the task. The settings are the defaults of the
authors' code, ``renyi-ai/drfrankenstein``, with its start ``ps_inv``; it augments. That the pseudo-inverse is a ridge
regression with next to no ridge is ours. Their stitch has no BatchNorm: ``Conv(batchnorm=False)``."""

athanasiadis2025 = for_epochs(
    FunctionalLatentAlignment(
        start=csiszarik2021.start,
        optimiser=Adam(lr=1e-3, weight_decay=1e-4),
        schedule=Steps((1 / 3, 2 / 3), 0.1),
        batch=128,
        patience=None,
        retries=0,
        standardise=False,
    ),
    30,
    _CIFAR10,
)
"""Athanasiadis, Karmush & Felsberg 2025, arXiv:2505.20142, functional latent alignment. The settings are those of the
authors' code for CIFAR-10, ``athaioan/invariance-aware-stitching``; it starts from the pseudo-inverse of 500 images,
where this takes all, and its hints are the ends of blocks. Their stitch has no BatchNorm: ``Conv(batchnorm=False)``.
Fitted on images that the sender cannot tell apart (``controls.invariance_aware``) it is the second version of the
paper, which asks for forward and backward compatibility."""

mai2026 = for_epochs(
    replace(
        _PLAIN,
        start=for_epochs(
            MatchPenultimate(
                optimiser=Adam(lr=1e-3), schedule=Cosine(), batch=128, patience=None, retries=0, standardise=False
            ),
            10,
            _CIFAR10,
        ),
        optimiser=Adam(lr=1e-3),
        schedule=Cosine(),
        batch=128,
    ),
    10,
    _CIFAR10,
)
"""Mai et al. 2026, arXiv:2603.12433: the receiver's penultimate features, then the task's loss. Its losses and their
order are the paper's, as its abstract and others' notes have them. Optimiser, schedule, batch and epochs are ours: the
text with its settings was not at hand, and there is no code. Its stitch is a network of two layers; here it is any."""

RECIPES: dict[str, Fit] = {
    "bansal2021": bansal2021,
    "hernandez2022": hernandez2022,
    "hernandez2022-copy": hernandez2022_copy,
    "oxford2025": oxford2025,
    "smith2024": smith2024,
    "smith2024-noise": smith2024_noise,
    "smith2024-vgg": smith2024_vgg,
    "csiszarik2021": csiszarik2021,
    "athanasiadis2025": athanasiadis2025,
    "mai2026": mai2026,
}
"""Every published fit, by its name."""

PUBLISHED.update(RECIPES)
