"""What is read or steered in one network is read or steered in another through the stitch between them."""

import pytest
import torch
from torch import Tensor, nn

import suture
from models import LENGTH, VOCABULARY, WIDTH, Text
from suture import fits, tasks
from suture.common.errors import FoldError
from suture.core.stitches import Diagonal, Identity, Permutation


def rotation(seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)))[0]


def joined() -> suture.Stitched:
    """The closed form between a network and its rotated copy."""
    texts = torch.randint(VOCABULARY, (90, LENGTH), generator=torch.Generator().manual_seed(1))
    data = suture.load_data(((texts[:60], None), (texts[60:], None)), name="ids", task=tasks.NextToken())
    a, b = (
        suture.Network(Text(q), example=data.example, name=name) for name, q in (("A", None), ("turned", rotation(0)))
    )
    made = suture.stitch(a, b, at="body", data=data, fit=fits.LeastSquares(), controls=())
    assert made.stitched is not None
    return made.stitched


def test_a_rotated_copy_is_steered_and_read_as_its_original():
    stitched = joined()
    a, b = stitched.seam.sender, stitched.seam.receiver
    direction = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2))
    carried = stitched.carry(direction)
    torch.testing.assert_close(carried, direction @ rotation(0).T, rtol=0, atol=1e-4)

    texts = torch.randint(VOCABULARY, (5, LENGTH))
    steered = a.after("body")(a.upto("body")(texts) + direction[0])
    torch.testing.assert_close(b.after("body")(b.upto("body")(texts) + carried[0]), steered, rtol=0, atol=1e-4)
    astray = rotation(3) @ direction[0]  # as long, and carried by a map of nothing
    assert (b.after("body")(b.upto("body")(texts) + astray) - steered).abs().max() > 0.1

    probe = torch.randn(WIDTH)  # of the copy
    read = b.upto("body")(texts) @ probe
    torch.testing.assert_close(stitched.stitch(stitched.prefix(texts)) @ probe, read, rtol=0, atol=1e-4)
    assert (stitched.prefix(texts) @ rotation(3).T @ probe - read).abs().max() > 0.1


def test_a_stitch_that_is_no_map_of_features_carries_nothing():
    class Bent(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.tanh()

    stitched = joined()
    with pytest.raises(FoldError, match="same matrix"):
        suture.Stitched(stitched.seam, Bent()).carry(torch.ones(WIDTH))


@pytest.mark.parametrize("family", [Identity(), Permutation(), Diagonal()])
def test_features_of_tokens_are_carried_by_stitches_that_are_multiples_of_the_identity(family):
    stitched = joined()
    stitch = family.build((LENGTH, WIDTH), (LENGTH, WIDTH))
    torch.testing.assert_close(suture.Stitched(stitched.seam, stitch).carry(torch.ones(WIDTH)), torch.ones(WIDTH))
