"""The vision transformer: Dosovitskiy et al. 2021, *An Image is Worth 16x16 Words*, arXiv:2010.11929."""

from torch import nn

from suture.common.errors import NetworkError
from suture.zoo.networks.blocks import require_whole


def vit(
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
    patch: int = 4,
    size: int = 32,
    classes: int = 10,
    channels: int = 3,
) -> nn.Module:
    """Build timm's vision transformer with a class token, on images of ``size`` x ``size`` pixels.

    ``patch`` is the side of a patch in pixels, ``dim`` the width of a token, ``depth`` the number of blocks. The
    defaults are bansal2021's (appendix A.1). Raises ``NetworkError`` if the heads do not share the width equally, or
    patches do not fill the image.
    """
    from timm.models.vision_transformer import VisionTransformer

    require_whole("vit", dim=dim, depth=depth, heads=heads, patch=patch, size=size, classes=classes, channels=channels)
    if dim % heads:
        raise NetworkError(f"vit cannot share dim={dim} between heads={heads}; give a multiple of the heads")
    if size % patch:
        raise NetworkError(f"vit cannot fill size={size} with patch={patch}; give a multiple of the patch")
    network: nn.Module = VisionTransformer(
        img_size=size,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
    )
    return network
