"""Features at a cut, and whether they go through a stitch: directions, probes, steering vectors, sparse autoencoders.

A *dictionary* reads features out of the activations at a cut and writes them into it: one direction, a probe, a set of
steering vectors, or a sparse autoencoder, whose latents are its features. It acts on the features of every position by
themselves: the channels of maps ``(n, C, H, W)``, else the last dimension.

*Carrying* is a change of coordinates. A stitch ``y = W x + b`` writes a direction ``v`` of the sender as ``W v`` into
the receiver, and a read-out ``r`` of the receiver is the read-out ``Wᵀ r`` of the sender. The two other ways go through
the pseudo-inverse of ``W``, and are exact if ``W`` is invertible.

*Transfer* asks feature by feature whether what a stitch sends tells what the receiver's own activations of the same
image told: the feature is read from both, on score samples that no fit has seen. ``correlation`` is Pearson's, and
``auroc`` the probability that the carried value is larger where the feature is active than where it is not: above 0 if
it is never below and is 0 somewhere, as a ReLU leaves it, else above its median. To read the features of a network A in
a network B, stitch B into A.

*By chance*: images are permuted, all positions of an image together, so that what both networks say at a position of
every image is not a merit. ``p`` is family-wise over the features of a measure (Westfall & Young 1993, maxT, as in
``indices/calibration``). Intervals are 95 % over images, by the infinitesimal jackknife: of an AUROC in log odds, which
is DeLong's with clusters (Obuchowski 1997, Biometrics 53:567), of a correlation by Fisher's transform.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtrit
from scipy.stats import rankdata
from torch import Tensor, nn

from suture.common.constants import CHUNK
from suture.common.errors import DataError, ShapeError
from suture.common.seeds import undisturbed
from suture.common.sizes import in_words, physical_memory
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations
from suture.core.folding import read_feature_map
from suture.core.network.network import Network
from suture.core.stitched import Stitched, match_dtype
from suture.core.stitches.base import width as width_of
from suture.core.stitches.pooled_linear import pool_sent
from suture.data import Samples
from suture.measurement.indices.calibration import PERMUTATIONS, Null, calibrate, random_orders
from suture.measurement.scores.intervals import mean_interval
from suture.measurement.sides import read_arrays
from suture.measurement.trials.trial import Measurement

Floats = NDArray[np.float64]

#: Every column of a table of transfer, in order, with its type.
COLUMNS: dict[str, str] = {
    "sender": "str",
    "receiver": "str",
    "sender_cut": "str",
    "receiver_cut": "str",
    "control": "str",  # empty for the stitch itself
    "feature": "str",
    "measure": "str",  # correlation or auroc
    "value": "float64",  # empty if the feature, or what was carried of it, does not vary
    "low": "float64",  # 95 % interval over images
    "high": "float64",
    "chance": "float64",  # the mean over permutations
    "p": "float64",  # family-wise, over the features of this control and measure
    "active": "float64",  # the share of positions where the feature is active in the receiver itself
    "n": "Int64",  # images
}
SAMPLES = 2000  #: images that features are read on if no number is given, or all that there are
_ROOM = 0.2  #: of the memory, for the values of all features; what is computed of them takes three times as much
_NAMES = ("W_enc", "b_enc", "W_dec", "b_dec")
_CONSTANT = 1e-9  #: of its size, below which what a feature varies by is rounding


@final
@dataclass(frozen=True, eq=False)
class Dictionary:
    """Features at a cut: ``encode`` reads ``(…, width)`` as ``(…, features)``, ``decode`` writes them back.

    ``width`` is the number of the cut's own features, ``names`` those of the dictionary's.
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    width: int
    names: tuple[str, ...]

    @property
    def vectors(self) -> Tensor:
        """The vector that one unit of each feature adds to the activations, ``(features, width)``."""
        units = torch.eye(len(self.names), dtype=torch.float64)
        return self.decode(units) - self.decode(torch.zeros_like(units[:1]))

    def check(self, shape: Sequence[int], where: str) -> None:
        """Raise ``ShapeError`` unless a cut of this shape, without the batch, has as many features as are read."""
        if width_of(tuple(shape)) != self.width:
            raise ShapeError(
                f"the dictionary reads {self.width} features, and {where} has {width_of(tuple(shape))}; give the one "
                "of this cut"
            )


def directions(vectors: Any, shift: Any = None, names: Sequence[str] | None = None) -> Dictionary:
    """Make a dictionary of directions ``(features, width)``, or of one ``(width,)``, with shifts ``(features,)``.

    Read out as ``x · v + shift``, as a probe is, and written in along ``v``. Raises ``DataError`` for other shapes, and
    for numbers that are not finite.
    """
    rows = _tensor("vectors", vectors)
    rows = rows[None] if rows.ndim == 1 else rows
    off = torch.zeros(len(rows)) if shift is None else _tensor("shift", shift).reshape(-1)
    if rows.ndim != 2 or off.shape != (len(rows),):
        raise DataError(
            f"vectors are {tuple(rows.shape)} and shifts {tuple(off.shape)}; give (features, width) and (features,)"
        )

    def encode(x: Tensor) -> Tensor:
        found: Tensor = x.to(rows) @ rows.T + off.to(rows)
        return found

    return Dictionary(encode, lambda z: z.to(rows) @ rows, rows.shape[1], _name(names, len(rows)))


def sparse(
    W_enc: Any,
    b_enc: Any,
    W_dec: Any,
    b_dec: Any,
    *,
    k: int | None = None,
    centred: bool = True,
    names: Sequence[str] | None = None,
) -> Dictionary:
    """Make a dictionary of a sparse autoencoder: ``relu((x − b_dec) W_enc + b_enc)``, and ``z W_dec + b_dec``.

    ``W_enc`` is ``(width, features)``, ``W_dec`` ``(features, width)``. ``k`` keeps the ``k`` largest latents of each
    position (Gao et al. 2024); ``centred=False`` leaves ``b_dec`` in what is encoded. Raises ``DataError`` for shapes
    that do not fit together, and numbers that are not finite.
    """
    given = {"W_enc": W_enc, "b_enc": b_enc, "W_dec": W_dec, "b_dec": b_dec}
    inward, off, outward, middle = (_tensor(name, value) for name, value in given.items())
    size, count = inward.shape if inward.ndim == 2 else (0, 0)
    if (outward.shape, off.shape, middle.shape) != ((count, size), (count,), (size,)):
        shapes = ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in zip(_NAMES, (inward, off, outward, middle), strict=True)
        )
        raise DataError(
            f"{shapes} do not fit together; give W_enc (width, features), b_enc (features,), W_dec (features, width) "
            "and b_dec (width,)"
        )
    if k is not None and not 1 <= k <= count:
        raise DataError(f"k={k}: give a number of latents from 1 to {count}")

    def encode(x: Tensor) -> Tensor:
        x = x.to(inward)
        found = ((x - middle if centred else x) @ inward + off).relu()
        if k is None:
            return found
        largest = found.topk(k, -1)
        return torch.zeros_like(found).scatter(-1, largest.indices, largest.values)

    return Dictionary(encode, lambda z: z.to(outward) @ outward + middle, size, _name(names, count))


def load(path: str | Path, *, k: int | None = None, centred: bool = True) -> Dictionary:
    """Read a sparse autoencoder from a ``.safetensors`` or ``.npz`` file.

    It holds ``W_enc``, ``b_enc``, ``W_dec`` and ``b_dec``; ``k`` and ``centred`` are those of ``sparse``, which a file
    does not say. Raises ``DataError`` if the file cannot be read, lacks one of the four, or holds another tensor, such
    as the ``threshold`` of a JumpReLU.
    """
    held = read_arrays(Path(path))
    if missing := [name for name in _NAMES if name not in held]:
        raise DataError(f"{path} has no {', '.join(missing)}; it has {', '.join(held) or 'nothing'}")
    if others := [name for name in held if name not in _NAMES]:
        raise DataError(
            f"{path} also holds {', '.join(others)}, so it is not an autoencoder with only a ReLU or top-k; wrap"
            " it in a "
            "module with encode and decode, and give features.module(…)"
        )
    return sparse(*(held[name] for name in _NAMES), k=k, centred=centred)


def module(made: Any, width: int, names: Sequence[str] | None = None) -> Dictionary:
    """Make a dictionary of a module with ``encode`` and ``decode``, of activations ``(n, width)``.

    ``decode`` must be affine for ``vectors`` to mean anything. Raises ``DataError`` for what has no such methods, or
    does not take rows of this width.
    """
    for name in ("encode", "decode"):
        if not callable(getattr(made, name, None)):
            raise DataError(f"{type(made).__name__} has no method {name}; give a module with encode and decode")
    dtype = next((p.dtype for p in made.parameters()), torch.float32) if isinstance(made, nn.Module) else torch.float32
    try:
        with torch.no_grad():
            count = made.encode(torch.zeros(2, width, dtype=dtype)).shape[-1]
    except (RuntimeError, AttributeError, TypeError) as error:
        raise DataError(f"{type(made).__name__}.encode does not take rows of {width} features ({error})") from error
    return Dictionary(
        lambda x: made.encode(x.to(dtype)), lambda z: made.decode(z.to(dtype)), width, _name(names, count)
    )


def carry(dictionary: Dictionary, stitched: Stitched, *, back: bool = False) -> Dictionary:
    """Return a dictionary of the sender's cut as one of the receiver's; with ``back`` one of the receiver's as one of
    the sender's.

    Raises ``FoldError`` if the stitch does not map the features of every position by one matrix, and ``ShapeError`` if
    the dictionary is not of that cut.
    """
    check_kind("stitched", stitched, Stitched, "a stitched network, such as suture.stitch(…).stitched")
    sent, received = stitched.seam.shapes
    dictionary.check(received if back else sent, f"the {'receiver' if back else 'sender'} of {stitched.seam}")
    found = read_feature_map(stitched.stitch, sent, received)
    inverse = torch.linalg.pinv(found.weight)

    def forth(x: Tensor) -> Tensor:
        mapped: Tensor = x.double() @ found.weight.T + found.bias
        return mapped

    def return_(y: Tensor) -> Tensor:
        mapped: Tensor = (y.double() - found.bias) @ inverse.T
        return mapped

    into, out_of = (forth, return_) if back else (return_, forth)
    size = width_of(sent if back else received)
    return Dictionary(
        lambda x: dictionary.encode(into(x)), lambda z: out_of(dictionary.decode(z)), size, dictionary.names
    )


def latents(dictionary: Dictionary, network: Network, cut: str, samples: Samples) -> Tensor:
    """Return a dictionary's features at a cut of a network: ``(n, features)``, or tokens or maps of so many.

    ``suture.compare`` takes two of these as it takes activations. Raises ``CutError`` if the network has no such cut,
    and ``ShapeError`` if the dictionary is not of it.
    """
    at = network.cuts.find(cut)
    dictionary.check(at.shape, f"{network.name} at '{at.name}'")
    with undisturbed(), torch.no_grad():
        activations = Activations(ram=physical_memory()).at(network, at, samples)
        read = torch.cat([_encode(dictionary, part) for part in activations.split(CHUNK)])  # type: ignore[no-untyped-call]
    return read.movedim(-1, 1) if activations.ndim == 4 else read


def transfer(
    dictionary: Dictionary,
    measured: Measurement,
    *,
    samples: int | None = SAMPLES,
    permutations: int = PERMUTATIONS,
) -> pd.DataFrame:
    """Measure how well each feature of the receiver, read from stitched activations, agrees with its own reading.

    ``dictionary`` is of the receiver's cut of a measurement, such as ``suture.stitch`` gives. Read on the first
    ``samples`` of its score samples, all for ``None``. Beside the stitch stand those controls of the measurement that
    keep the receiver: itself, an untrained sender, shuffled pairs. A row for each control, feature and measure; see
    ``COLUMNS``.

    Raises ``ShapeError`` if the dictionary is not of the receiver's cut, and ``DataError`` for fewer than 3 images, for
    texts of unequal length, and for more features than memory holds.
    """
    check_kind("measured", measured, Measurement, "a measurement, such as suture.stitch(…)")
    trial = measured.trial
    cut = trial.receiver.cuts.find(trial.receiver_cut)
    dictionary.check(cut.shape, f"{trial.receiver.name} at '{cut.name}'")
    of = trial.score_data if samples is None else trial.score_data.first(min(samples, len(trial.score_data)))
    if len(cut.shape) > 1 and of.counted is not None and not bool(of.counted.all()):
        raise DataError(
            f"{of.name} has texts of unequal length, whose tokens cannot change places as chance would have it; give "
            "texts of one length"
        )
    rows = len(of) * int(np.prod(cut.shape)) // dictionary.width
    needed, room = 16 * rows * len(dictionary.names), int(_ROOM * physical_memory())
    if needed > room:
        raise DataError(
            f"{len(dictionary.names):,} features at {rows:,} positions take {in_words(needed)}, and there is room for "
            f"{in_words(room)}: give fewer samples, or a dictionary of fewer features"
        )
    cache = Activations(ram=physical_memory())
    kept = [
        one
        for one in (measured, *measured.controls)
        if isinstance(one, Measurement)
        and one.trial.receiver.fingerprint == trial.receiver.fingerprint
        and one.trial.receiver_cut == trial.receiver_cut
    ]
    tables = []
    with undisturbed(), torch.no_grad():
        own = _read(dictionary, cache.at(trial.receiver, cut, of))
        for one in kept:
            stitch, scored = one.stitch.eval(), one.trial.score_data
            read = (scored.first(len(of)) if len(of) < len(scored) else scored).for_sender
            given = pool_sent(stitch, cache.at(one.trial.sender, one.trial.sender_cut, read), read.counted)
            device = next((p.device for p in stitch.parameters()), given.device)
            sent = (stitch(match_dtype(part.to(device, copy=True), stitch)) for part in given.split(CHUNK))  # type: ignore[no-untyped-call]
            carried = np.concatenate([_read(dictionary, part) for part in sent])
            labels = {key: one.trial.seam.labels[key] or "" for key in list(COLUMNS)[:4]}
            told = tells(own, carried, dictionary.names, permutations=permutations)
            tables.append(told.assign(**labels, control=one.trial.control))
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)].astype(COLUMNS)


def _encode(dictionary: Dictionary, x: Tensor) -> Tensor:
    return dictionary.encode(x.movedim(1, -1) if x.ndim == 4 else x)


def _read(dictionary: Dictionary, activations: Tensor) -> Floats:
    """Return features as ``(images, positions, features)``."""
    parts = [_encode(dictionary, part).double().cpu() for part in activations.split(CHUNK)]  # type: ignore[no-untyped-call]
    found = torch.cat(parts)
    return np.asarray(found.reshape(len(found), -1, found.shape[-1]).numpy(), np.float64)


# --- what tells what --------------------------------------------------------------------------------------------------


def tells(
    own: Any, carried: Any, names: Sequence[str] | None = None, *, permutations: int = PERMUTATIONS
) -> pd.DataFrame:
    """Measure how well carried values of features tell their own: two arrays ``(images, positions, features)``.

    Also ``(images, features)``. Returns the columns of ``COLUMNS`` from ``feature`` on. Raises ``DataError`` for other
    shapes, fewer than 3 images, and values that are not finite.
    """
    told, sent = (np.asarray(values, np.float64) for values in (own, carried))
    told, sent = (values[:, None] if values.ndim == 2 else values for values in (told, sent))
    if told.ndim != 3 or told.shape != sent.shape or len(told) < 3:
        raise DataError(
            f"own values are {told.shape} and carried ones {sent.shape}: give (images, positions, features) of the "
            "same 3 images or more"
        )
    if not (np.isfinite(told).all() and np.isfinite(sent).all()):
        raise DataError("a feature is not finite everywhere: leave it out, or the images where it is not")
    called = _name(names, told.shape[2])
    orders = [order.numpy() for order in random_orders(len(told), permutations)]
    active = told > np.where((told.min((0, 1)) == 0) & (told.max((0, 1)) > 0), 0.0, np.median(told, (0, 1)))
    parts = []
    for measure, compute in (("correlation", _correlate), ("auroc", _discriminate)):
        left, right, constant, influence = compute(told, sent, active)
        values = (left * right).sum((0, 1)) + constant
        errors = np.sqrt(len(told) / (len(told) - 1) * np.square(influence).sum(0))
        permuted = np.stack([(left * right[order]).sum((0, 1)) + constant for order in orders])
        tensors = [torch.from_numpy(x) for x in (values[None], permuted[:, None], errors[None])]
        null = Null(tensors[0], tensors[1], tensors[2], len(told) - 1)
        known = calibrate(null, 1.0, distance=False)
        low, high = _interval(values, errors, len(told), measure, active.sum((0, 1)), active.shape[0] * active.shape[1])
        parts.append(
            pd.DataFrame(
                {"feature": called, "measure": measure, "value": values, "low": low, "high": high}
                | {"chance": known.chance[0].numpy(), "p": known.p[0].numpy(), "active": active.mean((0, 1))}
            ).assign(n=len(told))
        )
    return pd.concat(parts, ignore_index=True)


_Parts = tuple[Floats, Floats, Floats, Floats]
"""A statistic as Σ left · right + constant over images and positions, with what each image adds to it."""


def _correlate(own: Floats, carried: Floats, active: NDArray[np.bool_]) -> _Parts:
    a, b = (_standardised(values) for values in (own, carried))
    value = (a * b).sum((0, 1))
    influence = (a * b - value * (a**2 + b**2) / 2).sum(1)
    return a, b, np.zeros_like(value), influence


def _standardised(values: Floats) -> Floats:
    """Centre over images and positions, to length 1; constant features become nan."""
    off = values - values.mean((0, 1))
    norm = np.sqrt(np.square(off).sum((0, 1)))
    varies = norm > _CONSTANT * np.sqrt(np.square(values).sum((0, 1)))
    return np.asarray(off / np.where(varies, norm, np.nan), np.float64)


def _discriminate(own: Floats, carried: Floats, active: NDArray[np.bool_]) -> _Parts:
    images, positions, count = own.shape
    chosen, flat = active.reshape(-1, count), carried.reshape(-1, count)
    ones, all_ranks = chosen.sum(0).astype(float), rankdata(flat, axis=0)
    zeros = len(flat) - ones
    there = (ones > 0) & (zeros > 0)
    pairs = np.where(there, ones * zeros, np.nan)
    left, constant = chosen / pairs, -ones * (ones + 1) / 2 / pairs
    value = (left * all_ranks).sum(0) + constant
    within = np.empty_like(all_ranks)  # the ranks among the active, or among the others
    for i in range(count):
        for side in (chosen[:, i], ~chosen[:, i]):
            within[side, i] = rankdata(flat[side, i])
    across = all_ranks - within  # how many of the others lie below
    with np.errstate(divide="ignore", invalid="ignore"):
        influence = np.where(chosen, (across / zeros - value) / ones, (1 - across / ones - value) / zeros)
    influence = np.where(there, influence, np.nan)
    shape = (images, positions, count)
    return left.reshape(shape), all_ranks.reshape(shape), constant, influence.reshape(shape).sum(1)


def _interval(
    values: Floats, errors: Floats, images: int, measure: str, ones: NDArray[np.int_], rows: int
) -> tuple[Floats, Floats]:
    """Return the ends: by Fisher's transform, or in log odds, where all agree as far as so many can tell."""
    half = stdtrit(images - 1, 0.975) * errors
    with np.errstate(divide="ignore", invalid="ignore"):
        if measure == "correlation":
            room = 1 - values**2
            step = np.where(room > 1e-12, half / room, 0.0)
            ends = np.tanh(np.arctanh(values.clip(-1, 1)) + np.array([[-1.0], [1.0]]) * step)
            low, high = np.where(room > 1e-12, ends, values)
            return low, high
        spread = values * (1 - values)
        ends = expit(logit(values.clip(0, 1)) + np.array([[-1.0], [1.0]]) * np.where(spread > 0, half / spread, 0.0))
    low, high = ends
    fewer = np.minimum(ones, rows - ones)
    edge = np.array([1 - mean_interval(np.ones(n), seed=0)[0] if n else np.nan for n in fewer])
    low, high = np.where(values > 1 - edge, np.minimum(low, 1 - edge), low), np.where(values > 1 - edge, 1.0, high)
    return np.where(values < edge, 0.0, low), np.where(values < edge, np.maximum(high, edge), high)


def _tensor(name: str, value: Any) -> Tensor:
    found = torch.as_tensor(value).detach()
    if found.element_size() < 4 or not found.is_floating_point():  # files in 16 bit are computed in 32
        found = found.float() if found.is_floating_point() else found.double()
    if not bool(found.isfinite().all()):
        raise DataError(f"{name} is not finite everywhere")
    return found


def _name(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    found = tuple(str(i) for i in range(count)) if names is None else tuple(names)
    if len(found) != count or len(set(found)) != count:
        raise DataError(f"{len(found)} names for {count} features: give each its own")
    return found


__all__ = [
    "COLUMNS",
    "Dictionary",
    "carry",
    "directions",
    "latents",
    "load",
    "module",
    "sparse",
    "tells",
    "transfer",
]
