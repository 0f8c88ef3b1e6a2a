"""The ways to stitch that are measured beside each other: the plain loop, and fits of this library."""

from collections.abc import Sequence
from dataclasses import dataclass

from suture.common.errors import SutureError
from suture.common.hashing import identity
from suture.common.seeds import digest
from suture.fits import Fast, Fit, LeastSquares, TaskLoss
from suture.fits.optimisers import Adam, Cosine
from suture.measurement.trials.trial import VERSION
from suture.runs.bench.plain_loop import Plain

DEFAULT: Fit = Fast()  #: the fit that a plan has where none is named

PLAIN = "plain loop"
LEAST_SQUARES = "least squares + Adam"
OURS = "default"


@dataclass(frozen=True)
class Method:
    """A way to get a stitch: the plain loop, or a fit through ``suture.measure`` with cached activations."""

    name: str
    how: Plain | Fit

    @property
    def key(self) -> str:
        """A hash of all settings, in 8 hexadecimal digits, so that a changed method is another one."""
        return digest(VERSION, identity(self.how))[:8]


def least_squares_then_adam(samples: int) -> TaskLoss:
    """The map that best reproduces the receiver's activations, not rescaled, then 5 epochs of Adam at 1e-3.

    Csiszárik et al. 2021 begin the training of a stitch at the least-squares map; the rest is that of the plain loop:
    batches of 128, a cosine, the last parameters kept. ``samples`` are the images that it is fitted to.
    """
    batch = min(128, samples)
    steps = 5 * (samples // batch)
    return TaskLoss(
        start=LeastSquares(rescale=False),
        optimiser=Adam(lr=1e-3),
        schedule=Cosine(),
        steps=steps,
        batch=batch,
        check=steps,
        patience=None,
        retries=0,
        standardise=False,
    )


def methods_for(
    samples: int, further: Sequence[tuple[str, Fit]] = (), *, least_squares: bool = True
) -> tuple[Method, ...]:
    """Give the plain loop, least squares then Adam on so many images, the default fit, and any further fits by name.

    ``least_squares=False`` leaves that out, which takes nearly as long as the plain loop.
    Raises ``SutureError`` where two would have one name.
    """
    known = (
        Method(PLAIN, Plain()),
        *([Method(LEAST_SQUARES, least_squares_then_adam(samples))] if least_squares else []),
        Method(OURS, DEFAULT),
        *(Method(name, fit) for name, fit in further),
    )
    names = [method.name for method in known]
    for name in names:
        if names.count(name) > 1:
            raise SutureError(f"two methods are called '{name}'; give each fit once")
    return known
