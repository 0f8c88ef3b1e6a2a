"""``suture compare``: two networks by indices of similarity, without any training."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.cli import output
from suture.cli.explain import table_of
from suture.cli.options import (
    CUTS,
    DEVICE,
    JSON,
    MODEL,
    PREPROCESS,
    RECEIVER_DATA,
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
    places,
)
from suture.common.constants import SIMILARITIES
from suture.common.errors import DataError, SutureError
from suture.common.names import NAMES, make_all, split_names

if TYPE_CHECKING:
    from suture.core.network.network import Network

_ARRAYS = (".npy", ".npz", ".safetensors")
#: Options that mean nothing for arrays.
_OF_NETWORKS = (
    "data",
    "receiver-data",
    "variant",
    "size",
    "classes",
    "split",
    "at",
    "sender-at",
    "receiver-at",
    "beside",
    "preprocess",
    "trust",
)


@command(
    "compare",
    model_option("first", metavar="SENDER", help=f"{MODEL}; or a file of arrays (.npy, .npz, .safetensors)"),
    model_option("second", metavar="RECEIVER", help="the second network or file of arrays, named as the first is"),
    *data_options(),
    RECEIVER_DATA,
    option(
        "--by",
        type=NameOption("index", also=("all",), many=True),
        default="linear_cka,debiased=True",
        metavar="INDICES",
        help=f"all, or some of {', '.join(NAMES['index'])}; with settings as in rbf_cka,bandwidth=0.2",
    ),
    *CUTS,
    option(
        "--samples",
        type=at_least(2),
        metavar="N",
        help="compare on the first N test images, by default 2000; of files on the first N rows, by default all",
    ),
    option(
        "--samples-as",
        choices=("flattened", "pixels", "mean", "first", "last"),
        default="flattened",
        metavar="HOW",
        help="flattened (an image is a sample), mean, first or last (an image is a sample: the mean over its "
        "positions, or its first or last token), or pixels (every position of a map and every token is a sample)",
    ),
    option(
        "--ignore",
        type=places,
        metavar="PLACES",
        help="tokens that do not count, by their places from 0, such as 0 or 0,5: attention sinks",
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
        "suture compare v1.npy v4.npy --by linear_cka,debiased=True,rsa_spearman",
    ),
)
def compare(chosen: Namespace) -> int:
    """Compare two networks' cuts, or two files of arrays, by indices.

    Compare every cut of a network with every cut of another by indices of similarity, on the same images, and train
    nothing. With --beside the values stand beside the results of stitching the two. Two files of arrays, samples ×
    features, are compared in the same way, every array of one with every array of the other.
    """
    files_of_arrays = _find_files(chosen)
    from suture.measurement.compare import beside, compare
    from suture.measurement.tables import table as tables
    from suture.measurement.tables.read import make_reading
    from suture.reports.figures import curve as figures
    from suture.reports.figures import maps
    from suture.reports.terminal import matrix as grids
    from suture.runs.store.files import folder_to_write

    by = make_all("index", NAMES["index"] if chosen.by == "all" else split_names(chosen.by))
    device = check_device(chosen.device)
    measured = table_of(chosen.beside) if chosen.beside is not None else None
    folder = folder_to_write(chosen.out) if chosen.out is not None else None
    settings: dict[str, Any] = {"by": by, "samples_as": chosen.samples_as, "device": device}
    settings |= {} if chosen.ignore is None else {"ignore": chosen.ignore}
    settings |= {"permutations": chosen.permutations} | ({"samples": chosen.samples} if chosen.samples else {})
    if files_of_arrays:
        found = _compare_files(files_of_arrays, settings)
    else:
        data, networks = load_with_networks(chosen, [chosen.first, chosen.second])
        if chosen.beside is not None:
            _check_same(chosen.beside, networks.values())
        settings |= cuts_of(chosen)
        found = compare(networks[chosen.first], networks[chosen.second], data=data, **settings)
    files = []
    if folder is not None:
        files += [tables.save(found, folder / SIMILARITIES)]
        files += figures.save(maps.similarities(found), folder / "similarities")
    if measured is not None:
        joined = beside(measured, found)
        if folder is not None:
            files += [tables.save(joined, folder / "beside.parquet")]
            if (reading := make_reading(measured)).kind == "curve":
                files += figures.save(figures.curve(reading, found), folder / "beside")
    parts: output.Parts = [[grids.similarity_heading(found)], [*grids.similarity_tables(found, output.width())]]
    return output.hand_over(chosen, found, files, parts)


def _find_files(chosen: Namespace) -> list[Path]:
    """Return the two files of arrays, none if two networks are named; refuse a mixture, or a missing one."""
    given = [Path(text).expanduser() for text in (chosen.first, chosen.second)]
    # after an @ a file is a model's weights
    arrays = [path for path in given if path.suffix in _ARRAYS and ("@" not in str(path) or path.is_file())]
    if len(arrays) == 1:
        raise SutureError(f"{arrays[0]} is a file of arrays, and the other is not; give two files, or two networks")
    if not arrays and chosen.data is None:
        raise SutureError("the following arguments are required: --data; see suture compare --help")
    for name in _OF_NETWORKS if arrays else ():
        if vars(chosen)[name.replace("-", "_")]:
            raise SutureError(f"--{name} is for networks; files of arrays are compared as they are, so leave it out")
    return arrays


def _compare_files(files: "list[Path]", settings: dict[str, Any]) -> Any:
    """Return the table of two files, named as they are; by their whole paths if both have one name."""
    from suture.measurement.compare import compare
    from suture.measurement.sides import read_arrays

    names = [path.stem for path in files]
    names = names if names[0] != names[1] else [*map(str, files)] if files[0] != files[1] else ["x", "y"]
    first, second = map(read_arrays, files)
    return compare(first, second, names=(names[0], names[1]), **settings)


def _check_same(folder: str, networks: "Iterable[Network]") -> None:
    """Raise ``DataError`` if a run stitched other networks of these names."""
    from suture.reports.html.runs import read

    known = read(folder).fingerprints
    for network in networks:
        stitched = known.get(f"the network {network.name}")
        if stitched is not None and network.fingerprint not in stitched:
            raise DataError(
                f"--beside {folder}: it stitched another network called {network.name}, with other weights or "
                "preprocessing; compare the networks of the run"
            )
