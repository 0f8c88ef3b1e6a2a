"""Transport of work to other processes.

A task is pickled as a few hundred bytes, a *payload*, in which every network and all samples are named by a key: the
payload's *parts*. A part travels once to each process, when a payload first refers to it. What a script or a notebook
defines itself travels by value, with its code; what can be imported, by its name. A network arrives as it was: with its
fingerprint, with the bits of all its tensors, which is checked, and with its graphs as they are, since torch would
trace them anew.

Processes of one run speak pickle with one another over private pipes, as those of Ray do. Nothing is ever unpickled
from a file: images that the workers of a machine share lie in safetensors files, which they map into memory.
"""

import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import safetensors.torch
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from suture.common.atomic import whole as written_whole
from suture.common.errors import DataError, NetworkError, RunnerError
from suture.common.hashing import identity
from suture.common.mapped import load_mapped, save_sealed
from suture.common.seeds import digest
from suture.common.sources import Source, remember, source_of, versions
from suture.core.network.feature_axis import ENTERS, LEAVES
from suture.core.network.network import Network
from suture.data import Samples
from suture.data.images import tensor_digest
from suture.data.noise import ClusteredNoise
from suture.measurement.trials.trial import Trial
from suture.runs.store.files import writing_to

Refer = Callable[[object], str | None]  # the key to send instead of a thing, if any


@dataclass(frozen=True)
class Payload:
    """A pickled object; ``parts`` are the keys of all networks, samples and images that it refers to."""

    content: bytes
    parts: tuple[str, ...]


class Packer:
    """Makes payloads, and the parts that they refer to.

    With ``folder``, a folder that the processes share, images are written there once and travel as a path. It holds on
    to all that it packed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._keys: dict[Network, str] = {}  # because to describe a network's factory takes a while
        self._make: dict[str, Callable[[], bytes]] = {}
        self._parts: dict[str, bytes] = {}

    def pack(self, thing: object) -> Payload:
        """Pickle a thing, with keys for the networks and samples in it.

        Raises ``RunnerError`` if it cannot be pickled.
        """
        found: dict[str, None] = {}

        def refer(inner: object) -> str | None:
            if isinstance(inner, Trial):
                _ = inner.key  # computed here, it travels along
            if isinstance(inner, Network):
                if inner not in self._keys:
                    self._keys[inner] = _network_key(inner)
                parts: dict[str, Callable[[], bytes]] = {self._keys[inner]: partial(_pack_network, inner)}
            elif isinstance(inner, Samples):
                views = [inner] if inner.sent is None else [inner, inner.sent]
                keys = {id(view.images): f"images-{view.image_fingerprint}" for view in views}
                parts = {
                    f"samples-{digest(inner.fingerprint, inner.name)[:32]}": partial(
                        _pickle, inner, lambda part: keys.get(id(part))
                    ),
                    **{keys[id(view.images)]: partial(_pack_images, view, self._folder) for view in views},
                }
            else:
                return None
            self._make = parts | self._make
            found.update(dict.fromkeys(parts))
            return next(iter(parts))

        try:
            return Payload(_pickle(thing, refer), tuple(found))
        except Exception as error:
            raise _refuse(str(getattr(thing, "where", type(thing).__name__)), error) from error

    def part(self, key: str) -> bytes:
        """Return a part of a packed payload, made when it is first asked for.

        Raises ``RunnerError`` if it is a network that cannot be pickled.
        """
        if key not in self._parts:
            self._parts[key] = self._make[key]()
        return self._parts[key]


class Unpacker:
    """Opens payloads; ``fetch`` returns a part by its key, and is asked for each once."""

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch
        self._kept: dict[str, object] = {}

    def unpack(self, payload: Payload) -> object:
        """Return the packed object. Raises ``NetworkError`` if a network is not, bit for bit, the one that was sent."""
        return _unpickle(payload.content, self._part)

    def _part(self, key: str) -> object:
        if key not in self._kept:
            part = _unpickle(self._fetch(key), self._part)
            if isinstance(part, Network) and part.is_changed:
                raise NetworkError(
                    f"the weights of {part.name} changed after it was made a Network, or on the way to another "
                    "process; make it again"
                )
            self._kept[key] = _load_images(part) if key.startswith("images") else part
        return self._kept[key]


# --- parts ------------------------------------------------------------------------------------------------------------


def _network_key(network: Network) -> str:
    """Return a key; networks with the same key are alike in everything that a trial reads of them."""
    names = (network.name, network.source, network.constants, str(network.device))
    made = identity([network.example, network.factory])
    return f"network-{digest(network.fingerprint, names, network.cuts.names, made)[:32]}"


def _pack_network(network: Network) -> bytes:
    try:
        return _pickle(network)
    except Exception as error:
        raise _refuse(network.name, error) from error


def _pack_images(samples: Samples, folder: Path | None) -> bytes:
    if folder is None:
        return pickle.dumps(safetensors.torch.save({"images": samples.images.detach().cpu().contiguous()}))
    path = folder.resolve() / f"{samples.image_fingerprint}.safetensors"
    if not _is_sound(path):
        with writing_to(folder), written_whole(path) as temporary:
            save_sealed(temporary, "images", samples.images)
    return pickle.dumps(path)


def _is_sound(path: Path) -> bool:
    """Return whether a file of images is there and complete, since a stopped run may have left a part of it.

    The fingerprint of the images is its name.
    """
    try:
        return path.exists() and tensor_digest(load_mapped(path, "images")) == path.stem
    except Exception:  # a damaged file fails wherever the damage is
        return False


def _load_images(part: Any) -> Tensor:
    if isinstance(part, Path) and not _is_sound(part):
        raise DataError(f"{part} is damaged; begin the run again, which writes it anew") from OSError("damaged")
    images: Tensor = safetensors.torch.load(part)["images"] if isinstance(part, bytes) else load_mapped(part, "images")
    return images


def _refuse(name: str, error: Exception) -> RunnerError:
    return RunnerError(
        f"{name} cannot be sent to another process: {error}; define it so that it can be pickled, or run in one "
        "process: on=suture.Local(workers=1)"
    )


# --- pickling ---------------------------------------------------------------------------------------------------------


def _pickle(thing: object, refer: Refer = lambda thing: None) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, refer).dump(thing)
    return stream.getvalue()


def _unpickle(content: bytes, part: Callable[[str], object]) -> object:
    return _Unpickler(content, part).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, part: Callable[[str], object]) -> None:
        super().__init__(io.BytesIO(content))
        self._part = part

    def persistent_load(self, pid: str) -> object:
        return self._part(pid)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles objects that pickle cannot, or handles badly; one for which ``refer`` returns a key becomes that key."""

    def __init__(self, stream: io.BytesIO, refer: Refer) -> None:
        super().__init__(stream)
        self._refer = refer

    def persistent_id(self, obj: object) -> str | None:
        return self._refer(obj)

    def reducer_override(self, obj: Any) -> Any:
        match obj:
            case types.FunctionType():
                _by_value_unless_importable(obj.__module__)
                reduced, space = super().reducer_override(obj), obj.__globals__
                is_own = isinstance(reduced, tuple) and versions(space.get("__name__")) is None
                source = source_of(space, obj.__code__.co_filename) if is_own else None
                return reduced if source is None else (_make_function, (source, *reduced[:2]), *reduced[2:])
            case type():
                _by_value_unless_importable(obj.__module__)
            case types.ModuleType() if type(obj) is not types.ModuleType and sys.modules.get(obj.__name__) is obj:
                return importlib.import_module, (obj.__name__,)  # of a class that cloudpickle does not know
            case types.ModuleType():
                _by_value_unless_importable(obj.__name__)
            case functools.cached_property():
                return _make_property, (obj.func, obj.attrname)  # which on Python 3.11 holds a lock
            case torch._ops.OpOverload():
                return _find_operation, (*obj._schema.name.split("::"), obj._overloadname)
            case Samples():
                kept = vars(obj) | {"fingerprint": obj.fingerprint, "image_fingerprint": obj.image_fingerprint}
                for name in ("_made", "contents", "copies", "extremes"):  # the last would bring all images
                    kept.pop(name, None)
                return _make_bare, (type(obj),), kept, None, None, _fill
            case ClusteredNoise():
                return ClusteredNoise, (obj.shape, obj.classes, obj.scale, obj.seed)
            case fx.GraphModule():
                return _pack_graph(obj)
            case nn.Module() if parametrize.is_parametrized(obj):
                return _make_bare, (type(obj).__base__,), vars(obj), None, None, _parametrise
        return super().reducer_override(obj)


def _by_value_unless_importable(name: str | None) -> None:
    """Have cloudpickle send a module's definitions as code, if the module was made by hand and cannot be imported.

    Modules that model strings make of files are of this kind. Definitions of the main program it sends as code itself.
    """
    module = sys.modules.get(name or "")
    if module is not None and name != "__main__" and getattr(module, "__spec__", None) is None:
        cloudpickle.register_pickle_by_value(module)


def _make_bare(cls: Any) -> object:
    return cls.__new__(cls)


def _fill(thing: object, attributes: dict[str, object]) -> None:
    vars(thing).update(attributes)


def _parametrise(module: nn.Module, attributes: dict[str, Any]) -> None:
    """Make a module compute its parametrised tensors again, which torch does by a class of its own for each."""
    _fill(module, attributes)
    parametrize._inject_new_class(module)
    for name in attributes["_modules"]["parametrizations"]:
        parametrize._inject_property(module, name)


def _make_function(source: Source, make: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    """Make a function that was sent with its code, whose text may not be here."""
    function = make(*arguments)
    remember(function.__globals__, function.__code__.co_filename, source)
    return function


def _make_property(function: Callable[[Any], Any], name: str) -> object:
    made = functools.cached_property(function)
    made.__set_name__(type(None), name)
    return made


def _find_operation(space: str, name: str, overload: str) -> object:
    return getattr(getattr(getattr(torch.ops, space), name), overload)


@dataclass(frozen=True)
class _NodeName:
    """Stands for another node among the arguments of one."""

    name: str


def _pack_graph(module: fx.GraphModule) -> tuple[object, ...]:
    """Pack a module and its graph, node by node."""
    graph = module.graph
    nodes = []
    for node in graph.nodes:
        read: Any = lambda other: _NodeName(other.name)  # noqa: E731
        given = fx.node.map_arg((node.args, node.kwargs), read)
        marks = [mark for mark in (ENTERS, LEAVES) if mark in node.meta]
        nodes.append((node.name, node.op, node.target, given, node.type, marks))
    kept = {name: value for name, value in vars(module).items() if name not in ("_graph", "meta")}
    return _make_empty_graph_module, (), (kept, nodes, graph._codegen), None, None, _fill_graph_module


def _make_empty_graph_module() -> fx.GraphModule:
    return fx.GraphModule(nn.Module(), fx.Graph())


def _fill_graph_module(module: fx.GraphModule, content: tuple[dict[str, object], Sequence[Any], Any]) -> None:
    attributes, nodes, codegen = content
    graph = fx.Graph()
    graph.set_codegen(codegen)
    made: dict[str, fx.Node] = {}
    for name, op, target, given, kind, marks in nodes:
        args, kwargs = fx.node.map_aggregate(
            given, lambda leaf: made[leaf.name] if isinstance(leaf, _NodeName) else leaf
        )
        made[name] = graph.create_node(op, target, args, kwargs, name, kind)
        made[name].meta |= dict.fromkeys(marks, True)
    _fill(module, attributes)
    module.graph = graph
