"""A network is a frozen copy: nothing done to the user's model reaches it, and it does nothing to the user's model.

Evidence: the user's own model before and after, its modules called by hand, and another process.
"""

import copy
import hashlib
import os
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from loops import each
from models import Small, images, made_of, scrambled, seeded, small, split_everywhere
from suture import Network, Preprocess, Seam, Stitched
from suture.common.errors import DataError, FrozenError, NetworkError, TracingError, UntrainedError


def network(model, **arguments):
    return Network(model, **({"example": images(2, 8)} | arguments))


def bits(model):
    """A hash of every parameter, buffer and gradient of a module."""
    hasher = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        for part in (tensor, tensor.grad):
            hasher.update(name.encode() + (b"" if part is None else part.detach().numpy().tobytes()))
    return hasher.hexdigest()


def train(model, steps=2):
    """Train a model for a moment, BatchNorm statistics and all."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(images(4, 8, seed=step)), torch.arange(4)).backward()
        optimiser.step()


# ------------------------------------------------------------------------------------------------- copying


def test_training_the_users_model_afterwards_changes_nothing():
    model, x = small(), images(3, 8)
    made = network(model)
    outputs, digest = made(x), made.state_digest()
    before = bits(model)
    train(model)
    assert bits(model) != before
    assert torch.equal(made(x), outputs)
    assert made.state_digest() == digest == made.wrapped_digest


@each("copy", [True, False])
def test_the_users_model_is_left_as_it_was(copy):
    model = Small()
    model.branch.requires_grad_(False)
    train(model, steps=1)
    model.norm.eval()
    called = []
    model.conv.register_forward_hook(lambda *_: called.append("forward"))
    kept = {name: dict(vars(module)) for name, module in model.named_modules()}
    modes = {name: module.training for name, module in model.named_modules()}
    wants = {name: p.requires_grad for name, p in model.named_parameters()}
    before, state = bits(model), torch.get_rng_state()

    made = network(model, copy=copy)
    made(images(2, 8))
    made.untrained(0)

    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: p.requires_grad for name, p in model.named_parameters()} == wants
    assert bits(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    for name, module in model.named_modules():
        assert vars(module).keys() == kept[name].keys()
        assert all(vars(module)[key] is value for key, value in kept[name].items())
    called.clear()
    model(images(2, 8))
    assert called == ["forward"]


def test_dropout_and_batch_statistics_are_off_whatever_the_models_mode():
    model, x = small(), images(4, 8)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(network(model.train())(x), expected)


def branching(m, x):
    h = m.conv(x)
    if x.shape[0] > 1:
        h = h.contiguous()
    return m.end(m.relu(h))


def flat(x):
    return x.mean((2, 3))


@each(
    ("make", "backend", "stages"),
    [
        (small, "torch.fx", None),
        (lambda: made_of(branching), "torch.export", None),
        (lambda: made_of(branching), "stages", ["conv", "relu", ("flat", flat), "head"]),
    ],
)
def test_without_a_copy_the_tensors_are_the_users(make, backend, stages):
    model = make()
    shared, own = (network(model, copy=copy, stages=stages) for copy in (False, True))
    assert shared.backend == backend
    places = {p.data_ptr() for p in [*model.parameters(), *model.buffers()]}
    assert {p.data_ptr() for p in shared.whole().parameters()} <= places
    assert not {p.data_ptr() for p in own.whole().parameters()} & places
    assert all(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in shared.whole().parameters())
    x = images(2, 8)
    before = shared(x)
    with torch.no_grad():
        model.conv.weight.mul_(-1)
    assert not torch.equal(shared(x), before)
    assert torch.equal(own(x), before)
    assert shared.state_digest() != shared.wrapped_digest
    assert own.state_digest() == own.wrapped_digest


def test_tied_parameters_stay_tied():
    model = made_of(lambda m, x: m.end(m.next(m.relu(m.conv(x)))))
    model.last = nn.Conv2d(4, 4, 3, padding=1)
    model.last.weight = model.next.weight
    model.function = lambda m, x: m.end(m.last(m.next(m.conv(x))))
    for copied in (True, False):
        made = network(model, copy=copied)
        assert made._model.last.weight is made._model.next.weight
        assert made.cuts["last"].parameters == sum(p.numel() for p in model.parameters()) - 4 * 5 - 5
        split_everywhere(model, made, images(3, 8))


def test_tensors_that_are_no_leaves_can_be_copied():
    model = small()
    model.scale = model.conv.weight.abs().mean() * 2
    model.scales = [model.scale + 1, {"b": model.scale + 2}]
    assert model.scale.grad_fn is not None
    model.forward = lambda x: None  # replaced below, on the class
    del model.forward

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
            self.scales = [model.scale + 1, {"b": model.scale + 2}]

        def forward(self, x):
            return self.inner(x) * self.scales[0] * self.scales[1]["b"] * self.inner.scale

    whole = Scaled()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(whole)
    made = network(whole)
    split_everywhere(whole, made, images(3, 8))
    before = made(images(2, 8))
    with torch.no_grad():
        for tensor in (model.scale, whole.scales[0]):
            tensor.mul_(3)
    assert torch.equal(made(images(2, 8)), before)


def test_what_cannot_be_copied_is_refused():
    model = small()
    model.lock = threading.Lock()
    with pytest.raises(NetworkError, match=r"Small cannot be copied: .*lock.*; make it again and load its weights"):
        network(model)


@pytest.mark.slow
def test_a_compiled_model_is_refused_and_not_compiled_first():
    compiled = torch.compile(small())
    with pytest.raises(NetworkError, match=r"net is compiled and cannot be cut; give the model .* \(_orig_mod\)"):
        network(compiled, name="net")
    with pytest.raises(NetworkError, match="module '0' in net is compiled"):
        network(nn.Sequential(compiled), name="net")


def test_what_has_no_weights_yet_and_what_has_no_code_is_refused():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
    with pytest.raises(NetworkError, match=r"module '1' in net has no shape yet: run the model once on a batch"):
        network(lazy, name="net")
    lazy(images(1, 8))
    assert network(lazy, name="net").outputs == 5
    with pytest.raises(NetworkError, match=r"module 'a' in net has no shape yet"):
        network(nn.Sequential(OrderedDict(a=nn.LazyBatchNorm2d(affine=False), b=nn.Flatten())), name="net")
    with pytest.warns(FutureWarning):
        script = torch.jit.trace(small().eval(), images(1, 8))
    with pytest.raises(NetworkError, match="net is TorchScript, which cannot be cut; give the model that it was made"):
        network(script, name="net")


def test_a_module_used_under_two_names():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True))
            self.second = self.first
            self.head = nn.Linear(3, 5)

        def forward(self, x):
            return self.head(self.second(self.first(x)).mean((2, 3)))

    model = scrambled(Shared()).eval()
    made = network(model)
    assert made.cuts.names == ("first.0", "first.1", "first.0_1", "first.1_1", "mean")
    assert made.cuts["mean"].parameters == 12
    assert made._model.second is made._model.first
    split_everywhere(model, made, images(3, 8))


@each("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_floating_types(dtype):
    model, x = small().to(dtype), images(3, 8)
    made = network(model)
    with torch.no_grad():
        expected = model(x.to(dtype))
        for cut in made.cuts:
            passed = made.upto(cut)(x)
            assert passed.dtype == dtype
            assert torch.equal(made.after(cut)(passed), expected)
            other = made.after(cut)(passed.float())  # as a stitch or a store may give it
            assert other.dtype == dtype
            assert torch.equal(other, expected) or dtype == torch.float64
    assert made(x).dtype == dtype
    stitched = Stitched(Seam.at(made, made, "relu"), nn.Conv2d(4, 4, 1))
    assert stitched(x).dtype == dtype
    assert {p.dtype for p in made.untrained(0).whole().parameters()} == {dtype}


def test_a_preprocessing_may_choose_the_type_itself():
    model, x = small().double(), images(3, 8)
    made = network(model, preprocess=lambda x: x.double() / 3)
    with torch.no_grad():
        assert torch.equal(made(x), model(x.double() / 3))


def test_a_model_that_takes_images_as_they_are_gets_them_so():
    """Its parameters are bfloat16, but it wants the full precision first."""

    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small().bfloat16()

        def forward(self, x):
            return self.inner(((x - 0.4999) * 100).bfloat16())

    model, x = Casting().eval(), images(3, 8)
    split_everywhere(model, network(model), x)


def test_a_network_can_be_made_in_inference_mode():
    model = small()
    with torch.inference_mode():
        made = network(model, example=images(2, 8) * 1)
    stitch = nn.Conv2d(4, 4, 1)
    F.cross_entropy(Stitched(Seam.at(made, made, "conv"), stitch)(images(2, 8)), torch.tensor([0, 1])).backward()
    assert stitch.weight.grad is not None


# --------------------------------------------------------------------------------------------------- hooks


def test_recorders_of_the_users_are_not_called_by_the_network():
    model, seen = small(), []
    model.conv.register_forward_hook(lambda m, given, out: seen.append(out))
    model.norm.register_forward_pre_hook(lambda m, given: seen.append(given))
    model.head.register_forward_hook(lambda m, args, kwargs, out: seen.append(out), with_kwargs=True)
    model.branch.register_full_backward_hook(lambda m, given, out: seen.append(given))
    model.register_forward_hook(lambda m, given, out: seen.append(out))
    made = network(model)
    seen.clear()
    stitch = nn.Conv2d(4, 4, 1)
    Stitched(Seam.at(made, made, "conv"), stitch)(images(2, 8)).sum().backward()
    made(images(2, 8))
    made.untrained(0)(images(2, 8))
    assert seen == []
    assert made.backend == "torch.fx"
    split_everywhere(model, made, images(2, 8))


def test_a_hook_that_changes_the_output_is_honoured_and_a_recorder_beside_it_is_not():
    model, seen = small(), []
    model.branch.register_forward_hook(lambda m, given, out: seen.append("before"))
    model.branch.register_forward_hook(lambda m, given, out: out * 2)
    model.branch.register_forward_hook(lambda m, given, out: seen.append("after"))
    model.norm.register_forward_pre_hook(lambda m, given: (given[0] + 1,))
    plain = network(small())(images(3, 8))
    made = network(model)
    seen.clear()
    assert not torch.equal(made(images(3, 8)), plain)
    assert seen == []
    for n in (1, 2, 5):
        split_everywhere(model, made, images(n, 8, seed=n))


def test_hooks_that_change_the_output_only_together_are_kept_together():
    """The first marks what the second looks for; either alone does nothing."""
    model = small()
    mark = 12345.0
    model.conv.register_forward_hook(lambda m, given, out: torch.cat([out[:, :1] * 0 + mark, out[:, 1:]], 1))
    model.conv.register_forward_hook(lambda m, given, out: torch.where(out == mark, out * 0 + 1, out))
    made = network(model)
    split_everywhere(model, made, images(3, 8))


def test_a_hook_that_acts_on_some_images_only_is_honoured_on_them():
    model = small()
    model.relu.register_forward_hook(lambda m, given, out: out.clamp(max=0.375))
    example, bright = 0.01 * images(2, 8), images(3, 8, seed=5)
    made = network(model, example=example)
    with torch.no_grad():
        assert model.relu(model.conv(bright)).max() == 0.375, "or the hook has nothing to do"
        assert model.relu(model.conv(example)).max() < 0.375, "or it acts on all"
        assert torch.equal(made(bright), model(bright))
        assert torch.equal(made(example), model(example))


def test_a_hook_that_writes_to_what_it_is_given_on_some_images_only_is_honoured():
    model = small()

    def clip(module, given, out):
        out.clamp_(max=0.375)

    model.conv.register_forward_hook(clip)
    bright = images(3, 8, seed=5)
    made = network(model, example=0.01 * bright)
    with torch.no_grad():
        assert model.conv(bright).max() == 0.375 > model.conv(0.01 * bright).max()
        assert torch.equal(made(bright), model(bright))


@each("give", [lambda m, given, out: out, lambda m, given, out: None])
def test_a_hook_that_hands_on_what_it_was_given_is_a_recorder(give):
    model, seen = small(), []
    model.conv.register_forward_hook(lambda *given: (seen.append(1), give(*given))[1])
    model.norm.register_forward_pre_hook(lambda m, given: (seen.append(1), given)[1])
    made = network(model)
    seen.clear()
    made(images(2, 8))
    assert seen == []


def test_a_hook_that_gives_the_input_for_the_output_is_none():
    model = small()
    model.norm.register_forward_hook(lambda m, given, out: given[0])
    with torch.no_grad():
        assert torch.equal(network(model)(images(3, 8)), model.eval()(images(3, 8)))


OUTER = nn.Linear(4, 4)


class Holder:
    def __init__(self, module):
        self.modules = [module]

    def __call__(self, module, given, out):
        return out + self.modules[0].bias[0]


@each("through", ["closure", "global", "partial", "method", "object", "parameter"])
def test_hooks_that_use_a_module_or_a_parameter_of_elsewhere_are_refused(through):
    model, extra = small(), nn.Linear(4, 4)
    weight = extra.weight
    hooks = {
        "closure": lambda m, given, out: out + extra.bias[0],
        "global": lambda m, given, out: out + OUTER.bias[0],
        "partial": partial(lambda extra, m, given, out: out + extra.bias[0], extra),
        "method": partial(lambda forward, m, given, out: out + forward(torch.zeros(4))[0], extra.forward),
        "object": Holder(extra),
        "parameter": lambda m, given, out: out + weight[0, 0],
    }
    model.branch.register_forward_hook(hooks[through])
    with pytest.raises(NetworkError, match=r"hook on module 'branch' in Small uses .* neither frozen .*module\.extra"):
        network(model)


def test_a_hook_may_read_an_attribute_of_the_name_of_a_module_elsewhere():
    model = small()
    model.branch.OUTER = 2.0
    model.branch.register_forward_hook(lambda m, given, out: out * m.OUTER)
    split_everywhere(model, network(model), images(3, 8))


def test_a_hook_may_use_what_is_a_part_of_its_module():
    model = small()
    model.branch.extra = nn.Conv2d(4, 4, 1)
    model.branch.register_forward_hook(lambda m, given, out: out + m.extra(out))
    made = network(model)
    split_everywhere(model, made, images(3, 8))
    before = made(images(3, 8))
    with torch.no_grad():
        model.branch.extra.weight.mul_(3)
    assert torch.equal(made(images(3, 8)), before)


def test_a_forward_that_was_replaced_by_one_over_the_users_model_is_refused():
    model = small()
    old = model.branch.forward
    model.branch.forward = lambda x: 2 * old(x)
    with pytest.raises(NetworkError, match=r"the function 'branch\.forward' of Small uses 'old'"):
        network(model)
    model.branch.forward = partial(type(model.branch).forward, model.branch)
    made = network(model)
    split_everywhere(model, made, images(3, 8))
    train(model)
    assert made.untrained(0).fingerprint != made.fingerprint


@each("what", ["hook", "stages"])
def test_what_a_hook_or_a_stage_reads_may_not_change(what):
    model, strength = small(), torch.ones(())
    if what == "hook":
        model.branch.register_forward_hook(lambda m, given, out: out * strength)
        made = network(model)
    else:
        model = nn.Sequential(nn.Flatten(), Reading(strength), nn.Linear(192, 5)).eval()
        made = network(model, stages=["0", "1", "2"])
    made.check_frozen()
    strength.mul_(5)
    with pytest.raises(FrozenError, match=r"a function or hook in .* changed after it was made a Network"):
        made.check_frozen()


class Reading(nn.Module):
    """Reads what is not its own."""

    def __init__(self, strength):
        super().__init__()
        self.read = lambda: strength

    def forward(self, x):
        return x * self.read()


def hooked(model):
    model.head.register_forward_hook(lambda m, given, out: out * 0 + 7)
    return model


def test_an_untrained_network_has_the_hooks_of_the_trained_one_or_is_refused():
    model = hooked(scrambled(small()))
    for factory in (None, lambda: hooked(Small())):
        drawn = network(model, factory=factory).untrained(0)
        assert torch.equal(drawn(images(3, 8)), torch.full((3, 5), 7.0))
    with pytest.raises(UntrainedError, match="the factory's model has none; let the factory add them"):
        network(model, factory=Small).untrained(0)


def reparametrised(kind):
    model = small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old ones are deprecated, and still in use
        match kind:
            case "old weight norm":
                nn.utils.weight_norm(model.branch)
            case "a hook of the user's":
                model.branch.raw = nn.Parameter(model.branch.weight.detach())
                del model.branch.weight
                model.branch.register_forward_pre_hook(doubled_weight)
            case "old spectral norm":
                nn.utils.spectral_norm(model.branch)
            case "weight norm":
                parametrizations.weight_norm(model.branch)
            case "spectral norm":
                parametrizations.spectral_norm(model.branch)
            case "orthogonal":
                parametrizations.orthogonal(model.branch)
            case "pruned":
                prune.l1_unstructured(model.branch, "weight", 0.5)
    model.train()(images(2, 8))
    with torch.no_grad():  # since the last pass, so that what it left behind is out of date
        next(p for name, p in model.named_parameters() if name.startswith("branch") and name != "branch.bias").mul_(1.7)
    return model.eval()


def doubled_weight(module, given):
    module.weight = module.raw * 2


KINDS = [
    *("old weight norm", "old spectral norm", "a hook of the user's"),
    *("weight norm", "spectral norm", "orthogonal", "pruned"),
]


@pytest.mark.slow
@each("kind", KINDS)
def test_weights_that_are_computed_anew_in_every_pass(kind):
    model = reparametrised(kind)
    for copied in (True, False):
        made = network(model, copy=copied)
        assert not any(p.requires_grad for p in made.whole().parameters())
        if "user" not in kind:  # torch's own hooks stay even where what they write is up to date
            assert made.cuts["add"].parameters == sum(p.numel() for p in model.parameters()) - (4 * 5 + 5)
        split_everywhere(model, made, images(3, 8))
        made(images(2, 8))
        assert made.state_digest() == made.wrapped_digest
        stitch = nn.Conv2d(4, 4, 1)
        Stitched(Seam.at(made, made, "relu"), stitch)(images(2, 8)).sum().backward()
        assert all(p.grad is None for p in made.whole().parameters())
    before = made.fingerprint
    changed = next(p for name, p in model.named_parameters() if name.startswith("branch") and p.ndim == 4)
    with torch.no_grad():
        changed[0, 0] *= 1.5
    assert network(model).fingerprint != before


# -------------------------------------------------------------------------------------- what runs leave behind


class Remembers(nn.Module):
    """Keeps its last activation and a count, as models made for looking into do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.head = nn.Linear(4, 5)
        self.calls = 0
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.last = self.inner(x)
        return self.head(self.last.mean((2, 3)))


@each("stages", [None, ["inner", ("flat", flat), "head"]])
def test_what_a_model_remembers_is_no_part_of_it(stages):
    model = Remembers().eval()
    model(images(1, 8))
    made = network(model, stages=stages)
    digest, outputs = made.state_digest(), made(images(2, 8))
    made(images(5, 8))
    assert made.state_digest() == digest
    assert torch.equal(made(images(2, 8)), outputs)
    assert model.calls == 1
    assert made._model.calls == 1
    assert isinstance(made._model.last, torch.Tensor)
    assert made.untrained(0).cuts.names == made.cuts.names


# ------------------------------------------------------------------------------------------------- frozen parts


def test_train_and_eval_reach_the_stitch_only():
    a, b = network(small(1)), network(small(2))
    stitch = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Dropout(0.5))
    stitched = Stitched(Seam.at(a, b, "relu"), stitch)
    frozen = [*stitched.prefix.modules(), *stitched.suffix.modules()]
    assert stitched.train() is stitched
    assert stitch.training
    assert all(module.training for module in stitch.modules())
    assert not any(module.training for module in frozen)
    x, digests = images(4, 8), (a.state_digest(), b.state_digest())
    stitched(x)
    stitched.train()(x).sum().backward()
    assert (a.state_digest(), b.state_digest()) == digests
    stitched.eval()
    assert not any(module.training for module in stitched.modules())
    for part in (a.upto("relu"), a.after("conv"), a.between("conv", "add"), a.whole()):
        assert part.train() is part
        assert not any(module.training for module in part.modules())


def test_only_the_stitch_trains_even_beside_a_preprocessing_with_parameters():
    class Normalise(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.full((3, 1, 1), 0.5))
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(x - self.mean)

    preprocess = Normalise()
    made = network(small(), preprocess=preprocess)
    stitched = Stitched(Seam.at(made, made, "conv"), nn.Conv2d(4, 4, 1)).train()
    wanting = {name for name, p in stitched.named_parameters() if p.requires_grad}
    assert wanting == {"stitch.weight", "stitch.bias"}
    stitched(images(4, 8)).sum().backward()
    assert {name for name, p in stitched.named_parameters() if p.grad is not None} == wanting
    assert preprocess.training
    assert preprocess.mean.requires_grad
    assert torch.equal(preprocess.norm.running_mean, torch.zeros(3))
    before = made(images(2, 8))
    with torch.no_grad():
        preprocess.mean.add_(1)
    assert torch.equal(made(images(2, 8)), before)


@each("cut", ["conv", "norm", "relu", "add", "mean"])
def test_gradients_flow_through_the_suffix_as_through_the_model(cut):
    """The gradient with respect to the tensor at the cut, against the modules put together by hand."""
    model, x = small(), images(3, 8)
    made = network(model)
    parts = [
        model.conv,
        model.norm,
        F.relu,
        lambda h: h + model.branch(h),
        lambda h: h.mean((2, 3)),
        model.head,
    ]
    position = ["conv", "norm", "relu", "add", "mean"].index(cut) + 1
    h = x
    with torch.no_grad():
        for part in parts[:position]:
            h = part(h)
    by_hand, ours = (h.clone().requires_grad_() for _ in range(2))
    out = by_hand
    for part in parts[position:]:
        out = part(out)
    out.square().sum().backward()
    made.after(cut)(ours).square().sum().backward()
    assert torch.equal(ours.grad, by_hand.grad)
    assert not made.upto(cut)(x).requires_grad


def test_a_stitched_network_can_be_copied_and_saved():
    made = network(small())
    stitched = Stitched(Seam.at(made, made, "relu"), nn.Conv2d(4, 4, 1)).eval()
    x = images(2, 8)
    again = copy.deepcopy(stitched)
    assert torch.equal(again(x), stitched(x))
    other = Stitched(Seam.at(made, made, "relu"), nn.Conv2d(4, 4, 1)).eval()
    assert not torch.equal(other(x), stitched(x))
    other.load_state_dict(stitched.state_dict())
    assert torch.equal(other(x), stitched(x))


def test_bytes_and_floats_are_the_same_images():
    made = network(small(), preprocess=Preprocess(mean=(0.5,), std=(0.25,)))
    raw = (images(3, 8) * 255).to(torch.uint8)
    assert torch.equal(made(raw), made(raw.float() / 255))


def test_repr_says_what_it_is():
    assert repr(network(small(), name="A")) == "Network('A', 6 cuts by torch.fx, 5 outputs)"
    assert network(small()).name == "Small"


# ------------------------------------------------------------------------------------------------- fingerprints


def flipped(tensor, index=0):
    """Change the lowest bit of one element."""
    view = tensor.detach().view(-1)[index : index + 1].view(torch.uint8)
    view[0] ^= 1


def test_any_bit_of_any_tensor_changes_the_fingerprint():
    model = small()
    seen = {network(model).fingerprint}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for _, tensor in tensors:
        flipped(tensor, tensor.numel() - 1)
        seen.add(network(model).fingerprint)
        flipped(tensor, tensor.numel() - 1)
    assert len(tensors) == 11
    assert len(seen) == 12
    assert network(model).fingerprint in seen


def test_the_name_and_the_example_change_no_fingerprint():
    one, other = network(small(), name="A"), network(small(), name="B", example=images(5, 8, seed=9))
    assert one.fingerprint == other.fingerprint
    assert network(small(), copy=False).fingerprint == one.fingerprint


def shift_by(value):
    return lambda x: x - value


class Shift:
    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        return x - self.value


class ShiftModule(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return x - self.value


def subtract(x, value):
    return x - value


def default(value):
    return lambda x, value=value: x - value


LEVEL = 0.25


def at_level(x):
    return x - LEVEL


def close(a, b):
    """Two tensors that print the same, being equal to seven digits."""
    return torch.full((3, 1, 1), a), torch.full((3, 1, 1), b)


NEAR = close(0.5, 0.50000006)


@each(
    ("one", "other"),
    [
        (Preprocess(mean=(0.5,)), Preprocess(mean=(0.5000001,))),
        (Preprocess(), Preprocess(std=(2.0,))),
        (lambda x: x - 0.5, lambda x: x - 0.25),
        (lambda x: x - 0.5, lambda x: x + 0.5),
        (shift_by(0.5), shift_by(0.25)),
        (shift_by(NEAR[0]), shift_by(NEAR[1])),
        (default(0.5), default(0.25)),
        (partial(subtract, value=0.5), partial(subtract, value=0.25)),
        (Shift(0.5), Shift(0.25)),
        (Shift(NEAR[0]), Shift(NEAR[1])),
        (Shift([0.5, {"a": NEAR[0]}][1]["a"]), Shift(0.25)),
        (ShiftModule(0.5), ShiftModule(0.25)),
        (Shift(0.5).__call__, Shift(0.25).__call__),
        (Shift(0.5), ShiftModule(0.5)),
    ],
    few=5,
)
def test_another_preprocessing_changes_the_fingerprint(one, other):
    model = small()
    first, second = network(model, preprocess=one), network(model, preprocess=other)
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == network(model, preprocess=one).fingerprint


def test_a_global_that_the_preprocessing_reads_changes_the_fingerprint(monkeypatch):
    before = network(small(), preprocess=at_level).fingerprint
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 0.75)
    assert network(small(), preprocess=at_level).fingerprint != before


def heads(number):
    def make():
        layer = nn.TransformerEncoderLayer(8, number, 16, batch_first=True)
        return nn.Sequential(nn.Flatten(2), nn.Linear(64, 8), layer, nn.Flatten(), nn.Linear(24, 5))

    return seeded(make)


def with_plain_tensor(value):
    model = made_of(lambda m, x: m.end(m.conv(x) * m.factor))
    model.factor = torch.full((4, 1, 1), value)
    return model


def with_constant_in_the_code(value):
    model = made_of(lambda m, x: m.end(m.conv(x) * torch.tensor([m.level] * 4).view(4, 1, 1)))
    model.level = value
    return model


def with_number(value):
    model = made_of(lambda m, x: m.end(m.conv(x) * m.level))
    model.level = value
    return model


def with_hook(value):
    model = small()
    model.branch.register_forward_hook(lambda module, given, out: out * value)
    return model


def powered(power):
    class Power(nn.Module):
        if power == 2:

            def forward(self, x):
                return x * x
        else:

            def forward(self, x):
                return x * x * x

    return Power()


def with_code_in_a_stage(power):
    return with_stage(powered(power))


class ScaleAndShift(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.values = {"all": [torch.full((4, 1, 1), value)]}

    def forward(self, x):
        return x * self.values["all"][0]


def with_plain_tensor_in_a_stage(value):
    return with_stage(ScaleAndShift(value))


def with_stage(stage):
    model = made_of(lambda m, x: m.end(m.stage(m.conv(x))))
    model.stage = stage
    return model


@each(
    ("make", "one", "other"),
    [
        (heads, 2, 4),
        (with_hook, 2.0, 3.0),
        (with_code_in_a_stage, 2, 3),
        (with_plain_tensor_in_a_stage, 0.5, 0.50000006),
        (with_plain_tensor, 0.5, 0.50000006),
        (with_constant_in_the_code, 0.5, 0.50000006),
        (with_number, 0.5, 0.50000006),
    ],
)
def test_what_is_no_parameter_but_decides_the_output_changes_the_fingerprint(make, one, other):
    stages = ["conv", "stage", ("flat", flat), "head"] if make.__name__.endswith("stage") else None
    first, second = (network(make(value).eval(), stages=stages) for value in (one, other))
    assert not torch.equal(first(images(2, 8)), second(images(2, 8)))
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == network(make(one).eval(), stages=stages).fingerprint


def test_stages_that_compute_something_else_change_the_fingerprint():
    """On these models both pooled maps are the same, since the last dimension is 1."""

    class Column(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, (1, 8))
            self.head = nn.Linear(4, 5)

        def forward(self, x):
            return self.head(self.conv(x).mean((2, 3)))

    model = scrambled(Column()).eval()
    found = {
        network(model, stages=["conv", ("pool", pool), "head"]).fingerprint
        for pool in (lambda h: h.mean((2, 3)), lambda h: h.mean((2, 3)) + 0.0, lambda h: h.mean((2, 3)) * 1.0)
    }
    assert len(found) == 3


def fingerprints():
    """Of networks of every backend and with every kind of preprocessing."""
    mean = torch.full((3, 1, 1), 0.5)
    preprocessings = (None, Preprocess(mean=(0.5,)), at_level, shift_by(mean), Shift(mean))
    made = [
        *(network(small(), preprocess=preprocess) for preprocess in preprocessings),
        network(heads(2)),
        network(with_constant_in_the_code(0.5)),
        network(made_of(branching)),
        network(made_of(branching), stages=["conv", "relu", ("flat", flat), "head"]),
        network(small()).untrained(7),
    ]
    return [one.fingerprint for one in made]


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process():
    run = subprocess.run(
        [sys.executable, "-c", "import test_network; print(*test_network.fingerprints())"],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == fingerprints()
    assert len(set(fingerprints())) == 10


@torch.fx.wrap
def outside(x):
    return x.relu()


class Wrapped(nn.Module):
    """Its code names a function of the user's, and does not say what that does."""

    def __init__(self):
        super().__init__()
        self.flat = nn.Flatten()
        self.head = nn.Linear(192, 4)

    def forward(self, x):
        return self.head(outside(self.flat(x)))


def test_a_function_that_the_code_only_names_is_part_of_the_fingerprint(monkeypatch):
    torch.manual_seed(0)
    model = Wrapped()
    before = network(model)
    assert network(model).fingerprint == before.fingerprint
    monkeypatch.setitem(globals(), "outside", lambda x: -10 * x.abs())
    assert network(model).fingerprint != before.fingerprint


def test_images_of_another_floating_type_are_refused():
    made = network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4)), name="mine")
    made.check_images(images(2, 8), "floats")
    said = r"images of doubles are torch.float64 and become torch.float64 by .* of mine, .* torch.float32"
    with pytest.raises(DataError, match=said):
        made.check_images(images(2, 8).double(), "doubles")


def test_a_model_without_values_is_refused():
    with pytest.raises(NetworkError, match="is on the meta device, without values; load the weights first"):
        Network(small().to("meta"), example=images(3, 8))


def test_an_input_that_is_no_floats_is_called_the_input():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4 * 64, 3))
    with pytest.raises(TracingError, match="its input does not hold floating-point numbers"):
        Network(model, example=images(3, 8, channels=1), preprocess=lambda x: (9 * x).long())
    made = Network(model, example=images(3, 8, channels=1), preprocess=lambda x: (9 * x).long().flatten(1))
    assert made.cuts.names == ("0", "1")  # token ids, made of pixels


# --- what is no model, or none that can be measured -------------------------------------------------------------------


class _Counting(nn.Module):
    seen = 0

    def forward(self, x):
        self.seen += 1
        return x * (1 + 0.01 * self.seen)


def test_a_forward_pass_that_remembers_is_refused():
    model = nn.Sequential(nn.Flatten(), _Counting(), nn.Linear(64, 5))
    with pytest.raises(NetworkError, match=r"the same images gave two outputs, .* such as a counter"):
        Network(model, example=torch.rand(2, 1, 8, 8), name="counting")


def test_batch_statistics_that_are_not_kept_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64, track_running_stats=False))
    with pytest.raises(NetworkError, match=r"does not run on inputs of shape .*Expected more than 1 value"):
        Network(model, example=torch.rand(2, 1, 8, 8))
    with pytest.raises(NetworkError, match=r"depends on the other images .* that keeps no running statistics"):
        Network(
            nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten()), example=torch.rand(2, 1, 8, 8)
        )


def test_a_refused_network_leaves_the_global_generator_alone():
    class Noisy(nn.Module):
        def forward(self, x):
            return x.flatten(1) + torch.randn(len(x), 64)

    before = torch.get_rng_state()
    with pytest.raises(NetworkError, match="random in evaluation mode"):
        Network(Noisy(), example=torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_example_may_be_floats_of_any_range():
    model = small()
    random = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    network, other = (Network(model, example=x) for x in (random, images(3, 8)))
    assert network.fingerprint == other.fingerprint
    assert network.cuts.names == other.cuts.names
    assert Network(model, example=255 * images(3, 8)).fingerprint == other.fingerprint
