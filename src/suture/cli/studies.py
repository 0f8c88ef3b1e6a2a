"""``suture run``, ``studies`` and ``claims``: the papers' experiments.

Exit codes are those of all commands; ``run`` gives 1 if trials or trainings failed, ``claims --check`` if a page is not
what the tables give.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from suture.cli import output
from suture.cli.command import Command, Parser
from suture.cli.names import names_of
from suture.cli.options import (
    add_config,
    add_data_folder,
    add_json,
    add_out,
    add_running,
    add_scale,
    completed,
    named_path,
    runner_of,
)
from suture.cli.output import say
from suture.common.errors import DataError, RunnerError, SutureError

NETWORKS = "networks.parquet"  #: beside the tables of studies, what suture zoo table wrote of the networks
RESULTS = "results/small"  #: the folder of what was measured, within the project

# --- data -------------------------------------------------------------------------------------------------------------


def loader_of(folder: str | None) -> Callable[[str], Any]:
    """Return what loads data by the names of the ledger, once each: from folders of these names, or from the hub.

    Raises ``DataError`` if there is no such folder.
    """
    from suture.data import load_data

    if folder is not None and not Path(folder).expanduser().is_dir():
        raise DataError(f"--data {folder} is no folder; give one that has the folders mnist and cifar10")

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


# --- run --------------------------------------------------------------------------------------------------------------


def run_options(parser: Parser) -> None:
    """Add the options of ``run``."""
    ids = "of experiments, as suture studies lists them; 'smith-*'; all"
    completed(parser.add_argument("ids", nargs="+", metavar="ID", help=ids), ("all", *names_of("study")))
    add_scale(parser, "small")
    add_out(parser, "of the run", required=True)
    add_data_folder(parser)
    add = parser.add_argument
    add("--results", type=named_path, metavar="FOLDER", help="for tables and cards; by default results within --out")
    add("--figures", type=named_path, metavar="FOLDER", help="for figures; by default that of tables and cards")
    add_running(parser)
    add_json(parser)
    add_config(parser)


def run_run(chosen: Namespace) -> int:
    """Run studies, one after the other, and return the exit code."""
    from suture.runs.store.store import Store
    from suture.studies import scale_named

    runner = runner_of(chosen)
    studies = _asked_for(chosen.ids)
    scale = scale_named(chosen.scale, loader_of(chosen.data))
    if chosen.data is not None:
        _check_data(chosen.data, studies, scale.name)
    studies = _plannable(studies, scale, chosen.ids)
    store = Store.make(chosen.out)
    folders = _folders(store, chosen)
    options = {"on": runner, "retry": chosen.retry, "command": chosen.line}
    codes, records = [], []
    for number, study in enumerate(studies):
        say(f"{study.id}, {number + 1} of {len(studies)}: {study.title}" if len(studies) > 1 else _heading(study))
        code, record = _run_one(study, scale, store, folders, chosen.json, options)
        codes.append(code)
        records.append(record)
    if chosen.json:
        output.show_json(records)
    return max(codes)


def _folders(store: Any, chosen: Namespace) -> tuple[Path, Path]:
    """The folders for tables and for figures, made before anything is computed."""
    from suture.runs.store.files import folder_to_write

    results = folder_to_write(chosen.results if chosen.results is not None else store.path / "results")
    return results, folder_to_write(chosen.figures) if chosen.figures is not None else results


def _heading(study: Any) -> str:
    return f"{study.id}: {study.title} ({study.paper}, {study.source})"


def _run_one(
    study: Any, scale: Any, store: Any, folders: tuple[Path, Path], as_json: bool, options: Mapping[str, Any]
) -> tuple[int, Any]:
    """Run one study, and say what it gave; the exit code, and its record."""
    from suture.runs.runners import Interrupted
    from suture.runs.runners.progress import BOTH, choose_progress
    from suture.studies import run_study

    progress = choose_progress(*BOTH)
    try:
        result = run_study(study, scale, store, progress=progress, told=say, **options)
    except RunnerError as error:
        say(f"suture: {study.id}: {error}; --retry trains again what failed")
        return 1, {"study": study.id, "error": str(error)}
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted in {study.id}; go on with: {options['command']}") from None
    files = _written(study, result, *folders)
    return _told(study, result, files, as_json)


def _written(study: Any, result: Any, results: Path, figures_in: Path) -> list[Path]:
    """Write tables, card and figure."""
    from suture.report.figures import curve as figures
    from suture.report.figures.study import figure

    files: list[Path] = result.save(results)
    if study.panels:
        files += figures.save(figure(study, result.tables), figures_in / study.id)
    return files


def _told(study: Any, result: Any, files: Sequence[Path], as_json: bool) -> tuple[int, Any]:
    from suture.report.terminal import studies as study_tables
    from suture.studies.base.scale import TINY

    decided = () if result.scale == TINY else result.decide(study)
    if not as_json:
        told: list[Any] = [study_tables.decided_table(decided)] if decided else []
        if result.scale == TINY:
            told = ["tiny scale shows that everything runs; its figures mean nothing, and no claim is decided of them"]
        output.show(*told, "", study_tables.took_words(result))
    for file in files:
        say(f"wrote {file}")
    record = {
        "study": study.id,
        "card": result.card,
        "claims": [study_tables.decided_record(one) for one in decided],
        "files": [str(file) for file in files],
    }
    if failed := result.card["failed"]:
        _say_failures(study, result, failed)
    return 1 if failed else 0, record


def _say_failures(study: Any, result: Any, failed: int) -> None:
    from suture.report.terminal import curve as screen
    from suture.studies.base.quantities import TRIALS

    reasons = "; ".join(screen.failures(result.tables[TRIALS]))
    say(f"suture: {study.id}: {failed} of {result.card['trials']} trials failed: {reasons}")


# --- which studies ----------------------------------------------------------------------------------------------------


def _asked_for(texts: Sequence[str]) -> list[Any]:
    """The studies of ids or patterns, each once, in the order in which they are asked for."""
    from suture.studies import STUDIES, study_named

    found: dict[str, Any] = {}
    for text in texts:
        if _is_pattern(text):
            pattern = "*" if text == "all" else text
            suited = {name: study for name, study in STUDIES.items() if fnmatchcase(name, pattern)}
            if not suited:
                raise SutureError(f"{text} suits no study; suture studies lists them all")
            found |= {name: study for name, study in suited.items() if name not in found}
        else:
            found.setdefault(text, study_named(text))
    return list(found.values())


def _is_pattern(text: str) -> bool:
    return text == "all" or any(sign in text for sign in "*?[")


def _plannable(studies: Sequence[Any], scale: Any, texts: Sequence[str]) -> list[Any]:
    """Those that can be planned at the scale; one that cannot is refused where its id was given, else left out."""
    from suture.studies.base.scale import TINY

    kept = []
    for study in studies:
        if study.needs and scale.name != TINY:
            try:
                study.plan(scale)
            except SutureError as error:
                if study.id in texts:
                    raise
                say(f"suture: {study.id} is left out: {error}")
                continue
        kept.append(study)
    if not kept:
        raise SutureError(f"none of {', '.join(texts)} can be run here; suture studies says what they need")
    return kept


def _check_data(folder: str, studies: Sequence[Any], scale: str) -> None:
    """Look for the folders of the data that the studies' networks are trained on, before anything is loaded."""
    from suture.studies.base.scale import TINY
    from suture.studies.ledger import LEDGER

    ids = {study.id for study in studies}
    for name in dict.fromkeys(entry.data for entry in LEDGER if ids.intersection(entry.experiments)):
        if scale != TINY:
            data_folders(folder, name)


# --- studies ----------------------------------------------------------------------------------------------------------


def studies_options(parser: Parser) -> None:
    """Add the options of ``studies``."""
    add_scale(parser, None)
    parser.add_argument("--only", metavar="PATTERN", help="only experiments of such ids, as in 'smith*'")
    results = "of what was measured, whose times are told"
    parser.add_argument("--results", default=RESULTS, metavar="FOLDER", help=results)
    add_json(parser)


def run_studies(chosen: Namespace) -> int:
    """List studies, or what they take at a scale, and return the exit code."""
    from suture.report.terminal import studies as study_tables

    listed = _asked_for([chosen.only if chosen.only is not None else "all"])
    if chosen.scale is not None:
        return _counted(chosen, listed)
    if chosen.json:
        output.show_json([study_tables.study_record(study) for study in listed])
    else:
        output.show(study_tables.studies_table(listed))
    return 0


def _counted(chosen: Namespace, listed: Sequence[Any]) -> int:
    from suture.report.terminal import studies as study_tables
    from suture.studies import scale_named
    from suture.studies.base.count import Networks, count

    scale, made = scale_named(chosen.scale).name, Networks()
    times = _times(chosen.results, scale, listed)
    counts: dict[str, Any] = {}
    for study in listed:
        try:
            counts[study.id] = count(study, scale, made)
        except SutureError as error:
            counts[study.id] = str(error)
    if chosen.json:
        records = [study_tables.count_record(study, counts[study.id], times.get(study.id)) for study in listed]
        output.show_json(records)
    else:
        output.show(study_tables.counts_text(listed, counts, times, output.width()))
    return 0


def _times(folder: str, scale: str, listed: Sequence[Any]) -> dict[str, Any]:
    """The cards of what was measured at a scale."""
    if not Path(folder).expanduser().is_dir():
        if folder != RESULTS:
            raise SutureError(f"--results {folder} is no folder; give one that suture run wrote, or leave it out")
        return {}
    results = _results(folder, listed)
    return {name: result.card for name, result in results.items() if result is not None and result.scale == scale}


# --- claims -----------------------------------------------------------------------------------------------------------


def claims_options(parser: Parser) -> None:
    """Add the options of ``claims``."""
    add = parser.add_argument
    add("--results", default=RESULTS, metavar="FOLDER", help="of the tables and cards that suture run wrote")
    add("--page", type=named_path, metavar="FILE", help="the page of all claims, as Markdown")
    add("--papers", type=named_path, metavar="FOLDER", help="of a page for each paper, filled at the marks in it")
    figures = "of the figures that the pages show, as far as they are there"
    add("--figures", default="docs/images/studies", metavar="FOLDER", help=figures)
    add("--check", action="store_true", help="only say whether the pages are what the tables give")
    add_json(parser)


def run_claims(chosen: Namespace) -> int:
    """Decide all claims, show them, write or check the pages, and return the exit code."""
    from suture.report.terminal import studies as study_tables
    from suture.studies import STUDIES

    if not Path(chosen.results).expanduser().is_dir():
        raise SutureError(
            f"{chosen.results} is no folder; give what suture run wrote, as --results FOLDER (the project's own tables "
            "are results/small of its repository)"
        )
    if chosen.check and chosen.page is None and chosen.papers is None:
        raise SutureError("--check needs pages to look at; give --page FILE or --papers FOLDER")
    listed = list(STUDIES.values())
    results = _results(chosen.results, listed)
    decided = {study.id: r.decide(study) if (r := results[study.id]) is not None else None for study in listed}
    pages = _pages(chosen, results)
    if chosen.json:
        output.show_json(_records(decided, study_tables.decided_record))
    elif not chosen.check:
        lines = study_tables.ledger_text(listed, decided, output.width())
        output.show(*lines, "", study_tables.tally(listed, decided))
    return _checked(pages) if chosen.check else _write(pages)


def _records(decided: Mapping[str, Any], record: Any) -> dict[str, Any]:
    return {name: None if made is None else [record(one) for one in made] for name, made in decided.items()}


def _results(folder: str, listed: Sequence[Any]) -> dict[str, Any]:
    from suture.studies import load_result

    return {study.id: load_result(folder, study.id) for study in listed}


def _pages(chosen: Namespace, results: Mapping[str, Any]) -> dict[Path, str]:
    """The pages that are asked for, as the results give them."""
    from suture.report.pages.claims import page, paper_page
    from suture.studies import STUDIES
    from suture.studies.base.study import PAPERS
    from suture.studies.ledger import inventory

    studies = tuple(STUDIES.values())
    drawn = {path.stem for path in Path(chosen.figures).expanduser().glob("*.png")}
    made = {}
    if chosen.page is not None:
        networks = Path(chosen.results).expanduser() / NETWORKS
        table = inventory.load(networks) if networks.is_file() else None
        made[Path(chosen.page).expanduser()] = page(results, studies, drawn, table)
    if chosen.papers is not None:
        for paper in PAPERS.values():
            path = Path(chosen.papers).expanduser() / f"{paper}.md"
            made[path] = paper_page(_read(path), results, studies, drawn)
    return made


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SutureError(
            f"cannot read {path}: {error.strerror or error}; --papers names a folder with a page for each paper, in "
            "which the places to fill are marked"
        ) from error


def _checked(pages: Mapping[Path, str]) -> int:
    """Say which pages are not what the tables give; the exit code."""
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        say(f"suture: {path} is not what the tables give; write it again with the same command, without --check")
    if not stale:
        say(f"{len(pages)} page{'' if len(pages) == 1 else 's'} as the tables give")
    return 1 if stale else 0


def _write(pages: Mapping[Path, str]) -> int:
    from suture.runs.store.files import write_page

    for path, text in pages.items():
        say(f"wrote {write_page(path, text)}")
    return 0


RUN = Command(
    name="run",
    help="run experiments of the papers",
    about="Run experiments of the papers: train the networks that they need, measure their trials, decide their "
    "claims, and write tables, a card and a figure for each. What is in the folder --out already is not done again, "
    "and what was stopped goes on, so experiments which share networks should share a folder.",
    examples=(
        "suture run bansal-2A --scale small --out runs/small --data data",
        "suture run 'smith-*' oxford-4.2 --out runs/small",
        "suture run all --scale tiny --out runs/tiny",
        "suture run bansal-2A --out runs/small --results results/small",
    ),
    options=run_options,
    run=run_run,
)
STUDIES = Command(
    name="studies",
    help="the papers' experiments, and what they take",
    about="List the papers' experiments. With --scale, say what each takes at that scale: networks, data, trials, "
    "claims and time. Nothing is trained, measured or loaded for that.",
    examples=(
        "suture studies",
        "suture studies --scale small",
        "suture studies --scale paper --only 'hernandez-*'",
    ),
    options=studies_options,
    run=run_studies,
)
CLAIMS = Command(
    name="claims",
    help="what became of the papers' claims",
    about="Decide the claims of the papers by the tables that were measured: reproduced, not reproduced, or undecided. "
    "With --page and --papers, write the pages that say so. With --check, write nothing; the exit code is 1 if a page "
    "is not what the tables give.",
    examples=(
        "suture claims",
        "suture claims --results results/small --page docs/claims.md",
        "suture claims --page docs/claims.md --papers docs/papers --check",
    ),
    options=claims_options,
    run=run_claims,
)
