"""The command that shows data, ``data``."""

from jsonargparse import Namespace

from suture.cli import output
from suture.cli.output import say


def data(chosen: Namespace, command: str) -> int:
    """Count the samples of every class in every role, and draw some where a folder is named; the exit code."""
    from suture.cli.names import check_least, variants_named
    from suture.data import load_data
    from suture.data.preprocess import sizes, things
    from suture.data.variants import vary
    from suture.report.figures.samples import draw_samples, label_statistics
    from suture.report.terminal.networks import labels_table
    from suture.runs.store.files import folder_to_write, writing_to

    check_least(chosen, size=1)
    variants = variants_named(chosen.variant)
    found = vary(load_data(chosen.source, size=chosen.size, classes=chosen.classes), *variants)
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
    for file in files:
        say(f"wrote {file}")
    return 0
