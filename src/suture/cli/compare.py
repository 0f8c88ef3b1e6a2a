"""``suture compare``: two networks by indices of similarity, without any training."""

from argparse import Namespace
from typing import Any

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.explain import SIMILARITIES, run_table
from suture.cli.measuring import models_named
from suture.cli.names import NAMES, NameOption, make_all, names_of, split_names
from suture.cli.options import CUTS, add_data, add_json, add_model, add_named, add_out, at_least, load, patterns_of


def options(parser: Parser) -> None:
    """Add the options."""
    add = parser.add_argument
    add_model(parser, "first", metavar="SENDER")
    add_model(parser, "second", metavar="RECEIVER", help="likewise")
    add_data(parser, required=True)
    by = f"all, or some of {', '.join(names_of('index'))}; with settings as in rbf_cka,bandwidth=0.2"
    indices = NameOption(("index",), also=("all",), many=True)
    add_named(parser, "--by", indices, default="linear_cka", metavar="INDICES", help=by)
    add("--cuts", "--at", metavar="CUTS", help=CUTS)
    add("--sender-cuts", "--sender-at", metavar="CUTS", help="likewise, of the sender only")
    add("--receiver-cuts", "--receiver-at", metavar="CUTS", help="likewise, of the receiver only")
    add("--samples", type=at_least(2), default=2000, metavar="N", help="compare on the first N test images")
    samples_as = "flattened (an image is a sample) or pixels (every position of a map and every token is one)"
    add("--samples-as", choices=("flattened", "pixels"), default="flattened", metavar="HOW", help=samples_as)
    add("--beside", metavar="RUN", help="folder of a run that stitched the same networks")
    add_out(parser, f"folder for {SIMILARITIES} and its figure (.png, .pdf, .svg); for those of --beside, too")
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Compare two networks at all pairs of cuts and return the exit code."""
    from suture.measurement.compare import beside, compare
    from suture.measurement.tables import table as tables
    from suture.report.figures import curve as figures
    from suture.report.figures import matrix as heatmaps
    from suture.report.terminal import evidence
    from suture.runs.store.files import folder_to_write

    by = make_all("index", NAMES["index"] if chosen.by == "all" else split_names(chosen.by))
    measured = run_table(chosen.beside) if chosen.beside is not None else None
    folder = folder_to_write(chosen.out) if chosen.out is not None else None
    data = load(chosen)
    networks = [model.network(data.example) for model in models_named([chosen.first, chosen.second])]
    cuts: dict[str, Any] = {
        name: patterns_of(getattr(chosen, name)) for name in ("cuts", "sender_cuts", "receiver_cuts")
    }
    settings = {"by": by, "samples": chosen.samples, "samples_as": chosen.samples_as, **cuts}
    found = compare(networks[0], networks[-1], data=data, **settings)
    files = []
    if folder is not None:
        files += [tables.save(found, folder / SIMILARITIES)]
        files += figures.save(heatmaps.similarities(found), folder / "similarities")
    if measured is not None:
        joined, figure = beside(measured, found), figures.beside(measured, found)
        if folder is not None:
            files += [tables.save(joined, folder / "beside.parquet"), *figures.save(figure, folder / "beside")]
    parts: output.Parts = [[evidence.similarity_heading(found)], [*evidence.similarity_tables(found, output.width())]]
    return output.hand_over(found, files, {} if chosen.json else None, parts)


COMMAND = Command(
    name="compare",
    help="similarity indices of every pair of cuts of two networks",
    about="Compare every cut of a network with every cut of another by indices of similarity, on the same images, and "
    "train nothing. With --beside the values are put beside what stitching the two measured.",
    examples=(
        "suture compare nets/a nets/b --data cifar10 --by linear_cka,svcca --out alike",
        "suture compare nets/a nets/b --data digits --beside runs/ab --out runs/ab",
    ),
    options=options,
    run=run,
)
