"""Who finds the cuts, who gives way to whom and why, and what is refused with which words.

Evidence: models of which one reads what a tracer can follow; the user's model called by itself.
"""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from loops import each
from models import images, made_of, scrambled, small, split_everywhere
from suture import Network
from suture.common.errors import DataError, NetworkError, TracingError


def network(model, **arguments):
    return Network(model, **({"example": images(3, 8)} | arguments))


def assert_exact(model, made):
    for n in (1, 2, 5):
        split_everywhere(model, made, images(n, 8, seed=n))


# -------------------------------------------------------------------------------------------------- backends


def branch_on_the_batch(m, x):
    h = m.relu(m.conv(x))
    if h.shape[0] > 1:
        h = h.contiguous()
    return m.end(m.next(h))


def loop_over_sizes(m, x):
    h = m.conv(x)
    for _ in range(h.shape[2] - 5):
        h = m.relu(m.next(h))
    return m.end(h)


def an_item_is_assigned(m, x):
    h = m.conv(x)
    h[:, 0] = 1.0
    return m.end(m.relu(h))


@each(
    ("forward", "reason"),
    [
        (branch_on_the_batch, "control flow"),
        (loop_over_sizes, "cannot be interpreted as an integer"),
        (an_item_is_assigned, "does not support item assignment"),
    ],
)
def test_what_fx_cannot_follow_is_exported(forward, reason):
    model = made_of(forward)
    made = network(model)
    assert made.backend == "torch.export"
    assert list(made.refused) == ["torch.fx"]
    assert reason in made.refused["torch.fx"]
    assert {"conv", "mean"} <= set(made.cuts.names)
    assert_exact(model, made)


def test_fx_alone_refuses_nobody():
    made = network(small())
    assert made.backend == "torch.fx"
    assert made.refused == {}


def test_what_none_can_follow_is_refused_with_both_reasons_and_a_remedy():
    def branch_on_values(m, x):
        h = m.conv(x)
        return m.end(h if h.sum() > 0 else m.next(h))

    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        pytest.raises(
            TracingError,
            match=r"Forward cannot be cut \(torch.fx: .*control flow; torch.export: .*guard.*\); name .*stages=",
        ),
    ):
        network(made_of(branch_on_values))
    assert printed.getvalue() == ""


def test_a_model_without_a_place_inside_is_refused():
    model = nn.Sequential(nn.Linear(3 * 64, 5)).eval()
    with pytest.raises(TracingError, match="no place inside through which exactly one tensor passes"):
        network(model, preprocess=lambda x: x.flatten(1))


def test_a_hook_on_the_whole_model_makes_fx_give_way():
    """A module with a hook that matters is left whole, so fx finds nothing inside; export looks through it."""
    model = small()
    model.register_forward_hook(lambda module, given, out: out * 2)
    made = network(model)
    assert made.backend == "torch.export"
    assert "norm" in made.cuts.names
    assert_exact(model, made)


class Counting(nn.Module):
    """Calls the sizes by every name that they have."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        h = self.conv(x)
        h = h.reshape(len(h), h.size(1), x.shape[2] * x.size()[-1]).tanh()
        return self.head(h.view(len(x), 4, -1).mean(2))


def test_len_is_followed():
    model = Counting().eval()
    made = network(model)
    assert made.backend == "torch.fx"
    assert made.cuts.names == ("conv", "reshape", "tanh", "view", "mean")
    assert_exact(model, made)
    assert "len" not in Counting.forward.__globals__


def test_optional_arguments_keep_their_defaults():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.head = nn.Linear(4, 5)

        def forward(self, x, mask=None, scale: float = 1.0, *, deep: bool = True):
            h = self.conv(x)
            if mask is not None:
                h = h * mask
            h = h * scale
            return self.head(torch.tanh(h).mean((2, 3))) if deep else h

    model = Optional().eval()
    made = network(model)
    assert made.cuts.names == ("conv", "mul", "tanh", "mean")
    assert_exact(model, made)


def test_a_size_that_no_cut_can_know_takes_the_cuts_that_would_need_it():
    """``n + 1`` rows are computed and their number read; after the cuts past them it cannot be derived."""

    def forward(m, x):
        h = m.relu(m.conv(x))
        rows = torch.cat([h, h[:1]])
        rows = rows * 1
        n = rows.shape[0]
        h = m.next(rows[:-1])
        g = m.relu(h)
        return m.end(g * (torch.ones(1, device=x.device).expand(n).sum() / n))

    model = made_of(forward)
    made = network(model)
    assert made.backend == "torch.fx"
    assert {"conv", "relu", "mul_1", "mean"} <= set(made.cuts.names)
    for name in ("next", "relu_1"):
        assert name not in made.cuts
        assert "depends on the batch size in a way that cannot be derived" in made.cuts.dropped[name]
    assert_exact(model, made)


def test_a_backend_loses_only_the_cut_that_fails_verification(monkeypatch):
    """One cut is made to lie: what follows it is another network. It alone goes, and its reason is kept."""
    from suture.core.network.segments import CutGraph

    honest = CutGraph.segments

    def lying(self, cuts):
        segments = honest(self, cuts)
        bent = {i + 1 for i, cut in enumerate(cuts) if self.name(cut) == "norm"}
        return [nn.Sequential(segment, nn.Softplus()) if i in bent else segment for i, segment in enumerate(segments)]

    monkeypatch.setattr(CutGraph, "segments", lying)
    model = small()
    made = network(model)
    assert made.backend == "torch.fx"
    assert made.cuts.names == ("conv", "relu", "add", "mean", "drop")
    assert made.cuts.dropped["norm"] == "split here, the model does not give its own output bit for bit"
    assert_exact(model, made)


# ---------------------------------------------------------------------------------------------------- stages


class Untraceable(nn.Module):
    """Its path depends on the values of the input."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(True)), nn.Tanh())
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.head = nn.Linear(4, 5)

    def pooled(self, x):
        return x.mean((2, 3)) * self.scale

    def forward(self, x):
        h = self.blocks(self.stem(x))
        h = self.pooled(h) if h.isfinite().all() else h.new_zeros(len(h), 4)
        return self.head(h)


STAGES = ["stem", "blocks.0", "blocks.1", ("pool", lambda x: x.mean((2, 3)) * 2), "head"]


def test_stages_are_the_cuts():
    model = scrambled(Untraceable()).eval()
    nn.init.constant_(model.scale, 2.0)
    made = network(model, stages=STAGES)
    assert made.backend == "stages"
    assert made.cuts.names == ("stem", "blocks.0", "blocks.1", "pool")
    assert [cut.shape for cut in made.cuts] == [(4, 8, 8)] * 3 + [(4,)]
    assert [cut.parameters for cut in made.cuts] == [112, 132, 132, 132]
    assert_exact(model, made)
    with pytest.raises(TracingError, match=r"torch\.fx.*torch\.export"):
        network(model)


def test_a_stage_may_be_a_method_and_then_is_that_of_the_copy():
    model = scrambled(Untraceable()).eval()
    made = network(model, stages=["stem", "blocks", ("pool", model.pooled), "head"])
    assert made.cuts.names == ("stem", "blocks", "pool")
    assert made.cuts["pool"].parameters == 112 + 20 + 1
    assert_exact(model, made)
    before = made(images(2, 8))
    nn.init.constant_(model.scale, 7.0)
    assert torch.equal(made(images(2, 8)), before)
    assert not any(p.requires_grad for p in made.whole().parameters())
    other = made.untrained
    with pytest.raises(NetworkError, match="'scale'"):
        other(0)


@each("odd", [3, ("head",), ("head", 3), (3, torch.relu)])
def test_what_is_no_stage_is_refused(odd):
    with pytest.raises(TracingError, match="is neither the path of a module nor a pair of a name and a function"):
        network(Untraceable().eval(), stages=["stem", odd])


def test_a_stage_that_holds_a_module_or_a_parameter_is_refused():
    model = Untraceable().eval()
    scale = model.scale
    with pytest.raises(TracingError, match="stage 'head' is a function that holds itself; make it a method"):
        network(model, stages=["stem", "blocks", ("head", model.head)])
    with pytest.raises(TracingError, match="stage 'head' is a function that holds 'model'"):
        network(model, stages=["stem", "blocks", ("head", lambda x: model.head(x.mean((2, 3)) * 2))])
    with pytest.raises(TracingError, match="stage 'pool' is a function that holds 'scale'"):
        network(model, stages=["stem", "blocks", ("pool", lambda x: x.mean((2, 3)) * scale), "head"])


@each(
    ("stages", "reason"),
    [
        (["stem", "head"], "mat1 and mat2|does not give its own output"),
        (["stem", "blocks.0", *STAGES[3:]], "does not give its own output bit for bit"),
        (["stem", "block", "head"], r"no module 'block' in Untraceable; it begins with stem, blocks, head"),
        (["stem"], "no place inside"),
        ([], "no place inside"),
    ],
)
def test_wrong_stages_are_refused(stages, reason):
    model = scrambled(Untraceable()).eval()
    nn.init.constant_(model.scale, 2.0)
    with pytest.raises(TracingError, match=rf"cannot be cut \(stages: .*({reason}).*correct the stages"):
        network(model, stages=stages)


def test_stages_may_pass_other_things_but_not_at_a_cut():
    model = scrambled(Untraceable()).eval()
    nn.init.constant_(model.scale, 2.0)
    two = [("pair", lambda x: (x, x)), ("join", lambda pair: pair[0])]
    made = network(model, stages=[*STAGES[:3], *two, *STAGES[3:]])
    assert made.cuts.names == ("stem", "blocks.0", "blocks.1", "join", "pool")
    assert made.cuts.dropped["pair"] == "it is a tuple, not one tensor"
    assert_exact(model, made)


def test_a_stage_named_twice_is_numbered():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.flat, self.head = nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(3 * 64, 5)

        def forward(self, x):
            return self.head(self.flat(self.conv(self.conv(x))))

    model = scrambled(Twice()).eval()
    made = network(model, stages=["conv", "conv", "flat", "head"])
    assert made.cuts.names == ("conv", "conv_1", "flat")
    assert [cut.parameters for cut in made.cuts] == [12, 12, 12]
    assert_exact(model, made)


# -------------------------------------------------------------------------------- models that cannot be measured


def test_a_parameter_of_the_model_itself_is_named_without_a_module():
    model = Untraceable()
    model.scale.data[0] = float("nan")
    with pytest.raises(NetworkError, match="the scale of victim is not finite"):
        network(model, name="victim", stages=STAGES)


@each("function", [lambda h: (h - 100).log(), lambda h: h / 0 * 0, lambda h: h * 1e38 * 1e38])
def test_activations_that_are_not_finite_name_the_first_cut(function):
    def forward(m, x):
        h = m.relu(m.conv(x) + 1)
        return m.end(m.relu(function(h)))

    with pytest.raises(NetworkError, match=r"the activations at '(log|truediv|mul_1)' in Forward are not finite"):
        network(made_of(forward))


# ---------------------------------------------------------------------------------------- examples and preprocessing


@each("example", [images(2, 8)[0], images(0, 8), [images(1, 8)]])
def test_an_example_is_a_batch_of_images(example):
    with pytest.raises(DataError, match=r"the example must be a few raw images, a tensor of shape \(n, C, H, W\)"):
        network(small(), example=example)


@each(
    ("preprocess", "reason"),
    [
        (lambda x: x.reshape(-1, 7), "cannot be applied to images .3, 8, 8."),
        (lambda x: x[:1], "must give one tensor with a row for each image"),
        (lambda x: (x, x), "must give one tensor with a row for each image"),
        (lambda x: x + torch.rand(()), "is random"),
    ],
)
def test_a_preprocessing_that_cannot_serve_is_refused(preprocess, reason):
    with pytest.raises(DataError, match=f"the preprocessing of victim {reason}"):
        network(small(), name="victim", preprocess=preprocess)


def test_images_of_another_shape_are_refused_later():
    made = network(small(), name="A")
    made.check_images(images(2, 8), "good")
    with pytest.raises(DataError, match=r"images of wide become \(3, 9, 9\) by the preprocessing of A, .* \(3, 8, 8\)"):
        made.check_images(images(2, 9), "wide")


class Numbered(nn.Module):
    """A module is called what a second use of another would be."""

    def __init__(self):
        super().__init__()
        self.conv, self.c2, self.c3 = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 8, 1)
        self.relu_1 = nn.ReLU()
        self.head = nn.Linear(8 * 64, 4)

    def forward(self, x):
        x = F.relu(self.c2(F.relu(self.conv(x))))
        return self.head(self.relu_1(self.c3(x)).flatten(1))


def test_no_two_cuts_have_one_name():
    model = Numbered()
    made = network(model)
    assert made.cuts.names == ("conv", "relu", "c2", "relu_2", "c3", "relu_1", "flatten")
    assert [made.cuts.find(name).index for name in made.cuts.names] == [cut.index for cut in made.cuts]
    assert_exact(model, made)
