"""Comparing layers by similarity indices: of two networks, at all pairs of cuts, or of arrays that a user brings.

An index compares two layers' activations for the same images and trains nothing; a stitch asks how useful one is to the
other (bansal2021, section 3). ``compare`` gives a tidy table, a row for each sender cut, receiver cut and index;
``beside`` puts them into a table of measurements, a column for each index.

Many indices are high between layers that have nothing in common. So each is *calibrated*: permuting images gives its
value by chance (``measurement/indices/calibration``), and ``explain`` and heat maps use the calibrated value.

Networks and arrays become the same thing first, two sides of named layers (``sides``, ``network_sides``), and are
compared by the same lines. Each layer is prepared once an index, and what indices have in common (products of all
samples, a basis) once for all, if memory allows.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, overload

import pandas as pd
import torch

from suture.common.errors import DataError
from suture.common.seeds import undisturbed
from suture.common.validation import check_kind, check_whole
from suture.common.warning import warn
from suture.measurement.indices import Index, LinearCKA, SamplesAs
from suture.measurement.indices.base import check_choice
from suture.measurement.indices.calibration import PERMUTATIONS, calibrate
from suture.measurement.indices.few_rows import warn_of_few_rows
from suture.measurement.sides import Arrays, Ignored, are_arrays, sides_of_arrays
from suture.measurement.tables.in_short import in_short
from suture.measurement.tables.similarities import CALIBRATED, COLUMNS, SEAM, check_similarities
from suture.measurement.tables.table import check_columns

if TYPE_CHECKING:
    from suture.core.activations.cache import Activations
    from suture.core.network.network import Network
    from suture.data import Data
    from suture.measurement.trials.plans import Which

SAMPLES = 2000  #: images that networks are compared on if no number is given, or all that there are
DEFAULT: tuple[Index, ...] = (LinearCKA(debiased=True),)
_FEWEST = 19  #: permutations: above all of them p is 1 / (19 + 1) = 0.05
#: Controls whose sender and receiver are the trained networks that their names say.
_TRAINED = ("", "itself", "shuffled pairs")


@overload
def compare(
    a: "Network",
    b: "Network",
    *,
    data: "Data",
    by: Index | Sequence[Index] = ...,
    cuts: "Which | None" = ...,
    sender_cuts: "Which | None" = ...,
    receiver_cuts: "Which | None" = ...,
    samples: int | EllipsisType | None = ...,
    samples_as: SamplesAs = ...,
    ignore: Ignored = ...,
    permutations: int = ...,
    activations: "Activations | None" = ...,
    device: str | None = ...,
) -> pd.DataFrame: ...


@overload
def compare(
    a: Arrays,
    b: Arrays,
    *,
    by: Index | Sequence[Index] = ...,
    samples: int | EllipsisType | None = ...,
    samples_as: SamplesAs = ...,
    ignore: Ignored = ...,
    permutations: int = ...,
    device: str | None = ...,
    names: tuple[str, str] | None = ...,
) -> pd.DataFrame: ...


def compare(
    a: "Network | Arrays",
    b: "Network | Arrays",
    *,
    data: "Data | None" = None,
    by: Index | Sequence[Index] = DEFAULT,
    cuts: "Which | None" = None,
    sender_cuts: "Which | None" = None,
    receiver_cuts: "Which | None" = None,
    samples: int | EllipsisType | None = ...,
    samples_as: SamplesAs = "flattened",
    ignore: Ignored = None,
    permutations: int = PERMUTATIONS,
    activations: "Activations | None" = None,
    device: str | None = None,
    names: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """Compare every layer of ``a`` with every layer of ``b`` by every index in ``by``; see ``COLUMNS``.

    Two *arrays* of NumPy or tensors of torch, ``(n, features)``, maps ``(n, C, H, W)`` or tokens ``(n, tokens, C)``,
    of the same n samples in the same order; or two mappings from names of layers to such. All rows are compared, or
    the first ``samples``, on ``device``, by default where the first layer is. ``names`` are those of the two sides in
    the table, by default ``x`` and ``y``.

    Two *networks* at every sender cut of ``a`` and every receiver cut of ``b``; ``cuts``, ``sender_cuts`` and
    ``receiver_cuts`` choose as in ``plans.matrix``. Compared on the first ``samples`` images of the score data of
    ``data``, by default 2,000, all there are for ``None``. ``activations`` is a cache to take activations from and
    leave them in, ``device`` where all is computed: by default where the networks are.

    ``samples_as`` says whether an image is a sample (``flattened``; ``mean``, ``first``, ``last`` of its positions or
    tokens) or every position and token (``pixels``): maps of unequal size are then pooled to the smaller, and other
    layers of unequal numbers of positions are not compared: the value is empty. ``ignore`` names tokens that do not
    count, besides those that a mask leaves out: their places, such as ``[0]``, or a mask that is true for them, bool
    ``(tokens,)`` or ``(n, tokens)``; layers that have no tokens stay whole. ``permutations`` is how many calibrate
    an index at least, 0 for none: sums over pairs of images take little time for them, any other index its own time
    for each.

    Raises, before anything is computed, ``DataError`` for indices of one name, for 1 to 18 permutations, with which no
    p is 0.05, for too few or too many images for an index, and for activations that memory cannot hold; for arrays
    that are of no numbers, not finite, constant, of one row, or of unequal numbers of rows, and for settings of
    networks beside them; ``NetworkError`` if two networks have one name, are on two devices or read texts in other
    tokens, ``DeviceError`` if the device is not there or has no room, and ``CutError`` if a network has no cut that is
    asked for.

    Warns if few samples hold most of the norm by which a linear index compares, as tokens called attention sinks do.
    """
    methods = _methods(by)
    check_choice("samples_as", samples_as, SamplesAs)
    if samples is not None and samples is not ... and check_whole("samples", samples) < 2:
        raise DataError(f"samples={samples}: give 2 or more, or None for all that there are")
    if check_whole("permutations", permutations) and permutations < _FEWEST:
        raise DataError(f"permutations={permutations}: give {_FEWEST} or more, below which no p is 0.05, or 0 for none")
    with undisturbed():
        if are_arrays(a, b):
            foreign = {"data": data, "cuts": cuts, "sender_cuts": sender_cuts, "receiver_cuts": receiver_cuts}
            for name, value in {**foreign, "activations": activations}.items():
                if value is not None:
                    raise DataError(f"{name}= is for networks; arrays are compared as they are, so leave it out")
            sides = sides_of_arrays(
                a,
                b,
                samples=None if samples is ... else samples,
                samples_as=samples_as,
                ignore=ignore,
                permutations=permutations,
                methods=methods,
                device=device,
                names=names,
            )
            score_data = ""
        else:
            if names is not None:
                raise DataError("names= is for arrays; networks have their own: Network(…, name=…)")
            # takes whatever cuts networks with it, more than a second that arrays need not wait for
            from suture.measurement.network_sides import sides_of_networks

            sides, score_data = sides_of_networks(
                a,
                b,
                data,
                cuts=cuts,
                sender_cuts=sender_cuts,
                receiver_cuts=receiver_cuts,
                samples=SAMPLES if samples is ... else samples,
                samples_as=samples_as,
                ignore=ignore,
                permutations=permutations,
                methods=methods,
                activations=activations,
                device=device,
            )
        ours, theirs = sides
        warn_of_few_rows([*ours.layers, *theirs.layers], methods)
        told = {"samples_as": samples_as, "score_data": score_data, "n": ours.images}
        rows = []
        for method in methods:
            if permutations:
                null = method.null(ours.layers, theirs.layers, permutations)
                found = {"value": null.values} | vars(calibrate(null, method.best, method.distance))
            else:
                found = {"value": method.pairs(ours.layers, theirs.layers)}
                found |= dict.fromkeys(CALIBRATED, torch.full_like(found["value"], torch.nan))
            rows += [
                {"sender": ours.name, "receiver": theirs.name, "sender_cut": start, "receiver_cut": end}
                | {"sender_depth": ours.depths[i], "receiver_depth": theirs.depths[j], "index": method.name}
                | {name: float(values[i, j]) for name, values in found.items()}
                | told
                | {"direction": "distance" if method.distance else "similarity"}
                for i, start in enumerate(ours.cuts)
                for j, end in enumerate(theirs.cuts)
            ]
    return in_short(pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS))


def beside(table: pd.DataFrame, similarities: pd.DataFrame) -> pd.DataFrame:
    """Put similarities beside measurements of the same seams: the table, with a column for each index.

    For a calibrated index, these are the calibrated values. Empty if a seam was not compared, and for controls whose
    networks are not the trained ones. Raises ``DataError`` if one of the two is not such a table, if a seam has two
    values of an index, or if a column is there already. Warns if the two are of different data.
    """
    check_columns(table)
    check_similarities(similarities)
    names = list(dict.fromkeys(map(str, similarities["index"])))
    there = [name for name in names if name in table]
    if there:
        raise DataError(f"the table has a column {there[0]!r} already; give the table as it was measured")
    compared, scored = ({str(name).partition("[")[0] for name in one["score_data"]} for one in (similarities, table))
    if scored and not compared & (scored | {""}):  # arrays have none
        names_of = [", ".join(sorted(each)) for each in (compared, scored)]
        warn(f"layers were compared on {names_of[0]} and stitched networks on {names_of[1]}")
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
        raise DataError("by=[] is empty: give an index, such as suture.indices.linear_cka")
    for place, method in enumerate(methods):
        if not isinstance(method, Index):
            raise DataError(f"by[{place}] is {method!r}: give indices, such as suture.indices.linear_cka")
        if method.name in (other.name for other in methods[:place]):
            raise DataError(f"'{method.name}' is given twice; leave it out, or give it other settings")
    return methods
