"""Comparing two networks at all pairs of cuts by similarity indices, to be read beside what stitching says.

An index compares what two layers say of the same images and trains nothing; a stitch asks what one is worth to the
other (bansal2021, section 3). ``compare`` gives a tidy table, a row for each sender cut, receiver cut and index;
``beside`` puts them into a table of measurements, a column for each index.

Many indices are high between layers that have nothing in common. So each is *calibrated*: what it is by chance is told
by permuting images (``measurement/indices/calibration``), and ``explain`` and heat maps speak of the calibrated value.

Indices are computed on the first images of the score data, from cached activations. Each layer is prepared once an
index, and what indices have in common (products of all samples, a basis) once for all, if memory allows.
"""

from collections.abc import Sequence
from math import prod

import pandas as pd
import torch
from torch import Tensor

from suture.common.devices import CPU, free_memory
from suture.common.errors import DataError
from suture.common.seeds import undisturbed
from suture.common.sizes import in_words, physical_memory
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations, Need
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.stitched import check_pair
from suture.data import Data, Samples
from suture.measurement.indices import Index, Layer, LinearCKA, MinibatchCKA, SamplesAs
from suture.measurement.indices.base import MOST, check_choice, comparable, positions
from suture.measurement.indices.calibration import PERMUTATIONS, calibrate
from suture.measurement.scores.in_distribution import pool
from suture.measurement.tables.in_short import in_short
from suture.measurement.tables.similarities import CALIBRATED, COLUMNS, SEAM, check_similarities
from suture.measurement.tables.table import check_columns
from suture.measurement.trials.plans import Which, cuts_of_roles, tell_networks_apart

SAMPLES = 2000  #: images that layers are compared on if no number is given, or all that there are
DEFAULT: tuple[Index, ...] = (LinearCKA(debiased=True),)
ROOM = 0.7  #: of the memory, that activations may take; indices compute in the rest
KEPT = 0.2  #: of the memory, for what indices have in common; less than ROOM leaves
_FEWEST = 19
#: Controls whose sender and receiver are the trained networks that their names say.
_TRAINED = ("", "itself", "shuffled pairs")

_Side = tuple[Network, list[Cut]]


def compare(
    a: Network,
    b: Network,
    *,
    data: Data,
    by: Index | Sequence[Index] = DEFAULT,
    cuts: Which | None = None,
    sender_cuts: Which | None = None,
    receiver_cuts: Which | None = None,
    samples: int | None = SAMPLES,
    samples_as: SamplesAs = "flattened",
    permutations: int = PERMUTATIONS,
    activations: Activations | None = None,
    device: str | None = None,
) -> pd.DataFrame:
    """Compare every sender cut of ``a`` with every receiver cut of ``b`` by every index in ``by``; see ``COLUMNS``.

    ``cuts``, ``sender_cuts`` and ``receiver_cuts`` choose as in ``plans.matrix``. Compared on the first ``samples``
    images of the score data, all there are for ``None``. ``samples_as`` says whether an image is a sample
    (``flattened``; ``mean``, ``first``, ``last`` of its positions or tokens) or every position and token (``pixels``):
    maps of unequal size are then pooled to the smaller, and other layers of unequal numbers of positions are not
    compared: the value is empty. ``permutations`` is how many calibrate an index at least, 0 for none: sums over pairs
    of images take little time for them, any other index its own time for each. ``activations`` is a cache to take
    activations from and leave them in, ``device`` where all is computed: by default where the networks are.

    Raises, before anything is computed, ``DataError`` for indices of one name, for 1 to 18 permutations, with which no
    p is 0.05, for too few or too many images for an index, and for activations that memory cannot hold,
    ``NetworkError`` if two networks have one name, are on two devices or read texts in other tokens, ``DeviceError`` if
    the device is not there or has no room, and ``CutError`` if a network has no cut that is asked for.
    """
    tell_networks_apart([a, b])
    if device is not None:
        a, b = a.to(device), b.to(device)
    check_pair(a, b)
    check_kind("data", data, Data, "data with a split to score: load_data(…)")
    methods = _methods(by)
    check_choice("samples_as", samples_as, SamplesAs)
    if permutations and permutations < _FEWEST:
        raise DataError(f"permutations={permutations}: give {_FEWEST} or more, below which no p is 0.05, or 0 for none")
    sides = _sides(a, b, cuts, sender_cuts, receiver_cuts)
    of = data.limited(score=min(samples, len(data.score)) if samples is not None else None).score
    for network in (a, b):
        network.check_samples(of)
    if (counted := _find_masked(of)) is not None:
        if samples_as == "pixels":
            _check_tokens(sides, counted, permutations)
        elif samples_as == "flattened" and any(_has_tokens(cut, counted) for _, cuts in sides for cut in cuts):
            _check_filled(methods)
    ours, theirs = ([cut.shape for cut in cuts] for _, cuts in sides)
    for down, across, size in comparable(ours, theirs, samples_as):
        for (network, side), chosen in zip(sides, (down, across), strict=True):
            for cut in (side[i] for i in chosen):
                shape = cut.shape if size is None else (cut.shape[0], *size)
                count = positions(shape, samples_as)
                for method in methods:
                    method.check(_name(network, cut), len(of) * count, prod(shape) // count)
    if activations is None:
        activations = Activations(ram=physical_memory())
    if activations.disk is None:
        _check_room(sides, of)
    rows = []
    with undisturbed():
        layers = _layers(sides, of, samples_as, activations, share=len(methods) > 1)
        for method in methods:
            if permutations:
                null = method.null(*layers, permutations)
                found = {"value": null.values} | vars(calibrate(null, method.best, method.distance))
            else:
                found = {"value": method.pairs(*layers)}
                found |= dict.fromkeys(CALIBRATED, torch.full_like(found["value"], torch.nan))
            told = {"samples_as": samples_as, "score_data": of.name, "n": len(of)}
            told["direction"] = "distance" if method.distance else "similarity"
            rows += [
                {"sender": a.name, "receiver": b.name, "sender_cut": start.name, "receiver_cut": end.name}
                | {"sender_depth": start.depth, "receiver_depth": end.depth, "index": method.name}
                | {name: float(values[i, j]) for name, values in found.items()}
                | told
                for i, start in enumerate(sides[0][1])
                for j, end in enumerate(sides[1][1])
            ]
    return in_short(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))


def beside(table: pd.DataFrame, similarities: pd.DataFrame) -> pd.DataFrame:
    """Put similarities beside measurements of the same seams: the table, with a column for each index.

    Of an index that was calibrated, the calibrated values. Empty if a seam was not compared, and for controls whose
    networks are not the trained ones. Raises ``DataError`` if one of the two is no such table, if a seam has two values
    of an index, or if a column is there already.
    """
    check_columns(table)
    check_similarities(similarities)
    names = list(dict.fromkeys(map(str, similarities["index"])))
    there = [name for name in names if name in table]
    if there:
        raise DataError(f"the table has a column {there[0]!r} already; give the table as it was measured")
    known = similarities.groupby("index")["calibrated"].transform("count") > 0
    shown = similarities.assign(value=similarities["calibrated"].where(known, similarities["value"]))
    wide = shown.pivot(index=SEAM, columns="index", values="value")[names].reset_index()
    joined = table.merge(wide, how="left", on=SEAM)
    joined.index = table.index
    joined[names] = joined[names].where(joined["control"].isin(_TRAINED))
    return joined


def _methods(by: Index | Sequence[Index]) -> tuple[Index, ...]:
    check_kind("by", by, Index | tuple | list, "an index or several, such as suture.indices.linear_cka")
    methods = (by,) if isinstance(by, Index) else tuple(by)
    if not methods:
        raise DataError("by=[] compares by nothing: give an index, such as suture.indices.linear_cka")
    for place, method in enumerate(methods):
        if not isinstance(method, Index):
            raise DataError(f"by[{place}] is {method!r}: give indices, such as suture.indices.linear_cka")
        if method.name in (other.name for other in methods[:place]):
            raise DataError(f"'{method.name}' is given twice; leave it out, or give it other settings")
    return methods


def _sides(
    a: Network, b: Network, cuts: Which | None, sender_cuts: Which | None, receiver_cuts: Which | None
) -> tuple[_Side, _Side]:
    """Return the two networks, each with its chosen cuts."""
    starts, ends = cuts_of_roles([a], [b], cuts, sender_cuts, receiver_cuts)
    return (a, [a.cuts.find(name) for name in starts[a.name]]), (b, [b.cuts.find(name) for name in ends[b.name]])


def _check_room(sides: tuple[_Side, _Side], samples: Samples) -> None:
    """Raise ``DataError`` if memory cannot hold all activations."""
    needs = [Need(network, samples, cut.index) for network, cuts in sides for cut in cuts]
    size, room = sum({need.key: need.nbytes for need in needs}.values()), int(ROOM * physical_memory())
    if size > room:
        raise DataError(
            f"the activations of all cuts on {len(samples):,} images take {in_words(size)}, and there is room for "
            f"{in_words(room)}: give fewer samples, choose cuts, or give activations with a folder on disk"
        )


def _layers(
    sides: tuple[_Side, _Side], samples: Samples, samples_as: SamplesAs, activations: Activations, share: bool
) -> tuple[list[Layer], list[Layer]]:
    """Return the layers of both sides, one object for what is the same activations, each to keep things if they fit."""
    places = {(network.fingerprint, cut.index): (network, cut) for network, cuts in sides for cut in cuts}
    counted = _find_masked(samples)
    tensors = {
        key: _take_counted(activations.at(*place, samples), counted, samples_as) for key, place in places.items()
    }
    sizes = [len(samples) * positions(cut.shape, samples_as) for _, cuts in sides for cut in cuts]
    kept = sum(16 * n**2 for n in sizes if n <= MOST)
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:  # a GPU had no room for some
        tensors = {key: tensor.cpu() for key, tensor in tensors.items()}
    share = share and kept <= KEPT * (physical_memory() if CPU in devices else min(map(free_memory, devices)))
    made = {key: Layer(_name(*place), tensors[key], samples_as, {} if share else None) for key, place in places.items()}
    (a, starts), (b, ends) = sides
    return [made[a.fingerprint, cut.index] for cut in starts], [made[b.fingerprint, cut.index] for cut in ends]


def _find_masked(samples: Samples) -> Tensor | None:
    """Return which tokens count, bool (N, T), if some do not."""
    return None if samples.counted is None or bool(samples.counted.all()) else samples.counted


def _has_tokens(cut: Cut, counted: Tensor) -> bool:
    """Return whether what passes a cut has a place for each token."""
    return len(cut.shape) == 2 and cut.shape[0] == counted.shape[1]


def _check_tokens(sides: tuple[_Side, _Side], counted: Tensor, permutations: int) -> None:
    """Raise ``DataError`` if tokens of texts of unequal length cannot be samples here."""
    if permutations:
        raise DataError(
            "samples_as='pixels' has tokens of texts of unequal length, which cannot change places as chance would "
            "have it: give permutations=0, or compare one vector a text, samples_as='mean' or 'last'"
        )
    for network, cuts in sides:
        for cut in cuts:
            if not _has_tokens(cut, counted):
                raise DataError(
                    f"{_name(network, cut)} has no tokens, which samples_as='pixels' is to compare; leave it out"
                )


def _check_filled(methods: Sequence[Index]) -> None:
    """Raise ``DataError`` for an index to which a place filled with the mean still says how long its text is."""
    told = [one.name for one in methods if not (isinstance(one, LinearCKA | MinibatchCKA) and one.debiased)]
    if told:
        raise DataError(
            f"{', '.join(told)} of whole texts of unequal length would find their lengths alike, which both networks "
            "share: compare one vector a text, samples_as='mean' or 'last', or by linear_cka or minibatch_cka, debiased"
        )


def _take_counted(x: Tensor, counted: Tensor | None, samples_as: SamplesAs) -> Tensor:
    """Return tokens without those that do not count: read as ``samples_as`` says, or each a sample.

    Flattened, they stay, at the mean of those that count at their place: what is centred is then 0 there, so that
    products of two texts leave them out.
    """
    if counted is None or x.ndim != 3 or x.shape[:2] != counted.shape:
        return x
    there = counted.to(x.device)
    if samples_as == "pixels":
        return x[there].unsqueeze(1)
    if samples_as == "flattened":
        mean = (x * there[..., None]).sum(0, dtype=torch.float64) / there.sum(0).clamp(min=1)[:, None]
        return torch.where(there[..., None], x, mean.to(x.dtype))
    if samples_as == "mean":
        return pool(x.to(torch.promote_types(x.dtype, torch.float32)), there)
    places = torch.arange(1, x.shape[1] + 1, device=x.device) * there
    at = there.int().argmax(1) if samples_as == "first" else places.argmax(1)
    return x[torch.arange(len(x), device=x.device), at]


def _name(network: Network, cut: Cut) -> str:
    return f"{network.name} at '{cut.name}'"
