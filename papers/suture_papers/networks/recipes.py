"""Recipes of training by name: those of the papers, exact, and the fast ones of this project.

bansal2021 appendix A.2; oxford2025 section 3; smith2024 appendices B.1 and C.2; SimCLR is Chen et al. 2020,
arXiv:2002.05709, appendix B.9. Settings that a paper does not give are ours, and marked here.
"""

from dataclasses import replace

from suture.fits import SGD, AdamW, Constant, Cosine, OneCycle, Steps
from suture_papers.training import L1, L2, CropFlip, Plateau, Prune, Recipe, SimCLR, SimCLRView

BANSAL2021 = Recipe(
    steps=64_000,
    batch=128,
    optimiser=SGD(lr=0.05, momentum=0.9, weight_decay=1e-4),
    schedule=Steps((0.5, 0.75), 0.2),
    augment=CropFlip(4),
)
"""ResNets on CIFAR-10. The batch is that of the authors' code."""

BANSAL2021_MYRTLE = Recipe(
    steps=80_000, batch=128, optimiser=SGD(lr=1.0, momentum=0.0), schedule=Constant(), augment=CropFlip(4)
)
"""Myrtle-CNN on CIFAR-10. The paper names no momentum and no weight decay, so there is none."""

BANSAL2021_VIT = Recipe(
    epochs=200,
    batch=128,
    optimiser=AdamW(lr=5e-4, weight_decay=0.05),
    schedule=OneCycle(0.05),
    augment=CropFlip(4),
    precision="fast",
)
"""ViT. The paper gives no recipe; this is ours."""

OXFORD2025 = Recipe(epochs=100, batch=4, optimiser=SGD(lr=1e-3, momentum=0.9), schedule=Constant(), stop=Plateau())
"""MLPs and CNNs, until the loss plateaus; what that is, and at most 100 epochs, is ours."""

OXFORD2025_SIMPLE = replace(OXFORD2025, penalty=L1(1e-5), prune=Prune(0.1, 500))
"""The simpler ResNet-18 of section 4.4: L1 and intermittent random pruning. The paper gives neither λ nor share."""

OXFORD2025_COMPLEX = replace(OXFORD2025, penalty=L2(1e-4))
"""The more complex ResNet-18 of section 4.4: L2. The paper does not give λ."""

SMITH2024 = Recipe(epochs=4, batch=128, optimiser=SGD(lr=0.1, momentum=0.9, weight_decay=1e-4), schedule=Constant())
"""ResNet-18 on the colour data sets. The paper names no schedule."""

SMITH2024_VGG = Recipe(
    epochs=50, batch=64, optimiser=SGD(lr=1e-2, momentum=0.9, weight_decay=1e-4), schedule=Constant()
)
"""VGG19 on the colour data sets."""

SIMCLR = Recipe(
    epochs=800,
    batch=512,
    optimiser=SGD(lr=0.5, momentum=0.9, weight_decay=1e-4),
    schedule=Cosine(),
    augment=SimCLRView(),
    objective=SimCLR(),
    precision="fast",
)
"""SimCLR's first stage, with SGD in the place of LARS. bansal2021 does not say how its SimCLR network was trained."""

LINEAR = Recipe(epochs=5, batch=256, optimiser=SGD(lr=0.1, momentum=0.9), schedule=Cosine(), precision="fast")
"""A linear classifier on frozen layers, SimCLR's second stage."""

DIGITS = Recipe(epochs=15, batch=64)
"""Small convolutional networks on the 8x8 digits."""

FAST = Recipe(
    epochs=16,
    batch=128,
    optimiser=SGD(lr=0.2, nesterov=True, weight_decay=5e-4),
    schedule=OneCycle(0.2),
    augment=CropFlip(4),
    precision="fast",
)
"""Convolutional networks on CIFAR-10, on a laptop."""

FAST_STEPS = replace(FAST, epochs=None, steps=3_000)
"""As ``fast``, but as many steps for few samples as for all."""

FAST_VIT = Recipe(
    epochs=16,
    batch=128,
    optimiser=AdamW(lr=1e-3, weight_decay=0.05),
    schedule=OneCycle(0.1),
    augment=CropFlip(4),
)
"""Small vision transformers on CIFAR-10."""

FAST_MNIST = Recipe(
    epochs=5,
    batch=128,
    optimiser=SGD(lr=0.05, nesterov=True, weight_decay=5e-4),
    schedule=OneCycle(0.2),
    precision="fast",
)
"""Small convolutional networks on MNIST."""

STEPPED = replace(BANSAL2021, steps=None, epochs=16, precision="fast")
"""bansal2021's recipe in a tenth of its steps, with the drops of the rate at the same shares."""

SIMCLR_SMALL = replace(SIMCLR, epochs=16)
"""SimCLR in an evening."""

OXFORD_SMALL = replace(OXFORD2025, epochs=20, batch=32, optimiser=SGD(lr=4e-3, momentum=0.9), stop=Plateau(patience=3))
"""oxford2025's recipe with a batch eight times as large at four times the rate."""

OXFORD_SMALL_MLP = replace(OXFORD_SMALL, optimiser=SGD(lr=1e-2, momentum=0.9), stop=Plateau(patience=8))
"""As ``oxford-small``, for MLPs of nine hidden layers, whose loss stays at chance for the first epochs."""

OXFORD_SMALL_RETRAINED = replace(OXFORD_SMALL, batch=128, optimiser=SGD(lr=0.1, momentum=0.9))
"""The same for one layer alone: at the rate before, fc1 learns no truck in 40 epochs, because fc4 never named one."""

COMPLEX_SMALL = replace(SMITH2024, optimiser=SGD(lr=0.02, momentum=0.9), penalty=L2(1e-4))
"""oxford2025's more complex network of section 4.4 in four epochs."""

SIMPLE_SMALL = replace(COMPLEX_SMALL, penalty=L1(1e-5), prune=Prune(0.1, 200))
"""oxford2025's simpler network of section 4.4 in four epochs."""

SMITH_VGG_SMALL = replace(
    SMITH2024_VGG, epochs=4, optimiser=SGD(lr=3e-3, momentum=0.9, weight_decay=1e-4), precision="fast"
)
"""smith2024's recipe for VGG19 in four epochs, at a third of the rate, at which narrow networks do not diverge."""

SMITH_VGG_SLOW = replace(SMITH_VGG_SMALL, optimiser=SGD(lr=1e-3, momentum=0.9, weight_decay=1e-4))
"""The same at a tenth of the rate: at a third, in float32, two of three networks on plain colours failed."""

RECIPES: dict[str, Recipe] = {
    name.lower().replace("_", "-"): recipe for name, recipe in globals().copy().items() if isinstance(recipe, Recipe)
}
"""Every recipe by its name, such as ``bansal2021-vit``, in the order above."""
