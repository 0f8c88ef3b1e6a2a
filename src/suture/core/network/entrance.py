"""How a model is called, and which of its outputs counts.

Everything above calls a model with one tensor and gets one. Where a model wants its input by name, or several, or gives
a mapping, as those of transformers do, an ``Entrance`` stands around it. This is the one place that knows how inputs go
in. Of several a model gets those that its ``forward`` names; a wrapper whose ``forward`` names none, as those of
adapters and averaged weights do, gets those that the model inside it names.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suture.common.errors import NetworkError
from suture.core.network.freezing import advise, undo_writes
from suture.data.images import are_token_ids
from suture.data.inputs import NESTED, Inputs, content_of, nest

POSITIONS = "position_ids"  #: what models call the places of tokens
OUTPUTS = ("logits", "last_hidden_state")  #: of a mapping, which is taken, the first that it has
_QUIET = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}


class Entrance(nn.Module):
    """Calls ``model`` with one tensor, which it knows as ``input``, and gives its ``output`` of that name or place.

    The tensor may have several ``inputs`` for columns; for padding without a token id the model is given ``padding``.
    With ``places`` it is given ``position_ids`` that begin where the mask does.
    """

    def __init__(
        self,
        model: nn.Module,
        input: str | None = None,
        output: str | int | None = None,
        inputs: Inputs = (),
        padding: int = 0,
        places: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.input, self.output, self.inputs, self.padding = model, input, output, inputs, padding
        self.places = places
        names = _parameters(model) if inputs else []
        self._taken = [(i, one) for i, one in enumerate(inputs) if one.name.partition(NESTED)[0] in names]

    def around(self, model: nn.Module, output: str | int | None = None, places: bool = False) -> "Entrance":
        """Return the same entrance of another model, of another output, or with ``places``."""
        output = self.output if output is None else output
        return Entrance(model, self.input, output, self.inputs, self.padding, places or self.places)

    @property
    def may_place(self) -> bool:
        """Whether the model takes positions and is given none."""
        return self.masks and POSITIONS in _parameters(self.model) and POSITIONS not in [o.name for o in self.inputs]

    @property
    def sides(self) -> tuple[int, ...]:
        """The columns that describe the places of tokens, never their content."""
        return tuple(i for i, one in self._taken if one.is_side)

    @property
    def masks(self) -> bool:
        """Whether the model is given a mask."""
        return any(one.is_mask for _, one in self._taken)

    def forward(self, x: Tensor) -> Any:
        """Call the model."""
        if self.inputs:
            given = {one.name: x.select(1, i).to(one.dtype) for i, one in self._taken}
            ids = given[self.inputs[0].name]
            given[self.inputs[0].name] = ids.masked_fill(ids < 0, self.padding)
            if self.places:
                there = next(one.counts(x.select(1, i)) for i, one in self._taken if one.is_mask)
                begun = there.cumsum(1) > 0
                given[POSITIONS] = (begun.cumsum(1) - 1).clamp(min=0)
            out = self.model(**nest(given))
        else:
            out = self.model(x) if self.input is None else self.model(**{self.input: x})
        return out if self.output is None else _outputs(out)[self.output]


def entrance_of(model: nn.Module) -> Entrance:
    """Return the entrance of a model, which calls it as any model if it has none."""
    return model if isinstance(model, Entrance) else Entrance(model)


def _outputs(out: Any) -> Any:
    """Return the outputs of a model by name or place; a dataclass becomes a mapping of its fields."""
    if is_dataclass(out) and not isinstance(out, type | Mapping):
        return {one.name: getattr(out, one.name) for one in fields(out)}
    return out


def is_of_transformers(module: nn.Module) -> bool:
    """Return whether a module is a model of transformers."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(module, library.PreTrainedModel)


def name_input(model: nn.Module, example: Tensor, inputs: Inputs, name: str, is_made: bool) -> nn.Module:
    """Return a model of transformers, or of several inputs, behind an entrance that knows these; any other as it is.

    The caches of one of transformers are turned off. With ``is_made`` a preprocessing of the user's makes its input of
    the samples, which may then be sound or a series. Raises ``NetworkError`` if it takes no such samples.
    """
    core = look_through(model)
    if isinstance(model, Entrance) or not (inputs or is_of_transformers(core)):
        return model
    takes = _parameters(model)
    if inputs and inputs[0].name.partition(NESTED)[0] not in takes:
        raise NetworkError(
            f"{name} takes {', '.join(takes)}, and the example has {', '.join(one.name for one in inputs)}; name its "
            "entries as the model does, the token ids first"
        )
    if not is_of_transformers(core):
        return Entrance(model, inputs=inputs)
    wanted = "input_ids" if are_token_ids(example) else "pixel_values"
    own: str = getattr(core, "main_input_name", takes[0])
    if wanted not in takes and is_made and own in takes and own != "input_ids":
        wanted = own
    if wanted not in takes:
        given = "token ids" if wanted == "input_ids" else "images"
        remedy = ", or preprocess= that makes its input of images" if wanted != "input_ids" and own in takes else ""
        raise NetworkError(
            f"{name} takes {own}, and the example has {given}; give it samples "
            f"of that kind, or the part of the model that reads these{remedy}"
        )
    for own_config in (module.config for module in model.modules() if is_of_transformers(module)):
        for setting, value in _QUIET.items():
            if getattr(own_config, setting, value) != value:
                setattr(own_config, setting, value)
    config: Any = core.config
    padding = getattr(config.get_text_config(), "pad_token_id", None)
    return Entrance(model, wanted, inputs=inputs, padding=padding or 0)


def name_output(
    model: nn.Module, probe: Tensor, output: str | int | None, name: str
) -> tuple[nn.Module, Tensor | None]:
    """Return a model that gives one tensor: itself, or behind an entrance that takes it from a mapping or a tuple.

    Its output for the probe is returned beside it, if it is known. Raises ``NetworkError`` if it gives several and none
    is named, with their names.
    """
    entrance = entrance_of(model)
    if entrance.output is not None:
        return model, None
    with undo_writes(model):
        try:
            out = _outputs(model(probe.clone()))
        except Exception as error:
            if not is_of_transformers(look_through(entrance.model)):
                return model, None  # what is wrong is said where its outputs are checked
            given = " and ".join(one.name for _, one in entrance._taken) or f"{entrance.input} alone"
            remedy = _advise(entrance.model) or advise(model, probe, entrance.model)
            raise NetworkError(f"{name} does not run on {given}: {error}{remedy}") from error
    if not isinstance(out, Mapping | tuple | list):
        if output is not None:
            raise NetworkError(f"the output of {name} is one tensor; leave out output={output!r}")
        return model, out if isinstance(out, Tensor) else None
    found = dict(out.items() if isinstance(out, Mapping) else enumerate(out))
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    chosen = output if output is not None else next((key for key in OUTPUTS if key in tensors), None)
    if chosen not in tensors:
        listed = ", ".join(f"{key!r} {tuple(value.shape)}" for key, value in tensors.items()) or "no tensor"
        kind = "mapping" if isinstance(out, Mapping) else type(out).__name__
        missed = "without logits" if output is None else f"without {output!r}"
        raise NetworkError(f"the output of {name} is a {kind} {missed}: it has {listed}; name one of them, output=…")
    return entrance.around(entrance.model, chosen), tensors[chosen]


class _Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the rows of every table in which these very token ids are looked up."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids, self.rows = ids, list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::embedding", "aten::_embedding_bag") and args[1].numel() == self.ids.numel():
            looked_up = args[1].view(self.ids.shape)
            if bool(((looked_up == self.ids) | (self.ids < 0)).all()):
                self.rows.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def count_rows(model: nn.Module, probe: Tensor) -> int | None:
    """Return how many rows the table has in which a model looks up token ids; ``None`` if it looks them up in none."""
    looking = _Looking(content_of(probe))
    with torch.no_grad(), looking:
        model(probe.clone())
    return next(iter(looking.rows), None)


def _advise(model: nn.Module) -> str:
    takes = _parameters(model)
    if "decoder_input_ids" in takes:
        return "; it needs decoder ids beside its input: give its encoder, model.get_encoder()"
    if {"input_ids", "pixel_values"} <= {*takes}:
        return "; it reads images and text at once: give the tower of one, such as model.vision_model"
    return ""


def look_through(model: nn.Module) -> nn.Module:
    """Return the first module whose ``forward`` names its inputs: the model, or the one in a wrapper."""
    while not _named(model):
        within = list(model.children())
        if not within:
            break
        model = max(within, key=lambda child: sum(p.numel() for p in child.parameters()))
    return model


def _named(model: nn.Module) -> list[str]:
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, one in inspect.signature(model.forward).parameters.items() if one.kind not in loose]


def _parameters(model: nn.Module) -> list[str]:
    return _named(look_through(model)) or [*inspect.signature(model.forward).parameters]
