"""Names for studies, commands and figures of other packages; users do not need them.

Each name is documented where it is defined. They change with fewer scruples than ``suture``'s own: a package that
imports them names the version that it was written for. ``papers/suture_papers`` is the example, and
docs/papers/study.md shows a study of your own.
"""

import typing as _typing

from suture.common.lazily import lazily as _lazily

if _typing.TYPE_CHECKING:  # imported when asked for
    # Commands
    from suture.cli import output
    from suture.cli.options import (
        CONFIG,
        DEVICE,
        JSON,
        MODEL,
        PREPROCESS,
        RUNNING,
        TRUST,
        UNTIL_CONVERGED,
        Command,
        NameOption,
        at_least,
        check_device,
        command,
        data_options,
        load,
        load_with_networks,
        model_option,
        named_path,
        option,
        out_option,
        patterns_of,
        pictures,
        runner_of,
        sources_of,
    )
    from suture.cli.output import say

    # Small things that everything uses
    from suture.common.atomic import whole
    from suture.common.constants import CHUNK
    from suture.common.constants import COMPLEXITY as COMPLEXITY_FILE
    from suture.common.formatting import say_count, spell
    from suture.common.hashing import identity, keyed_as, registered_name
    from suture.common.names import NAMES, make, split_names
    from suture.common.processor import half_precision
    from suture.common.sealed import SEAL, seal
    from suture.common.sealed import is_sound as is_sealed
    from suture.common.seeds import derive_seed, digest, generator, undisturbed
    from suture.common.sizes import in_words
    from suture.common.validation import check_kind

    # Networks, stitches and what is cut
    from suture.core.activations.cache import Activations
    from suture.core.network.cuts import attention_as_products
    from suture.core.network.freezing import copy_frozen
    from suture.core.saving import read as read_stitched
    from suture.core.saving import to_safetensors
    from suture.core.stitched import At, match_dtype
    from suture.data.images import as_floats, as_given, check_pictures, sizes, things

    # Data
    from suture.data.preprocess import Preprocessing

    # Fits
    from suture.fits.base import PUBLISHED
    from suture.fits.converged import is_one_map
    from suture.fits.least_squares import accumulate_moments
    from suture.fits.optimisers import set_rate

    # Measuring, and tables
    from suture.measurement.tables import table as tables
    from suture.measurement.tables.averages import LEAST as LEAST_NETWORKS
    from suture.measurement.tables.averages import SIDE, Average, average_numbered
    from suture.measurement.tables.by_depth import EXACT, step_of
    from suture.measurement.tables.curve import PLAIN, without_sender
    from suture.measurement.tables.described import Record
    from suture.measurement.tables.matrix import Block
    from suture.measurement.tables.onset import CONVEYED, STEP
    from suture.measurement.tables.records import describe_machine
    from suture.measurement.tables.table import check_columns, not_converged
    from suture.measurement.tables.table import read as read_table
    from suture.measurement.tables.table import save as save_table
    from suture.measurement.trials.plans import Settings, cuts_of, plan_seam
    from suture.measurement.trials.versions import read_versions, say_outdated, spell_versions, versions_of

    # Figures, pages and text
    from suture.reports.charts import THRESHOLD, Chart, Line, Measure
    from suture.reports.figures import curve as figures
    from suture.reports.figures.cells import slot
    from suture.reports.figures.curve import (
        FEW,
        WIDEST,
        WIDTH,
        Picture,
        draw_lines,
        fit_height,
        name_cuts,
        styled,
        tell,
    )
    from suture.reports.figures.maps import Maps, guess_height
    from suture.reports.html.evidence import Drawn
    from suture.reports.html.page import Page, Section, appendix, facts, list_failures
    from suture.reports.html.runs import Run, Studies
    from suture.reports.html.words import lay_words
    from suture.reports.style import LOOK, SERIES, name_of, place_of, shortened, with_minus
    from suture.reports.terminal.curve import failures, lay_out

    # Running, and the store
    from suture.runs.progress import Progress, choose_bar, choose_progress, clock
    from suture.runs.runners import Interrupted, Job, Outcome, Runner
    from suture.runs.runners.run import StoredQueue, choose_runner, work_off
    from suture.runs.store.files import flush, folder_to_write, write_page, writing_to
    from suture.runs.store.files import read as read_json
    from suture.runs.store.files import text as read_text
    from suture.runs.store.files import write as write_json
    from suture.runs.store.store import LABEL, NETWORKS, TRIALS, Locks, contents

    # Models by name
    from suture.zoo.checkpoints import read_tensors
    from suture.zoo.models import draw_example, hash_code
    from suture.zoo.sources import WEIGHTS, is_artefact, is_sound, read_card

__all__ = [
    "CHUNK",
    "COMPLEXITY_FILE",
    "CONFIG",
    "CONVEYED",
    "DEVICE",
    "EXACT",
    "FEW",
    "JSON",
    "LABEL",
    "LEAST_NETWORKS",
    "LOOK",
    "MODEL",
    "NAMES",
    "NETWORKS",
    "PLAIN",
    "PREPROCESS",
    "PUBLISHED",
    "RUNNING",
    "SEAL",
    "SERIES",
    "SIDE",
    "STEP",
    "THRESHOLD",
    "TRIALS",
    "TRUST",
    "UNTIL_CONVERGED",
    "WEIGHTS",
    "WIDEST",
    "WIDTH",
    "Activations",
    "At",
    "Average",
    "Block",
    "Chart",
    "Command",
    "Drawn",
    "Interrupted",
    "Job",
    "Line",
    "Locks",
    "Maps",
    "Measure",
    "NameOption",
    "Outcome",
    "Page",
    "Picture",
    "Preprocessing",
    "Progress",
    "Record",
    "Run",
    "Runner",
    "Section",
    "Settings",
    "StoredQueue",
    "Studies",
    "accumulate_moments",
    "appendix",
    "as_floats",
    "as_given",
    "at_least",
    "attention_as_products",
    "average_numbered",
    "check_columns",
    "check_device",
    "check_kind",
    "check_pictures",
    "choose_bar",
    "choose_progress",
    "choose_runner",
    "clock",
    "command",
    "contents",
    "copy_frozen",
    "cuts_of",
    "data_options",
    "derive_seed",
    "describe_machine",
    "digest",
    "draw_example",
    "draw_lines",
    "facts",
    "failures",
    "figures",
    "fit_height",
    "flush",
    "folder_to_write",
    "generator",
    "guess_height",
    "half_precision",
    "hash_code",
    "identity",
    "in_words",
    "is_artefact",
    "is_one_map",
    "is_sealed",
    "is_sound",
    "keyed_as",
    "lay_out",
    "lay_words",
    "list_failures",
    "load",
    "load_with_networks",
    "make",
    "match_dtype",
    "model_option",
    "name_cuts",
    "name_of",
    "named_path",
    "not_converged",
    "option",
    "out_option",
    "output",
    "patterns_of",
    "pictures",
    "place_of",
    "plan_seam",
    "read_card",
    "read_json",
    "read_stitched",
    "read_table",
    "read_tensors",
    "read_text",
    "read_versions",
    "registered_name",
    "runner_of",
    "save_table",
    "say",
    "say_count",
    "say_outdated",
    "seal",
    "set_rate",
    "shortened",
    "sizes",
    "slot",
    "sources_of",
    "spell",
    "spell_versions",
    "split_names",
    "step_of",
    "styled",
    "tables",
    "tell",
    "things",
    "to_safetensors",
    "undisturbed",
    "versions_of",
    "whole",
    "with_minus",
    "without_sender",
    "work_off",
    "write_json",
    "write_page",
    "writing_to",
]

if not _typing.TYPE_CHECKING:
    __getattr__ = _lazily(globals())

    def __dir__() -> list[str]:
        return __all__
