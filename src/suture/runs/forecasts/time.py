"""What a trial costs, in seconds of one core, before it is measured.

Times are put together from paces measured on this machine (``forecasts.timing``) and a few constants, each with
how it was found. A descent is taken to go all its steps, once: in eleven runs of the demo and on CIFAR-10, of 855
trials with ``patience=2``, retries included, the mean was 0.89 to 1.03 of ``steps``. ``Fast`` ends by itself: it is
taken to go the rounds that fit into half of the steps that it may take, and to try three rates.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from suture.core.activations.cache import CHUNK, MANY, Need
from suture.core.network.network import Network
from suture.core.stitches import Probe, Stitch
from suture.data.noise import ClusteredNoise
from suture.fits import BestOf, Descending, Fast, Fit, LeastSquares, Logistic, MatchActivations, Narrower, Random
from suture.fits.fast import FIRST, HELD_OUT, LONGER, PROBES
from suture.fits.preconditioning import PROBED
from suture.measurement.scores.outputs import LEAST
from suture.measurement.scores.scores import Accuracy
from suture.measurement.trials.trial import COMPARED, Trial
from suture.runs.forecasts.timing import Kind, NetworkPace, Pace, StitchPaces, interval_pace, network_pace, total

# Measured on one core of an AMD EPYC, by the least of five runs of the code in question:
_ERROR = 3e-8  #: seconds for a number of the representation error (in chunks of 2¹⁷ to 2²⁴)
_NOISE = 5e-9  #: seconds for a number of clustered noise
_KEEP = 6e-9  #: seconds for a number of activations: checked, copied, hashed and written to a file
_DOUBTFUL = 0.05  #: the share of images whose scores are computed again, through the receiver as it is
_RATES = 3  #: rates that ``Fast`` tries
_SOLVING = 2e-8  #: seconds for a weight and a sample of logistic regression: a hundred iterations
_STEP = 2e-4  #: seconds of a step beside networks and stitch: drawing a batch, the loss, the optimiser's rate


class Expenses:
    """What the trials of a plan cost, each by itself and all that they share."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._networks: dict[object, NetworkPace] = {}
        for trial in trials:
            for network in trial.seam.networks:
                sort = _sort(network)
                if sort not in self._networks:
                    self._networks[sort] = network_pace(network, trial.fit_data.images)
        device = trials[0].receiver.device if trials else None
        self._stitches = StitchPaces((kind for trial in trials for kind in _kinds(trial)), device) if device else None
        self._intervals: dict[int, float] = {}

    def of(self, trial: Trial) -> float:
        """The seconds of a trial whose activations are there."""
        frozen = 2 * sum(self._pace(network).digest for network in trial.seam.networks)
        return frozen + self._fit(trial, trial.fit) + self._scoring(trial)

    def passes(self, trials: Iterable[Trial], budget: int | None = None) -> float:
        """The seconds of computing what the trials, in their order, share: activations, of which ``budget`` is kept."""
        kept: OrderedDict[str, Need] = OrderedDict()
        places: dict[tuple[str, str], set[int]] = {}
        used, seconds = 0, 0.0
        for need in (need for trial in trials for need in trial.needs):
            if need.key in kept:
                kept.move_to_end(need.key)
                continue
            there = places.setdefault(_run_of(need), set())
            seconds += self._computing(need, max((i for i in there if i < need.index), default=0))
            kept[need.key] = need
            there.add(need.index)
            used += need.nbytes
            while budget is not None and used > budget:
                _, gone = kept.popitem(last=False)
                places[_run_of(gone)].discard(gone.index)
                used -= gone.nbytes
        return seconds

    def _computing(self, need: Need, start: int) -> float:
        """From the nearest earlier cut that is kept, or from the images."""
        numbers = prod(need.shape)
        if isinstance(need.network, ClusteredNoise):
            return numbers * (_NOISE + _KEEP)
        pace, images = self._pace(need.network), len(need.samples)
        own = total(pace.forward[start : need.index])
        cheaply = images >= MANY
        passing = (own * pace.fused_segments if cheaply else own).over(images, CHUNK)
        return passing + (own.over(CHUNK, CHUNK) if cheaply else 0.0) + numbers * _KEEP

    def _pace(self, network: Network) -> NetworkPace:
        return self._networks[_sort(network)]

    def _fit(self, trial: Trial, fit: Fit) -> float:
        assert self._stitches is not None
        fitted, held_out = len(trial.fit_data), len(trial.validation_data)
        pace = self._stitches.of(_kind(trial))
        match fit:
            case Random():
                return 0.0
            case Logistic():
                sent, received = trial.seam.shapes
                features = trial.family.reads(sent) if isinstance(trial.family, Probe) else prod(sent)
                return _SOLVING * fitted * features * prod(received)
            case BestOf():
                checking = (pace.forward + self._suffix(trial)[0]).over(held_out, CHUNK)
                return sum(self._fit(trial, each) + checking for each in fit.fits)
            case Fast():
                few = min(fitted, pace.few) + min(held_out, pace.few)
                return pace.quick.over(few, 2**62) + self._rounds(trial, fit)
            case LeastSquares():
                return pace.solve.over(min(fitted, pace.most) + min(held_out, pace.most), 2**62)
            case Narrower():
                by = self._fit(replace(trial, stitch=fit.family), fit.by)
                return by + pace.solve.over(3 * min(fitted, pace.most), 2**62)
            case Descending():
                return self._fit(trial, fit.start) + self._descent(trial, fit)
        return self._fit(trial, Fast())  # a fit of the user's own: as good a guess as any

    def _rounds(self, trial: Trial, fit: Fast) -> float:
        """The rounds in half of the steps, the rates that are tried, and the validation loss after each round."""
        assert self._stitches is not None
        pace = self._stitches.of(_kind(trial))
        if pace.step == Pace() or not fit.steps:
            return 0.0
        forward, training = self._suffix(trial)
        fused = self._pace(trial.receiver).fused
        most = fit.most(_share(trial))
        lengths = [min(FIRST, most)]
        while sum(lengths) + LONGER * lengths[-1] <= most / 2:
            lengths.append(LONGER * lengths[-1])
        tried = _RATES * PROBES if most > 2 * FIRST else 0
        batch = min(fit.batch, len(trial.fit_data))
        step = (pace.step + training * fused[1]).over(batch, batch) + _STEP
        held_out = min(HELD_OUT, len(trial.validation_data))
        checking = (pace.forward + forward * fused[0]).over(held_out, CHUNK) * (1 + len(lengths))
        probing = (forward + forward * fused[0]).over(min(PROBED, len(trial.fit_data)), CHUNK)
        return (sum(lengths) + tried) * step + checking + probing

    def _descent(self, trial: Trial, fit: Descending) -> float:
        """All steps, once, and the validation loss at every check."""
        assert self._stitches is not None
        pace = self._stitches.of(_kind(trial))
        if pace.step == Pace():  # a stitch without parameters
            return 0.0
        forward, training = self._suffix(trial) if not isinstance(fit, MatchActivations) else (Pace(), Pace())
        fitted, held_out = len(trial.fit_data), len(trial.validation_data)
        batch = min(fit.batch, fitted)
        step = (pace.step + training).over(batch, batch) + _STEP
        checks = 2 + (fit.steps - 1) // fit.check
        checking = (pace.forward + forward).over(held_out, CHUNK) * checks
        floor = 2 * (pace.forward + forward).over(fitted, CHUNK) if fit.start.is_floor else 0.0
        return fit.steps * step + checking + floor

    def _suffix(self, trial: Trial) -> tuple[Pace, Pace]:
        pace = self._pace(trial.receiver)
        own = trial.receiver.cuts.find(trial.receiver_cut).index
        return total(pace.forward[own:]), total(pace.training[own:])

    def _scoring(self, trial: Trial) -> float:
        """The stitched network's outputs, the representation error, and the intervals."""
        assert self._stitches is not None
        n = len(trial.score_data)
        stitch, suffix = self._stitches.of(_kind(trial)).forward, self._suffix(trial)[0]
        if n not in self._intervals:
            self._intervals[n] = interval_pace(n)
        bootstrapped = sum(not isinstance(score, Accuracy) for score in trial.scores)
        intervals = 4 * bootstrapped * self._intervals[n]  # sender, receiver, stitched, penalty
        cheaply = n >= LEAST
        passing = suffix * (self._pace(trial.receiver).fused[0] + _DOUBTFUL) if cheaply else suffix
        probing = suffix.over(CHUNK, CHUNK) if cheaply else 0.0
        compared = min(n, COMPARED)
        error = stitch.over(compared, CHUNK) + compared * prod(trial.seam.shapes[1]) * _ERROR
        return (stitch + passing).over(n, CHUNK) + probing + error + intervals


def _run_of(need: Need) -> tuple[str, str]:
    return need.network.fingerprint, need.samples.image_fingerprint


def _sort(network: Network) -> object:
    """What networks of one architecture have in common."""
    cuts = tuple((cut.shape, cut.flops, cut.parameters) for cut in network.cuts)
    return cuts, network.image_shape, network.outputs, str(network.device)


def _kind(trial: Trial) -> Kind:
    return (trial.family, *trial.seam.shapes)


def _share(trial: Trial) -> float:
    """The share of the receiver's operations that lie after its cut, as ``Fast`` is told."""
    cuts = list(trial.receiver.cuts)
    own = trial.receiver.cuts.find(trial.receiver_cut).flops
    return 1 - own / cuts[-1].flops if cuts[-1].flops else 1.0


def _kinds(trial: Trial) -> list[Kind]:
    """The kinds of stitches that a trial makes: its own, and those that its fit starts from."""
    return [_kind(trial), *((family, *trial.seam.shapes) for family in _narrower(trial.fit))]


def _narrower(fit: Fit) -> Iterator[Stitch]:
    """The families that a fit starts from."""
    match fit:
        case Narrower():
            yield fit.family
            yield from _narrower(fit.by)
        case Descending():
            yield from _narrower(fit.start)
        case BestOf():
            for each in fit.fits:
                yield from _narrower(each)
