"""Networks of which each layer reads the one before it, and no other.

``convnet`` is the demo's. ``mlp`` and ``cnn`` are oxford2025's, ``myrtle`` is bansal2021's and ``vgg19`` smith2024's.
"""

from itertools import pairwise

from torch import nn

from suture.common.errors import NetworkError
from suture.zoo.networks.blocks import init_kaiming, name_in_a_row, require_whole


def convnet(width: int = 16, classes: int = 10, channels: int = 1) -> nn.Module:
    """Build three 3x3 convolution stages, global average pooling and a linear head.

    The stages have ``width``, ``2 * width`` and ``4 * width`` channels; the last two halve the side, so
    images need at least 4x4 pixels. The demo's network for the 8x8 digits.
    """
    require_whole("convnet", width=width, classes=classes, channels=channels)
    return name_in_a_row(
        stage1=_convolution(channels, width),
        stage2=_convolution(width, 2 * width, pool=nn.AvgPool2d(2)),
        stage3=_convolution(2 * width, 4 * width, pool=nn.AvgPool2d(2)),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(4 * width, classes),
    )


def mlp(width: int = 64, depth: int = 4, classes: int = 10, inputs: int = 64) -> nn.Module:
    """Build ``depth`` Linear-ReLU blocks of ``width`` units on flattened images, and a linear head.

    ``inputs`` is the number of values in an image (channels x height x width): 64 for the 8x8 digits, 784 for MNIST,
    3072 for CIFAR-10. The weights are PyTorch's default.
    oxford2025, section 2.2: uniform width of 64, a depth of 4 to 10.
    """
    require_whole("mlp", width=width, classes=classes, inputs=inputs)
    require_whole("mlp", least=0, depth=depth)
    sizes = [inputs] + [width] * depth
    blocks: dict[str, nn.Module] = {
        f"block{i}": name_in_a_row(linear=nn.Linear(before, after), relu=nn.ReLU())
        for i, (before, after) in enumerate(pairwise(sizes), start=1)
    }
    return name_in_a_row(flatten=nn.Flatten(), **blocks, head=nn.Linear(sizes[-1], classes))


def cnn(dense: int = 3, image: tuple[int, int] = (32, 32), classes: int = 10, channels: int = 3) -> nn.Module:
    """Build two 5x5 convolutions (6 and 16 channels), each with ReLU and pooling, and ``dense`` fully connected layers.

    ``image`` is height and width in pixels, at least 16 each; (64, 32) for MNIST-CIFAR, which leaves maps of 13x5
    before ``fc1``. The layers ``fc1``, ``fc2`` … have 120, 84 and then ``classes`` outputs. oxford2025 has networks of
    3 to 5 fully connected layers, but gives their widths (in the code of its appendix 2) for 3 alone; here those
    between the second and the last repeat the 84. Parameters have the names of that code, and PyTorch's default values.
    Raises ``NetworkError`` if ``dense`` is below 2 or the image too small.
    """
    require_whole("cnn", least=2, dense=dense)
    require_whole("cnn", classes=classes, channels=channels)
    if not isinstance(image, tuple | list) or len(image) != 2 or not all(type(s) is int and s >= 16 for s in image):
        raise NetworkError(
            f"cnn cannot have image={image!r}; give height and width in pixels, at least 16 each, such as (32, 32)"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in image)
    sizes = [16 * height * width, 120, *[84] * (dense - 2), classes]
    layers: dict[str, nn.Module] = {}
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        layers |= {f"fc{i}": nn.Linear(before, after), f"fc{i}_relu": nn.ReLU()}
    del layers[f"fc{dense}_relu"]
    return name_in_a_row(
        conv1=nn.Conv2d(channels, 6, 5),
        conv1_relu=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        conv2_relu=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        **layers,
    )


def myrtle(
    width: int = 64, pools: tuple[int, int, int, int] = (1, 2, 2, 8), classes: int = 10, channels: int = 3
) -> nn.Module:
    """Build Myrtle-CNN: four stages of 3x3 convolution, BatchNorm, ReLU and max-pooling, and a linear layer.

    The stages have ``width`` times 1, 2, 4 and 8 channels; ``pools`` are their pooling windows, of which 1 is none. The
    windows have to shrink the image to one pixel, so images have the product of ``pools`` as their side: 32.
    bansal2021, appendix A.1, gives neither channels nor windows. They are those of Nakkiran et al. 2020, *Deep Double
    Descent*, arXiv:1912.02292, which describes its network in the same words (after Page 2018) and shares authors; so
    are the biases of the convolutions, and PyTorch's default weights. Smaller windows early make it cheaper:
    ``pools=(2, 2, 2, 4)`` costs a quarter. Raises ``NetworkError`` unless there are four windows.
    """
    require_whole("myrtle", width=width, classes=classes, channels=channels)
    if not isinstance(pools, tuple | list) or len(pools) != 4 or not all(type(p) is int and p > 0 for p in pools):
        raise NetworkError(
            f"myrtle cannot have pools={pools!r}; give the pooling window of each of the four stages, such as "
            "(1, 2, 2, 8)"
        )
    widths = [channels, *(width * 2**i for i in range(4))]
    stages: dict[str, nn.Module] = {
        f"stage{i + 1}": _convolution(before, after, bias=True, **({"pool": nn.MaxPool2d(p)} if p > 1 else {}))
        for i, ((before, after), p) in enumerate(zip(pairwise(widths), pools, strict=True))
    }
    return name_in_a_row(**stages, flatten=nn.Flatten(), fc=nn.Linear(8 * width, classes))


def vgg19(
    width: int = 64,
    hidden: int = 4096,
    pool: int = 7,
    classes: int = 10,
    channels: int = 3,
    dropout: float = 0.5,
) -> nn.Module:
    """Build torchvision's VGG19 without BatchNorm, at any width, under its names.

    The five groups of convolutions have ``width`` times 1, 2, 4, 8 and 8 channels, the first two layers of the
    classifier ``hidden`` units. Each group halves the side, so a 32x32 image ends as one pixel, which the adaptive
    pooling to ``pool`` x ``pool`` then only repeats: at 7 the first linear layer reads 49 copies of each value, as
    torchvision's does at this size; 1 leaves them out. Weights are torchvision's; the spread of the linear layers
    grows as the square root of what they read shrinks, from 0.01 at the full size, so that narrow ones give outputs
    of the same size. Simonyan and Zisserman 2015, arXiv:1409.1556; smith2024, appendix C.2.
    """
    from torchvision.models.vgg import cfgs, make_layers

    require_whole("vgg19", width=width, hidden=hidden, pool=pool, classes=classes, channels=channels)
    if not 0 <= dropout < 1:
        raise NetworkError(f"vgg19 cannot have dropout={dropout}; give a fraction of at least 0 and below 1")
    features = make_layers([c if c == "M" else c * width // 64 for c in cfgs["E"]])
    if channels != 3:
        features[0] = nn.Conv2d(channels, width, 3, padding=1)
    flat = 8 * width * pool**2
    classifier = nn.Sequential(
        *(nn.Linear(flat, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)),
        nn.Linear(hidden, classes),
    )
    for layer, published in zip(classifier[::3], (512 * 7 * 7, 4096, 4096), strict=True):
        assert isinstance(layer, nn.Linear)
        nn.init.normal_(layer.weight, std=0.01 * (published / layer.in_features) ** 0.5)
        nn.init.zeros_(layer.bias)
    return name_in_a_row(
        features=features.apply(init_kaiming),
        avgpool=nn.AdaptiveAvgPool2d(pool),
        flatten=nn.Flatten(),
        classifier=classifier,
    )


def _convolution(inputs: int, outputs: int, bias: bool = False, **pool: nn.Module) -> nn.Sequential:
    return name_in_a_row(
        conv=nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias),
        norm=nn.BatchNorm2d(outputs),
        relu=nn.ReLU(),
        **pool,
    )
