"""A network: a frozen trained model with its cuts and its own preprocessing.

A ``Network`` works on a copy of the user's model. The copy is always frozen and in evaluation mode; the user's model
keeps its mode, its ``requires_grad`` and its hooks. With ``copy=False`` the copy shares the user's tensors (for models
that would not fit into memory twice); changing them afterwards is detected by the next trial.
"""

import copy as copying
import difflib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from suture.common.devices import CPU, check_room, find_device
from suture.common.errors import CutError, DataError, FrozenError, NetworkError, TracingError, UntrainedError
from suture.common.formatting import first_line
from suture.common.hashing import identity, settings
from suture.common.html import escape
from suture.common.mapped import empty, fill
from suture.common.seeds import digest, undisturbed
from suture.common.validation import check_visible_name
from suture.core.network import untrained
from suture.core.network.batches import LOOKED, check_batches, check_rows, check_sizes
from suture.core.network.cuts import Cut, measure_cuts
from suture.core.network.entrance import (
    Entrance,
    count_rows,
    entrance_of,
    name_input,
    name_output,
)
from suture.core.network.freezing import (
    are_probabilities,
    check_functions,
    check_model,
    check_outputs,
    check_repeats,
    check_weights,
    copy_frozen,
    copy_tensors,
    drop_idle_hooks,
    find_dtype,
    hidden_numbers,
    is_altered,
    make_probes,
    plain_tensors,
    registered_tensors,
    undo_writes,
)
from suture.core.network.layouts import Layout, check_layout
from suture.core.network.padding import find_harm, pick_padded, place_tokens, remedy_of
from suture.core.network.plain_numbers import plain_numbers
from suture.core.network.segments import Frozen, are_close, code_of, functions_of, have_same_bits, name_anew
from suture.core.network.tracing import Stage, Traced, make_portable, silence, trace
from suture.data.images import are_token_ids
from suture.data.inputs import content_of, counted, join_inputs, part_inputs
from suture.data.preprocess import Prepare, Preprocess, Preprocessing
from suture.data.samples import Samples


class Network:
    """A frozen model, cut wherever one tensor passes.

    Args:
        model: any module that maps one batch of images, or of token ids, to one tensor ``(n, outputs)``; or a model of
            transformers, as it is.
        example: a few raw images ``(n, C, H, W)``, ``uint8`` or floats (those outside [0, 1] are brought there), or
            sequences of token ids ``(n, T)``, ``int64``, or a mapping of these with their masks and positions by name,
            such as a tokeniser gives; used to find and verify the cuts.
        name: how tables and figures call it; by default the model's class.
        preprocess: what brings float images in [0, 1] to the model's input; a part of every prefix.
        factory: builds the same architecture without trained weights; needed for untrained controls only where a
            parameter belongs to no module that can reset it.
        stages: the forward pass as a list of module paths, or of ``(name, function)`` pairs, for models that cannot be
            traced.
        copy: whether to copy the tensors of the model.
        device: where it computes, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; by default where the model is.
        expected_accuracy: the accuracy that it is known to reach, on any data or by the data's name; a trial warns if
            it is far below. Give 0 if it is meant to be weak.
        constants: names of floating-point buffers, or of attributes with tensors or floats, that are not a result of
            training; with a ``factory`` also of parameters that it does not draw at random.
        output: which of its outputs counts, if it gives a mapping or a tuple; by default ``logits``, or else
            ``last_hidden_state``.
        tokenizer: the tokeniser of its texts, or its name. Networks whose tables of tokens differ in size are stitched
            only if they name the same one.
        tokens: the layout of its tokens, if it is not found: the number of prefix tokens (class token, registers) and
            the grid (height, width) of the others, ``(5, (14, 14))``, or ``(1, None)`` if the others are a line.

    Raises:
        NetworkError: the model's weights or outputs are not finite or not reproducible (the message names where),
            padding changes what it says of the example, or no cut has as many tokens as ``tokens`` says.
        TracingError: it cannot be cut.
        DataError: the preprocessing does not suit the example.
        DeviceError: the device is not there, or has no room.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        example: Tensor | Mapping[str, Tensor],
        name: str | None = None,
        preprocess: Preprocessing | None = None,
        factory: Callable[[], nn.Module] | None = None,
        stages: Sequence[Stage] | None = None,
        copy: bool = True,
        constants: str | Sequence[str] = (),
        device: str | torch.device | None = None,
        expected_accuracy: float | Mapping[str, float] | None = None,
        output: str | int | None = None,
        tokenizer: object = None,
        tokens: Layout | None = None,
    ) -> None:
        check_model(model)
        self.tokens = check_layout(tokens)
        self.tokenizer = _name_tokenizer(tokenizer)
        self.name = check_visible_name("name=", name or type(entrance_of(model).model).__name__, NetworkError)
        self.source: str | None = None  #: the model string that it was made of, if it was
        self.is_from_library = False  #: whether its factory is a library's, which has no trained weights
        self.constants = (constants,) if isinstance(constants, str) else tuple(constants)
        self.expected_accuracy = _check_expected(expected_accuracy)
        self.factory = factory
        self.stages = make_portable(model, stages)  #: such that they can be applied to a copy
        joined, self.inputs = join_inputs(example)  #: what its columns are, if it has several inputs
        self.example = make_probes(joined, self.inputs)  #: three images (3, C, H, W), or sequences (3, [columns,] T)
        self._is_looked_at = False
        self._unpadded: set[str] = set()  #: fingerprints of samples whose padding makes no difference
        self._untrained: dict[int, Network] = {}
        self._untrainable: UntrainedError | None = None  #: why there can be no such network, once it was tried
        self._elsewhere: dict[torch.device, Network] = {}
        place = _device_of(model) if device is None else find_device(device)
        with undisturbed(threads=None), torch.random.fork_rng([]), torch.inference_mode(False), torch.no_grad():
            # A copy is cut on the processor, whose bits tell for certain whether a cut is exact.
            self._model = copy_frozen(model, copy, self.name, CPU if copy else None)
            self._check_constants()
            self._model = name_input(self._model, self.example, self.inputs, self.name, is_made=preprocess is not None)
            self.preprocess: Preprocessing = preprocess if preprocess is not None else Preprocess()
            if isinstance(preprocess, nn.Module):
                self.preprocess = copy_frozen(preprocess, True, f"the preprocessing of {self.name}", CPU)
            self._find_cuts(output, joined)
            if isinstance(self._model, Entrance) and not isinstance(model, Entrance):  # whose names are those within it
                self.constants = tuple(f"model.{name}" for name in self.constants)
        self.wrapped_digest = self.state_digest()  #: what ``state_digest`` gave when the network was made
        self.fingerprint = self._fingerprint()  #: SHA-256 over all that decides the output, when it was made
        if place != self.device:
            vars(self).update(vars(self.to(place)), _elsewhere={})

    def _find_cuts(self, output: str | int | None, joined: Tensor) -> None:
        """Check the frozen model on probes and cut it, leaving no trace in its attributes."""
        check_weights(entrance_of(self._model).model, self.name)  # whose names are the user's
        self.device = _device_of(self._model)
        with undo_writes(self._model):
            probes = self._probes()
            self._model, first = name_output(self._model, probes[0], output, self.name)
            with undo_writes(self._model) as noted:  # as what a model remembers of a run
                answers = check_outputs(self._model, probes, self.name, first)
            if counted(joined, self.inputs) is not None and entrance_of(self._model).masks:
                prepared = self._prepared(joined)
                placed = place_tokens(self._model, prepared, self.inputs, self.name)
                if placed is not self._model:
                    self._model, answers = placed, check_outputs(placed, probes, self.name)
            self._answers = fill(empty(answers[2].shape, answers[2].dtype), [answers[2]])  # a file, if they are large
        self.gives_probabilities = are_probabilities(self._answers)  #: as after a softmax; logits are wanted
        drop_idle_hooks(self._model, probes[2])
        check_functions(self._model, self.name)
        with undo_writes(self._model) as written:
            try:
                self._traced: Traced = trace(self._model, probes, answers, self.stages)
            except TracingError:
                check_repeats(self._model, probes[2], self._answers, self.name)
                raise
            with silence():
                check_sizes(self._model, Frozen(self._traced.segments), probes[2], self.name)
            self.cuts, self.outputs = measure_cuts(self._traced, self._model, probes[0], self.name, self.tokens)
        self._scratch = frozenset(written | noted)

    def _check_constants(self) -> None:
        """Raise ``NetworkError`` for the name of a constant that no tensor and no plain number has."""
        if not self.constants:
            return
        known = {*registered_tensors(self._model), *plain_tensors(self._model), *hidden_numbers(self._model)}
        known |= set(plain_numbers(self._model))
        for name in self.constants:
            if name not in known:
                near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.0))
                raise NetworkError(
                    f"constants= names '{name}', which is not a tensor or a number of {self.name}; nearest: {near}"
                )

    def _probes(self) -> list[Tensor]:
        """Make inputs of the model with batch sizes 1, 2 and 3 of the example."""
        self._prepare = Prepare(self.preprocess)
        images = [self.example[:n] for n in (1, 2, 3)]
        first = self._prepared(images[0])
        self._prepare = Prepare(self.preprocess, find_dtype(self._model, first))
        self.input_shape = tuple(first.shape[1:])  #: of what the preprocessing gives the model, without the batch
        probes = [self._prepared(batch) for batch in images]
        self.input_dtype = probes[0].dtype  #: of what the preprocessing gives the model
        if not have_same_bits(probes[2], self._prepared(images[2])):
            raise DataError(f"the preprocessing of {self.name} is random: the same images gave two inputs")
        alone = torch.cat([self._prepared(images[2][i : i + 1]) for i in range(3)])
        if not are_close(alone, probes[2], 1e-4):
            raise DataError(f"the preprocessing of {self.name} makes an image depend on the others in its batch")
        self._seen = probes[2]
        return probes

    def _prepared(self, images: Tensor) -> Tensor:
        """Return the model's input for raw images. Raises ``DataError`` if the preprocessing gives no such tensor."""
        try:
            prepared: Tensor = self._prepare(images.to(self.device))
        except Exception as error:
            is_users = not isinstance(self.preprocess, Preprocess) and not are_token_ids(images)
            called = "; it is called with a batch of images, a tensor of floats in [0, 1]" if is_users else ""
            raise DataError(
                f"the preprocessing of {self.name} cannot be applied to images {tuple(images.shape[1:])}: "
                f"{error}{called}"
            ) from error
        if not isinstance(prepared, Tensor) or prepared.ndim < 1 or len(prepared) != len(images):
            raise DataError(f"the preprocessing of {self.name} must give one tensor with a row for each image")
        return prepared

    @property
    def output(self) -> str | int | None:
        """Which output of the model counts, if it gives several: ``logits``, ``last_hidden_state`` …"""
        return entrance_of(self._model).output

    @cached_property
    def vocabulary(self) -> int | None:
        """How many tokens the table has that its token ids are looked up in; ``None`` if that is not known."""
        if not are_token_ids(self._seen):
            return None
        with undisturbed(threads=None), undo_writes(self._model):
            return count_rows(self._model, self._seen)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of the inputs it was cut for: (C, H, W) of raw images, (T,) of token ids."""
        return tuple(self.example.shape[1:])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the outputs of one sample: ``(classes,)``, ``(T, vocabulary)`` …"""
        return self.cuts.place(len(self.cuts) + 1).shape

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of its first parameter; float32 if it has none."""
        return next((p.dtype for p in self._model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def backend(self) -> str:
        """The backend that found the cuts: ``torch.fx``, ``torch.export`` or ``stages``."""
        return self._traced.backend

    @property
    def refused(self) -> dict[str, str]:
        """The backends that were tried before and could not cut the model, with the reason."""
        return dict(self._traced.refused)

    def _fingerprint(self) -> str:
        """Return a SHA-256 over everything that decides the output: tensors, operations and preprocessing.

        A layout of tokens that the user gave decides the stitches, and takes part, too.
        """
        segments = self._traced.segments
        code = [code_of(segment.body) for segment in segments]
        paths = {module: path for path, module in self._model.named_modules()}
        held = [
            self._settings(paths.get(module, ""), module) for segment in segments for module in segment.body.modules()
        ]
        own = [identity(function) for segment in segments for function in functions_of(segment.body)]
        told = () if self.tokens is None else (self.tokens,)
        return digest(self.wrapped_digest, code, identity([held, self.preprocess, self.stages, own]), *told)

    def _settings(self, path: str, module: nn.Module) -> object:
        """Return a module's settings besides its ``repr`` and tensors, without attributes left behind by a run."""
        if isinstance(module, fx.GraphModule):
            return None
        found = settings(module)
        return type(module), [(n, found[n]) for n in sorted(found) if f"{path}.{n}".lstrip(".") not in self._scratch]

    def __getstate__(self) -> dict[str, object]:
        """Leave the networks made of this one out of copies and out of pickles for other processes."""
        return vars(self) | {"_untrained": {}, "_elsewhere": {}}

    def to(self, device: str | torch.device) -> "Network":
        """Return the same network on a device: with its cuts and its fingerprint, proved to compute the same there.

        Raises ``DeviceError`` if the device is not there or has no room, and ``NetworkError`` if the network does not
        run there, gives other outputs, or gives others each time (naming the operation).
        """
        place = find_device(device)
        if place == self.device:
            return self
        if place not in self._elsewhere:
            held = [self._model, *self._traced.segments, self._prepare]
            needed = sum({id(t): t.nbytes for t in self._state().values()}.values())
            check_room(place, needed, f"the weights of {self.name}")
            with undisturbed(threads=None), torch.inference_mode(False), torch.no_grad():
                memo = copy_tensors(held, False, place)
                memo |= {id(kept): kept for kept in (self.example, self.factory)}
                moved = copying.deepcopy(self, memo)
                moved.device = place
                for segment in moved._traced.segments:
                    if isinstance(segment.body, fx.GraphModule):
                        name_anew(segment.body, lambda leaf: place if isinstance(leaf, torch.device) else leaf)
                moved._seen, moved._answers = _prove(self, moved)
            moved._elsewhere[self.device] = self
            self._elsewhere[place] = moved
        return self._elsewhere[place]

    def state_digest(self) -> str:
        """Return a SHA-256 over the present bytes of all tensors that decide the output."""
        hasher = hashlib.sha256()
        for key, tensor in self._state().items():
            hasher.update(f"{key}{tensor.dtype}{tuple(tensor.shape)}".encode())
            hasher.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()

    @property
    def is_changed(self) -> bool:
        """Whether a tensor that decides the output has changed since the network was made."""
        return self.state_digest() != self.wrapped_digest

    def check_frozen(self) -> None:
        """Raise ``FrozenError`` if a tensor or function behind the output has changed since the network was made."""
        if self.is_changed:
            raise FrozenError(f"the weights of {self.name} changed after it was made a Network; make it again")
        self.check_functions()

    def check_functions(self) -> None:
        """Raise ``FrozenError`` if the user's functions make something else of the example than they did.

        Their code stays, but a function reads global and outer variables when it runs.
        """
        remedy = "make the network again, and bind what the function reads: lambda x, mean=mean: x - mean"
        with undisturbed(threads=None), torch.no_grad():
            prepared = self._prepared(self.example)
            answers = self(self.example) if self._has_functions else self._answers
        exact = 4 * torch.finfo(prepared.dtype).eps if prepared.is_floating_point() else 0.0
        if not are_close(prepared, self._seen, max(1e-5, exact)):
            raise FrozenError(f"the preprocessing of {self.name} changed after it was made a Network; {remedy}")
        if answers is not self._answers and not are_close(answers, self._answers, 1e-2):
            raise FrozenError(f"a function or hook in {self.name} changed after it was made a Network; {remedy}")

    @cached_property
    def _has_functions(self) -> bool:
        """Whether the user's own code, which may read variables, runs in the forward pass: functions, hooks, stages."""
        functions = (function for segment in self._traced.segments for function in functions_of(segment.body))
        return bool(self.stages) or is_altered(self._model) or next(functions, None) is not None

    def _state(self) -> dict[str, Tensor]:
        """Return parameters, buffers, plain tensors, and the constants that tracing found in the code."""
        state = registered_tensors(self._model)
        state |= {name: tensor for name, tensor in plain_tensors(self._model).items() if name not in self._scratch}
        known = {id(tensor) for tensor in state.values()}
        for i, segment in enumerate(self._traced.segments):
            found = registered_tensors(segment).items()
            state |= {f"piece {i} {name}": tensor for name, tensor in found if id(tensor) not in known}
        return state

    def check_samples(self, samples: Samples) -> None:
        """Raise ``DataError`` if samples have other inputs than the network was cut for, or cannot become these."""
        if samples.inputs != self.inputs:
            has, takes = (", ".join(one.name for one in part) or "one input" for part in (samples.inputs, self.inputs))
            raise DataError(
                f"{samples.name} has {has}, and {self.name} was made with {takes}; make it with example=data.example"
            )
        if samples.counted is not None and not entrance_of(self._model).masks:
            raise DataError(
                f"sequences of {samples.name} are padded, and {self.name} takes no mask, so it would read the padding; "
                "name the mask as its forward does, or cut all sequences to one length"
            )
        self.check_images(samples.extremes, samples.name)
        if samples.counted is not None and samples.fingerprint not in self._unpadded:
            with undisturbed(threads=None), undo_writes(self._model):
                rows = self._prepared(pick_padded(samples.images, samples.counted))
                if why := find_harm(self._model, rows, self.inputs):
                    raise DataError(
                        f"sequences of {samples.name} are padded, and {self.name} {why}; "
                        + ("make it with example=data.example, or " if entrance_of(self._model).may_place else "")
                        + remedy_of(why)
                    )
            self._unpadded.add(samples.fingerprint)

    def check_images(self, images: Tensor, name: str) -> None:
        """Raise ``DataError`` if raw images, or token ids, do not become inputs like those the network was cut for.

        Images are judged by the first, sequences of token ids by those with the smallest and the largest.
        """
        if are_token_ids(images) != are_token_ids(self.example):
            given, wanted = ("token ids", "images") if are_token_ids(images) else ("images", "token ids")
            raise DataError(f"{name} has {given}, and {self.name} was made with an example of {wanted}")
        prepared = self._prepared(images[:1])
        shape = prepared.shape[1:]
        if prepared.dtype != self.input_dtype:
            raise DataError(
                f"images of {name} are {images.dtype} and become {prepared.dtype} by the preprocessing of {self.name}, "
                f"which was cut for {self.input_dtype}; give floats as float32, or make it with example=data.example"
            )
        if shape != self.input_shape:
            raise DataError(
                f"images of {name} become {tuple(shape)} by the preprocessing of {self.name}, whose example became "
                f"{self.input_shape}; make it with example=data.example, or with Preprocess(size=…, channels=…)"
            )
        if are_token_ids(images):
            ids = content_of(images)
            extremes = [int(ids.amax(1).argmax()), int(ids.amin(1).argmin())]
            try:
                with undisturbed(threads=None):
                    self(images[extremes])
            except (IndexError, RuntimeError) as error:
                raise DataError(
                    f"{self.name} does not take sequences of {name}, whose token ids are {int(ids.min())} to "
                    f"{int(ids.max())}: {error}; give it those of its own vocabulary"
                ) from error

    def expect_on(self, data: str) -> float | None:
        """Return the expected accuracy on the samples of a name, including samples that were cut short."""
        expected = self.expected_accuracy
        return expected.get(data.partition("[")[0]) if isinstance(expected, Mapping) else expected

    def look_at(self, images: Tensor, rows: int = LOOKED[-1] - 1) -> None:
        """Check once, on the first raw images, that the network computes the user's model in batches of any size.

        No batch has more than one image above ``rows``, the most that will pass at once. Raises ``NetworkError`` if it
        does not.
        """
        if self._is_looked_at:
            return
        sizes = [min(size, rows + 1) for size in LOOKED]
        prepared = self._prepared(images[: sizes[-1]])
        with undo_writes(self._model):
            check_batches(self._model, Frozen(self._traced.segments), prepared, sizes, self.name)
        self._is_looked_at = True

    def part(self, start: int, end: int) -> Frozen:
        """Return the layers between two places, which are indices of cuts.

        0 is the raw images, ``(n, C, H, W)``, and one more than there are cuts is the output, ``(n, outputs)``.
        """
        return Frozen(self._traced.segments[start:end], None if start else self._prepare)

    def upto(self, cut: str | Cut) -> Frozen:
        """Return the prefix: raw images ``(n, C, H, W)`` to the tensor at the cut, ``(n, *cut.shape)``."""
        return self.part(0, self.cuts.find(cut).index)

    def after(self, cut: str | Cut) -> Frozen:
        """Return the suffix: the tensor at the cut, ``(n, *cut.shape)``, to the output ``(n, outputs)``."""
        return self.part(self.cuts.find(cut).index, len(self.cuts) + 1)

    def between(self, start: str | Cut, end: str | Cut) -> Frozen:
        """Return the layers between two cuts, from the tensor at ``start`` to the tensor at the later cut ``end``.

        Raises ``CutError`` if ``end`` is the earlier one.
        """
        first, last = self.cuts.find(start), self.cuts.find(end)
        if last.index < first.index:
            raise CutError(f"'{last.name}' of {self.name} lies before '{first.name}'; give the earlier cut first")
        return self.part(first.index, last.index)

    def inputs_after(self, cut: str | Cut, images: "Tensor | Mapping[str, Tensor]") -> Tensor | None:
        """Return the inputs of raw samples that the suffix reads beside the tensor at the cut, or ``None``.

        Such inputs are, for example, masks. Suffix and samples are this network's: ``after(cut)(tensor,
        inputs_after(cut, batch))``.
        """
        return self.inputs_from(self.cuts.find(cut).index, join_inputs(images)[0])

    def inputs_from(self, start: int, images: Tensor) -> Tensor | None:
        """Return the inputs that the layers after this cut read beside the tensor; ``None`` if they read none."""
        if not start or not any(segment.reads_inputs for segment in self._traced.segments[start:]):
            return None
        return self._prepared(images)

    def whole(self) -> Frozen:
        """Return the whole network: raw images ``(n, C, H, W)`` to the output ``(n, outputs)``."""
        return self.part(0, len(self.cuts) + 1)

    def __call__(self, images: "Tensor | Mapping[str, Tensor]") -> Tensor:
        """Map raw images ``(n, C, H, W)``, or its other inputs, to the output ``(n, outputs)``, without gradients."""
        images, _ = join_inputs(images)
        with torch.no_grad():
            out: Tensor = self.whole()(images.to(self.device))
        check_rows(out, len(images), self.name)
        return out

    def untrained(self, seed: int) -> "Network":
        """Return the same architecture before any training, initialised from the seed.

        Raises ``UntrainedError`` if a trained tensor would survive and no factory is given.
        """
        if self._untrainable is not None:
            raise self._untrainable
        if seed not in self._untrained and self.device.type != "cpu":  # drawn on the processor, the same everywhere
            self._untrained[seed] = self.to(CPU).untrained(seed).to(self.device)
        if seed not in self._untrained:
            model = copying.deepcopy(self._model)
            try:
                with undisturbed(threads=None):
                    if self.factory is None:
                        kept = untrained.reset(model, seed, (*self.constants, *self._scratch), self._seen)
                    else:
                        model, kept = untrained.fresh(
                            self.factory, self._model, seed, self.constants, self.is_from_library, self._seen
                        )
                self._untrained[seed] = Network(
                    model,
                    example=part_inputs(self.example, self.inputs),
                    name=self.name,
                    preprocess=self.preprocess,
                    factory=self.factory,
                    stages=self.stages,
                    copy=False,
                    constants=kept,
                    tokenizer=self.tokenizer,
                    tokens=self.tokens,
                )
            except UntrainedError as error:
                self._untrainable = error
                raise
            except NetworkError as error:  # as one whose untrained outputs are not finite
                self._untrainable = UntrainedError(f"untrained, {error}")
                raise self._untrainable from error
        return self._untrained[seed]

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.cuts._repr_html_()}"

    def __repr__(self) -> str:
        named = "" if self.output is None else f" of {self.output!r}"
        outputs = "×".join(map(str, self.output_shape))
        return f"Network({self.name!r}, {len(self.cuts)} cuts by {self.backend}, {outputs} outputs{named})"


Sides = tuple[tuple[Network, Cut], tuple[Network, Cut]]
"""The sender with its cut, and the receiver with its own."""


@contextmanager
def guard_frozen(*networks: Network) -> Iterator[None]:
    """Check that no parameter, buffer or function of the networks changes; tensors bit for bit."""
    for network in networks:
        network.check_frozen()
    noticed = None
    try:
        yield
    except FrozenError as error:  # where activations were to be computed
        noticed = error
    for network in networks:
        if network.is_changed:
            raise FrozenError(f"the fit changed the frozen network {network.name}; this is a bug in the fit or stitch")
        network.check_functions()
    if noticed is not None:
        raise noticed


# --- on another device ------------------------------------------------------------------------------------------------


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), CPU)


def _prove(own: Network, moved: Network) -> tuple[Tensor, Tensor]:
    """Return a moved network's inputs and outputs for the example, after checking that the move did not change them."""
    name, device, example = own.name, moved.device, own.example
    try:
        inputs = moved._prepared(example)
        outputs, *again = (moved(example) for _ in range(_RUNS))
    except (DataError, RuntimeError) as error:
        raise NetworkError(
            f"{name} does not run on {device}: {first_line(error)}; a function or a preprocessing may hold tensors "
            "that are not moved with it: keep them as buffers of a module, or create them on the device of their input"
        ) from error
    if not all(have_same_bits(outputs, other) for other in again):
        raise NetworkError(
            f"{name} gives a different output in each run on {device}; replace the operation that does, which "
            "torch.use_deterministic_algorithms(True) names when the model runs, or measure it with device='cpu'"
        )
    wanted = own(example)
    share = 1e-2 if wanted.dtype == torch.float32 else 5e-2
    if not are_close(outputs.to(wanted.device), wanted, share):
        raise NetworkError(
            f"{name} gives different outputs on {device} and on {own.device}; find the operation that differs "
            "there, or "
            f"measure it with device='{own.device}'"
        )
    return inputs, outputs


_RUNS = 4  #: in which a network must give the same bits


def _check_expected(expected: float | Mapping[str, float] | None) -> float | Mapping[str, float] | None:
    for value in expected.values() if isinstance(expected, Mapping) else () if expected is None else (expected,):
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise NetworkError(f"expected_accuracy={value!r}: it is a fraction; give one from 0 to 1, such as 0.93")
    return expected


def _name_tokenizer(tokenizer: Any) -> str | None:
    """Return the name of a tokeniser; for a tokeniser itself, a hash of its tokens."""
    if tokenizer is None or isinstance(tokenizer, str):
        return tokenizer
    if not hasattr(tokenizer, "get_vocab"):
        raise NetworkError(f"tokenizer= is a {type(tokenizer).__name__}; give one of transformers, or its name")
    return digest(sorted(tokenizer.get_vocab().items()))[:12]
