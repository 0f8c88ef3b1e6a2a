"""``suture data``: what a data set, or a variant of it, has."""

from argparse import Namespace

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.options import add_data, add_json, add_out, load, pictures


def options(parser: Parser) -> None:
    """Add the options."""
    add_data(parser, "data", metavar="DATA")
    add_out(parser, pictures("data"))
    add_json(parser)


def run(chosen: Namespace) -> int:
    """Count the samples of every class in every role, draw some if a folder is named, and return the exit code."""
    from suture.data.samples import sizes, things
    from suture.report.figures.samples import draw_samples, label_statistics
    from suture.report.terminal.networks import labels_table
    from suture.runs.store.files import folder_to_write, writing_to

    found = load(chosen)
    files = []
    if chosen.out is not None:
        folder = folder_to_write(chosen.out)
        with writing_to(folder):
            files = draw_samples(found, folder / "data")
    counts = label_statistics(found)
    if chosen.json:
        output.show_json(
            {
                "data": found.name,
                "shape": tuple(found.example.shape[1:]),
                "counts": {role: {str(name): int(n) for name, n in row.items()} for role, row in counts.iterrows()},
                "files": [str(file) for file in files],
            }
        )
    else:
        what = f"{things(found.example)} of {sizes(found.example)}"
        output.show(f"{found.name}: {what}, {len(found.classes)} classes", "", labels_table(counts))
    output.say_wrote(files)
    return 0


COMMAND = Command(
    name="data",
    help="count and draw the samples of a data set, or of a variant of it",
    about="Count the samples of every class in the three roles of a data set, or of a variant of it, and draw some of "
    "each class.",
    examples=(
        "suture data cifar10",
        "suture data cifar10 --variant relabelled,label=truck,to=ship --out pictures",
        "suture data mnist --variant correlated --out pictures",
    ),
    options=options,
    run=run,
)
