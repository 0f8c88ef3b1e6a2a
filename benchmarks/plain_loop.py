"""The plain loop: how a competent engineer stitches two networks with torch alone.

The frozen prefix is computed again for every batch, the stitch is a 1×1 convolution between two BatchNorms from torch's
own initialisation (bansal2021, section 2 and appendix A), trained by Adam with a cosine over a few epochs, in float32.
If the receiver's map is larger, the sender's is first up-sampled to it; if it is smaller, the convolution has a
kernel that equals its stride (hernandez2022, section 1.2). It trains on the images that other methods fit on, and reads
no validation data. The whole test set is evaluated once, as it comes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.seeds import undisturbed
from suture.core.network.network import Network
from suture.core.stitched import match_dtype
from suture.core.stitches import Shape, stitch_for
from suture.data import Samples
from suture.data.noise import ClusteredNoise
from suture.measurement.trials.trial import Trial


@dataclass(frozen=True)
class Plain:
    """The settings of the plain loop; those that it is measured with are the default."""

    epochs: int = 5
    batch: int = 128
    lr: float = 1e-3
    seed: int = 0
    evaluation_batch: int = 500

    def steps(self, samples: int) -> int:
        """Return the steps that so many training images take; the remainder of an epoch is left out."""
        return self.epochs * (samples // self.batch_of(samples))

    def batch_of(self, samples: int) -> int:
        """Return the images of a step."""
        return min(self.batch, samples)


@dataclass(frozen=True)
class PlainResult:
    """The result of the plain loop: the share of test images that are right, and the steps that it took."""

    accuracy: float
    steps: int


def plain_stitch(sender: Shape, receiver: Shape) -> nn.Module:
    """Make the stitch that one would write by hand, untrained; shapes are without the batch.

    Maps whose sizes are multiples of each other get BatchNorm, convolution, BatchNorm, vectors a linear layer, and
    anything else what the default family makes. Raises ``ShapeError`` if no family joins the two.
    """
    if len(sender) == len(receiver) == 1:
        return nn.Linear(sender[0], receiver[0])
    if len(sender) == len(receiver) == 3:
        axes = list(zip(sender[1:], receiver[1:], strict=True))
        if all(theirs % own == 0 for own, theirs in axes):
            return _normed(sender[0], receiver[0], (1, 1), tuple(theirs // own for own, theirs in axes))
        if all(own % theirs == 0 for own, theirs in axes):
            return _normed(sender[0], receiver[0], (axes[0][0] // axes[0][1], axes[1][0] // axes[1][1]), (1, 1))
    return stitch_for(sender, receiver).build(sender, receiver)


def _normed(given: int, wanted: int, kernel: tuple[int, int], growth: tuple[int, ...]) -> nn.Module:
    grow = [nn.Upsample(scale_factor=growth)] if max(growth) > 1 else []
    norms = nn.BatchNorm2d(given), nn.Conv2d(given, wanted, kernel, kernel), nn.BatchNorm2d(wanted)
    return nn.Sequential(*grow, *norms)


def measure_plain(trial: Trial, settings: Plain | None = None) -> PlainResult:
    """Train and score a stitch at a trial's seam by the plain loop, with one thread.

    Of the trial it takes networks, seam and data; its stitch, fit and seed are not read. Torch's global generator is
    left as it was. Raises ``FitError`` if the loss is not finite.
    """
    settings = settings if settings is not None else Plain()
    with undisturbed(), torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        images, labels = _sent(trial.sender, trial.fit_data), trial.fit_data.paired_labels
        prefix, suffix = _prefix(trial), trial.receiver.after(trial.receiver_cut)
        torch.manual_seed(settings.seed)
        stitch = plain_stitch(*trial.seam.shapes).to(trial.receiver.device).train()
        _train(stitch, prefix, suffix, images, labels, settings, trial)
        right = _right(stitch.eval(), prefix, suffix, trial, settings.evaluation_batch)
    return PlainResult(right / len(trial.score_data), settings.steps(len(images)))


def _prefix(trial: Trial) -> nn.Module:
    """Return the frozen layers of the sender; noise has none."""
    return trial.sender.upto(trial.sender_cut) if isinstance(trial.sender, Network) else nn.Identity()


def _sent(sender: Network | ClusteredNoise, samples: Samples) -> Tensor:
    """Return the input of the prefix: raw images, or noise."""
    return samples.images if isinstance(sender, Network) else sender.activations(samples)


def _train(
    stitch: nn.Module, prefix: nn.Module, suffix: nn.Module, images: Tensor, labels: Tensor, how: Plain, trial: Trial
) -> None:
    device, batch = trial.receiver.device, how.batch_of(len(images))
    used = len(images) // batch * batch
    optimiser = torch.optim.Adam(stitch.parameters(), lr=how.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, how.steps(len(images)))
    for _ in range(how.epochs):
        for chosen in torch.randperm(len(images))[:used].split(batch):
            with torch.no_grad():
                sent = match_dtype(prefix(images[chosen].to(device)), stitch)
            loss = nn.functional.cross_entropy(suffix(stitch(sent)), labels[chosen].to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    if not loss.isfinite():
        raise FitError(f"the loss of the plain loop at {trial.where} is not finite")


def _right(stitch: nn.Module, prefix: nn.Module, suffix: nn.Module, trial: Trial, batch: int) -> int:
    """Count the test images that the stitched network gets right."""
    score, device, right = trial.score_data, trial.receiver.device, 0
    given = _sent(trial.sender, score)
    with torch.no_grad():
        for start in range(0, len(score), batch):
            sent = match_dtype(prefix(given[start : start + batch].to(device)), stitch)
            said = suffix(stitch(sent)).argmax(1).cpu()
            right += int((said == score.labels[start : start + batch]).sum())
    return right
