"""The coordinates of a descent: the same stitch, in units in which one rate suits all."""

import copy

import torch
from torch import Tensor, nn

from loops import each
from problems import JOINTS, built, named
from suture.core.stitches import Conv, Diagonal, Linear, LowRank, Orthogonal
from suture.fits.coordinates import LEAST, OTHERS, WHITE, Coordinates, measure_layers

ALIKE = 1000.0  #: a ridge by which all directions have nearly one size


def write(stitch: nn.Module, coordinates: Coordinates) -> None:
    """Give a stitch the parameters that the free tensors mean."""
    with torch.no_grad():
        for name, tensor in coordinates.mean(list(coordinates.free.values())).items():
            dict(stitch.named_parameters())[name].copy_(tensor)


def place(stitch: nn.Module, x: Tensor, ridge: float | None = ALIKE) -> Coordinates:
    """Coordinates of a stitch, in units measured on activations."""
    return Coordinates(stitch, measure_layers(stitch, x, ridge))


def activations(*shape: int, n: int = 64, seed: int = 0) -> Tensor:
    """Features of very different means and units."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=random)
    features = shape[0] if len(shape) == 3 else shape[-1]
    units = 10 ** torch.linspace(-2, 2, features)
    ends = [1, 1] if len(shape) == 3 else []
    return (x + 3) * units.reshape(-1, *ends)


@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_they_are_exact_for_every_family(family, sender, receiver):
    stitch, x = built(family, sender, receiver).eval(), activations(*sender)
    own = {name: p.detach().clone() for name, p in stitch.named_parameters()}
    kept = copy.deepcopy(stitch.state_dict())
    with torch.no_grad():
        wanted = stitch(x)
    coordinates = place(stitch, x)
    made = coordinates.parameters()
    assert set(made) == set(own)
    for name, parameter in own.items():
        torch.testing.assert_close(made[name].detach(), parameter, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
    with torch.no_grad():
        torch.testing.assert_close(coordinates(x), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    assert all(torch.equal(kept[name], tensor) for name, tensor in stitch.state_dict().items()), "written too early"
    again = coordinates.mean(list(coordinates.free.values()))
    assert all(torch.equal(again[name], parameter) for name, parameter in made.items())


@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_other_parameters_are_expressed_in_them_plain_or_not(family, sender, receiver):
    """What a stitch drawn anew would compute is what its free tensors make of the first."""
    x = activations(*sender)
    for ridge in (ALIKE, WHITE, None):
        stitch, other = built(family, sender, receiver).eval(), built(family, sender, receiver, seed=1).eval()
        coordinates = place(stitch, x, ridge)
        coordinates.load(dict(other.named_parameters()))
        for name, made in coordinates.parameters().items():
            wanted = dict(other.named_parameters())[name].detach()
            size = max(1.0, float(x.abs().max()))  # biases are differences of what the largest feature gives
            torch.testing.assert_close(made.detach(), wanted, rtol=1e-4, atol=1e-5 * size)


def test_a_plain_step_moves_every_weight_alike():
    """The mean of what is read is not taken out: one step can shift all outputs far."""
    stitch, x = built(Linear(), (5,), (4,)), activations(5)
    weight, out = stitch.weight.detach().clone(), stitch(x).detach()
    coordinates = place(stitch, x, None)
    torch.autograd.backward((coordinates(x) - 7).square().mean(), inputs=list(coordinates.free.values()))
    torch.optim.Adam(coordinates.groups(0.01), eps=0).step()
    moved = (coordinates.parameters()["weight"].detach() - weight).abs()
    spread = out.std(0, correction=0).square().mean().sqrt()
    torch.testing.assert_close(
        moved, (0.01 * 5**-0.5 * spread / x.square().mean().sqrt()).expand(4, 5), rtol=1e-3, atol=0
    )


@each(("family", "sender", "receiver"), JOINTS, ids=named)
def test_all_parameters_can_be_descended_on(family, sender, receiver):
    stitch, x = built(family, sender, receiver).eval(), activations(*sender)
    coordinates = place(stitch, x)
    torch.autograd.backward(coordinates(x).square().mean(), inputs=list(coordinates.free.values()))
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in coordinates.free.values())
    before = {name: tensor.detach().clone() for name, tensor in coordinates.free.items()}
    torch.optim.Adam(coordinates.groups(0.01)).step()
    assert any(not torch.equal(before[name], tensor) for name, tensor in coordinates.free.items())


@each("ridge", [ALIKE, WHITE])
def test_a_step_moves_a_layer_in_the_units_of_what_it_reads_and_gives(ridge):
    stitch, x = built(Linear(), (5,), (4,)), activations(5)
    weight, out = stitch.weight.detach().clone(), stitch(x).detach()
    coordinates = place(stitch, x, ridge)
    torch.autograd.backward((coordinates(x) - 7).square().mean(), inputs=list(coordinates.free.values()))
    torch.optim.Adam(coordinates.groups(0.01), eps=0).step()
    covariance = (x - x.mean(0)).T @ (x - x.mean(0)) / len(x)
    softened = 2 / (1 + ridge) * (covariance + ridge * covariance.diagonal().mean() * torch.eye(5))
    unit = out.std(0, correction=0).square().mean().sqrt().expand(4)
    moved = coordinates.parameters()["weight"].detach() - weight
    lengths = ((moved @ softened) * moved).sum(1).sqrt()  # of a step of Adam, which moves each of five by the rate
    torch.testing.assert_close(lengths, 0.01 * unit, rtol=1e-3, atol=0)


@each(("family", "shape"), [(Linear(), (3, 5)), (Conv(batchnorm=False), (5, 3, 3))], ids=named)
def test_a_step_on_the_weight_leaves_the_mean_where_it_is(family, shape):
    stitch, x = built(family, shape, shape), activations(*shape)
    coordinates = place(stitch, x)
    dims = (0, 2, 3) if len(shape) == 3 else (0, 1)
    with torch.no_grad():
        before = coordinates(x).mean(dims)
        coordinates.free["weight"] += 0.1 * torch.randn_like(coordinates.free["weight"])
        after = coordinates(x).mean(dims)
        spread = coordinates(x).std(dims)
    assert float(((after - before) / spread).abs().max()) < 1e-3


def test_a_convolution_that_pads_with_zeros_is_not_centred():
    stitch, x = built(Conv(3, batchnorm=False), (5, 4, 4), (4, 4, 4)), activations(5, 4, 4)
    coordinates = place(stitch, x)
    with torch.no_grad():
        coordinates.free["weight"] += 1
        torch.testing.assert_close(coordinates.parameters()["bias"], stitch.bias.detach())


@each("sent", [2.0**-20, 2.0**-10, 2.0**10])
@each("given", [2.0**-10, 2.0**10])
def test_a_step_between_batchnorms_knows_no_units(sent, given):
    torch.manual_seed(0)
    x, wanted = torch.randn(64, 5, 4, 4) + 1, torch.randn(64, 4, 4, 4)
    stitch = built(Conv(3), (5, 4, 4), (4, 4, 4)).eval()
    before, conv, after = stitch
    with torch.no_grad():
        for norm, read in ((before, x), (after, conv(before(x)))):
            norm.running_mean.copy_(read.mean((0, 2, 3)))
            norm.running_var.copy_(read.var((0, 2, 3), correction=0))
        other = copy.deepcopy(stitch)
        variance = before.running_var
        other[0].running_mean *= sent
        other[0].running_var *= sent**2
        other[0].weight *= (sent**2 * variance + before.eps).sqrt() / (variance + before.eps).sqrt() / sent
        other[2].weight *= given
        other[2].bias *= given

    def stepped(one: nn.Module, sent: float, given: float) -> Tensor:
        coordinates = place(one, sent * x)
        loss = (coordinates(sent * x) / given - wanted).square().mean()
        torch.autograd.backward(loss, inputs=list(coordinates.free.values()))
        torch.optim.Adam(coordinates.groups(0.1), eps=0).step()
        return coordinates(sent * x).detach() / given

    start, end = stitch(x).detach(), stepped(stitch, 1.0, 1.0)
    torch.testing.assert_close(other(sent * x).detach() / given, start, rtol=1e-4, atol=1e-5)
    apart, moved = (float((end - one).square().mean()) for one in (stepped(other, sent, given), start))
    assert apart < 1e-4 * moved


def test_features_that_do_not_vary_are_kept_in_bounds():
    x = activations(5)
    x[:, 1], x[:, 2] = 4.0, 0.0
    coordinates = place(built(Linear(), (5,), (4,)), x)
    assert all(tensor.isfinite().all() for tensor in coordinates.free.values())
    std = x.std(0, correction=0).max()
    with torch.no_grad():
        before = coordinates.parameters()["weight"].clone()
        coordinates.free["weight"] += 1
        moved = (coordinates.parameters()["weight"] - before)[:, 1]
        largest = coordinates(x).std(0, correction=0).max()
    assert float(moved.max()) <= float(largest / (LEAST * std))
    for constant in (torch.zeros(8, 5), torch.ones(8, 5)):
        still = place(built(Linear(), (5,), (4,)), constant)
        assert all(tensor.isfinite().all() for tensor in still.parameters().values())


def test_what_is_no_layer_is_taken_as_it_is():
    maps = nn.Sequential(nn.Conv2d(5, 5, 1), nn.GroupNorm(1, 5))
    for stitch, shape in ((built(Orthogonal(), (5,), (5,)), (5,)), (maps, (5, 3, 3))):
        x = activations(*shape)
        coordinates = place(stitch, x)
        plain = {name for name, step in coordinates.steps.items() if step == OTHERS}
        assert plain, shape
        own = dict(stitch.named_parameters())
        assert all(torch.equal(coordinates.free[name], own[name]) for name in plain)


def test_a_descent_in_them_stays_in_the_family():
    for family in (Orthogonal(), LowRank(1), Diagonal()):
        stitch, x = built(family, (5,), (5,)), activations(5)
        coordinates = place(stitch, x)
        adam = torch.optim.Adam(coordinates.groups(0.1))
        for _ in range(3):
            adam.zero_grad()
            torch.autograd.backward((coordinates(x) - 2).square().mean(), inputs=list(coordinates.free.values()))
            adam.step()
        write(stitch, coordinates)
        with torch.no_grad():
            weight = (stitch(torch.eye(5)) - stitch(torch.zeros(1, 5))).T
        if isinstance(family, Orthogonal):
            torch.testing.assert_close(weight @ weight.T, torch.eye(5), rtol=1e-4, atol=1e-4)
        elif isinstance(family, LowRank):
            values = torch.linalg.svdvals(weight)
            assert values[1] < 1e-4 * values[0]
        else:
            torch.testing.assert_close(weight, weight.diagonal().diag(), rtol=0, atol=1e-4 * float(weight.abs().max()))


def test_a_stitch_that_is_nested_keeps_the_names_of_its_parameters():
    stitch = nn.Sequential(nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 4, bias=False)))
    made = place(stitch, activations(5)).parameters()
    assert set(made) == {"0.weight", "0.bias", "1.0.weight"}


def tied() -> nn.Sequential:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


@each(
    "stitch",
    [
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        nn.Sequential(nn.Conv2d(6, 4, 1, groups=2), nn.Conv2d(4, 4, 1)),
        tied(),
    ],
    ids=["depthwise", "depthwise without bias", "grouped", "tied"],
)
def test_layers_that_are_not_plain_are_descended_on_as_they_are(stitch):
    """The stitches that parts of MobileNets or ResNeXts make."""
    shape = (5,) if isinstance(stitch, nn.Sequential) and isinstance(stitch[0], nn.Linear) else (6, 4, 4)
    x = activations(*shape)
    with torch.no_grad():
        wanted = stitch.eval()(x)
    coordinates = place(stitch, x)
    assert set(coordinates.parameters()) == {name for name, _ in stitch.named_parameters()}
    torch.testing.assert_close(coordinates(x).detach(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    torch.autograd.backward(coordinates(x).square().mean(), inputs=list(coordinates.free.values()))
    write(stitch, coordinates)
    torch.testing.assert_close(stitch(x).detach(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
