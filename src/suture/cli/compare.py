"""``suture compare``: two networks by indices of similarity, without any training."""

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from suture.cli import output
from suture.cli.explain import SIMILARITIES, table_of
from suture.cli.options import (
    CUTS,
    DEVICE,
    JSON,
    PREPROCESS,
    TRUST,
    NameOption,
    at_least,
    check_device,
    command,
    cuts_of,
    data_options,
    load_with_networks,
    model_option,
    option,
    out_option,
)
from suture.common.errors import DataError
from suture.common.names import NAMES, make_all, split_names

if TYPE_CHECKING:
    from suture.core.network.network import Network


@command(
    "compare",
    model_option("first", metavar="SENDER"),
    model_option("second", metavar="RECEIVER", help="named as the sender is"),
    *data_options(required=True),
    option(
        "--by",
        type=NameOption("index", also=("all",), many=True),
        default="linear_cka,debiased=True",
        metavar="INDICES",
        help=f"all, or some of {', '.join(NAMES['index'])}; with settings as in rbf_cka,bandwidth=0.2",
    ),
    *CUTS,
    option("--samples", type=at_least(2), default=2000, metavar="N", help="compare on the first N test images"),
    option(
        "--samples-as",
        choices=("flattened", "pixels", "mean", "first", "last"),
        default="flattened",
        metavar="HOW",
        help="flattened (an image is a sample), mean, first or last (an image is a sample: the mean over its "
        "positions, or its first or last token), or pixels (every position of a map and every token is a sample)",
    ),
    option(
        "--permutations",
        type=at_least(0),
        default=199,
        metavar="N",
        help="least number of permutations that estimate each index by chance; 0 for none, which is quicker",
    ),
    option("--beside", metavar="RUN", help="folder of a run that stitched the same networks"),
    DEVICE,
    out_option(f"folder for {SIMILARITIES} and its figure (.png, .pdf, .svg), and for those of --beside"),
    PREPROCESS,
    TRUST,
    JSON,
    examples=(
        "suture compare nets/a nets/b --data cifar10 --by linear_cka,svcca --out alike",
        "suture compare nets/a nets/b --data digits --beside runs/ab --out runs/ab",
    ),
)
def compare(chosen: Namespace) -> int:
    """Compute similarity indices of every pair of cuts of two networks.

    Compare every cut of a network with every cut of another by indices of similarity, on the same images, and train
    nothing. With --beside the values are put beside the stitching results of the two.
    """
    from suture.measurement.compare import beside, compare
    from suture.measurement.tables import table as tables
    from suture.measurement.tables.read import read_table
    from suture.reports.figures import curve as figures
    from suture.reports.figures import matrix as heatmaps
    from suture.reports.terminal import matrix as grids
    from suture.runs.store.files import folder_to_write

    by = make_all("index", NAMES["index"] if chosen.by == "all" else split_names(chosen.by))
    device = check_device(chosen.device)
    measured = table_of(chosen.beside) if chosen.beside is not None else None
    folder = folder_to_write(chosen.out) if chosen.out is not None else None
    data, networks = load_with_networks(chosen, [chosen.first, chosen.second])
    if chosen.beside is not None:
        _check_same(chosen.beside, networks.values())
    settings: dict[str, Any] = {"by": by, "samples": chosen.samples, "samples_as": chosen.samples_as, "device": device}
    settings |= {"permutations": chosen.permutations, **cuts_of(chosen)}
    found = compare(networks[chosen.first], networks[chosen.second], data=data, **settings)
    files = []
    if folder is not None:
        files += [tables.save(found, folder / SIMILARITIES)]
        files += figures.save(heatmaps.similarities(found), folder / "similarities")
    if measured is not None:
        joined = beside(measured, found)
        if folder is not None:
            files += [tables.save(joined, folder / "beside.parquet")]
            if (reading := read_table(measured)).kind == "curve":
                files += figures.save(figures.curve(reading, found), folder / "beside")
    parts: output.Parts = [[grids.similarity_heading(found)], [*grids.similarity_tables(found, output.width())]]
    return output.hand_over(chosen, found, files, parts)


def _check_same(folder: str, networks: "Iterable[Network]") -> None:
    """Raise ``DataError`` if a run stitched other networks of these names."""
    from suture.reports.html.runs import read

    known = read(folder).fingerprints
    for network in networks:
        stitched = known.get(f"the network {network.name}")
        if stitched is not None and network.fingerprint not in stitched:
            raise DataError(
                f"--beside {folder}: it stitched another network called {network.name}, of other weights or "
                "preprocessing; compare the networks of the run"
            )
