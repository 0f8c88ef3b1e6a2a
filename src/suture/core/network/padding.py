"""Whether padding changes a model's outputs for a sequence, and positions that make up for it.

A padded sequence must give the outputs that it gives alone. A mask does not see to that by itself: a model that counts
positions from the left takes a text behind padding for one that begins later, a convolution reads the padding beside
the last word, and a mean over all positions counts it. So a few sequences are run padded and alone, and
the outputs that count are compared. A model that also takes ``position_ids`` is given those that begin where the mask
does, if that mends it.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from suture.common.errors import NetworkError
from suture.common.warning import warn
from suture.core.network.entrance import POSITIONS, Entrance
from suture.core.network.segments import are_close, find_rounding
from suture.data.inputs import Inputs, counted

TRIED = 3  #: sequences that are compared: the shortest, the longest padded one, and one between

Run = Callable[[Tensor], Tensor]


def place_tokens(model: nn.Module, joined: Tensor, inputs: Inputs, name: str) -> nn.Module:
    """Return a model to which the padding of its example makes no difference: itself, or with positions and a warning.

    ``joined`` are prepared sequences ``(n, columns, T)``. Raises ``NetworkError`` with the reason if there is none.
    """
    rows = pick_padded(joined, counted(joined, inputs))
    why = find_harm(model, rows, inputs)
    if not why:
        return model
    if isinstance(model, Entrance) and model.may_place:
        placed = model.around(model.model, places=True)
        if not find_harm(placed, rows, inputs, model):
            warn(
                f"{name} counts positions from the padding on the left of its example; it is given {POSITIONS} that "
                "begin where the mask does"
            )
            return placed
    raise NetworkError(f"the example has padded sequences, and {name} {why}; {remedy_of(why)}")


def pick_padded(joined: Tensor, there: Tensor | None) -> Tensor:
    """Return a few of the padded sequences, ``there`` telling which positions count, bool (N, T)."""
    if there is None:
        return joined[:0]
    lengths = torch.tensor([end - start for start, end in _spans(there)])
    padded = (lengths < there.shape[1]).nonzero().flatten()
    ranked = padded[lengths[padded].argsort(stable=True)]
    on_the_left = ranked[~there[ranked, 0]]  # which more models take amiss
    ranked = on_the_left if len(on_the_left) else ranked
    return joined[ranked[torch.linspace(0, max(len(ranked) - 1, 0), min(TRIED, len(ranked))).long()]]


def find_harm(run: Run, rows: Tensor, inputs: Inputs, alone: Run | None = None) -> str:
    """Say why a model gives filled-up sequences something else than the sequences alone; empty if it does not.

    ``alone`` is the model that these are given to, if it is another.
    """
    there = counted(rows, inputs)
    if not len(rows) or there is None:
        return ""
    with torch.no_grad():
        padded = run(rows.clone())
        if all(
            _is_alike(padded[i], *_run_alone(alone or run, rows[i : i + 1], span, inputs), there[i], span)
            for i, span in enumerate(_spans(there))
        ):
            return ""
        refilled = _those_that_count(run(_refill(rows, there)), there)
    reads = not are_close(_those_that_count(padded, there), refilled, find_rounding(padded))
    if not bool(there[:, 0].all()):
        return f"{'reads' if reads else 'counts from'} the first position, which is padding"
    if reads:
        return "reads the padding, although the mask leaves it out"
    return "depends on the length of the padding, as a mean over all positions does"


def remedy_of(why: str) -> str:
    """Return the remedy for padding that changes a model's outputs."""
    first = "fill them up on the right, " if "first position" in why else ""
    return f"{first}let it heed its mask in every layer that joins positions, or cut all sequences to one length"


def _spans(there: Tensor) -> Iterator[tuple[int, int]]:
    """Yield where each sequence begins and ends."""
    for row in there:
        places = row.nonzero().flatten()
        yield (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


def _run_alone(run: Run, row: Tensor, span: tuple[int, int], inputs: Inputs) -> tuple[Tensor, bool]:
    """Return the outputs of a sequence alone, and whether it was cut to its length.

    To a model that takes one length only it is given moved to the front, behind it another padding.
    """
    start, end = span
    try:
        return run(row[..., start:end].clone())[0], True
    except Exception:
        moved = row.roll(-start, -1)
        there = counted(moved, inputs)
        assert there is not None
        return run(_refill(moved, there))[0], False


def _refill(rows: Tensor, there: Tensor) -> Tensor:
    """Return sequences with other token ids where none counts: the first that does."""
    first = there.int().argmax(1, keepdim=True)
    ids = rows[:, 0].where(there, rows[:, 0].gather(1, first))
    return torch.cat([ids[:, None], rows[:, 1:]], 1)


def _is_alike(padded: Tensor, alone: Tensor, is_cut: bool, there: Tensor, span: tuple[int, int]) -> bool:
    """Return whether two outputs of one sequence agree at the positions that count."""
    (start, end), length = span, len(there)
    if padded.shape != alone.shape:
        changed = [dim for dim, sizes in enumerate(zip(padded.shape, alone.shape, strict=False)) if len({*sizes}) > 1]
        if padded.ndim != alone.ndim or len(changed) != 1 or padded.shape[changed[0]] != length:
            return True
        padded, alone = padded.movedim(changed[0], 0)[start:end], alone.movedim(changed[0], 0)
        padded, alone = padded[there[start:end]], alone[there[start:end]]
    elif not is_cut and padded.ndim > 1 and len(padded) == length:
        padded, alone = padded[there], alone.roll(start, 0)[there]
    return are_close(padded, alone, find_rounding(padded))


def _those_that_count(out: Tensor, there: Tensor) -> Tensor:
    return out[there] if out.ndim > 2 and out.shape[1] == there.shape[1] else out
