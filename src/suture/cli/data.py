"""``suture data``: the content of a data set, or of a variant of it."""

from argparse import Namespace

from suture.cli import output
from suture.cli.options import JSON, command, data_options, load, out_option, pictures


@command(
    "data",
    *data_options("data", metavar="DATA"),
    out_option(pictures("data")),
    JSON,
    examples=(
        "suture data cifar10",
        "suture data cifar10 --variant relabelled,label=truck,to=ship --out pictures",
        "suture data mnist --variant correlated --out pictures",
    ),
)
def data(chosen: Namespace) -> int:
    """Count and draw the samples of a data set, or of a variant of it.

    Count the samples of every class in the three roles of a data set, or of a variant of it, and draw some of each
    class.
    """
    from suture.data.images import sizes, things
    from suture.reports.figures.curve import save
    from suture.reports.figures.samples import label_statistics, sample_grid
    from suture.reports.terminal.curve import lay_out
    from suture.runs.store.files import folder_to_write, writing_to

    found = load(chosen)
    files = []
    if chosen.out is not None:
        folder = folder_to_write(chosen.out)
        with writing_to(folder):
            files = save(sample_grid(found), folder / "data")
    counts = label_statistics(found)
    record = {
        "data": found.name,
        "shape": tuple(found.fit.images.shape[1:]),
        "counts": {role: {str(name): int(n) for name, n in row.items()} for role, row in counts.iterrows()},
        "files": [str(file) for file in files],
    }
    what = f"{found.name}: {things(found.fit.images)} of {sizes(found.fit.images)}, {len(found.classes)} classes"
    rows = ((name, *(f"{int(n):,}" for n in counts[name])) for name in counts.columns)
    output.answer(chosen, record, what, "", lay_out(("class", *(f">{role}" for role in counts.index)), rows))
    output.say_wrote(files)
    return 0
