"""Layouts of tokens: the prefix tokens, which come first, and the grid of the others.

A shape ``(T, D)`` does not say that of 201 tokens five are a class token and registers and the others a grid of
14 × 14, nor whether 144 are 8 × 18. A family that brings one grid to another has to know it. It is found, in this
order, from

1. the user: ``Network(…, tokens=(prefix, (height, width)))``,
2. the operations of a run. The height and width of the image are followed through convolutions, permutations and
   changes of shape until a dimension holds both, row by row: these are tokens on a grid. Whatever ``cat`` puts before
   them is a prefix, and a slice takes it away again.

Statements of models and configs are not needed: the run shows it for those of timm, torchvision and
transformers. If it does not, only the number of tokens is left to guess from (``stitches.resampled.Seen``). Tokens of a
text are a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Self

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from suture.common.errors import NetworkError
from suture.core.network.feature_axis import KERNELS, SHAPED, find_moved
from suture.data.images import are_token_ids

Grid = tuple[int, int]
Layout = tuple[int, Grid | None]
"""The number of prefix tokens, and the grid (height, width) of the others; ``None`` if these are a line."""

_AXES = ("height", "width")
_PRODUCTS = ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")
_SPLITS = ("split", "split_with_sizes")
_REORDERING = {
    *("index", "index_put", "index_put_", "index_select", "gather", "scatter", "take", "flip", "sort", "topk"),
    *("stack", "as_strided", "unfold", "im2col", "col2im"),
}
"""Operations after which an entry may be anywhere."""


class TokenShape(tuple[int, ...]):
    """The shape ``(T, D)`` of tokens with their layout; equal to the plain tuple.

    The first ``prefix`` tokens are the prefix, and the others lie row by row on ``grid``, (height, width). A grid of
    ``None`` means that they are known to lie otherwise, or that nothing shows how they lie; ``is_square`` then says
    that their number is a square, or one more, from which families guess.
    """

    prefix: int
    grid: Grid | None
    is_square: bool

    def __new__(cls, shape: Sequence[int], prefix: int = 0, grid: Grid | None = None, is_square: bool = False) -> Self:
        """Make a shape with a layout."""
        made = super().__new__(cls, shape)
        made.prefix, made.grid, made.is_square = prefix, grid, is_square
        return made

    def __getnewargs__(self) -> tuple[tuple[int, ...], int, Grid | None, bool]:
        """Return the arguments from which copies and pickles are made."""
        return tuple(self), self.prefix, self.grid, self.is_square


@dataclass(frozen=True)
class _Tokens:
    """The numbers of tokens before and after those of a grid; no grid if there are several."""

    before: int
    grid: Grid | None
    after: int = 0


@dataclass(frozen=True)
class _Factor:
    """A part of a dimension: an axis of the image, tokens, or anything else. Its entries are ``step`` apart on an axis.

    The size of a dimension is the product of its factors, the slowest first. One of size 1 has none.
    """

    size: int
    of: "str | _Tokens | None" = None
    step: int = 1


_Dim = tuple[_Factor, ...]


class Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows height and width of images ``(n, C, H, W)``, or the length of ``(n, C, L)``, through a run."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = WeakIdKeyDictionary()  # of tensors, to the factors of each of their dimensions
        self.is_text = are_token_ids(images)
        if images.ndim in (3, 4) and not self.is_text:
            axes = (None, None, *_AXES[4 - images.ndim :])
            self._known[images] = [_dim(size, of) for size, of in zip(images.shape, axes, strict=True)]

    def find(self, x: Tensor) -> _Tokens | None:
        """Return the layout of the tokens ``(n, T, D)``, if it is known."""
        return _read(self._of(x)[1])

    def _of(self, x: Tensor) -> list[_Dim]:
        found: list[_Dim] = self._known.get(x) or [_dim(size) for size in x.shape]  # type: ignore[no-untyped-call]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x in self._known]
        start = 0
        for out in tree_leaves(outputs) if given else ():
            if isinstance(out, Tensor) and not out.is_nested:  # which has no shape
                name = func._schema.name.partition("::")[2]
                self._known[out] = self._derive(name, args, given, out, start)
                start += out.shape[_place(args, 2)] if name in _SPLITS else 0
        return outputs

    def _derive(self, name: str, args: Sequence[Any], given: Sequence[Tensor], out: Tensor, start: int) -> list[_Dim]:
        """Return the factors of an output's dimensions; a part of a split begins at ``start``."""
        found, dims = [_dim(size) for size in out.shape], list(self._of(given[0]))
        if name in _REORDERING:
            return found
        if name in SHAPED:
            return _deal([factor for dim in dims for factor in dim], out.shape) or found
        if name == "roll":
            return self._roll(dims, args)
        if name == "cat":
            return self._join([x for x in args[0] if x.ndim == out.ndim], _place(args, 1)) or found
        if name in _SPLITS:
            dims[_place(args, 2)] = _take(dims[_place(args, 2)], start, out.shape[_place(args, 2)])
            return dims
        if name == "slice":
            dim, step = _place(args, 1), args[4] if len(args) > 4 else 1
            start = range(given[0].shape[dim])[args[2] :].start if len(args) > 2 else 0
            dims[dim] = _take(dims[dim], start, out.shape[dim], step)
            return dims
        if name in _PRODUCTS:
            left, right = args[-2:]
            return [*self._of(left)[:-1], self._of(right)[-1]]
        if any(kernel in name for kernel in KERNELS):
            same = len(dims) == len(found)  # not so for statistics beside the output
            return [_resize(dim, size) for dim, size in zip(dims, out.shape, strict=True)] if same else found
        if (moved := find_moved(name, args, given[0], out)) is not None:
            for i, j in moved:
                found[j] = _resize(dims[i], out.shape[j])
            return found
        for x in given:  # any other: dimensions of the same size, counted from the last, are the same
            for back in range(1, min(x.ndim, out.ndim) + 1):
                if x.shape[-back] == out.shape[-back] and not any(factor.of for factor in found[-back]):
                    found[-back] = self._of(x)[-back]
        return found

    def _roll(self, dims: list[_Dim], args: Sequence[Any]) -> list[_Dim]:
        """Return the dimensions of a tensor whose entries move around: tokens are no longer where they were.

        Height and width stay axes, since rolls of windows are undone behind them.
        """
        asked = args[2] if len(args) > 2 else ()
        rolled = {dim % len(dims) for dim in ([asked] if isinstance(asked, int) else asked)} or set(range(len(dims)))
        return [
            _dim(_size(dim), _Tokens(0, None)) if i in rolled and not _is_axis(dim) and _read(dim) else dim
            for i, dim in enumerate(dims)
        ]

    def _join(self, tensors: Sequence[Tensor], dim: int) -> list[_Dim]:
        """Return the dimensions of tensors that are joined: whatever comes before tokens on a grid is their prefix."""
        known = [(i, self._of(x)) for i, x in enumerate(tensors) if x in self._known]
        if not known:
            return []
        sizes, dims = [x.shape[dim] for x in tensors], list(known[0][1])
        laid = [(sum(sizes[:i]), row, sum(sizes[i + 1 :])) for i, own in known if (row := _read(own[dim]))]
        joined = [_Tokens(before + row.before, row.grid, row.after + after) for before, row, after in laid]
        dims[dim] = _lay(joined[0] if len(joined) == 1 else _Tokens(0, None) if joined else None, sum(sizes))
        return dims


def _dim(size: int, of: str | _Tokens | None = None) -> _Dim:
    return () if size == 1 else (_Factor(size, of),)


def _size(dim: _Dim) -> int:
    return prod(factor.size for factor in dim)


def _is_axis(dim: _Dim) -> bool:
    return len(dim) == 1 and dim[0].of in _AXES


def _place(args: Sequence[Any], position: int) -> int:
    """Return the dimension that an operation names, by default the first."""
    return args[position] if len(args) > position else 0


def _lay(tokens: _Tokens | None, size: int) -> _Dim:
    """Return the dimension of tokens with this layout; tokens of a whole grid are two axes again."""
    if tokens is None or tokens.grid is None or tokens.before or tokens.after:
        return _dim(size, tokens)
    return tuple(_Factor(size, of) for size, of in zip(tokens.grid, _AXES, strict=True) if size > 1)


def _read(dim: _Dim) -> _Tokens | None:
    """Return the layout of a dimension's tokens; ``None`` if it does not hold tokens."""
    match [(factor.of, factor.size) for factor in dim]:
        case [(_Tokens() as tokens, _)]:
            return tokens
        case [("height", height), ("width", width)]:
            return _Tokens(0, (height, width))
        case [("height", height)]:
            return _Tokens(0, (height, 1))
        case [("width", width)]:
            return _Tokens(0, (1, width))
    return _Tokens(0, None) if any(factor.of for factor in dim) else None


def _resize(dim: _Dim, size: int) -> _Dim:
    """Return a dimension at its new size; an axis of the image stays one."""
    if size == _size(dim):
        return dim
    return _dim(size, dim[0].of if _is_axis(dim) else None)


def _take(dim: _Dim, start: int, size: int, step: int = 1) -> _Dim:
    """Return a part of a dimension."""
    tokens = _read(dim)
    if _is_axis(dim) or tokens is None or tokens.grid is None or step != 1:
        return _resize(dim, size)
    before, after = tokens.before - start, start + size - tokens.before - prod(tokens.grid)
    return _lay(_Tokens(before, tokens.grid, after), size) if min(before, after) >= 0 else _dim(size)


def _deal(factors: Sequence[_Factor], shape: Sequence[int]) -> list[_Dim] | None:
    """Deal factors out to the dimensions of another shape; ``None`` if a factor would have to be split unevenly."""
    left, dims = list(reversed(factors)), list[_Dim]()
    for size in shape:
        dim: list[_Factor] = []
        while size > 1 and left:
            factor = left.pop()
            if factor.size > size and factor.size % size == 0:  # only a part of it, that of the larger steps
                rest, axis = factor.size // size, factor.of if factor.of in _AXES else None
                left.append(_Factor(rest, axis, factor.step))
                factor = _Factor(size, axis, factor.step * rest)
            if size % factor.size:
                return None
            size //= factor.size
            if dim and factor.of in _AXES and (dim[-1].of, dim[-1].step) == (factor.of, factor.step * factor.size):
                factor = _Factor(dim.pop().size * factor.size, factor.of, factor.step)  # it was divided before
            dim.append(factor)
        dims.append(tuple(dim))
    return dims


def lay_out(x: Tensor, followed: Followed, told: Layout | None) -> tuple[int, ...]:
    """Return the shape of the tensor at a cut, without the batch; that of tokens with their layout.

    ``told`` is the user's.
    """
    shape = tuple(x.shape[1:])
    if len(shape) != 2:
        return shape
    count, tokens = shape[0], followed.find(x)
    prefix, grid = told or (0, None)
    for first in (prefix, 0) if grid else ():  # also of the same tokens without their prefix
        if first + prod(grid or ()) == count:
            return TokenShape(shape, first, grid)
    if told and not grid and count > prefix:
        return TokenShape(shape, prefix, (1, count - prefix))
    if followed.is_text:
        return TokenShape(shape, 0, (1, count))
    if tokens is not None:
        return TokenShape(shape) if tokens.after or not tokens.grid else TokenShape(shape, tokens.before, tokens.grid)
    return TokenShape(shape, is_square=any(isqrt(n) ** 2 == n for n in (count, count - 1)))


def check_layout(tokens: Any) -> Layout | None:
    """Return the layout that the user gave. Raises ``NetworkError`` if it is not a layout."""
    match tokens:
        case None:
            return None
        case (int(prefix), None) if prefix >= 0:
            return prefix, None
        case (int(prefix), (int(height), int(width))) if prefix >= 0 and min(height, width) > 0:
            return prefix, (height, width)
    raise NetworkError(f"tokens={tokens!r} is not a layout of tokens; {_REMEDY}")


def check_fits(tokens: Layout | None, shapes: Sequence[tuple[int, ...]], name: str) -> None:
    """Raise ``NetworkError`` if no cut has as many tokens as the user's layout."""
    if tokens is None:
        return
    (prefix, grid), counts = tokens, sorted({shape[0] for shape in shapes if len(shape) == 2})
    if not any(count == prefix + prod(grid) if grid else count > prefix for count in counts):
        wanted = f"{prefix + prod(grid)}" if grid else f"more than {prefix}"
        has = ", ".join(map(str, counts)) or "none"
        raise NetworkError(f"tokens={tokens} means {wanted} tokens, and the cuts of {name} have {has}; {_REMEDY}")


_REMEDY = (
    "give the number of prefix tokens (class token, registers) and the grid (height, width) of the others, such as "
    "tokens=(1, (14, 14)), or tokens=(1, None) if the others are a line"
)
