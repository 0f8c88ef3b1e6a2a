"""Graphs that follow the mode of the module that they are in.

A network is traced in evaluation mode. A layer that is a module of torch's own stays one in the trace, and knows its
mode. One that is traced through has handed its mode on as an argument: the BatchNorm of timm, a subclass with a forward
pass of its own, is ``batch_norm(…, training=False)`` in the trace, and all is so where ``torch.export`` traced. Before
such a graph is trained, those calls are made to ask for the mode again.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from suture.common.errors import CutError
from suture.common.hashing import keyed_as
from suture.core.network.graph import operation

_TOLD = ("training", "train", "use_input_stats")  #: the arguments by which functions are told the mode


@keyed_as("Told")
class _Told(nn.Module):
    """Calls a function that is told the mode: by the argument of that place or, where there is none, of that name."""

    def __init__(self, function: Callable[..., Any], name: str, place: int | None) -> None:
        super().__init__()
        self.function, self.name, self.place = function, name, place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as the graph does, but for the mode, which is this module's."""
        if self.place is None:
            return self.function(*args, **(kwargs | {self.name: self.training}))
        return self.function(*args[: self.place], self.training, *args[self.place + 1 :], **kwargs)


def follow_mode(body: nn.Module) -> None:
    """Let the calls in a traced module follow its mode, where the trace told them that it was evaluation.

    A BatchNorm whose scale is no parameter is frozen on purpose, and stays so. Raises what ``check_mode`` does.
    """
    found = check_mode(body)
    if not isinstance(body, fx.GraphModule) or not found:
        return
    for number, (node, name, place) in enumerate(found):
        body.add_submodule(f"told_{number}", _Told(cast("Callable[..., Any]", node.target), name, place))
        with body.graph.inserting_before(node):
            called = body.graph.call_module(f"told_{number}", node.args, node.kwargs)
        node.replace_all_uses_with(called)
        body.graph.erase_node(node)
    body.recompile()


def check_mode(body: nn.Module) -> list[tuple[fx.Node, str, int | None]]:
    """The calls in a traced module that are to follow its mode, each with the name and the place of that argument.

    Raises ``CutError`` for a BatchNorm that takes the mean over all batches (``momentum=None``), which its call in
    evaluation mode no longer says.
    """
    if not isinstance(body, fx.GraphModule):
        return []
    found = []
    for node in body.graph.nodes:
        told = _told(node)
        if told is None or _is_frozen(body, node):
            continue
        if operation(node) == "batch_norm" and _given(node, "momentum") == 0:
            raise CutError(
                f"'{node.name}' cannot train: it is a BatchNorm over all batches (momentum=None), traced through; give "
                "it a momentum"
            )
        found.append((node, *told))
    return found


def _told(node: fx.Node) -> tuple[str, int | None] | None:
    """The name of the argument by which a call was told that it is in evaluation mode, and its place if it has one."""
    if node.op != "call_function":
        return None
    names = _arguments(node.target)
    for name in _TOLD:
        if node.kwargs.get(name) is False:
            return name, None
        if name in names and (place := names.index(name)) < len(node.args) and node.args[place] is False:
            return name, place
    return None


def _arguments(function: Any) -> Sequence[str]:
    """The names of a function's arguments; none where they cannot be known."""
    if not isinstance(function, torch._ops.OpOverload):
        try:
            return list(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # torch's own builtins are the operations of the same name
            function = getattr(getattr(torch.ops.aten, getattr(function, "__name__", ""), None), "default", None)
    return [argument.name for argument in function._schema.arguments] if function is not None else []


def _given(node: fx.Node, name: str) -> Any:
    """What a call is given for an argument; ``None`` where it is not given."""
    return (dict(zip(_arguments(node.target), node.args, strict=False)) | node.kwargs).get(name)


def _is_frozen(body: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it is a BatchNorm that has a scale which is no parameter."""
    weight = _given(node, "weight")
    if operation(node) != "batch_norm" or not isinstance(weight, fx.Node):
        return False
    if weight.op != "get_attr":
        return True
    owner, _, name = str(weight.target).rpartition(".")
    scale: Tensor | nn.Parameter = getattr(body.get_submodule(owner), name)
    return not isinstance(scale, nn.Parameter)
