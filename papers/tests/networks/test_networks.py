from itertools import pairwise

import pytest
import torch
from sklearn.datasets import load_digits
from timm.models.resnetv2 import PreActBottleneck
from torch import nn
from torchvision.models import vgg
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from models import images, scrambled, split_everywhere
from suture import Network
from suture.common.errors import NetworkError
from suture_papers.networks.architectures import (
    NETWORKS,
    cnn,
    convnet,
    mlp,
    myrtle,
    resnet,
    resnet50,
    resnet164,
    vgg19,
    vit,
)

STANDARD = {"classes": 1000, "stem": "7x7"}

SMALL = {
    "cnn": lambda: cnn(),
    "cnn of 5 layers on 64x32": lambda: cnn(5, (64, 32)),
    "convnet": lambda: convnet(4, channels=3),
    "mlp": lambda: mlp(8, 4, inputs=3072),
    "myrtle": lambda: myrtle(4),
    "resnet": lambda: resnet((2, 1), 4),
    "resnet behind 7x7": lambda: resnet((1, 1, 1, 1), 4, stem="7x7"),
    "resnet164": lambda: resnet164(8, 2),
    "resnet50": lambda: resnet50(2, (2, 1, 1)),
    "vgg19": lambda: vgg19(4, 8, 1),
    "vit": lambda: vit(32, 2, 4),
}


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def at_full_size(build, *arguments, **named) -> nn.Module:
    with torch.device("meta"):
        return build(*arguments, **named)


def shapes(network: nn.Module, image: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shape that each module gives, of one image, without computing anything."""
    found: dict[str, tuple[int, ...]] = {}
    for name, module in network.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: found.update({name: tuple(out.shape[1:])}))
    with torch.device("meta"):
        network.to("meta").eval()(torch.empty(1, *image))
    return found


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
        (resnet((1, 1), width=4, classes=7, channels=1, stem="7x7"), (2, 1, 28, 28), 7),
        (resnet50(2, (1, 1), classes=3, channels=1), (2, 1, 8, 8), 3),
        (resnet164(8, 1, classes=4, channels=1), (2, 1, 16, 16), 4),
        (cnn(2, (16, 17), classes=3, channels=1), (2, 1, 16, 17), 3),
        (cnn(image=(28, 28), channels=1), (2, 1, 28, 28), 10),
        (myrtle(4, (2, 2, 2, 2), classes=6, channels=1), (2, 1, 16, 16), 6),
        (vgg19(2, hidden=5, pool=2, classes=3, channels=1), (2, 1, 32, 32), 3),
        (vit(16, 1, 2, patch=7, size=28, classes=4, channels=1), (2, 1, 28, 28), 4),
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


@pytest.mark.parametrize(
    ("network", "published"),
    [
        # torchvision's weights, num_params in their metadata
        (at_full_size(resnet, (2, 2, 2, 2), 64, **STANDARD), 11_689_512),
        (at_full_size(resnet, (3, 4, 6, 3), 64, **STANDARD), 21_797_672),
        (at_full_size(resnet50, **STANDARD), 25_557_032),
        (at_full_size(vgg19, classes=1000), 143_667_240),
        # github.com/osmr/imgclsmob, preresnet164bn_cifar10 and _cifar100; He et al. 2016 say 1.7 M
        (at_full_size(resnet164), 1_703_258),
        (at_full_size(resnet164, classes=100), 1_726_388),
        # PyTorch's tutorial "Training a Classifier", from which oxford2025's code is
        (at_full_size(cnn), 62_006),
    ],
)
def test_networks_have_their_published_size(network, published):
    assert parameters(network) == published


@pytest.mark.parametrize(
    ("dense", "image", "flat"), [(3, (64, 32), 16 * 13 * 5), (5, (32, 32), 400), (4, (28, 28), 256)]
)
def test_cnn_has_the_parameters_of_its_formula(dense, image, flat):
    convolutions = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16
    linear = (flat + 1) * 120 + 121 * 84 + (dense - 3) * 85 * 84 + 85 * 10
    assert parameters(cnn(dense, image)) == convolutions + linear


@pytest.mark.parametrize(("width", "channels"), [(64, 3), (5, 1)])
def test_myrtle_has_the_parameters_of_its_formula(width, channels):
    widths = [channels, width, 2 * width, 4 * width, 8 * width]
    convolutions = sum(9 * a * b + b + 2 * b for a, b in pairwise(widths))
    assert parameters(at_full_size(myrtle, width, channels=channels)) == convolutions + 10 * (8 * width + 1)


@pytest.mark.parametrize(("dim", "depth", "heads", "patch"), [(768, 12, 12, 4), (64, 3, 4, 8)])
def test_vit_has_the_parameters_of_its_formula(dim, depth, heads, patch):
    tokens = (32 // patch) ** 2 + 1
    block = 4 * dim * (dim + 1) + (dim + 1) * 4 * dim + (4 * dim + 1) * dim + 4 * dim
    around = (3 * patch**2 + 1) * dim + dim + tokens * dim + 2 * dim + 10 * (dim + 1)
    assert parameters(at_full_size(vit, dim, depth, heads, patch)) == depth * block + around


@pytest.mark.parametrize("blocks", [(2, 2, 2, 2), (1, 2)])
@pytest.mark.parametrize("build", [resnet, resnet50])
def test_behind_the_standard_stem_it_is_torchvisions_own_network(build, blocks):
    network = scrambled(build(blocks=blocks, width=64, classes=7, stem="7x7")).eval()
    theirs = ResNet({resnet: BasicBlock, resnet50: Bottleneck}[build], [*blocks, 0, 0][:4], num_classes=7)
    for i in range(len(blocks) + 1, 5):
        setattr(theirs, f"layer{i}", nn.Identity())
    theirs.fc = nn.Linear(network.fc.in_features, 7)
    theirs.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(network(images(2, 32)), theirs.eval()(images(2, 32)))


def test_vgg19_is_torchvisions_at_any_width():
    network = scrambled(vgg19(8, hidden=16)).eval()
    theirs = vgg.VGG(vgg.make_layers([c if c == "M" else c // 8 for c in vgg.cfgs["E"]]), 10, init_weights=False)
    theirs.classifier = network.classifier
    theirs.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(network(images(2, 32)), theirs.eval()(images(2, 32)))


def test_the_adaptive_pooling_of_vgg19_repeats_what_is_left_of_a_small_image():
    network, x = scrambled(vgg19(4, hidden=8, pool=7)).eval(), images(2, 32)
    once = vgg19(4, hidden=8, pool=1).eval()
    summed = network.classifier[0].weight.detach().unflatten(1, (32, 49)).sum(2)
    once.load_state_dict(network.state_dict() | {"classifier.0.weight": summed})
    with torch.no_grad():
        assert torch.allclose(network(x), once(x), rtol=1e-4, atol=1e-5)


def test_narrow_linear_layers_of_vgg19_spread_as_the_published_ones_do():
    torch.manual_seed(0)
    network = vgg19(32, hidden=1024, pool=1)
    for layer, inputs in ((0, 512 * 49), (3, 4096)):
        weight = network.classifier[layer].weight.detach()
        assert float(weight.std()) * weight.shape[1] ** 0.5 == pytest.approx(0.01 * inputs**0.5, rel=0.02)


def test_resnet164_is_its_description_in_plain_torch():
    """Pre-activation, projections that read it, BatchNorm and ReLU at the end: written out from the paper."""

    def norm(m: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, m.running_mean, m.running_var, m.weight, m.bias, eps=1e-5).relu()

    def block(b: PreActBottleneck, x: torch.Tensor) -> torch.Tensor:
        h = norm(b.norm1, x)
        shortcut = x if b.downsample is None else b.downsample.conv(h)
        return shortcut + b.conv3(norm(b.norm3, b.conv2(norm(b.norm2, b.conv1(h)))))

    network, x = scrambled(resnet164(8, 2)).eval(), images(2, 32)
    with torch.no_grad():
        h = network.stem.conv(x)
        for stage in network.stages:
            for b in stage.blocks:
                h = block(b, h)
        h = norm(network.norm, h).mean((2, 3), keepdim=True)
        assert torch.allclose(network(x), network.head.fc(h).flatten(1), atol=1e-5)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert {type(m) for m in convolutions} == {nn.Conv2d}
    assert [m.stride[0] for m in convolutions if m.kernel_size == (3, 3)] == [1, 1, 1, 2, 1, 2, 1]


def test_vit_has_the_heads_and_blocks_it_is_asked_for():
    network, x = scrambled(vit(32, 2, 4)).eval(), torch.rand(2, 65, 32)
    assert [block.attn.num_heads for block in network.blocks] == [4, 4]
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    ours = network.blocks[0].attn
    weights = {"in_proj_weight": ours.qkv.weight, "in_proj_bias": ours.qkv.bias}
    theirs.load_state_dict(weights | {"out_proj.weight": ours.proj.weight, "out_proj.bias": ours.proj.bias})
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-5)


def test_cnn_computes_what_the_papers_code_does():
    network, x = cnn(image=(64, 32)), torch.rand(2, 3, 64, 32)
    w = network.state_dict()
    h = x
    for i in (1, 2):
        h = nn.functional.max_pool2d(nn.functional.conv2d(h, w[f"conv{i}.weight"], w[f"conv{i}.bias"]).relu(), 2)
    h = h.view(-1, 16 * 13 * 5)
    for i in (1, 2):
        h = nn.functional.linear(h, w[f"fc{i}.weight"], w[f"fc{i}.bias"]).relu()
    assert torch.equal(network(x), nn.functional.linear(h, w["fc3.weight"], w["fc3.bias"]))


@pytest.mark.parametrize(
    ("network", "image", "expected"),
    [
        # smith2024: 64 maps of 7x7 before Layer 2; VGG19 has 64 maps of 32x32 at features.2
        (
            at_full_size(resnet, (2, 2, 2, 2), 64, stem="7x7"),
            (3, 28, 28),
            {"layer1": (64, 7, 7), "layer4": (512, 1, 1)},
        ),
        (at_full_size(vgg19), (3, 32, 32), {"features.1": (64, 32, 32), "features": (512, 1, 1), "flatten": (25088,)}),
        (at_full_size(resnet, (2, 2, 2, 2), 64), (3, 32, 32), {"layer1": (64, 32, 32), "layer4": (512, 4, 4)}),
        (at_full_size(resnet50), (3, 32, 32), {"layer1": (256, 32, 32), "layer4": (2048, 4, 4)}),
        (at_full_size(resnet164), (3, 32, 32), {"stages.0": (64, 32, 32), "stages.2": (256, 8, 8)}),
        (at_full_size(myrtle), (3, 32, 32), {"stage1": (64, 32, 32), "stage2": (128, 16, 16), "stage4": (512, 1, 1)}),
        (at_full_size(vit), (3, 32, 32), {"blocks.11": (65, 768)}),
        (cnn(image=(64, 32)), (3, 64, 32), {"pool1": (6, 30, 14), "pool2": (16, 13, 5), "flatten": (1040,)}),
    ],
)
def test_shapes_at_the_papers_size(network, image, expected):
    found = shapes(network, image)
    assert {name: found[name] for name in expected} == expected


CUTS = {
    "cnn": (11, "conv1 conv1_relu pool1 conv2 conv2_relu pool2 flatten fc1 fc1_relu fc2 fc2_relu"),
    "cnn of 5 layers on 64x32": (15, "pool1 pool2 fc1 fc2 fc3 fc4 fc4_relu"),
    "convnet": (13, "stage1 stage2.pool stage3.relu pool flatten"),
    "mlp": (9, "flatten block1.linear block1 block4"),
    "myrtle": (16, "stage1 stage2.conv stage2.norm stage2.relu stage2 stage3 stage4 flatten"),
    "resnet": (11, "conv1 bn1 relu layer1.0 layer1.1 layer2.0 avgpool flatten"),
    "resnet behind 7x7": (14, "conv1 maxpool layer1.0 layer2.0 layer3.0 layer4.0 avgpool flatten"),
    "resnet164": (23, "stem stages.0.blocks.0 stages.0.blocks.1 stages.1.blocks.0 stages.2.blocks.1 norm"),
    "resnet50": (13, "conv1 layer1.0 layer1.1 layer2.0 layer3.0 flatten"),
    "vgg19": (45, "features.1 features.2 features.9 features.22 features.29 features.36 flatten classifier.0"),
    "vit": (17, "patch_embed blocks.0 blocks.1 norm"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_network_is_cut_where_a_reader_expects_and_composes(name):
    torch.manual_seed(0)
    model = scrambled(SMALL[name]()).eval()
    x = torch.rand(3, 3, 64 if "64x32" in name else 32, 32)
    network = Network(model, example=x, name=name, factory=SMALL[name])
    assert network.backend == "torch.fx"
    number, names = CUTS[name]
    assert len(network.cuts) == number
    for cut in names.split():
        assert network.cuts[cut].shape
    for n in (1, 3):
        split_everywhere(model, network, x[:n])
    assert network.untrained(0).state_digest() != network.state_digest()


@pytest.mark.parametrize("name", SMALL)
def test_weights_come_from_torchs_generator_alone(name):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in SMALL[name]().parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


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
    with pytest.raises(NetworkError, match=r"cannot have blocks=.*such as blocks=\(1, 1, 1, 1\)"):
        resnet(blocks)


@pytest.mark.parametrize("build", [resnet, resnet50])
def test_residual_networks_refuse_a_stem_that_is_none(build):
    with pytest.raises(NetworkError, match=rf"{build.__name__} cannot have stem='5x5'; give one of '3x3', '7x7'"):
        build(stem="5x5")


@pytest.mark.parametrize("build", NETWORKS.values())
@pytest.mark.parametrize("value", [0, -1, 1.0, "8", True])
def test_every_network_refuses_what_is_no_number_of_classes(build, value):
    with pytest.raises(NetworkError, match=rf"{build.__name__} cannot have classes={value!r}; give a whole number of"):
        build(classes=value)


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (mlp, {"depth": -1}, "mlp cannot have depth=-1; give a whole number of at least 0"),
        (cnn, {"dense": 1}, "cnn cannot have dense=1; give a whole number of at least 2"),
        (cnn, {"image": (15, 32)}, r"cannot have image=\(15, 32\); give whole numbers of at least 16, such as"),
        (cnn, {"image": 32}, r"cannot have image=32; give whole numbers .* image=\(32, 32\)"),
        (
            myrtle,
            {"pools": (2, 2, 2)},
            r"cannot have pools=\(2, 2, 2\); give whole numbers .* such as pools=",
        ),
        (myrtle, {"pools": (0, 2, 2, 8)}, r"cannot have pools=\(0, 2, 2, 8\); give"),
        (myrtle, {"width": 0}, "myrtle cannot have width=0; give"),
        (resnet50, {"blocks": (1, 0)}, r"resnet50 cannot have blocks=\(1, 0\); give whole numbers of at least 1"),
        (resnet164, {"width": 12}, "cannot have width=12; give a multiple of 8, such as 8, or the paper's 16"),
        (resnet164, {"blocks": (18,)}, r"cannot have blocks=\(18,\); give a whole number"),
        (vgg19, {"hidden": 0}, "vgg19 cannot have hidden=0; give"),
        (vit, {"dim": 100, "heads": 3}, "cannot share dim=100 between heads=3; give a multiple of the heads"),
        (vit, {"size": 30}, "cannot fill size=30 with patch=4; give a multiple of the patch"),
    ],
)
def test_arguments_that_make_no_network_are_refused(build, arguments, message):
    with pytest.raises(NetworkError, match=message):
        build(**arguments)


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
    built = [cnn, convnet, mlp, myrtle, resnet, resnet50, resnet164, vgg19, vit]
    assert {build.__name__: build for build in built} == NETWORKS


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
