"""How fast this machine runs segments of networks, stitches and their fits: measured for a moment, with one thread.

The time of a batch of ``n`` images is taken as ``fixed + n · each``, from two sizes of a batch; what is timed is the
code that will run. Networks of one architecture are as fast as each other, so one of them is timed; of many kinds of
stitches a few are, and the others are as fast for the work that they do.
"""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from suture.common.seeds import undisturbed
from suture.core.fused import fuse_suffix
from suture.core.network.network import Frozen, Network
from suture.core.stitches import AffineStitch, Part, Stitch
from suture.core.stitches.base import Shape
from suture.fits import LeastSquares, Problem, Side, fast
from suture.fits.least_squares import closed_form, moments
from suture.fits.suffix import precisions
from suture.measurement.scores.intervals import mean_interval

FLOPS = 1.5e9  #: of one timed forward pass of a network, at most: 0.03 s; the way back takes twice that
NUMBERS = 2**20  #: in the activations of one timed batch of a stitch, at most
IMAGES = 64  #: in a timed batch, at most
TIMED = 10  #: kinds of stitches, at most
SPENT = 0.3  #: seconds after which no further kind is timed
WORK = 1e8  #: of a kind that is timed (see ``_work``), at most

Kind = tuple[Stitch, Shape, Shape]
"""What a stitch is timed by: its family, and the shapes that it joins."""


@dataclass(frozen=True)
class Pace:
    """The seconds of one batch: ``fixed``, and ``each`` for every image in it."""

    fixed: float = 0.0
    each: float = 0.0

    def over(self, images: int, chunk: int) -> float:
        """The seconds for so many images, in chunks."""
        return -(-images // chunk) * self.fixed + images * self.each

    def __add__(self, other: "Pace") -> "Pace":
        return Pace(self.fixed + other.fixed, self.each + other.each)

    def __mul__(self, factor: float) -> "Pace":
        return Pace(self.fixed * factor, self.each * factor)


def total(paces: Iterable[Pace]) -> Pace:
    """The pace of one thing after another."""
    return sum(paces, Pace())


@dataclass(frozen=True)
class NetworkPace:
    """The pace of every segment of a network, forwards and forwards with the way back, and the seconds of its digest.

    Segment ``i`` lies between cuts ``i`` and ``i + 1``, counted from 1; the first begins at the images. ``fused`` is
    the share of its time that a fused suffix takes, forwards and with the way back, ``fused_segments`` that of fused
    segments.
    """

    forward: tuple[Pace, ...]
    training: tuple[Pace, ...]
    digest: float
    fused: tuple[float, float] = (1.0, 1.0)
    fused_segments: float = 1.0


@dataclass(frozen=True)
class StitchPace:
    """The pace of a stitch: forwards, one step of its descent, and its fit in closed form (images seen at most).

    ``quick`` and ``few`` are those of the closed form of ``Fast``.
    """

    forward: Pace
    step: Pace
    solve: Pace
    most: int
    quick: Pace
    few: int


def network_pace(network: Network, images: Tensor) -> NetworkPace:
    """Time a network on some of the raw images ``(n, C, H, W)``."""
    flops = max((cut.flops for cut in network.cuts), default=0)
    count = int(min(IMAGES, max(2, FLOPS // max(flops, 1))))
    part = network.whole()
    given = images[torch.arange(count) % len(images)].to(network.device)
    with undisturbed():
        _timed_pieces(part, given[:1])  # the first time is slower
        small, large = (_timed_pieces(part, given[:size]) for size in (max(1, count // 8), count))
        digest = _seconds(network.state_digest, network.device)
        fused = _fused_shares(network, given)
    sizes = max(1, count // 8), count
    forward, training = (
        tuple(_pace(few, many, *sizes) for few, many in zip(*both, strict=True))
        for both in zip(small, large, strict=True)
    )
    return NetworkPace(forward, training, digest, *fused)


def _fused_shares(network: Network, images: Tensor) -> tuple[tuple[float, float], float]:
    """The share of time that the fused suffix of the first cut takes, in the fastest type, and forwards in float32."""
    cut = next(iter(network.cuts), None)
    if cut is None:
        return (1.0, 1.0), 1.0
    with torch.inference_mode(False), torch.no_grad():
        x = network.upto(cut)(images).contiguous()
    plain = _both_ways(network.after(cut), x)
    found = []
    for dtype in dict.fromkeys((precisions(network.device)[0], torch.float32)):
        fused = fuse_suffix(network, cut, dtype)
        found.append(plain if fused is None else _both_ways(fused, x))
    shares = [tuple(a / b if b and math.isfinite(a) else 1.0 for a, b in zip(one, plain, strict=True)) for one in found]
    return (shares[0][0], shares[0][1]), shares[-1][0]


def _both_ways(run: nn.Module, x: Tensor) -> tuple[float, float]:
    """The seconds of a part of a network for a batch, forwards and with the way back; infinite where it cannot run."""

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def train() -> None:
        out = run(x.detach().requires_grad_(x.is_floating_point()))
        if out.requires_grad:
            torch.autograd.backward(out, torch.ones_like(out))

    with torch.inference_mode(False):
        try:
            forward()  # the first time is slower
            return _seconds(forward, x.device), _seconds(train, x.device)
        except Exception:  # a body that no other layout or type suits, and in whose place the network's own runs
            return math.inf, math.inf


def _timed_pieces(part: Frozen, x: Tensor) -> tuple[list[float], list[float]]:
    """The seconds of every segment for this batch: forwards, and forwards with the way back to its input."""
    forward, training = [], []
    device = x.device
    with torch.inference_mode(False):
        for i, segment in enumerate(part.segments):

            def run(x: Tensor = x, segment: nn.Module = segment, first: bool = not i) -> Tensor:
                prepared = part.prepare(x) if first and part.prepare is not None else x
                out: Tensor = segment(prepared)
                return out.contiguous()

            def train(x: Tensor = x, run: Callable[[Tensor], Tensor] = run) -> None:
                out = run(x.detach().requires_grad_(x.is_floating_point()))
                if out.requires_grad:
                    torch.autograd.backward(out, torch.ones_like(out))

            with torch.no_grad():
                forward.append(_seconds(run, device))
                y = run()
            training.append(_seconds(train, device))
            x = y
    return forward, training


def stitch_pace(kind: Kind, device: torch.device) -> StitchPace:
    """Time a stitch on random numbers."""
    family, sent, received = kind
    numbers = max(1, *(torch.Size(shape).numel() for shape in (sent, received)))
    count = int(min(IMAGES, max(8, NUMBERS // numbers)))
    with undisturbed(), torch.inference_mode(False), torch.random.fork_rng([]):
        torch.manual_seed(0)
        stitch = family.build(sent, received).to(device)
        x, y = torch.randn(count, *sent), torch.randn(count, *received)
        sizes = (max(4, count // 8), count)
        timed = (
            _forwards(stitch, device),
            _steps(stitch, device),
            _solutions(family, stitch),
            _quickly(family, stitch),
        )
        forward, step, solve, quick = (
            _pace(time_of(x[: sizes[0]], y[: sizes[0]]), time_of(x, y), *sizes) for time_of in timed
        )
        parts = family.parts(stitch, x) if isinstance(family, AffineStitch) else ()
        most = min((part.most for part in parts if part.most), default=2**62)
        few = min((_moments_from(part, x, tuple(y.shape[1:])) for part in parts), default=2**62)
    return StitchPace(forward, step, solve, most, quick, min(most, few))


def _moments_from(part: Part, x: Tensor, shape: tuple[int, ...]) -> int:
    """How many samples ``Fast`` takes moments from, at most."""
    return fast.sufficient(shape, *part.reads(x[:1]).shape)


def interval_pace(samples: int) -> float:
    """The seconds of one bootstrapped interval over so many samples."""
    few = min(samples, 500)
    values = np.random.default_rng(0).random(few)
    return _seconds(lambda: mean_interval(values, seed=0), torch.device("cpu")) * samples / few


class StitchPaces:
    """The paces of many kinds of stitches, of which a few are timed, the least work first.

    ``device`` is where they run. A kind that does more work than ``WORK``, or comes when the time is spent, is taken to
    be as fast for its work as the largest that was timed.
    """

    def __init__(self, kinds: Iterable[Kind], device: torch.device) -> None:
        self._work = {kind: _work(kind) for kind in kinds}
        ordered = sorted(self._work, key=self._work.__getitem__)
        spread = [ordered[i * (len(ordered) - 1) // max(1, TIMED - 1)] for i in range(TIMED)] if ordered else []
        self._timed: dict[Kind, StitchPace] = {}
        begun = time.thread_time()
        for kind in dict.fromkeys(spread):
            late = self._timed and time.thread_time() - begun > SPENT
            if not late and (self._work[kind] <= WORK or not self._timed):
                self._timed[kind] = stitch_pace(kind, device)

    def of(self, kind: Kind) -> StitchPace:
        """The pace of one kind."""
        if kind in self._timed:
            return self._timed[kind]
        work = self._work[kind]
        near = min(self._timed, key=lambda other: abs(math.log(self._work[other] / work)))
        factor = work / self._work[near]
        known = self._timed[near]
        timed = (known.forward, known.step, known.solve, known.quick)
        forward, step, solve, quick = (Pace(p.fixed, p.each * factor) for p in timed)
        return StitchPace(forward, step, solve, known.most, quick, known.few)


def _work(kind: Kind) -> float:
    """Numbers read and written for an image, and a sixteenth of the FLOPs."""
    family, sent, received = kind
    flops = 0
    with suppress(Exception), torch.device("meta"), torch.no_grad():  # a family of the user's may not like it there
        stitch = family.build(sent, received).eval()
        with FlopCounterMode(display=False) as counter:
            stitch(torch.empty(1, *sent))
        flops = counter.get_total_flops()
    return 1 + torch.Size(sent).numel() + torch.Size(received).numel() + flops / 16


_Timing = Callable[[Tensor, Tensor], float]


def _forwards(stitch: nn.Module, device: torch.device) -> _Timing:
    def timed(x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return _seconds(lambda: stitch(x.to(device)), device)

    return timed


def _steps(stitch: nn.Module, device: torch.device) -> _Timing:
    parameters = list(stitch.parameters())
    optimiser = torch.optim.Adam(parameters, lr=0.0) if parameters else None

    def step(x: Tensor, y: Tensor) -> None:
        assert optimiser is not None
        optimiser.zero_grad(set_to_none=True)
        out = stitch(x[torch.arange(len(x))].to(device))
        torch.autograd.backward(out, torch.ones_like(out), inputs=parameters)
        optimiser.step()

    def timed(x: Tensor, y: Tensor) -> float:
        return _seconds(lambda: step(x, y), device) if optimiser is not None else 0.0

    return timed


def _solutions(family: Stitch, stitch: nn.Module) -> _Timing:
    """Time the closed form on fit and validation data of half the images each; nothing where there is none."""

    def timed(x: Tensor, y: Tensor) -> float:
        if not isinstance(family, AffineStitch):
            return 0.0
        half = len(x) // 2
        fitted, held_out = (_side(x[part], y[part]) for part in (slice(half), slice(half, None)))
        problem = Problem(family, Frozen([]), fitted, held_out, seed=0, where="a forecast")
        return _seconds(lambda: LeastSquares().fit(problem, stitch), torch.device("cpu"))

    return timed


def _quickly(family: Stitch, stitch: nn.Module) -> _Timing:
    """Time the closed form of ``Fast`` in the same way."""

    def timed(x: Tensor, y: Tensor) -> float:
        if not isinstance(family, AffineStitch):
            return 0.0
        half = len(x) // 2

        def solve() -> None:
            for part in family.parts(stitch, x):
                known, held_out = (
                    moments(x[of], y[of], part, torch.float32) for of in (slice(half), slice(half, None))
                )
                part.load(closed_form(family, known, held_out, fast.RIDGES, rescale=True))

        return _seconds(solve, torch.device("cpu"))

    return timed


def _side(x: Tensor, y: Tensor) -> Side:
    return Side(x, torch.zeros(len(x)), lambda: y, lambda: y)


def _pace(small: float, large: float, few: int, many: int) -> Pace:
    """The line through two times; neither of its parts is below 0."""
    each = max(0.0, large - small) / (many - few) if many > few else small / few
    each = min(each, large / many)
    return Pace(max(0.0, large - many * each), each)


def _seconds(run: Callable[[], object], device: torch.device, enough: float = 0.02) -> float:
    """The least time of three, or of one that takes long; in this thread: what others compute does not count."""
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    taken: list[float] = []
    while len(taken) < 3 and sum(taken) < enough:
        begun = clock()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(clock() - begun)
    return min(taken)
