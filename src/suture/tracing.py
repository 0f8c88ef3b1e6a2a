"""How a model is cut: by ``torch.fx``, else by ``torch.export``, else along stages that the user names.

Each backend gives *pieces*: modules that follow one another, with the names of the tensors between them. Whatever a
backend claims is then verified on probe batches: the chain of pieces must give the model's own output bit for bit, and
no piece may change the tensor it was given (it works on a copy where it would). A backend whose pieces fail one by one
loses those cuts; one that keeps none gives way to the next.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.errors import TracingError
from suture.graph import CutGraph, GraphError

Stage = str | tuple[str, Callable[[Tensor], Tensor]]
Names = tuple[str, ...]  # the first is the cut's, the others are aliases


class Piece(nn.Module):
    """What lies between two cuts: always frozen, always in evaluation mode.

    Where ``copies`` is set it works in place, and so on a copy: the tensor that passes a cut is never touched.
    """

    def __init__(self, body: nn.Module, copies: bool = False) -> None:
        super().__init__()
        self.body = body
        self.copies = copies
        super().train(False)

    def train(self, mode: bool = True) -> "Piece":
        """Stay in evaluation mode, whatever is asked."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map the tensor at one cut to the tensor at the next."""
        out: Tensor = self.body(x.clone() if self.copies else x)
        return out


@dataclass(frozen=True)
class Traced:
    """A model in pieces: ``names[i]`` are those of the tensor after ``pieces[i]``; the last ends in the output."""

    backend: str
    pieces: tuple[Piece, ...]
    names: tuple[Names, ...]
    dropped: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)  #: backends that were tried before, and why they failed


def trace(model: nn.Module, probes: Sequence[Tensor], stages: Sequence[Stage] | None) -> Traced:
    """Cut a frozen model by the first backend that can.

    ``probes`` are inputs of the model with batch sizes 1, 2 and 3. Raises ``TracingError`` with what each backend said.
    """
    backends: dict[str, Callable[[], _Candidates]] = (
        {"stages": lambda: _by_stages(model, stages)}
        if stages is not None
        else {"torch.fx": lambda: _by_fx(model, probes), "torch.export": lambda: _by_export(model, probes)}
    )
    with torch.no_grad():
        wanted = [model(probe.clone()) for probe in probes]
    refused: dict[str, str] = {}
    for backend, candidates in backends.items():
        try:
            return _verified(backend, candidates(), probes, wanted, refused)
        except Exception as error:  # a tracer may fail in any way on a model that it does not know
            refused[backend] = _first_line(error)
    said = "; ".join(f"{backend}: {reason}" for backend, reason in refused.items())
    remedy = (
        "correct the stages: in their order they must be the whole forward pass"
        if stages is not None
        else "name the stages that make up its forward pass, stages=['stem', 'blocks.0', …, 'head']"
    )
    raise TracingError(f"{type(model).__name__} cannot be cut ({said}); {remedy}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


@dataclass(frozen=True)
class _Candidates:
    """What a backend offers: names of possible cuts, and how to build the pieces between any choice of them."""

    names: tuple[Names, ...]
    build: Callable[[Sequence[int]], Sequence[nn.Module]]
    dropped: Mapping[str, str]


def _verified(
    backend: str,
    offer: _Candidates,
    probes: Sequence[Tensor],
    wanted: Sequence[Tensor],
    refused: Mapping[str, str],
) -> Traced:
    """Keep the cuts that are exact on every probe; raise ``GraphError`` where none is."""
    keep: Sequence[int] = range(len(offer.names))
    dropped = dict(offer.dropped)
    try:
        pieces = _exact_pieces(offer.build(keep), probes, wanted)
    except Exception:  # find out which cuts are at fault
        keep = []
        for i, names in enumerate(offer.names):
            try:
                _exact_pieces(offer.build([i]), probes, wanted)
                keep.append(i)
            except Exception as error:
                dropped[names[0]] = _first_line(error)
        if not keep:
            raise
        pieces = _exact_pieces(offer.build(keep), probes, wanted)
    return Traced(backend, pieces, tuple(offer.names[i] for i in keep), dropped, dict(refused))


def _exact_pieces(bodies: Sequence[nn.Module], probes: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[Piece, ...]:
    with torch.no_grad():
        pieces = _protected(bodies, probes[0])
        for probe, want in zip(probes, wanted, strict=True):
            x = probe
            for piece in pieces:
                before = x._version
                x, given = piece(x), x
                if given._version != before:
                    raise GraphError("an operation in place reaches back through it")
            if not torch.equal(x, want):
                raise GraphError("split here, the model does not give its own output bit for bit")
    return pieces


def _protected(bodies: Sequence[nn.Module], x: Tensor) -> tuple[Piece, ...]:
    """Pieces that copy their input exactly where they would change it."""
    pieces = []
    for body in bodies:
        given = x.clone()
        before = given._version
        x = Piece(body)(given)
        pieces.append(Piece(body, copies=given._version != before))
        x = x.clone()
    return tuple(pieces)


# --- torch.fx ---------------------------------------------------------------------------------------------------------


class _Entry(nn.Module):
    """Calls the model with one tensor, so that its optional arguments keep their defaults and are not traced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class _Tracer(fx.Tracer):
    """Remembers which modules returned each node, innermost first, and the module that each node was computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.returned_by: dict[fx.Node, list[str]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Leave modules whole that hooks act on."""
        hooked = bool(m._forward_hooks or m._forward_pre_hooks)
        return hooked or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        out = super().call_module(m, forward, args, kwargs)
        path = self.path_of_module(m).partition("model.")[2]
        if isinstance(out, fx.Proxy) and path:
            self.returned_by.setdefault(out.node, []).append(path)
        return out


def _by_fx(model: nn.Module, probes: Sequence[Tensor]) -> _Candidates:
    entry = _Entry(model)
    tracer = _Tracer()
    graph = tracer.trace(entry)
    module = fx.GraphModule(entry, graph)
    copies = dict(zip(graph.nodes, module.graph.nodes, strict=True))
    returned = {copies[node]: paths for node, paths in tracer.returned_by.items()}
    scopes = {copies[node]: _innermost(node.meta.get("nn_module_stack")) for node in graph.nodes}
    names = _name_nodes(module, model, returned, scopes)
    return _candidates(CutGraph(module, names, (probes[1], probes[2])))


def _candidates(graph: CutGraph) -> _Candidates:
    def build(keep: Sequence[int]) -> Sequence[nn.Module]:
        return graph.pieces([graph.candidates[i] for i in keep])

    names = tuple(tuple(graph.names[node]) for node in graph.candidates)
    return _Candidates(names, build, graph.dropped)


def _innermost(stack: Mapping[str, Any] | None) -> str:
    """The path of the module that a node was computed in: the last key of its stack, without the entry's own."""
    paths = [value[0] if isinstance(value, tuple) else key for key, value in (stack or OrderedDict()).items()]
    return _user_path(paths[-1]) if paths else ""


def _user_path(path: str) -> str:
    """A module's path as the user of the model knows it."""
    return re.sub(r"^(L__self__|L\['self'\])?\.?model\.?", "", path)


def _name_nodes(
    module: fx.GraphModule,
    model: nn.Module,
    returned: Mapping[fx.Node, list[str]],
    scopes: Mapping[fx.Node, str],
) -> dict[fx.Node, Names]:
    """Names for every node, each used once: a second use of a module or operation gets ``_1``, a third ``_2``."""
    used: Counter[str] = Counter()
    names: dict[fx.Node, Names] = {}
    for node in module.graph.nodes:
        paths = returned.get(node)
        chosen = _ordered(paths, model) if paths else [".".join(filter(None, [scopes.get(node, ""), _operation(node)]))]
        names[node] = tuple(_once(name, used) for name in chosen)
    return names


def _once(name: str, used: Counter[str]) -> str:
    used[name] += 1
    return name if used[name] == 1 else f"{name}_{used[name] - 1}"


def _ordered(paths: Sequence[str], model: nn.Module) -> list[str]:
    """The outermost module that is not a mere container first, then the others from outside in."""
    outside_in = list(reversed(paths))
    first = next((p for p in outside_in if not isinstance(model.get_submodule(p), nn.Sequential)), outside_in[0])
    return [first, *(path for path in outside_in if path != first)]


def _operation(node: fx.Node) -> str:
    """The plain name of what a node computes: ``add``, ``flatten``, ``conv2d``."""
    if node.op in ("placeholder", "output"):
        return node.op
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[1]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)
    return name.rpartition(".")[2] or node.name


# --- torch.export -----------------------------------------------------------------------------------------------------


def _by_export(model: nn.Module, probes: Sequence[Tensor]) -> _Candidates:
    from torch.export import Dim, export

    program = export(_Entry(model), (probes[1],), dynamic_shapes={"x": {0: Dim.DYNAMIC}}, strict=False)
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    nodes = list(module.graph.nodes)
    inside = {node: _modules_around(node) for node in nodes}
    names = _name_nodes(module, model, _returned_by(nodes, inside), {n: p[-1] for n, p in inside.items() if p})
    return _candidates(CutGraph(module, names, (probes[1], probes[2])))


def _modules_around(node: fx.Node) -> list[str]:
    stack = node.meta.get("nn_module_stack") or {}
    return [path for path in (_user_path(value[0]) for value in stack.values()) if path]


def _returned_by(nodes: Sequence[fx.Node], inside: Mapping[fx.Node, list[str]]) -> dict[fx.Node, list[str]]:
    """For each node the modules, innermost first, that it is the one output of: it alone is read outside of them."""
    outputs: dict[str, list[fx.Node]] = {}
    for node in nodes:
        for path in inside[node]:
            if any(path not in inside[user] for user in node.users):
                outputs.setdefault(path, []).append(node)
    returned: dict[fx.Node, list[str]] = {}
    for path, out in sorted(outputs.items(), key=lambda item: -item[0].count(".")):
        if len(out) == 1:
            returned.setdefault(out[0], []).append(path)
    return returned


# --- stages -----------------------------------------------------------------------------------------------------------


class _Function(nn.Module):
    """A stage that is no module of the model: a function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _by_stages(model: nn.Module, stages: Sequence[Stage]) -> _Candidates:
    named = [_stage(model, stage) for stage in stages]

    def build(keep: Sequence[int]) -> Sequence[nn.Module]:
        bounds = [0, *(i + 1 for i in keep), len(named)]
        return [nn.Sequential(*(body for _, body in named[a:b])) for a, b in pairwise(bounds)]

    return _Candidates(tuple((name,) for name, _ in named[:-1]), build, {})


def _stage(model: nn.Module, stage: Stage) -> tuple[str, nn.Module]:
    if isinstance(stage, tuple):
        name, function = stage
        if isinstance(function, nn.Module):
            raise TracingError(f"stage '{name}' is a module; give its path in the model instead, so that it is frozen")
        return name, _Function(function)
    try:
        return stage, model.get_submodule(stage)
    except AttributeError:
        paths = ", ".join(name for name, _ in model.named_children())
        raise TracingError(f"no module '{stage}' in {type(model).__name__}; it begins with {paths}") from None
