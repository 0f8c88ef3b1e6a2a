"""What a trial costs, in seconds of one core, before it is measured.

Times are put together from paces measured on this machine (``suture.forecasts.paces``) and a few constants, each with
how it was found. A descent is taken to go all its steps, once: in eleven runs of the demo and on CIFAR-10, of 855
trials with ``patience=2``, retries included, the mean was 0.89 to 1.03 of ``steps``.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from suture.activations import CHUNK, Need
from suture.fits import Descending, Fit, LeastSquares, MatchActivations, Narrower, Random, TaskLoss
from suture.forecasts.paces import Kind, NetworkPace, Pace, StitchPaces, interval_pace, network_pace, total
from suture.network import Network
from suture.noise import ClusteredNoise
from suture.scores import Accuracy
from suture.trial import Trial

# Measured on one core of an AMD EPYC, by the least of five runs of the code in question:
_ERROR = 3e-8  #: seconds for a number of the representation error (``trial._run`` on chunks of 2¹⁷ to 2²⁴ numbers)
_NOISE = 5e-9  #: seconds for a number of clustered noise
_KEEP = 6e-9  #: seconds for a number of activations: checked, copied, hashed and written to a file
_STEP = 2e-4  #: seconds of a step beside networks and stitch: drawing a batch, the loss, the optimiser's rate


class Expenses:
    """What the trials of a plan cost, each by itself and all that they share."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._networks: dict[object, NetworkPace] = {}
        for trial in trials:
            for network in trial.networks:
                sort = _sort(network)
                if sort not in self._networks:
                    self._networks[sort] = network_pace(network, trial.fit_data.images)
        device = trials[0].receiver.device if trials else None
        self._stitches = StitchPaces((kind for trial in trials for kind in _kinds(trial)), device) if device else None
        self._intervals: dict[int, float] = {}

    def of(self, trial: Trial) -> float:
        """The seconds of a trial whose activations are there."""
        frozen = 2 * sum(self._pace(network).digest for network in trial.networks)
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
        pieces = self._pace(need.network).forward[start : need.index]
        return total(pieces).over(len(need.samples), CHUNK) + numbers * _KEEP

    def _pace(self, network: Network) -> NetworkPace:
        return self._networks[_sort(network)]

    def _fit(self, trial: Trial, fit: Fit) -> float:
        assert self._stitches is not None
        fitted, held_out = len(trial.fit_data), len(trial.validation_data)
        pace = self._stitches.of(_kind(trial))
        match fit:
            case Random():
                return 0.0
            case LeastSquares():
                return pace.solve.over(min(fitted, pace.most) + min(held_out, pace.most), 2**62)
            case Narrower():
                by = self._fit(replace(trial, stitch=fit.family), fit.by)
                return by + pace.solve.over(3 * min(fitted, pace.most), 2**62)
            case Descending():
                return self._fit(trial, fit.start) + self._descent(trial, fit)
        return self._fit(trial, TaskLoss())  # a fit of the user's own: as good a guess as any

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
        forward = self._stitches.of(_kind(trial)).forward + self._suffix(trial)[0]
        if n not in self._intervals:
            self._intervals[n] = interval_pace(n)
        bootstrapped = sum(not isinstance(score, Accuracy) for score in trial.scores)
        intervals = 4 * bootstrapped * self._intervals[n]  # sender, receiver, stitched, penalty
        return forward.over(n, CHUNK) + n * prod(trial.shapes[1]) * _ERROR + intervals


def _run_of(need: Need) -> tuple[str, str]:
    return need.network.fingerprint, need.samples.image_fingerprint


def _sort(network: Network) -> object:
    """What networks of one architecture have in common."""
    cuts = tuple((cut.shape, cut.flops, cut.parameters) for cut in network.cuts)
    return cuts, network.image_shape, network.outputs, str(network.device)


def _kind(trial: Trial) -> Kind:
    return (trial.family, *trial.shapes)


def _kinds(trial: Trial) -> list[Kind]:
    """The kinds of stitches that a trial makes: its own, and those that its fit starts from."""
    kinds, fit = [_kind(trial)], trial.fit
    while isinstance(fit, Narrower | Descending):
        if isinstance(fit, Narrower):
            kinds.append((fit.family, *trial.shapes))
        fit = fit.by if isinstance(fit, Narrower) else fit.start
    return kinds
