"""The two sides of a comparison of networks: the activations at their cuts, on the first images of the score data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from suture.common.errors import DataError, NetworkError
from suture.common.sizes import in_words, physical_memory
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations, Need
from suture.core.network.cuts import Cut
from suture.core.network.network import Network
from suture.core.stitched import check_devices, check_tokens
from suture.core.stitches.pooled_linear import pick_token, pool_positions
from suture.data import Data, Samples
from suture.measurement.indices import Index, Layer, LinearCKA, MinibatchCKA, SamplesAs
from suture.measurement.indices.base import positions
from suture.measurement.sides import (
    Ignored,
    NamedLayers,
    check_sizes,
    check_uneven,
    have_room,
    is_uneven,
    leave_out,
    read_ignored,
)
from suture.measurement.trials.plans import Which, cuts_of_roles, tell_networks_apart

ROOM = 0.7  #: of the memory, that activations may take; indices compute in the rest

_Side = tuple[Network, list[Cut], Samples]  #: a network, its chosen cuts, and the samples as it reads them


def sides_of_networks(
    a: Any,
    b: Any,
    data: Any,
    *,
    cuts: Which | None,
    sender_cuts: Which | None,
    receiver_cuts: Which | None,
    samples: int | None,
    samples_as: SamplesAs,
    ignore: Ignored,
    permutations: int,
    methods: Sequence[Index],
    activations: Activations | None,
    device: str | None,
) -> tuple[tuple[NamedLayers, NamedLayers], str]:
    """Return the chosen cuts of two networks as layers, and the name of the samples. Raises as ``compare`` does."""
    for name, network in (("a", a), ("b", b)):
        remedy = "a network: Network(model, example=data.example), or two arrays (n, features)"
        check_kind(name, network, Network, remedy, NetworkError)
    tell_networks_apart([a, b])
    if device is not None:
        a, b = a.to(device), b.to(device)
    check_devices(a, b)
    check_kind("data", data, Data, "data with a split to score: load_data(…)")
    of = data.limited(score=min(samples, len(data.score)) if samples is not None else None).score
    if of.sent is None:
        check_tokens(a, b)
    elif samples_as == "pixels":
        raise DataError(
            f"samples_as='pixels' pairs positions and tokens, and of {of.name} each network reads its own view, whose "
            "positions are not pairs; compare one vector of a sample: samples_as='mean', 'first' or 'last'"
        )
    starts, ends = cuts_of_roles([a], [b], cuts, sender_cuts, receiver_cuts)
    sides = (
        (a, [a.cuts.find(name) for name in starts[a.name]], of.for_sender),
        (b, [b.cuts.find(name) for name in ends[b.name]], of.for_receiver),
    )
    if ignore is not None:
        _check_ignored(ignore, sides, samples_as, permutations)
    for network, _, read in sides:
        network.check_samples(read)
        if (counted := _find_masked(read)) is not None:
            if samples_as == "pixels":
                check_uneven(_without_tokens(sides, counted.shape[1]), permutations)
            elif samples_as == "flattened" and any(_has_tokens(cut, counted) for _, cuts, _ in sides for cut in cuts):
                _check_filled(methods)
    named = [{_name(network, cut): cut.shape for cut in cuts} for network, cuts, _ in sides]
    check_sizes(methods, len(of), (named[0], named[1]), samples_as)
    if activations is None:
        activations = Activations(ram=physical_memory())
    if activations.disk is None:
        _check_room(sides)
    layers = _layers(sides, samples_as, ignore, activations, methods)
    ours, theirs = (
        NamedLayers(
            network.name,
            [cut.name for cut in cuts],
            [cut.depth for cut in cuts],
            [layers[Need(network, read, cut.index).key] for cut in cuts],
            len(of),
        )
        for network, cuts, read in sides
    )
    return (ours, theirs), of.name


def _check_room(sides: tuple[_Side, _Side]) -> None:
    """Raise ``DataError`` if memory cannot hold all activations."""
    samples = sides[0][2]
    needs = [Need(network, read, cut.index) for network, cuts, read in sides for cut in cuts]
    size, room = sum({need.key: need.nbytes for need in needs}.values()), int(ROOM * physical_memory())
    if size > room:
        raise DataError(
            f"the activations of all cuts on {len(samples):,} images take {in_words(size)}, and there is room for "
            f"{in_words(room)}: give fewer samples, choose cuts, or give activations with a folder on disk"
        )


def _layers(
    sides: tuple[_Side, _Side],
    samples_as: SamplesAs,
    ignore: Ignored,
    activations: Activations,
    methods: Sequence[Index],
) -> dict[str, Layer]:
    """Return the layers by their needs' keys, one for each set of activations; each keeps things if they fit."""
    places = {Need(one, read, cut.index).key: (one, cut, read) for one, cuts, read in sides for cut in cuts}
    tensors = {
        key: _take(activations.at(network, cut, read), _find_masked(read), samples_as, ignore)
        for key, (network, cut, read) in places.items()
    }
    sizes = [len(read) * positions(cut.shape, samples_as) for _, cuts, read in sides for cut in cuts]
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:  # a GPU had no room for some
        tensors = {key: tensor.cpu() for key, tensor in tensors.items()}
    keeps = have_room(sizes, methods, devices)
    return {
        key: Layer(_name(network, cut), tensors[key], samples_as, {} if keeps else None)
        for key, (network, cut, _) in places.items()
    }


def _check_ignored(ignore: Ignored, sides: tuple[_Side, _Side], samples_as: SamplesAs, permutations: int) -> None:
    """Raise ``DataError`` before anything is computed if tokens of a cut cannot be left out."""
    lengths = {(cut.shape[0], id(read)): read for _, cuts, read in sides for cut in cuts if len(cut.shape) == 2}
    if not lengths:
        raise DataError("ignore= names tokens, and no cut that is compared has tokens; leave it out")
    for (length, _), read in lengths.items():
        there, counted = read_ignored(ignore, len(read), length), _find_masked(read)
        if counted is not None and counted.shape == there.shape and not bool((there & counted).any(1).all()):
            raise DataError("ignore= leaves no token of a text that its mask counts; leave some in")
        if samples_as == "pixels" and is_uneven(there):
            check_uneven(_without_tokens(sides, length), permutations)


def _take(x: Tensor, counted: Tensor | None, samples_as: SamplesAs, ignore: Ignored) -> Tensor:
    """Return tokens without those that a mask leaves out, and those that the user does."""
    if ignore is None or x.ndim != 3:
        return _take_counted(x, counted, samples_as)
    there = read_ignored(ignore, len(x), x.shape[1])
    if counted is None or counted.shape != there.shape:
        return leave_out("a cut", x, there, samples_as)
    if not is_uneven(there):
        return _take_counted(x[:, there[0].to(x.device)], counted[:, there[0]], samples_as)
    return _take_counted(x, counted & there, samples_as)


def _find_masked(samples: Samples) -> Tensor | None:
    """Return which tokens count, bool (N, T), if some do not."""
    return None if samples.counted is None or bool(samples.counted.all()) else samples.counted


def _has_tokens(cut: Cut, counted: Tensor) -> bool:
    """Return whether the tensor at a cut has a place for each token."""
    return len(cut.shape) == 2 and cut.shape[0] == counted.shape[1]


def _without_tokens(sides: tuple[_Side, _Side], tokens: int) -> list[str]:
    """Return the cuts that do not have so many tokens."""
    return [_name(network, cut) for network, cuts, _ in sides for cut in cuts if cut.shape[:-1] != (tokens,)]


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
    if samples_as in ("first", "last"):
        return pick_token(x, samples_as, counted)
    there = counted.to(x.device)
    if samples_as == "pixels":
        return x[there].unsqueeze(1)
    if samples_as == "flattened":
        mean = (x * there[..., None]).sum(0, dtype=torch.float64) / there.sum(0).clamp(min=1)[:, None]
        return torch.where(there[..., None], x, mean.to(x.dtype))
    return pool_positions(x.to(torch.promote_types(x.dtype, torch.float32)), "mean", there)


def _name(network: Network, cut: Cut) -> str:
    return f"{network.name} at '{cut.name}'"
