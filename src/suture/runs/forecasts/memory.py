"""What a plan holds in RAM at its worst moment, before any of it is measured; rather too much than too little.

A worker is a process with the networks and one trial at a time, the driver one with the networks and the images.
Activations are files in memory that the system may take back, and images too in a worker, so they do not count; nor do
libraries, which are mapped once for all processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from suture.common.errors import RunnerError
from suture.common.sizes import in_words
from suture.core.activations.cache import CHUNK
from suture.core.network.network import Network
from suture.core.stitches import Layers, Probe, Stitch
from suture.core.stitches.base import width
from suture.data import Samples
from suture.fits import BestOf, Descending, Fast, Fit, Logistic, Narrower
from suture.measurement.scores.outputs import LEAST
from suture.measurement.trials.trial import Trial, count_read

#: Bytes of a process that has done nothing yet: ``RssAnon`` was 482 MB after ``import suture`` and one way back through
#: a convolution, with torch 2.13 for the CPU.
PROCESS = 500 * 10**6

_LIVE = 3  #: tensors of the largest size that are there at once in a forward pass: what comes, goes, and lies between
_SAVED = 5  #: tensors that the way back needs, for each at a cut: 4.7 in a ViT, whose cuts lie far apart, 2 in a ResNet
_ROWS = 2**25  #: numbers in the rows of one step of ``fits.least_squares``
_COPIES = 7  #: of a stitch's parameters in a descent: themselves, gradients, two moments, the best, the start, the end
_LEAN = 2  #: times the receiver's suffix that its fused versions take: in float32, and in 16 bits while that is made


@dataclass(frozen=True)
class Footprint:
    """Bytes of RAM: of the driver, of each worker beside what its trial holds, and ``peak``, of the largest trial.

    ``largest`` names that trial; empty where there is none.
    """

    driver: int
    worker: int
    peak: int = 0
    largest: str = ""

    @property
    def per_worker(self) -> int:
        """Of a worker at its worst moment."""
        return self.worker + self.peak

    def of(self, workers: int) -> int:
        """Of all processes together; one worker alone is the driver itself."""
        return self.driver + (self.peak if workers == 1 else workers * self.per_worker)

    def fits_in(self, budget: int) -> int:
        """How many workers fit into a budget.

        Raises ``RunnerError``, with the largest trial, what it needs and the remedies, where not even one does.
        """
        if self.of(1) > budget:
            raise RunnerError(
                f"the largest trial, {self.largest}, needs about {in_words(self.of(1))} of RAM with one worker "
                f"({in_words(self.peak)} for itself, {in_words(self.driver)} for the process with networks and "
                f"images), and the budget is {in_words(budget)}; give fewer fit samples (data.limited(fit=…)), a later "
                "cut, or a larger budget"
            )
        return max(1, (budget - self.driver) // self.per_worker)


def footprint(trials: Sequence[Trial], disk: int | None = None) -> Footprint:
    """What trials hold in RAM; ``disk`` is the budget for activations, and what alone exceeds it is held in RAM."""
    networks = sum(weight(network.whole()) for network in _networks(trials))
    images = sum(samples.images.nbytes for samples in samples_of(trials))
    process, like = PROCESS + networks, Likenesses()
    held = [_peak(trial, like.of(trial)) + _unkept(trial, disk) for trial in trials]
    if not held:
        return Footprint(process + images, process)
    peak = max(held)
    return Footprint(process + images, process, peak, trials[held.index(peak)].where)


class Likenesses:
    """Stitches without memory, one for all trials that make the same."""

    def __init__(self) -> None:
        self._made: dict[object, nn.Module] = {}

    def of(self, trial: Trial) -> nn.Module:
        """A stitch like the trial's, on the meta device; of a family that cannot be made there, a real one."""
        kind = (trial.family, *trial.seam.shapes)
        if kind not in self._made:
            try:
                with torch.device("meta"):
                    self._made[kind] = trial.family.build(*trial.seam.shapes)
            except Exception:  # a family of the user's may do anything with what it builds
                with torch.random.fork_rng([]):
                    self._made[kind] = trial.family.build(*trial.seam.shapes)
        return self._made[kind]


def _networks(trials: Iterable[Trial]) -> list[Network]:
    """The networks of trials, each once."""
    return list({network.fingerprint: network for trial in trials for network in trial.seam.networks}.values())


def samples_of(trials: Iterable[Trial]) -> list[Samples]:
    """The samples of trials, once for the same images."""
    roles = (s for trial in trials for s in (trial.fit_data, trial.validation_data, trial.score_data))
    return list({samples.image_fingerprint: samples for samples in roles}.values())


def weight(module: nn.Module) -> int:
    """The bytes of the parameters and buffers of a module, each once."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def _peak(trial: Trial, stitch: nn.Module) -> int:
    """What a trial holds at its worst moment, with a stitch like this."""
    parameters = weight(stitch) * (_COPIES + _fits_of(trial.fit)) + _make_fused(trial)
    return _copies(trial) + parameters + max(_backwards(trial), _forwards(trial), _closed_form(trial), _convex(trial))


def _unkept(trial: Trial, disk: int | None) -> int:
    """Activations that the disk has no room for."""
    return sum(need.nbytes for need in trial.needs if disk is not None and need.nbytes > disk)


def _copies(trial: Trial) -> int:
    """Activations that are copied: those of other images, and what ``Narrower`` puts together."""
    sent, received = (prod(shape) * 4 for shape in trial.seam.shapes)
    fitted = len(trial.fit_data)
    broken = [count_read(trial, s) for s in (trial.fit_data, trial.validation_data) if s.pairing is not None]
    copies = received * sum(broken) if trial.fit.reads_receiver else 0
    return copies + (2 * sent + received) * fitted * _from_narrower(trial.fit)


def _from_narrower(fit: Fit) -> bool:
    match fit:
        case BestOf():
            return any(map(_from_narrower, fit.fits))
        case Descending():
            return _from_narrower(fit.start)
    return isinstance(fit, Narrower)


def _fits_of(fit: Fit) -> int:
    """Copies of a stitch that are kept while others are fitted."""
    return 2 if isinstance(fit, BestOf) else 0


def _batch(fit: Fit) -> int:
    """The samples of one step."""
    return max(map(_batch, fit.fits)) if isinstance(fit, BestOf) else getattr(fit, "batch", 0)


def _make_fused(trial: Trial) -> int:
    """The receiver's fused suffixes, where any are made."""
    wanted = _has_fast(trial.fit) or len(trial.score_data) >= LEAST
    return _LEAN * weight(trial.receiver.after(trial.receiver_cut)) if wanted else 0


def _has_fast(fit: Fit) -> bool:
    return any(map(_has_fast, fit.fits)) if isinstance(fit, BestOf) else isinstance(fit, Fast)


def _convex(trial: Trial) -> int:
    """The features of every sample, in float64 as they are, standardised and in float32, where the task is solved."""
    samples = len(trial.fit_data) + len(trial.validation_data)
    if isinstance(trial.fit, Logistic):
        features = (
            trial.family.reads(trial.seam.shapes[0]) if isinstance(trial.family, Probe) else prod(trial.seam.shapes[0])
        )
        return 8 * 3 * features * samples
    cuts = trial.receiver.cuts
    own = cuts.find(trial.receiver_cut)
    pooled = all(prod(cut.shape) == width(own.shape) for cut in cuts if cut.index > own.index)
    if not pooled or not _has_fast(trial.fit):
        return 0
    return 8 * 3 * width(trial.seam.shapes[0]) * samples


def _backwards(trial: Trial) -> int:
    """The tensors of one step: the stitch's, with those inside layers, and those of the receiver after the cut."""
    own = trial.receiver.cuts.find(trial.receiver_cut).index
    after = sum(prod(cut.shape) for cut in trial.receiver.cuts if cut.index >= own)
    numbers = sum(map(prod, trial.seam.shapes)) + after + _inside(trial.family)
    return 4 * _SAVED * numbers * min(_batch(trial.fit), len(trial.fit_data))


def _inside(family: Stitch) -> int:
    """The numbers at the cuts inside the layers that a stitch is made of, if it is."""
    if not isinstance(family, Layers):
        return 0
    start, end = (cut.index for cut in family.ends)
    return sum(prod(cut.shape) for cut in family.network.cuts if start < cut.index < end)


def _forwards(trial: Trial) -> int:
    """A chunk on its way through whichever network has the larger tensors."""
    widest = max(prod(cut.shape) for network in trial.seam.networks for cut in network.cuts)
    chunk = min(CHUNK, max(len(trial.fit_data), len(trial.score_data)))
    error = 8 * 3 * prod(trial.seam.shapes[1])  # three tensors in float64
    return chunk * (4 * _LIVE * max(widest, *map(prod, trial.seam.shapes)) + error)


def _closed_form(trial: Trial) -> int:
    """The rows of one step in float64, as they come and about their means."""
    chunk = min(CHUNK, len(trial.fit_data))
    rows = sum(min(_ROWS, chunk * prod(shape)) for shape in trial.seam.shapes)
    return 8 * 2 * rows
