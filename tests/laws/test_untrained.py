"""No trained tensor survives in an untrained network; what would survive is refused.

Evidence. Trained tensors are made random, so that equality with one of them would be survival; only bits are compared.
What initialisation leaves (ones and zeros of norms) is known from their papers, not from the code under test. Plain
numbers are those that training gives, drawn, and settings as published code has them.
"""

import copy
import functools
import math
from array import array
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from loops import each, examples
from models import images, scrambled, small, zoo_model
from suture import Data, Network, Samples, curve
from suture.common.errors import LeftOut, NetworkError, UntrainedError
from suture.core.network import untrained
from suture.core.network.plain_numbers import is_written

LAYERS = {
    "conv": lambda: nn.Conv2d(3, 3, 3, padding=1),
    "no bias": lambda: nn.Conv2d(3, 3, 1, bias=False),
    "batch norm": lambda: nn.BatchNorm2d(3),
    "group norm": lambda: nn.GroupNorm(3, 3),
    "prelu": lambda: nn.PReLU(3),
    "pool": lambda: nn.AvgPool2d(3, 1, 1),
    "transposed": lambda: nn.ConvTranspose2d(3, 3, 1),
}


def tensors(network):
    """All parameters and floating-point buffers of a network, in order, as its own parts hold them."""
    parts = network.whole()
    both = [*parts.named_parameters(), *parts.named_buffers()]
    return {name: tensor for name, tensor in both if tensor.is_floating_point()}


def nested(draw, depth=0):
    """A Sequential of layers and Sequentials."""
    kinds = st.sampled_from(sorted(LAYERS))
    inside = [
        nested(draw, depth + 1) if depth < 3 and draw(st.booleans()) else LAYERS[draw(kinds)]()
        for _ in range(draw(st.integers(1, 3)))
    ]
    return nn.Sequential(*inside)


@st.composite
def networks(draw):
    body = nested(draw)
    return scrambled(nn.Sequential(body, nn.Flatten(), nn.Linear(3 * 16, 4))).eval()


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(networks(), st.integers(0, 2**40))
def test_no_trained_tensor_survives(model, seed):
    network = Network(model, example=images(2, 4))
    untrained = network.untrained(seed)
    trained, fresh = tensors(network), tensors(untrained)
    assert trained.keys() == fresh.keys()
    for name, tensor in fresh.items():
        assert not torch.equal(tensor, trained[name]), name
        assert (tensor != trained[name]).all(), name
        if name.endswith("running_mean"):
            assert (tensor == 0).all()
        if name.endswith("running_var"):
            assert (tensor == 1).all()
    assert untrained.cuts.names == network.cuts.names
    assert [cut.shape for cut in untrained.cuts] == [cut.shape for cut in network.cuts]


@pytest.mark.slow
@each("name", ["resnet18", "vgg19_bn"], few=1)
def test_nested_stages_are_really_reset(name):
    """The trap: resetting the direct children alone leaves every stage trained."""
    model = zoo_model(name)
    network = Network(model, example=images(2, 32))
    trained, fresh = tensors(network), tensors(network.untrained(3))
    same = [key for key in fresh if (fresh[key] == trained[key]).any()]
    assert same == []
    assert len(fresh) == sum(1 for _ in model.parameters()) + 2 * sum(
        isinstance(module, nn.BatchNorm2d) for module in model.modules()
    )


def test_the_weights_are_those_of_the_layers_own_initialisation():
    """The spread of a convolution's initial weights is that of PyTorch's documentation, uniform in ±1/√fan-in."""
    network = Network(zoo_model("resnet18"), example=images(2, 32)).untrained(0)
    weights = {name: tensor for name, tensor in tensors(network).items() if tensor.ndim == 4}
    assert len(weights) == 20
    for name, weight in weights.items():
        bound = weight[0].numel() ** -0.5
        assert weight.abs().max() <= bound, name
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.05), name


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    first, second = (Network(small(), example=images(2, 8)) for _ in range(2))
    one, again, other = tensors(first.untrained(5)), tensors(second.untrained(5)), tensors(first.untrained(6))
    for name in one:
        assert torch.equal(one[name], again[name])
    assert first.untrained(5) is first.untrained(5)
    assert first.untrained(5).fingerprint == second.untrained(5).fingerprint
    assert first.untrained(5).fingerprint != first.untrained(6).fingerprint != first.fingerprint
    assert all((one[name] != other[name]).all() for name in one if "conv" in name or "head" in name)


def test_the_global_generator_and_the_network_are_left_alone():
    network = Network(small(), example=images(2, 8))
    before, state = network.state_digest(), torch.get_rng_state()
    network.untrained(9)
    assert network.state_digest() == before
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------------------------- what nobody resets


class Own(nn.Module):
    """A model with a parameter and, if asked, buffers and a plain tensor that belong to no module that resets them."""

    def __init__(self, parameter=True, buffer=False, plain=False):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 64, 5))
        self.temperature = nn.Parameter(torch.randn(5)) if parameter else None
        self.register_buffer("table", torch.rand(5) if buffer else None)
        self.register_buffer("order", torch.randperm(5))
        self.register_buffer("mask", torch.tensor([True, False, True, True, True]))
        self.prototypes = torch.rand(5) if plain else None

    def forward(self, x):
        y = self.inner(x)[:, self.order] * self.mask
        for own in (self.temperature, self.table, self.prototypes):
            y = y if own is None else y * own
        return y


def network(model, **arguments):
    return Network(model.eval(), example=images(2, 8), **arguments)


def test_a_parameter_that_no_module_resets_is_refused():
    message = (
        r"Own cannot be made untrained: neither .* nor its library reaches the parameters 'temperature'; "
        r"give the network its factory, factory=lambda: Own\(…\)"
    )
    with pytest.raises(UntrainedError, match=message):
        network(scrambled(Own())).untrained(0)


def test_a_factory_resets_it():
    made = network(scrambled(Own()), factory=Own)
    trained, fresh = tensors(made), tensors(made.untrained(0))
    assert all((fresh[name] != trained[name]).any() for name in fresh)
    constants = made.untrained(0).constants
    assert "mask" in constants
    assert "inner.1.running_mean" not in constants
    again = network(scrambled(Own()), factory=Own)
    assert made.untrained(1).fingerprint == again.untrained(1).fingerprint
    assert made.untrained(1).fingerprint != made.untrained(2).fingerprint


@each(("held", "name"), [({"buffer": True}, "table"), ({"plain": True}, "prototypes")])
def test_a_float_tensor_that_no_module_resets_is_refused_unless_it_is_a_named_constant(held, name):
    model = scrambled(Own(parameter=False, **held))
    with pytest.raises(UntrainedError, match=rf"reaches the buffers '{name}'; .* name them: constants=\(…\)"):
        network(model).untrained(0)
    made = network(model, constants=(name,))
    kept = made.untrained(0)
    assert torch.equal(getattr(kept._model, name), getattr(model, name))
    with pytest.raises(UntrainedError, match=name):
        network(model, constants=("mask",)).untrained(0)


def test_index_tables_and_masks_are_constants():
    model = scrambled(Own(parameter=False))
    untrained = network(model).untrained(0)
    assert torch.equal(untrained._model.order, model.order)
    assert torch.equal(untrained._model.mask, model.mask)
    assert untrained._model.inner[1].num_batches_tracked == 0


def test_a_reset_that_leaves_part_of_a_tensor_is_refused():
    class Half(nn.Linear):
        def reset_parameters(self):
            nn.init.normal_(self.weight[:2])
            nn.init.zeros_(self.bias)

    model = nn.Sequential(nn.Flatten(), Half(3 * 64, 5))
    nn.init.normal_(model[1].weight)
    with pytest.raises(UntrainedError, match=r"'1\.weight'"):
        network(scrambled(model)).untrained(0)


def test_a_reset_that_needs_arguments_is_refused():
    class Wants(nn.Linear):
        def reset_parameters(self, gain=None):
            if gain is None and hasattr(self, "ready"):
                raise TypeError("gain is missing")
            super().reset_parameters()

    layer = Wants(3 * 64, 5)
    layer.ready = True
    with pytest.raises(UntrainedError, match=r"Wants.reset_parameters\(\) fails \(gain is missing\); give .* factory"):
        network(scrambled(nn.Sequential(nn.Flatten(), layer))).untrained(0)


def test_a_tied_parameter_stays_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.second.weight = self.first.weight
            self.head = nn.Linear(3, 5)

        def forward(self, x):
            return self.head(self.second(self.first(x).tanh()).mean((2, 3)))

    untrained = network(scrambled(Tied())).untrained(0)
    assert untrained._model.second.weight is untrained._model.first.weight


def test_a_buffer_that_no_state_dict_has_is_a_constant():
    """No training could have saved it: an angle's table, a mask of floats."""
    model = scrambled(Own(parameter=False))
    model.register_buffer("table", torch.rand(5), persistent=False)
    assert torch.equal(network(model).untrained(0)._model.table, model.table)


# ------------------------------------------------------------------------------------------ what the library draws


def scrambled_saved(model):
    """The model with noise on all that a training changes and a checkpoint holds."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in dict(model.state_dict()).values():
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator) / 50)
    return model.eval()


def timm_model(name, **arguments):
    return lambda: timm.create_model(name, **arguments)


def hf_model(name, **settings):
    def make():
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{name}Config")(**settings)
        return next(
            getattr(transformers, f"{name}{head}")(config)
            for head in ("ForImageClassification", "ForSequenceClassification", "LMHeadModel", "ForCausalLM")
            if hasattr(transformers, f"{name}{head}")
        )

    return make


NARROW = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

#: Models with parameters that belong to no module that resets them, and some of these with what their builder leaves.
LIBRARY = {
    "a class token and positions": (timm_model("test_vit", num_classes=7), {"cls_token": 1e-6, "pos_embed": 0.02}),
    "of a size of its own": (
        timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=3),
        {"pos_embed": 0.02, "head.weight": 0.02},
    ),
    "layer scales": (
        timm_model("convnext_atto", num_classes=4),
        {"stages.0.blocks.0.gamma": 0.0, "stem.0.weight": 0.02},
    ),
    "layer scales of another width": (
        lambda: timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=4),
        {"stages.1.blocks.0.gamma": 0.0},
    ),
    "gates": (timm_model("convit_tiny", num_classes=5), {}),
    "torchvision's class token": (
        lambda: torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=3),
        {"class_token": 0.0, "encoder.pos_embedding": 0.02},
    ),
    "in a wrapper": (lambda: nn.Sequential(nn.Identity(), timm.create_model("test_vit")), {"1.pos_embed": 0.02}),
    "a transformer for images": (
        hf_model("ViT", **NARROW, image_size=32, patch_size=4),
        {"vit.embeddings.position_embeddings": 0.02, "classifier.bias": 0.0},
    ),
    "a language model": (
        hf_model("GPT2", n_embd=16, n_layer=4, n_head=2, vocab_size=300, n_positions=64),
        {"transformer.wte.weight": 0.02, "transformer.h.0.attn.c_proj.weight": 0.02 / 8**0.5},
    ),
    "tables of angles": (
        hf_model("DistilBert", dim=32, n_layers=1, n_heads=2, hidden_dim=32, vocab_size=99, sinusoidal_pos_embds=True),
        {"distilbert.embeddings.word_embeddings.weight": 0.02},
    ),
}


@pytest.mark.slow
@each(("make", "spread"), LIBRARY.values(), ids=LIBRARY)
def test_what_no_module_resets_is_drawn_as_its_library_draws_it(make, spread):
    trained = scrambled_saved(make())
    one, other = copy.deepcopy(trained), copy.deepcopy(trained)
    untrained.reset(one, 0)
    untrained.reset(other, 1)
    was, drawn, again = (model.state_dict() for model in (trained, one, other))
    for name, tensor in drawn.items():
        if tensor.is_floating_point():
            assert not torch.equal(tensor, was[name]), f"{name} is trained"
    for name, expected in spread.items():
        assert drawn[name].std(correction=0) == pytest.approx(expected, rel=0.15, abs=1e-9), name
        assert not expected or not torch.equal(drawn[name], again[name]), name


def test_a_deterministic_table_is_as_it_was_built():
    made = LIBRARY["tables of angles"][0]()
    table = made.distilbert.embeddings.position_embeddings.weight.clone()
    scrambled_saved(made)
    untrained.reset(made, 3)
    assert torch.equal(made.distilbert.embeddings.position_embeddings.weight, table)


class Initialised(nn.Module):
    """A model with the two initialisers that authors give their models beside PyTorch's."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(192, 5), nn.Parameter(torch.ones(5))
        self.init_weights()
        self.apply(self._init_weights)

    def init_weights(self):
        nn.init.normal_(self.scale, std=0.5)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.inner(x.flatten(1)) * self.scale


def test_a_models_own_initialisers_are_called():
    made = network(scrambled(Initialised())).untrained(0)
    assert made._model.inner.bias.abs().max() == 0 < made._model.scale.std() < 2


def test_a_control_that_cannot_be_made_is_left_out_with_its_reason():
    trained = [network(scrambled(Own(), seed=seed), name=f"n{seed}") for seed in (1, 2)]
    samples = [Samples(f"s{i}", images(20, 8, seed=i), torch.arange(20) % 5, tuple("abcde")) for i in range(3)]
    with pytest.warns(LeftOut, match="is left out: Own cannot be made untrained") as said:
        plan = curve(*trained, data=Data("d", *samples), at="inner.0")
    assert {str(one.message).partition(" is")[0].removeprefix("the control ") for one in said} == {
        *("untrained sender", "untrained receiver", "untrained both")
    }
    assert [trial.control for trial in plan] == ["", "itself", "shuffled pairs"]


class Unready(nn.Module):
    """A model whose author starts it where its outputs are not finite, or so small that they are rounding."""

    def __init__(self, start):
        super().__init__()
        self.inner, self.scale, self.start = nn.Linear(192, 5), nn.Parameter(torch.ones(5)), start

    def reset_parameters(self):
        nn.init.constant_(self.scale, self.start)

    def forward(self, x):
        return self.inner(x.flatten(1)) * self.scale


def test_an_untrained_network_that_is_none_is_refused_as_such():
    refused = network(Unready(float("inf")))
    for _ in range(2):
        with pytest.raises(UntrainedError, match=r"untrained, the scale of Unready is not finite"):
            refused.untrained(0)
    assert network(Unready(1e-41)).untrained(0)(images(2, 8)).abs().max() < 1e-38


# ------------------------------------------------------------------------------------- factories that do not serve


def test_a_factory_that_returns_trained_weights_is_refused():
    trained = scrambled(Own())
    message = r"gives the same numbers from every seed \('temperature', 'inner.0.weight'.*pretrained=False"
    for factory in (lambda: trained, lambda: copy.deepcopy(trained)):
        with pytest.raises(UntrainedError, match=message):
            network(trained, factory=factory).untrained(0)


def test_a_factory_that_returns_other_trained_weights_is_refused():
    """As ``pretrained=True`` does for a network that was fine-tuned later: its weights differ, but are trained."""
    with pytest.raises(UntrainedError, match="the same numbers from every seed"):
        network(scrambled(Own(), seed=1), factory=lambda: scrambled(Own(), seed=2)).untrained(0)


def test_a_factory_that_loads_part_of_the_trained_weights_is_refused():
    trained = scrambled(Own())

    def factory():
        model = Own()
        model.inner.load_state_dict(trained.inner.state_dict())
        return model

    with pytest.raises(UntrainedError, match=r"from every seed \('inner.0.weight'"):
        network(trained, factory=factory).untrained(0)


class Holder:
    def __init__(self, table):
        self.inside = {"table": table}


class Everywhere(nn.Module):
    """A model whose numbers lie wherever Python lets them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5))
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("scale", torch.ones(()))
        self.held, self.array, self.plain = Holder(torch.ones(5)), np.ones(5, np.float32), torch.ones(5)

    def forward(self, x):
        y = (self.body(x) - self.mean) * self.scale * self.plain
        return y * self.held.inside["table"] * torch.from_numpy(self.array)


def statistics(model):
    model.body[2].running_mean.uniform_(1, 2)


def number(model):
    model.scale.fill_(1.7)


def buffer(model):
    model.mean.uniform_()


def plain(model):
    model.plain = torch.rand(5)


def held(model):
    model.held = Holder(torch.rand(5))


def numpys(model):
    model.array = np.random.default_rng(0).random(5, np.float32)


@each(
    ("trains", "name"),
    [
        (statistics, "body.2.running_mean"),
        (buffer, "mean"),
        (number, "scale"),
        (plain, "plain"),
        (held, "held.inside"),
        (numpys, "array"),
    ],
    few=2,
)
def test_a_copy_whose_layers_alone_are_reset_is_not_untrained(trains, name):
    """The trap: a factory copies the trained model and resets its layers, and what no layer owns stays trained."""
    model = scrambled(Everywhere())
    with torch.no_grad():
        model.body[2].running_mean.zero_()
        model.body[2].running_var.fill_(1)
        model.mean.zero_()
        model.scale.fill_(1)
        trains(model)

    def factory():
        made = copy.deepcopy(model)
        made.body[1].reset_parameters()
        nn.init.normal_(made.body[2].weight)
        nn.init.normal_(made.body[2].bias)
        return made

    with pytest.raises(UntrainedError, match=rf"same numbers from every seed \('{name}'\)"):
        network(model, factory=factory).untrained(0)
    network(model, factory=Everywhere).untrained(0)
    if trains in (held, numpys, plain):
        with pytest.raises(UntrainedError, match=f"reaches .*'{name}'"):
            network(model, constants=("mean", "scale")).untrained(0)
    if name != "body.2.running_mean":
        every = ("mean", "scale", "plain", "held.inside", "array")
        assert network(model, constants=every).untrained(0) is not None
        assert network(model, factory=factory, constants=every).untrained(0) is not None


class Plain(nn.Module):
    """A model of which all that was trained beside its layers is plain Python."""

    classwide = 1.0

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
        self.gain, self.shifts, self.held, self.eps, self.lr = 1.0, [0.0] * 5, Holder((1.0,)), 1e-6, 1.0
        self.turn, self.slots, self.queue, self.array = 1j, Slots(1.0), deque([1.0]), array("d", [1.0])
        self.bound = functools.partial(torch.mul, other=torch.ones(5))

    def forward(self, x):
        y = self.body(x) * (self.gain + self.eps) * self.classwide * abs(self.turn) * self.slots.gain
        y = self.bound(y * self.queue[0] * self.array[0])
        return (y + torch.tensor(self.shifts)) * self.held.inside["table"][0]


class Slots:
    __slots__ = ("gain",)

    def __init__(self, gain):
        self.gain = gain


LEARNED = torch.randn(5, generator=torch.Generator().manual_seed(7)).tolist()
PLAIN = {
    "gain": lambda model: setattr(model, "gain", LEARNED[0]),
    "shifts": lambda model: setattr(model, "shifts", LEARNED),
    "held.inside": lambda model: setattr(model, "held", Holder((np.float32(LEARNED[1]),))),
    "classwide": lambda model: setattr(model, "classwide", LEARNED[2]),
    "turn": lambda model: setattr(model, "turn", complex(LEARNED[0], LEARNED[1])),
    "slots": lambda model: setattr(model, "slots", Slots(LEARNED[0])),
    "queue": lambda model: model.queue.__setitem__(0, LEARNED[0]),
    "array": lambda model: model.array.__setitem__(0, LEARNED[0]),
    "bound": lambda model: setattr(model, "bound", functools.partial(torch.mul, other=torch.tensor(LEARNED))),
}


@pytest.mark.slow
@each("name", PLAIN, few=3)
@each("own", [False, True])
def test_trained_plain_numbers_do_not_survive(name, own):
    """Neither in a copy nor in that of a factory that resets the layers alone; what a factory sets anew may stay."""
    model = scrambled(Plain())
    assert network(model).untrained(0) is not None, "settings alone"
    PLAIN[name](model)

    def factory():
        made = copy.deepcopy(model)
        made.body[1].reset_parameters()
        return made

    if own:
        with pytest.raises(UntrainedError, match=rf"same numbers from every seed \('{name}'\)"):
            network(model, factory=factory).untrained(0)
        assert network(model, factory=Plain).untrained(0)(images(2, 8)).isfinite().all()
    else:
        with pytest.raises(UntrainedError, match=rf"reaches (the plain numbers )?'{name}'; .*constants="):
            network(model).untrained(0)
    named = network(model, factory=factory if own else None, constants=(name,))
    assert named.untrained(0) is not None
    with pytest.raises(NetworkError, match="'gian', which is not a tensor or a number of Plain; nearest: gain"):
        network(model, constants="gian")


class Derived(Plain):
    classwide = LEARNED[3]


def test_a_number_of_the_class_counts_with_its_modules():
    with pytest.raises(UntrainedError, match="plain numbers 'classwide'"):
        network(scrambled(Derived())).untrained(0)
    assert "classwide" not in vars(Derived())
    assert Derived.classwide == LEARNED[3]


def test_a_number_that_decides_nothing_may_stay():
    model = scrambled(Plain())
    model.lr = LEARNED[0]
    untrained = network(model).untrained(0)
    assert untrained._model.lr == model.lr


def test_a_number_that_stands_in_the_code_is_a_setting():
    """As timm's gains of NFNets, ``gelu=1.7015043497085571``, which no rule of few digits knows."""
    model = scrambled(Plain())
    model.gain = 1.7015043497085571
    assert network(model).untrained(0)._model.gain == model.gain


SETTINGS = {
    "typed": [0.1, 1e-5, 1e-12, 0.02, 0.044715, 1.702, 10000.0, 0.485, 0.229, 65504.0],
    "of widths": [d**-0.5 for d in (8, 48, 64, 80, 96, 768, 1024)] + [1 / math.sqrt(d) for d in (12, 24, 72)],
    "of depths": [(2 * n) ** 0.25 for n in (6, 12, 24)] + [(8 * n) ** -0.25 for n in (6, 12, 24)],
    "shares": [1 / 3, 5 / 3, 7 / 12, 224 / 256],
    "temperatures": [math.log(1 / 0.07), math.log(10.0), math.log(64)],
    "angles": [math.pi, 2 * math.pi, math.pi / 4, math.sqrt(2 / math.pi), 1 / math.sqrt(2 * math.pi)],
    "rates in float32": torch.linspace(0, 0.1, 11).tolist(),
}


@each("kind", SETTINGS)
def test_settings_are_written(kind):
    assert [number for number in SETTINGS[kind] if not is_written(number)] == []


@pytest.mark.slow
def test_numbers_that_training_gives_are_not_written():
    drawn = torch.Generator().manual_seed(0)
    for numbers in (
        torch.randn(20_000, generator=drawn).tolist(),
        (10 ** (6 * torch.rand(20_000, generator=drawn) - 5)).tolist(),
        torch.randn(20_000, generator=drawn, dtype=torch.float64).tolist(),
    ):
        assert sum(map(is_written, numbers)) / len(numbers) < 1e-3


def test_numbers_that_a_hook_reads_are_no_untrained_networks():
    model, gain = scrambled(nn.Sequential(nn.Flatten(), nn.Linear(192, 5))), torch.rand(5)
    model[1].register_forward_hook(lambda module, given, out: out * gain)
    with pytest.raises(UntrainedError, match="'gain', which a hook on module '1' in the model uses"):
        network(model).untrained(0)


class Squashed(nn.Module):
    """A parametrisation of a user's, without an inverse."""

    def forward(self, weight):
        return weight.tanh()


COMPUTED = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "orthogonal, of itself": lambda layer: parametrizations.orthogonal(
        layer, orthogonal_map="matrix_exp", use_trivialization=False
    ),
    "a user's": lambda layer: nn.utils.parametrize.register_parametrization(layer, "weight", Squashed()),
    "weight norm by hooks": nn.utils.weight_norm,
    "spectral norm by hooks": nn.utils.spectral_norm,
    "pruned": lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", amount=0.5),
    "pruned twice": lambda layer: [
        nn.utils.prune.random_unstructured(layer, "weight", amount=part) for part in (0.5, 0.1)
    ],
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@each("kind", COMPUTED, few=3)
def test_layers_whose_weight_is_computed_can_be_made_untrained(kind):
    """What the weight is computed of is drawn anew, and such that the weight is the layer's own, as if just made."""

    def made(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
        for layer in (model[0], model[3]):
            COMPUTED[kind](layer)
        return model.eval()

    trained = made(11)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.5)
    one = network(trained)
    own, fresh = tensors(one), tensors(one.untrained(0))
    kept = [n for n in fresh if torch.equal(own[n], fresh[n]) and not untrained._is_constant(fresh[n])]
    assert kept == [n for n in fresh if n.endswith("weight_mask")]
    one.untrained(0)(images(2, 8))
    name = "weight_orig" if kind.startswith("pruned") else "weight"  # the mask is the trained network's
    weights = [getattr(net, name).detach() for net in (one.untrained(0)._model[3], made(3)[3])]
    if kind.startswith("spectral norm"):
        assert torch.linalg.matrix_norm(weights[0], 2) == pytest.approx(1, rel=0.15)
    else:
        assert weights[0].std() == pytest.approx(weights[1].std().item(), rel=0.15), "as wide as just made"
    assert not torch.equal(one.untrained(0)(images(2, 8)), one.untrained(1)(images(2, 8)))


def test_a_parameter_that_is_drawn_from_no_seed_can_be_named_a_constant():
    class Position(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.arange(64.0).view(8, 8).sin(), requires_grad=False)
            self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(3 * 64, 5))

        def forward(self, x):
            return self.body(x + self.table)

    with pytest.raises(UntrainedError, match=r"\('table'\).*constants="):
        network(Position(), factory=Position).untrained(0)
    untrained = network(Position(), factory=Position, constants=("table",)).untrained(0)
    assert torch.equal(untrained._model.table, Position().table)


@each(
    ("factory", "differ"),
    [
        (lambda: Own(buffer=True), "'table'"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5)), "'1.bias'"),
        (lambda: _wider(), "'inner.3.weight'"),
    ],
)
def test_a_factory_of_another_architecture_is_refused(factory, differ):
    with pytest.raises(UntrainedError, match=f"the factory builds another architecture: .*{differ}.* differ"):
        network(scrambled(Own()), factory=factory).untrained(0)


def _wider():
    model = Own()
    model.inner[3] = nn.Linear(4 * 64, 6)
    return model


def test_a_factory_gives_the_networks_own_type():
    made = Network(scrambled(Own()).double().eval(), example=images(2, 8), factory=Own)
    untrained = made.untrained(0)
    assert {p.dtype for p in untrained.whole().parameters()} == {torch.float64}
    assert untrained(images(2, 8)).dtype == torch.float64


class ZeroHead(nn.Module):
    """A model whose own initialisation has the last word over that of its layers."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(192, 8)
        self.head = nn.Linear(8, 10)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.hidden(self.flatten(x)).relu())


def test_what_a_model_initialises_in_its_layers_is_initialised_so():
    model = ZeroHead()
    nn.init.ones_(model.head.weight)
    untrained = Network(model, example=images(2, 8)).untrained(0)._model
    assert untrained.head.weight.abs().max() == 0 < untrained.hidden.weight.abs().max()


class Lists(nn.Module):
    """Layers in a plain list, which PyTorch does not know of."""

    def __init__(self, registered=False):
        super().__init__()
        self.layers = [nn.Flatten(), nn.Linear(192, 10)]
        self.known = nn.ModuleList(self.layers if registered else [])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_that_pytorch_does_not_find_are_refused():
    """They would stay in training mode, and trained in an untrained network."""
    said = r"Lists holds a \w+ in 'layers', where PyTorch does not find it: .* keep such modules in nn.ModuleList"
    with pytest.raises(NetworkError, match=said):
        network(Lists())
    network(Lists(registered=True))


@dataclass
class Box:
    weight: torch.Tensor


def test_a_tensor_in_a_dataclass_is_the_models():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    model.box = Box(torch.ones(3))
    with pytest.raises(UntrainedError, match=r"buffers 'box'"):
        network(model).untrained(0)
    assert network(model).fingerprint != (setattr(model.box, "weight", torch.zeros(3)), network(model).fingerprint)[1]
