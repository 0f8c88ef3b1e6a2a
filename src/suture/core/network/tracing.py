"""How a model is cut: by ``torch.fx``, else by ``torch.export``, else along stages that the user names.

Each backend gives *segments*: modules that follow one another, with the names of the tensors between them. Whatever a
backend claims is then verified on probe batches: the chain of segments must give the model's own output bit for bit,
and no segment may change the tensor it was given (if it would, it works on a copy). A backend whose segments fail one
by one loses those cuts; one that keeps none gives way to the next.
"""

import contextlib
import functools
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn

from suture.common.errors import TracingError
from suture.common.formatting import first_line
from suture.common.hashing import keyed_as
from suture.common.warning import warn
from suture.core.network.entrance import Entrance, entrance_of
from suture.core.network.feature_axis import GraphError
from suture.core.network.freezing import find_trained
from suture.core.network.segments import CutGraph, Segment, build_segments, operation


@keyed_as("suture.Method")  # its name before it was registered: keys of networks cut along methods stay
@dataclass(frozen=True)
class MethodStage:
    """A stage that is a method of one of the model's modules, so that it can be that of a copy of the model."""

    path: str
    name: str


Stage = str | tuple[str, Callable[[Tensor], Tensor] | MethodStage]
Names = tuple[str, ...]  # the first is the cut's, the others are aliases


@dataclass(frozen=True)
class Traced:
    """A model in segments: ``names[i]`` are those of the tensor after ``segments[i]``; the last ends in the output."""

    backend: str
    segments: tuple[Segment, ...]
    names: tuple[Names, ...]
    dropped: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)  #: backends that were tried before, and why they failed


def trace(
    model: nn.Module, probes: Sequence[Tensor], wanted: Sequence[Tensor], stages: Sequence[Stage] | None
) -> Traced:
    """Cut a frozen model by the first backend that can.

    ``probes`` are inputs of the model with batch sizes 1, 2 and 3, ``wanted`` its outputs for them. Raises
    ``TracingError`` with the error of each backend.
    """
    entrance = entrance_of(model)
    model = entrance.model
    backends: list[tuple[str, Callable[[], _Candidates]]]
    if stages is not None:
        backends = [("stages", lambda: _by_stages(model, stages))]
    else:
        tracers = [_Tracer()]
        if any(map(is_encoder, model.modules())):  # torch's own; the finest way comes first
            tracers += [_Tracer(buffers=True), _Tracer(inside=False)]
        backends = [("torch.fx", functools.partial(_by_fx, entrance, probes, tracer)) for tracer in tracers]
        backends.append(("torch.export", lambda: _by_export(entrance, probes)))
    refused: dict[str, str] = {}
    for backend, candidates in backends:
        try:
            with silence():
                with _trace_len(model):
                    offer = candidates()
                before = {name: why for name, why in refused.items() if name != backend}
                traced = _verify(backend, offer, probes, wanted, before)
        except Exception as error:  # a tracer may fail in any way on a model that it does not know
            refused.setdefault(backend, first_line(error)[:300])
        else:
            _warn_of_lost(model, traced)
            return traced
    said = "; ".join(f"{backend}: {reason}" for backend, reason in refused.items())
    remedy = (
        "correct the stages: in their order they must be the whole forward pass"
        if stages is not None
        else "name the stages that make up its forward pass: suture.Network(model, example=…, stages=['stem', "
        "'blocks.0', …, 'head']), or have the factory in your file return model, suture.Preprocess(), stages"
    )
    raise TracingError(f"{type(model).__name__} cannot be cut ({said}); {remedy}")


def _warn_of_lost(model: nn.Module, traced: Traced) -> None:
    """Warn of cuts that are lost to autocast, or to an encoder that packs padded sequences into nested tensors."""
    names = {name for names in traced.names for name in names}
    bodies = [segment.body for segment in traced.segments if isinstance(segment.body, fx.GraphModule)]
    # one node stands for all that torch.export found inside autocast; its third argument says whether that is enabled
    regions = [node for body in bodies for node in body.graph.nodes if operation(node) == "wrap_with_autocast"]
    if any(node.args[2] is True for node in regions):
        warn(
            f"no cut lies where the forward pass of {type(model).__name__} is inside torch.autocast; for cuts there, "
            "take autocast out of it, and give the model in float32 or in the type that it computes in"
        )
    for path, module in model.named_modules():
        inside = any(name.startswith(f"{path}.layers.") for name in names)
        if is_encoder(module) and len(module.layers) > 1 and not inside and module.use_nested_tensor:
            warn(
                f"no cut lies between the layers of '{path}' in {type(model).__name__}, which packs padded "
                f"sequences into nested tensors; for cuts there, set model.{path}.use_nested_tensor = False "
                "first"
            )


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep the output, logs and warnings of tracers off the screen; their errors say why they failed."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as unread:
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(unread):
                yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _trace_len(model: nn.Module) -> Iterator[None]:
    """Let ``len(x)`` in the model's code be ``x.size(0)``, which tracers follow; the builtin makes it a number."""

    def size(x: Any) -> Any:
        return x.size(0) if isinstance(x, Tensor | fx.Proxy) else len(x)

    written = [type(module).forward for module in model.modules() if not type(module).__module__.startswith("torch.")]
    spaces = {id(f.__globals__): f.__globals__ for f in written if inspect.isfunction(f) and "len" not in f.__globals__}
    for space in spaces.values():
        space["len"] = size
    try:
        yield
    finally:
        for space in spaces.values():
            del space["len"]


@dataclass(frozen=True)
class _Candidates:
    """The offer of a backend: names of possible cuts, and how to build the segments between any choice of them."""

    names: tuple[Names, ...]
    build: Callable[[Sequence[int]], Sequence[nn.Module]]
    dropped: Mapping[str, str]


def _verify(
    backend: str,
    offer: _Candidates,
    probes: Sequence[Tensor],
    wanted: Sequence[Tensor],
    refused: Mapping[str, str],
) -> Traced:
    """Keep the cuts that are exact on every probe; raise ``GraphError`` where none is."""
    if not offer.names:
        raise GraphError("it has no place inside through which exactly one tensor passes")
    keep: Sequence[int] = range(len(offer.names))
    dropped = dict(offer.dropped)
    try:
        segments = build_segments(offer.build(keep), probes, wanted)
    except Exception:  # find out which cuts are at fault
        keep = []
        for i, names in enumerate(offer.names):
            try:
                build_segments(offer.build([i]), probes, wanted)
                keep.append(i)
            except Exception as error:
                dropped[names[0]] = first_line(error)[:300]
        if not keep:
            raise
        segments = build_segments(offer.build(keep), probes, wanted)
    return Traced(backend, segments, tuple(offer.names[i] for i in keep), dropped, dict(refused))


# --- torch.fx ---------------------------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    """Remembers which modules returned each node, innermost first, and the module that each node was computed in.

    ``inside`` walks into torch's encoders, ``buffers`` traces what is done to buffers too.
    """

    def __init__(self, inside: bool = True, buffers: bool = False) -> None:
        super().__init__()
        self.returned_by: dict[fx.Node, list[str]] = {}
        self.inside, self.proxy_buffer_attributes = inside, buffers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Leave modules with hooks whole, and torch's own, except those that are chains of others."""
        if m._forward_hooks or m._forward_pre_hooks:
            return True
        return not (self.inside and is_encoder(m)) and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.inside and is_encoder(m):
            forward = functools.partial(_layer_by_layer, m)
        out = super().call_module(m, forward, args, kwargs)
        path = self.path_of_module(m).partition("model.")[2]
        if isinstance(out, fx.Proxy) and path:
            self.returned_by.setdefault(out.node, []).append(path)
        return out


def _by_fx(entrance: Entrance, probes: Sequence[Tensor], tracer: _Tracer) -> _Candidates:
    graph = tracer.trace(entrance)
    module = fx.GraphModule(entrance, graph)
    copies = dict(zip(graph.nodes, module.graph.nodes, strict=True))
    returned = {copies[node]: paths for node, paths in tracer.returned_by.items()}
    scopes: dict[fx.Node, str] = {}  # the module that each was computed in: the last of its stack
    for node in graph.nodes:
        calls = node.meta.get("nn_module_stack") or {}
        paths = [value[0] if isinstance(value, tuple) else key for key, value in calls.items()]
        scopes[copies[node]] = _user_path(paths[-1]) if paths else ""
    return _candidates(entrance, module, probes, returned, scopes)


def _candidates(
    entrance: Entrance,
    module: fx.GraphModule,
    probes: Sequence[Tensor],
    returned: Mapping[fx.Node, list[str]],
    scopes: Mapping[fx.Node, str],
) -> _Candidates:
    """Offer the cuts of a traced module; ``returned`` has the modules that give a node, ``scopes`` that around it."""
    names = _name_nodes(module, entrance.model, returned, scopes)
    graph = CutGraph(module, names, (probes[1], probes[2]), entrance.sides)

    def build(keep: Sequence[int]) -> Sequence[nn.Module]:
        return graph.segments([graph.candidates[i] for i in keep])

    return _Candidates(tuple(names[node] for node in graph.candidates), build, graph.dropped)


def _user_path(path: str) -> str:
    """Return a module's path as the user of the model knows it."""
    return re.sub(r"^(L__self__|L\['self'\])?\.?model\.?", "", path)


def _name_nodes(
    module: fx.GraphModule,
    model: nn.Module,
    returned: Mapping[fx.Node, list[str]],
    scopes: Mapping[fx.Node, str],
) -> dict[fx.Node, Names]:
    """Return names for every node, each used once: a second use of a module or operation gets ``_1``, a third ``_2``, …

    A number that would make it the name of another module is left out.
    """
    used: set[str] = set()
    modules = {path for path, _ in model.named_modules()}
    names: dict[fx.Node, Names] = {}
    for node in module.graph.nodes:
        if node in returned:  # the outermost module that is not a mere container first, then the others from outside in
            outside_in = returned[node][::-1]
            plain = (path for path in outside_in if not isinstance(model.get_submodule(path), nn.Sequential))
            first = next(plain, outside_in[0])
            chosen = [first, *(path for path in outside_in if path != first)]
        else:
            chosen = [".".join(filter(None, [scopes.get(node, ""), operation(node)]))]
        names[node] = tuple(_make_unique(name, used, modules) for name in chosen)
    return names


def _make_unique(name: str, used: set[str], modules: Container[str]) -> str:
    numbered = (f"{name}_{number}" for number in count(1))
    chosen = name if name not in used else next(n for n in numbered if n not in used and n not in modules)
    used.add(chosen)
    return chosen


def is_encoder(module: nn.Module) -> TypeGuard[nn.TransformerEncoder]:
    """Return whether a module is torch's encoder, or a kind of it that leaves the forward pass as it is."""
    return type(module).forward is nn.TransformerEncoder.forward and "forward" not in vars(module)


def _layer_by_layer(
    encoder: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Call the layers of an encoder as it does, with proxies in place of tensors.

    Its own forward pass asks its input what no tracer can answer, so that ``torch.fx`` would take it whole. What it
    does beyond its layers, for nested tensors, is left out; if that mattered, the segments would differ from the model.
    """
    causal: Any = is_causal is True
    if isinstance(mask, Tensor):
        causal = looks_back_only(mask, is_causal)
    elif isinstance(mask, fx.Proxy):
        causal = mask.tracer.create_proxy("call_function", looks_back_only, (mask, is_causal), {})
    for layer in encoder.layers:
        src = layer(src, src_mask=mask, is_causal=causal, src_key_padding_mask=src_key_padding_mask)
    return src if encoder.norm is None else encoder.norm(src)


@keyed_as("looks_back_only")
def looks_back_only(mask: Tensor, is_causal: bool | None) -> bool:
    """Return whether a mask (T, T) hides all later positions, as torch's encoder determines it."""
    return torch.nn.modules.transformer._detect_is_causal_mask(mask, is_causal)


# --- torch.export -----------------------------------------------------------------------------------------------------


def _by_export(entrance: Entrance, probes: Sequence[Tensor]) -> _Candidates:
    from torch.export import Dim, export

    program = export(entrance, (probes[1],), dynamic_shapes={"x": {0: Dim.DYNAMIC}}, strict=False)
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    nodes = list(module.graph.nodes)
    paths = dict(entrance.model.named_modules())
    inside = {node: _calls_around(node, paths) for node in nodes}
    scopes = {node: [*calls.values()][-1] for node, calls in inside.items() if calls}
    return _candidates(entrance, module, probes, _returned_by(nodes, inside), scopes)


def _calls_around(node: fx.Node, paths: Container[str]) -> dict[str, str]:
    """Return the module calls that a node was computed in, from outside in, with the paths of their modules."""
    stack = node.meta.get("nn_module_stack") or {}
    calls = {call: _user_path(value[0]) for call, value in stack.items()}
    return {call: path for call, path in calls.items() if path and path in paths}


def _returned_by(nodes: Sequence[fx.Node], inside: Mapping[fx.Node, Mapping[str, str]]) -> dict[fx.Node, list[str]]:
    """Return the modules, innermost first, whose output each node is: nothing else of that call is read outside it."""
    outputs: dict[tuple[str, str], list[fx.Node]] = {}
    for node in nodes:
        for call, path in inside[node].items():
            if any(call not in inside[user] for user in node.users):
                outputs.setdefault((call, path), []).append(node)
    returned: dict[fx.Node, list[str]] = {}
    for (_, path), out in sorted(outputs.items(), key=lambda item: -item[0][1].count(".")):
        if len(out) == 1:
            returned.setdefault(out[0], []).append(path)
    return returned


# --- stages -----------------------------------------------------------------------------------------------------------


@keyed_as("FunctionStage")
class FunctionStage(nn.Module):
    """A stage that is not a module of the model: a function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


def make_portable(model: nn.Module, stages: Sequence[Stage] | None) -> list[Stage] | None:
    """Return the stages such that they can be applied to a copy of the model.

    Raises ``TracingError`` for anything that is not a stage, and for functions that hold modules or parameters, which a
    copy could not replace.
    """
    if stages is None:
        return None
    portable: list[Stage] = []
    for stage in stages:
        match stage:
            case str() | (str(), MethodStage()):
                portable.append(stage)
                continue
            case (str() as name, Callable() as function):
                owner = getattr(function, "__self__", None)
            case _:
                raise TracingError(
                    f"stage {stage!r:.80} is neither the path of a module nor a pair of a name and a function of a "
                    "tensor"
                )
        own = next((path for path, module in model.named_modules() if module is owner), None)
        if own is None and (used := find_trained(function)):
            raise TracingError(
                f"stage '{name}' is a function that holds {used}; make it a method of the model, or give the path of "
                "a module, so that it can be frozen"
            )
        portable.append(stage if own is None else (name, MethodStage(own, function.__name__)))
    return portable


def _by_stages(model: nn.Module, stages: Sequence[Stage]) -> _Candidates:
    used: set[str] = set()
    named: list[tuple[str, nn.Module]] = []
    for stage in stages:
        if isinstance(stage, str):
            name, body = stage, _find_module(model, stage)
        else:
            name, function = stage
            if isinstance(function, MethodStage):
                function = getattr(model.get_submodule(function.path), function.name)
            body = FunctionStage(function)
        named.append((_make_unique(name, used, ()), body))

    def build(keep: Sequence[int]) -> Sequence[nn.Module]:
        bounds = [0, *(i + 1 for i in keep), len(named)]
        return [nn.Sequential(*(body for _, body in named[a:b])) for a, b in pairwise(bounds)]

    return _Candidates(tuple((name,) for name, _ in named[:-1]), build, {})


def _find_module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        begins = ", ".join(name for name, _ in model.named_children())
        raise TracingError(f"no module '{path}' in {type(model).__name__}; it begins with {begins}") from None
