import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from suture.errors import NetworkError
from suture.zoo import NETWORKS, convnet, mlp, resnet


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def resnet_parameters(blocks: tuple[int, ...], width: int, classes: int, channels: int) -> int:
    """Counted by hand: 3x3 convolutions without bias, two numbers a BatchNorm channel, 1x1 shortcuts."""
    total, before = 9 * channels * width + 2 * width, width
    for stage, depth in enumerate(blocks):
        after = width * 2**stage
        for block in range(depth):
            inputs = before if block == 0 else after
            total += 9 * inputs * after + 9 * after * after + 2 * 2 * after
            total += inputs * after + 2 * after if inputs != after else 0
        before = after
    return total + before * classes + classes


@pytest.mark.parametrize(
    ("network", "images", "classes"),
    [
        (convnet(), (2, 1, 8, 8), 10),
        (convnet(width=4, classes=3, channels=3), (2, 3, 32, 32), 3),
        (convnet(), (2, 1, 4, 4), 10),
        (mlp(), (2, 1, 8, 8), 10),
        (mlp(width=5, depth=0, classes=4, inputs=48), (2, 3, 4, 4), 4),
        (resnet(width=4), (2, 3, 32, 32), 10),
        (resnet((2,), width=4, classes=7, channels=1), (2, 1, 8, 8), 7),
    ],
)
def test_every_network_gives_a_logit_for_each_class(network, images, classes):
    assert network(torch.rand(images)).shape == (2, classes)


@pytest.mark.parametrize(("width", "classes", "channels"), [(16, 10, 1), (5, 3, 3)])
def test_convnet_has_the_parameters_of_its_formula(width, classes, channels):
    convolutions = 9 * (channels * width + width * 2 * width + 2 * width * 4 * width)
    norms = 2 * (width + 2 * width + 4 * width)
    assert parameters(convnet(width, classes, channels)) == convolutions + norms + (4 * width + 1) * classes


@pytest.mark.parametrize(("width", "depth", "classes", "inputs"), [(64, 4, 10, 64), (7, 1, 3, 12)])
def test_mlp_has_the_parameters_of_its_formula(width, depth, classes, inputs):
    hidden = (inputs + 1) * width + (depth - 1) * (width + 1) * width
    assert parameters(mlp(width, depth, classes, inputs)) == hidden + (width + 1) * classes


@pytest.mark.parametrize(
    ("blocks", "width", "classes", "channels"),
    [((1, 1, 1, 1), 16, 10, 3), ((3,), 8, 10, 1), ((1, 2), 4, 5, 3), ((2, 1, 3), 4, 100, 3)],
)
def test_resnet_has_the_parameters_of_its_formula(blocks, width, classes, channels):
    network = resnet(blocks, width, classes, channels)
    assert parameters(network) == resnet_parameters(blocks, width, classes, channels)


def test_the_cifar_resnet18_has_its_published_size_and_is_torchvisions_behind_another_stem():
    network = resnet((2, 2, 2, 2), width=64)
    assert parameters(network) == 11_173_962

    torchvisions = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=10)
    torchvisions.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    torchvisions.maxpool = nn.Identity()
    torchvisions.load_state_dict(network.state_dict())

    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(network.eval()(images), torchvisions.eval()(images))


def test_the_residual_stages_halve_the_side_and_double_the_channels():
    network = resnet((1, 2, 1, 1), width=4)
    activations = torch.rand(2, 3, 32, 32)
    shapes = {}
    for name, module in network.named_children():
        activations = module(activations)
        shapes[name] = tuple(activations.shape[1:])
    assert [shapes[f"layer{i}"] for i in (1, 2, 3, 4)] == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


@pytest.mark.parametrize("blocks", [(), (1, 1, 1, 1, 1), (1, 0), 1])
def test_resnet_refuses_blocks_that_are_no_stages(blocks):
    with pytest.raises(NetworkError, match=r"cannot have blocks=.*one to four stages.*blocks=\(2,\)"):
        resnet(blocks)


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (convnet(), ["stage1", "stage1.relu", "stage2.pool", "head"]),
        (mlp(depth=2), ["flatten", "block1.linear", "block2", "head"]),
        (resnet(width=2), ["conv1", "layer1.0", "layer4.0", "avgpool", "fc"]),
    ],
)
def test_modules_have_the_names_that_cuts_are_named_by(network, names):
    assert set(names) <= dict(network.named_modules()).keys()


def test_the_table_names_every_network():
    assert set(NETWORKS.items()) == {("convnet", convnet), ("mlp", mlp), ("resnet", resnet)}


def test_a_convnet_learns_the_digits_in_seconds():
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    fit, score = order[:1347], order[1347:]
    network, epochs = convnet(), 6
    optimiser = torch.optim.Adam(network.parameters())
    batches = [batch for _ in range(epochs) for batch in fit[torch.randperm(len(fit))].split(64)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=len(batches))
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        accuracy = (network.eval()(images[score]).argmax(1) == labels[score]).float().mean().item()
    assert accuracy > 0.96
