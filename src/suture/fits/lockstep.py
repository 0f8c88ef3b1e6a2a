"""Several pieces of work in lockstep, which share passes through a suffix.

A descent asks for losses and goes on when it is told them (``suture.fits.suffix``). So of several that go through one
suffix all that are still going are asked, what they ask for is computed in one pass, and all go on. A small network
leaves a GPU idle on a batch of 32; on 32 batches of 32 it does not.

What a pass gives for a sample does not depend on its other samples, but for rounding: kernels are chosen by how many
there are. A single piece of work is done with the bits that it has alone.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from suture.fits.base import FitReport
from suture.fits.fast import Begun
from suture.fits.suffix import Answer, Ask, answers

IMAGES = 4096  #: in a pass, at most, unless one piece of work asks for more

_Asked = TypeVar("_Asked")
_Told = TypeVar("_Told")
_Result = TypeVar("_Result")


def lockstep(
    works: Sequence[Generator[_Asked, _Told, _Result]],
    told: Callable[[Sequence[_Asked]], Sequence[_Told]],
    *,
    kind: Callable[[_Asked], Hashable],
    images: Callable[[_Asked], int],
) -> list[_Result | Exception]:
    """Do work to its end, all of it side by side: its results in order, or the exception that ended it.

    Questions of the same ``kind`` are answered together by ``told``, at most ``IMAGES`` images at a time. Where a pass
    fails its halves are tried, down to single questions; what is wrong even then is raised in the work that asked.
    """
    ended: dict[int, _Result | Exception] = {}
    asked: dict[int, _Asked] = {}

    def go_on(place: int, step: Callable[[], _Asked]) -> None:
        try:
            asked[place] = step()
        except StopIteration as done:
            ended[place] = done.value
        except Exception as error:
            ended[place] = error

    for place, work in enumerate(works):
        go_on(place, partial(next, work))
    while asked:
        for places in list(_passes(asked, kind, images)):
            answers = _tried([asked.pop(place) for place in places], told)
            for place, answer in zip(places, answers, strict=True):
                go_on(place, partial(_tell, works[place], answer))
    return [ended[place] for place in range(len(works))]


def _tell(work: Generator[_Asked, _Told, _Result], answer: _Told | Exception) -> _Asked:
    return work.throw(answer) if isinstance(answer, Exception) else work.send(answer)


def _passes(
    asked: Mapping[int, _Asked], kind: Callable[[_Asked], Hashable], images: Callable[[_Asked], int]
) -> Iterator[list[int]]:
    """Whose questions are answered together."""
    kinds: dict[Hashable, list[int]] = {}
    for place, ask in sorted(asked.items(), key=lambda item: item[0]):
        kinds.setdefault(kind(ask), []).append(place)
    for places in kinds.values():
        some: list[int] = []
        count = 0
        for place in places:
            if some and count + images(asked[place]) > IMAGES:
                yield some
                some, count = [], 0
            some.append(place)
            count += images(asked[place])
        yield some


def _tried(asks: Sequence[_Asked], told: Callable[[Sequence[_Asked]], Sequence[_Told]]) -> Sequence[_Told | Exception]:
    """The answers, as far as there are any: half of a pass may find the memory that the whole did not."""
    try:
        return told(asks)
    except Exception as error:
        if len(asks) == 1:
            return [error]
    half = len(asks) // 2
    return [*_tried(asks[:half], told), *_tried(asks[half:], told)]


def descend(begun: Sequence[Begun]) -> list[FitReport | Exception]:
    """Take descents to their ends: their reports in order, or what went wrong; those with one suffix share its passes.

    A stitch that is alone with its suffix gets the bits that ``Fast.fit`` gives it.
    """
    found: dict[int, FitReport | Exception] = {}
    for key, through in {id(each.through): each.through for each in begun}.items():
        places = [place for place, each in enumerate(begun) if id(each.through) == key]
        reports = lockstep(
            [begun[place].rest for place in places],
            partial(_answered, through),
            kind=lambda ask: ask.gradient,
            images=lambda ask: len(ask.labels),
        )
        found |= dict(zip(places, reports, strict=True))
    return [found[place] for place in range(len(begun))]


def _answered(through: nn.Module, asks: Sequence[Ask]) -> list[Answer]:
    """The answers, with all losses brought to the CPU at once: whoever reads them one by one waits for no device."""
    made = answers(through, asks)
    losses = torch.cat([each.losses for each in made]).cpu()
    parts = torch.split(losses, [len(each.losses) for each in made])
    return [Answer(own, each.gradient) for own, each in zip(parts, made, strict=True)]
