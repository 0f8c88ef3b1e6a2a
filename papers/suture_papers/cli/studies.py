"""``suture run``, ``studies`` and ``claims``: the papers' experiments."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from suture import SutureError
from suture.common.errors import DataError, RunnerError
from suture.extend import (
    CONFIG,
    JSON,
    NAMES,
    RUNNING,
    UNTIL_CONVERGED,
    command,
    named_path,
    option,
    out_option,
    output,
    runner_of,
    say,
    say_count,
)

SCALES = ("tiny", "small", "paper")
DATA_FOLDER = option(
    "--data", metavar="FOLDER", help="folder with mnist and cifar10; by default they come from the hub"
)
NETWORKS = "networks.parquet"  #: beside the tables of studies, what suture zoo table wrote of the networks
RESULTS = "papers/results/small"  #: the folder of what was measured, within the project


def scale_option(default: str | None) -> Any:
    """Return the option for the scale of studies."""
    about = "tiny (seconds, its figures mean nothing), small (two cores) or paper"
    return option("--scale", choices=SCALES, default=default, help=about)


# --- data and studies by name -----------------------------------------------------------------------------------------


def loader_of(folder: str | None) -> Callable[[str], Any]:
    """Return a loader of data by the names of the ledger, once each: from folders of these names, or from the hub.

    Raises ``DataError`` if there is no such folder.
    """
    from suture import load_data

    if folder is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"--data {folder} is not a folder; give one that has the folders mnist and cifar10")

    @cache
    def load(name: str) -> Any:
        if folder is None:
            return load_data(name)
        return load_data("+".join(map(str, data_folders(folder, name))), name=name)

    return load


def data_folders(folder: str, name: str) -> tuple[Path, ...]:
    """Return the folders of a data set within that of ``--data``. Raises ``DataError`` if one is missing."""
    found = tuple(Path(folder).expanduser() / part for part in name.split("+"))
    for path in found:
        if not path.is_dir():
            raise DataError(
                f"--data {folder} has no folder {path.name}; put the parquet files of {path.name} into {path}, as the "
                "Hugging Face hub has them, or leave --data out to load them from the hub"
            )
    return found


def studies_of(texts: Sequence[str]) -> list[Any]:
    """Return the studies of ids or patterns, each once, in the order in which they are asked for."""
    from suture_papers import STUDIES, study_named

    found: dict[str, Any] = {}
    for text in texts:
        pattern = "*" if text == "all" else text
        suited = {name: study for name, study in STUDIES.items() if fnmatchcase(name, pattern)}
        for name, study in (suited or {text: study_named(text)}).items():
            found.setdefault(name, study)
    return list(found.values())


# --- run --------------------------------------------------------------------------------------------------------------


@command(
    "run",
    option(
        "ids",
        nargs="+",
        metavar="ID",
        help="ids of experiments, as suture studies lists them; 'smith-*'; all",
        words=("all", *NAMES["study"]),
    ),
    scale_option("small"),
    out_option("folder of the run", required=True),
    DATA_FOLDER,
    option(
        "--results",
        type=named_path,
        metavar="FOLDER",
        help="folder for tables and cards; by default results within --out",
    ),
    option(
        "--figures", type=named_path, metavar="FOLDER", help="folder for figures; by default that of tables and cards"
    ),
    *RUNNING,
    UNTIL_CONVERGED,
    JSON,
    *CONFIG,
    examples=(
        "suture run bansal-2A --scale small --out runs/small --data data",
        "suture run 'smith-*' oxford-4.2 --out runs/small",
        "suture run all --scale tiny --out runs/tiny",
        "suture run bansal-2A --out runs/small --results papers/results/small",
    ),
)
def run(chosen: Namespace) -> int:
    """Run experiments of the papers.

    Run experiments of the papers: train the networks that they need, measure their trials, decide their claims, and
    write tables, a card and a figure for each. Work that is in the folder --out already is not done again, and
    stopped work continues, so experiments that share networks should share a folder.
    """
    from suture import Store
    from suture.extend import Interrupted, choose_progress, failures, figures, folder_to_write
    from suture_papers import run_study, scale_named
    from suture_papers.base.cells import TRIALS
    from suture_papers.base.scale import TINY
    from suture_papers.ledger import LEDGER
    from suture_papers.reports import terminal as words
    from suture_papers.reports.figures import figure

    runner, studies = runner_of(chosen), studies_of(chosen.ids)
    scale = scale_named(chosen.scale, loader_of(chosen.data))
    tiny = scale.name == TINY
    if chosen.data is not None and not tiny:  # before anything is loaded
        ids = {study.id for study in studies}
        for name in dict.fromkeys(entry.data for entry in LEDGER if ids.intersection(entry.experiments)):
            data_folders(chosen.data, name)
    if not tiny:
        studies = _plannable(studies, scale, chosen.ids)
    store = Store.make(chosen.out)
    results = folder_to_write(chosen.results if chosen.results is not None else store.path / "results")
    drawn = folder_to_write(chosen.figures) if chosen.figures is not None else results
    records: list[dict[str, Any]] = []
    code = 0
    for number, study in enumerate(studies, start=1):
        where = f", {number} of {len(studies)}: {study.title}"
        say(study.id + (where if len(studies) > 1 else f": {study.title} ({study.paper}, {study.source})"))
        settings = {"on": runner, "device": chosen.device, "retry": chosen.retry, "command": chosen.line}
        settings["until_converged"] = chosen.until_converged
        try:
            result = run_study(study, scale, store, progress=choose_progress(), told=say, **settings)
        except RunnerError as error:
            say(f"suture: {study.id}: {error}; --retry trains failed networks again")
            records.append({"study": study.id, "error": str(error)})
            code = 1
            continue
        except Interrupted:  # of a run, which says how to continue
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted in {study.id}; continue with: {chosen.line}") from None
        files = result.save(results)
        if study.panels:
            files += figures.save(figure(study, result.tables), drawn / study.id)
        decided = () if tiny else result.decide(study)
        if tiny and not chosen.json:
            output.show(
                "tiny scale shows that everything runs; its figures mean nothing, and no claim is decided of them"
            )
        if not chosen.json:
            output.show(*([words.decided_table(decided)] if decided else []), "", words.took_words(result))
        output.say_wrote(files)
        if failed := result.card["failed"]:
            reasons = "; ".join(failures(result.tables[TRIALS]))
            say(f"suture: {study.id}: {failed} of {result.card['trials']} trials failed: {reasons}")
            code = 1
        claims = [words.decided_record(one) for one in decided]
        records.append({"study": study.id, "card": result.card, "claims": claims, "files": [str(f) for f in files]})
    if chosen.json:
        output.show_json(records)
    return code


def _plannable(studies: Sequence[Any], scale: Any, texts: Sequence[str]) -> list[Any]:
    """Return those that can be planned; one that cannot is refused if its id was given, else left out."""
    kept = []
    for study in studies:
        try:
            if study.needs:
                study.plan(scale)
        except SutureError as error:
            if study.id in texts:
                raise
            say(f"suture: {study.id} is left out: {error}")
        else:
            kept.append(study)
    if not kept:
        raise SutureError(f"none of {', '.join(texts)} can be run here; suture studies says what they need")
    return kept


# --- studies ----------------------------------------------------------------------------------------------------------


@command(
    "studies",
    scale_option(None),
    option("--only", default="all", metavar="PATTERN", help="only experiments with such ids, as in 'smith*'"),
    option("--results", default=RESULTS, metavar="FOLDER", help="folder of results, for measured times"),
    JSON,
    examples=(
        "suture studies",
        "suture studies --scale small",
        "suture studies --scale paper --only 'hernandez-*'",
    ),
)
def studies(chosen: Namespace) -> int:
    """List the papers' experiments, and their cost.

    List the papers' experiments. With --scale, list the cost of each at that scale: networks, data, trials, claims and
    time. Nothing is trained, measured or loaded.
    """
    from suture_papers import load_result, scale_named
    from suture_papers.base.count import Networks, count
    from suture_papers.reports import terminal as words

    listed = studies_of([chosen.only])
    if chosen.scale is None:
        output.answer(chosen, [words.study_record(study) for study in listed], words.studies_table(listed))
        return 0
    scale, made = scale_named(chosen.scale).name, Networks()
    if chosen.results != RESULTS and not Path(chosen.results).expanduser().is_dir():
        raise SutureError(f"--results {chosen.results} is not a folder; give one of suture run, or leave it out")
    results = [load_result(chosen.results, study.id) for study in listed]
    times = {one.study: one.card for one in results if one is not None and one.scale == scale}
    counts: dict[str, Any] = {}
    for number, study in enumerate(listed, 1):
        if len(listed) > 1:
            output.say(f"counting {study.id}, {number} of {len(listed)} …")
        try:
            counts[study.id] = count(study, scale, made)
        except SutureError as error:
            counts[study.id] = str(error)
    record = [words.count_record(one, counts[one.id], times.get(one.id)) for one in listed]
    output.answer(chosen, record, words.counts_text(listed, counts, times, output.width()))
    return 0


# --- claims -----------------------------------------------------------------------------------------------------------


@command(
    "claims",
    option("--results", default=RESULTS, metavar="FOLDER", help="folder of the tables and cards that suture run wrote"),
    option("--page", type=named_path, metavar="FILE", help="write the page of all claims, as Markdown"),
    option(
        "--papers",
        type=named_path,
        metavar="FOLDER",
        help="folder of a page for each paper and experiment, filled at their marks",
    ),
    option(
        "--figures",
        default="docs/papers/images",
        metavar="FOLDER",
        help="folder of the figures that the pages show, if they are there",
    ),
    option("--check", action="store_true", help="only check whether the pages match the tables"),
    JSON,
    examples=(
        "suture claims",
        "suture claims --results papers/results/small --page docs/papers/claims.md",
        "suture claims --page docs/papers/claims.md --papers docs/papers --check",
    ),
)
def claims(chosen: Namespace) -> int:
    """Decide the papers' claims.

    Decide the claims of the papers from the measured tables: reproduced, not reproduced, or undecided. With --page and
    --papers, write the pages of verdicts. With --check, write nothing; the exit code is 1 if a page does not match the
    tables.
    """
    from suture.extend import write_page
    from suture_papers import STUDIES, load_result
    from suture_papers.reports import terminal as words

    if not Path(chosen.results).expanduser().is_dir():
        raise SutureError(
            f"{chosen.results} is not a folder; give one of suture run, as --results FOLDER (the project's own tables "
            "are papers/results/small of its repository)"
        )
    if chosen.check and chosen.page is None and chosen.papers is None:
        raise SutureError("--check needs pages to look at; give --page FILE or --papers FOLDER")
    listed = list(STUDIES.values())
    results = {study.id: load_result(chosen.results, study.id) for study in listed}
    decided = {study.id: r.decide(study) if (r := results[study.id]) is not None else None for study in listed}
    pages = _pages(chosen, results)
    if chosen.json or not chosen.check:
        record = {
            n: [words.decided_record(one) for one in made] if made is not None else None for n, made in decided.items()
        }
        said = *words.ledger_text(listed, decided, output.width()), "", words.tally(listed, decided)
        output.answer(chosen, record, *said)
    if not chosen.check:
        output.say_wrote([write_page(path, text) for path, text in pages.items()])
        return 0
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        say(f"suture: {path} does not match the tables; write it again with the same command, without --check")
    if not stale:
        say(f"{say_count(len(pages), 'page')} as the tables give")
    return 1 if stale else 0


def _pages(chosen: Namespace, results: dict[str, Any]) -> dict[Path, str]:
    """Return the pages that are asked for, as the results give them."""
    from suture_papers import STUDIES
    from suture_papers.base.study import PAPERS
    from suture_papers.ledger import inventory
    from suture_papers.reports.pages.claims import page, paper_page, study_page

    every = tuple(STUDIES.values())
    drawn = {path.stem for path in Path(chosen.figures).expanduser().glob("*.png")}
    made = {}
    if chosen.page is not None:
        networks = Path(chosen.results).expanduser() / NETWORKS
        table = inventory.load(networks) if networks.is_file() else None
        made[Path(chosen.page).expanduser()] = page(results, every, table)
    if chosen.papers is not None:
        folder = Path(chosen.papers).expanduser()
        for paper in PAPERS.values():
            path = folder / f"{paper}.md"
            made[path] = paper_page(_template(path), paper, results, every)
        for study in every:
            path = folder / f"{study.id}.md"
            made[path] = study_page(_template(path), study, results, drawn, every)
    return made


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SutureError(
            f"cannot read {path}: {error.strerror or error}; --papers names a folder with a page for each paper and "
            "for each experiment, in which the places to fill are marked"
        ) from error
