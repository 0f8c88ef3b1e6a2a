"""``suture cuts``: where a network can be cut."""

from argparse import ArgumentTypeError, Namespace

from suture.cli import output
from suture.cli.options import JSON, PREPROCESS, TRUST, command, model_option, option, sources_of


def shape(text: str) -> tuple[int, ...]:
    """Read the shape of one image, or a number of tokens."""
    sizes = text.lower().replace(",", "x").split("x")
    if len(sizes) not in (1, 3) or not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise ArgumentTypeError(
            f"{text}: give channels, height and width of one image, such as 3x224x224, or the number of tokens "
            "of a sequence"
        )
    return tuple(int(size) for size in sizes)


@command(
    "cuts",
    model_option("model", metavar="MODEL"),
    option("--shape", type=shape, help="shape of one raw image, such as 3x224x224, or number of tokens"),
    option("--dropped", action="store_true", help="also list the tensors that are not cuts, and why"),
    PREPROCESS,
    TRUST,
    JSON,
    examples=(
        "suture cuts timm:resnet50",
        "suture cuts timm:vit_tiny_patch16_224,img_size=32,patch_size=4",
        "suture cuts models.py:make_net,width=8 --shape 3x32x32",
    ),
)
def cuts(chosen: Namespace) -> int:
    """Show where a network can be cut.

    List every place in a network through which exactly one tensor passes, with its shape, its depth, and the parameters
    and FLOPs up to it.
    """
    from suture.reports.terminal.curve import cuts_table, dropped_table
    from suture.zoo.models import draw_example, resolve
    from suture.zoo.sources import image_shape

    source = sources_of(chosen, [chosen.model])[chosen.model]
    model = resolve(source)
    sizes = chosen.shape if chosen.shape is not None else image_shape(source)
    network = model.network(draw_example(sizes))
    dropped = network.cuts.dropped
    fields = ("name", "index", "depth", "shape", "parameters", "flops", "aliases")
    record = {
        "network": network.name,
        "image_shape": sizes,
        "backend": network.backend,
        "refused": network.refused,
        "cuts": [{field: getattr(cut, field) for field in fields} for cut in network.cuts],
        "dropped": dropped,
    }
    refused = "".join(f"; {backend} could not: {reason}" for backend, reason in network.refused.items())
    said = f"{len(network.cuts)} cuts of {network.name} by {network.backend}{refused}, each verified bit for bit"
    if dropped:
        said += f"; {len(dropped)} other tensors are not cuts" + ("" if chosen.dropped else ", --dropped says why")
    more = ["", dropped_table(network.cuts)] if chosen.dropped and dropped else []
    output.answer(chosen, record, cuts_table(network.cuts), "", said, *more)
    return 0
