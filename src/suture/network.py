"""A network: a frozen trained model with its cuts and its own preprocessing.

A ``Network`` works on a copy of the user's model. The copy is always frozen and in evaluation mode; the user's model
keeps its mode, its ``requires_grad`` and its hooks. With ``copy=False`` the copy shares the user's tensors (for models
that would not fit into memory twice); changing them afterwards is detected by the next trial.
"""

import copy as copying
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from suture import untrained
from suture.cuts import Cut, Cuts
from suture.errors import DataError, NetworkError
from suture.graph import parameters_of
from suture.preprocess import Preprocess, Preprocessing, as_floats
from suture.seeds import digest
from suture.tracing import Piece, Stage, Traced, trace


class Frozen(nn.Module):
    """Part of a network, from raw images or a cut to a cut or the output; no call makes it train."""

    def __init__(self, pieces: Sequence[Piece], prepare: "_Prepare | None" = None) -> None:
        super().__init__()
        self.prepare = prepare
        self.pieces = nn.ModuleList(pieces)
        super().train(False)

    def train(self, mode: bool = True) -> "Frozen":
        """Stay in evaluation mode, whatever is asked."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map raw images, or the tensor at a cut, to the tensor at a later cut or to the output."""
        x = x if self.prepare is None else self.prepare(x)
        for piece in self.pieces:
            x = piece(x)
        return x


class Network:
    """A frozen model, cut wherever one tensor passes.

    Args:
        model: any module that maps one batch of images to one tensor ``(n, outputs)``.
        example: a few raw images ``(n, C, H, W)``, ``uint8`` or floats in [0, 1]; used to find and verify the cuts.
        name: how tables and figures call it; by default the model's class.
        preprocess: what brings float images in [0, 1] to the model's input; a part of every prefix.
        factory: builds the same architecture without trained weights; needed for untrained controls only where a
            parameter belongs to no module that can reset it.
        stages: the forward pass as a list of module paths, or of ``(name, function)`` pairs, for models that cannot be
            traced.
        copy: whether to copy the tensors of the model.
        constants: names of floating-point buffers that are no result of training.

    Raises:
        NetworkError: the model's weights or outputs are not finite or not reproducible (the message names where).
        TracingError: it cannot be cut.
        DataError: the preprocessing does not suit the example.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        example: Tensor,
        name: str | None = None,
        preprocess: Preprocessing | None = None,
        factory: Callable[[], nn.Module] | None = None,
        stages: Sequence[Stage] | None = None,
        copy: bool = True,
        constants: Sequence[str] = (),
    ) -> None:
        self.name = name or type(model).__name__
        self.preprocess: Preprocessing = preprocess if preprocess is not None else Preprocess()
        self.constants = tuple(constants)
        self._model = _frozen_copy(model, copy)
        self._factory = factory
        self._stages = stages
        self._example = example
        _check_weights(self._model, self.name)
        self.device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        self._prepare = _Prepare(self.preprocess)
        probes = [_prepared(self._prepare, _batch(example, n), self) for n in (1, 2, 3)]
        self._input_shape = probes[0].shape[1:]
        _check_outputs(self._model, probes, self.name)
        _drop_idle_hooks(self._model, probes[2])
        self._traced: Traced = trace(self._model, probes, stages)
        self.cuts, self.outputs = _measure_cuts(self._traced, probes[0], self.name)
        self._untrained: dict[int, Network] = {}
        self.wrapped_digest = self.state_digest()  #: what ``state_digest`` gave when the network was made

    @property
    def backend(self) -> str:
        """What found the cuts: ``torch.fx``, ``torch.export`` or ``stages``."""
        return self._traced.backend

    @property
    def refused(self) -> dict[str, str]:
        """The backends that were tried before and could not cut the model, with the reason."""
        return dict(self._traced.refused)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides the output: weights, buffers, operations and preprocessing."""
        code = [p.body.code if isinstance(p.body, fx.GraphModule) else repr(p.body) for p in self._traced.pieces]
        return digest(self.wrapped_digest, repr(self._model), code, _describe(self.preprocess), self._stage_names())

    def state_digest(self) -> str:
        """SHA-256 over the bytes of all parameters and buffers, as they are now."""
        hasher = hashlib.sha256()
        for key, tensor in [*self._model.named_parameters(), *self._model.named_buffers()]:
            hasher.update(f"{key}{tensor.dtype}{tuple(tensor.shape)}".encode())
            hasher.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    def check_images(self, images: Tensor, name: str) -> None:
        """Raise ``DataError`` where raw images ``(n, C, H, W)`` do not become what the network was cut for."""
        shape = _prepared(self._prepare, images[:1], self).shape[1:]
        if shape != self._input_shape:
            raise DataError(
                f"images of {name} become {tuple(shape)} by the preprocessing of {self.name}, which was cut for "
                f"{tuple(self._input_shape)}; make it with example=data.example, or let its preprocessing resize"
            )

    def upto(self, cut: str | Cut) -> Frozen:
        """Give the prefix: raw images ``(n, C, H, W)`` to the tensor at the cut, ``(n, *cut.shape)``."""
        return Frozen(self._traced.pieces[: self.cuts.find(cut).index], self._prepare)

    def after(self, cut: str | Cut) -> Frozen:
        """Give the suffix: the tensor at the cut, ``(n, *cut.shape)``, to the output ``(n, outputs)``."""
        return Frozen(self._traced.pieces[self.cuts.find(cut).index :])

    def between(self, start: str | Cut, end: str | Cut) -> Frozen:
        """Give what lies between two cuts: the tensor at ``start`` to the tensor at the later cut ``end``."""
        return Frozen(self._traced.pieces[self.cuts.find(start).index : self.cuts.find(end).index])

    def whole(self) -> Frozen:
        """Give all of it: raw images ``(n, C, H, W)`` to the output ``(n, outputs)``."""
        return Frozen(self._traced.pieces, self._prepare)

    def __call__(self, images: Tensor) -> Tensor:
        """Map raw images ``(n, C, H, W)`` to the output ``(n, outputs)``, without gradients."""
        with torch.no_grad():
            out: Tensor = self.whole()(images.to(self.device))
        return out

    def untrained(self, seed: int) -> "Network":
        """Give the same architecture as it is before training, initialised from the seed.

        Raises ``UntrainedError`` where a trained tensor would survive and there is no factory.
        """
        if seed not in self._untrained:
            model = copying.deepcopy(self._model)
            if self._factory is None:
                kept = untrained.reset(model, seed, self.constants)
            else:
                model, kept = untrained.fresh(self._factory, self._model, seed)
            self._untrained[seed] = Network(
                model,
                example=self._example,
                name=self.name,
                preprocess=self.preprocess,
                factory=self._factory,
                stages=self._stages,
                copy=False,
                constants=kept,
            )
        return self._untrained[seed]

    def _stage_names(self) -> list[str]:
        return [stage if isinstance(stage, str) else stage[0] for stage in self._stages or ()]

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {len(self.cuts)} cuts by {self.backend}, {self.outputs} outputs)"


class _Prepare(nn.Module):
    """From raw images to the model's input."""

    def __init__(self, preprocess: Preprocessing) -> None:
        super().__init__()
        self.preprocess = preprocess

    def forward(self, images: Tensor) -> Tensor:
        return self.preprocess(as_floats(images))


def _frozen_copy(model: nn.Module, copy: bool) -> nn.Module:
    """Copy a model's structure, and its tensors too where asked."""
    memo: dict[int, object] = {}
    for module in model.modules():
        for slot in (module._parameters, module._buffers, module.__dict__):
            for tensor in slot.values():
                if isinstance(tensor, Tensor) and id(tensor) not in memo:
                    _share_or_clone(tensor, memo, copy)
    frozen = copying.deepcopy(model, memo)
    frozen.requires_grad_(False)
    return frozen.eval()


def _share_or_clone(tensor: Tensor, memo: dict[int, object], copy: bool) -> None:
    data = tensor.detach().clone() if copy else tensor.detach()
    memo[id(tensor)] = nn.Parameter(data, requires_grad=False) if isinstance(tensor, nn.Parameter) else data


def _drop_idle_hooks(model: nn.Module, probe: Tensor) -> None:
    """Remove the hooks that came along with the copy, unless the output depends on them."""
    hooks = [h for m in model.modules() for h in (m._forward_hooks, m._forward_pre_hooks) if h]
    kept = [dict(hook) for hook in hooks]
    if not hooks:
        return
    with torch.no_grad():
        wanted = model(probe.clone())
        for hook in hooks:
            hook.clear()
        if torch.equal(model(probe.clone()), wanted):
            return
    for hook, before in zip(hooks, kept, strict=True):
        hook.update(before)


def _check_weights(model: nn.Module, name: str) -> None:
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            module, _, kind = key.rpartition(".")
            raise NetworkError(f"the {kind} of module '{module}' in {name} is not finite; train or load it again")


def _batch(example: Tensor, n: int) -> Tensor:
    """``n`` raw images from the example, repeated with a shift where it has too few."""
    if not isinstance(example, Tensor) or example.ndim != 4 or len(example) == 0:
        raise DataError("the example must be a few raw images, a tensor of shape (n, C, H, W) with n ≥ 1")
    return torch.stack([example[i % len(example)].roll(i // len(example), dims=-1) for i in range(n)])


def _prepared(prepare: _Prepare, images: Tensor, network: Network) -> Tensor:
    try:
        prepared: Tensor = prepare(images.to(network.device))
    except Exception as error:
        raise DataError(
            f"the preprocessing of {network.name} cannot be applied to images {tuple(images.shape[1:])}: {error}"
        ) from error
    return prepared


def _check_outputs(model: nn.Module, probes: Sequence[Tensor], name: str) -> None:
    """Refuse models whose output is no row per image, not reproducible, or not each image's own."""
    try:
        with torch.no_grad():
            one, _, three = (model(probe.clone()) for probe in probes)
            again = model(probes[2].clone())
    except Exception as error:
        shape = tuple(probes[0].shape[1:])
        raise NetworkError(f"{name} does not run on preprocessed images of shape {shape}: {error}") from error
    if not isinstance(three, Tensor) or three.ndim != 2 or len(three) != len(probes[2]):
        got = tuple(three.shape) if isinstance(three, Tensor) else type(three).__name__
        raise NetworkError(f"{name} must map n images to one tensor (n, outputs), but 3 images gave {got}; wrap it")
    if not torch.equal(three, again):
        raise NetworkError(f"{name} is random in evaluation mode: the same images gave two outputs")
    if not torch.allclose(one[0], three[0], rtol=1e-2, atol=1e-2 * float(three.abs().max()), equal_nan=True):
        raise NetworkError(f"the output of {name} for one image depends on the other images of its batch")


def _measure_cuts(traced: Traced, probe: Tensor, name: str) -> tuple[Cuts, int]:
    """Run one image through the pieces and note shape, parameters and FLOPs at every cut."""
    parameters = parameters_of(traced.pieces)
    labels: list[tuple[str, ...]] = [*traced.names, ("the output",)]
    cuts: list[Cut] = []
    x, flops = probe, 0
    for i, (piece, names) in enumerate(zip(traced.pieces, labels, strict=True)):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            x = piece(x)
        flops += counter.get_total_flops()
        if not x.isfinite().all():
            raise NetworkError(f"the activations at '{names[0]}' in {name} are not finite")
        if i < len(traced.names):
            cuts.append(
                Cut(
                    names[0],
                    i + 1,
                    len(traced.names),
                    tuple(x.shape[1:]),
                    parameters[i],
                    flops,
                    tuple(names[1:]),
                )
            )
    return Cuts(cuts, traced.dropped, name), x.shape[1]


def _describe(preprocess: Preprocessing) -> str:
    """What identifies a preprocessing: the repr and tensors of an object, the source of a function."""
    if isinstance(preprocess, nn.Module):
        state = {key: value.tolist() for key, value in preprocess.state_dict().items()}
        return f"{preprocess!r}{state}"
    code = getattr(preprocess, "__code__", None)
    if code is None:
        return repr(preprocess)
    closure = [cell.cell_contents for cell in getattr(preprocess, "__closure__", None) or ()]
    return repr((code.co_code, code.co_consts, code.co_names, closure))
