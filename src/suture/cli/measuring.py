"""What the commands that measure share: how to measure, on what, and the run itself."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suture.cli.command import Parser
from suture.cli.names import NAMES, NameOption, make
from suture.cli.options import (
    add_config,
    add_data,
    add_json,
    add_named,
    add_out,
    add_running,
    at_least,
    load,
    runner_of,
)
from suture.cli.output import say
from suture.common.errors import SutureError

CONTROLS = NameOption(("control", "baseline"), also=("all", "none"), many=True)


class Asked(NamedTuple):
    """What is asked for: the trials, the store, if any, and what they are in words."""

    trials: Any
    store: Any
    words: str


def add_measuring(parser: Parser, out: str) -> None:
    """Add the options of every command that measures stitches; ``out`` says what is written to its folder."""
    add_data(parser, required=True)
    family = "conv, linear, low-rank,rank=8, …; by default what suits the two shapes"
    add_named(parser, "--stitch", NameOption(("stitch",)), metavar="FAMILY", help=family)
    fits = (
        "how stitches are fitted: fast, task-loss, least-squares, match-activations, best-of, random, or a published "
        "fit such as bansal2021; fast,steps=100 changes a setting"
    )
    add_named(parser, "--fit", NameOption(("fit",)), default="fast", help=fits)
    controls = "all, none, or names separated by commas; baselines too, such as all,linear-probe"
    add_named(parser, "--controls", CONTROLS, default="all", help=controls)
    add = parser.add_argument
    add("--seeds", type=at_least(1), default=1, metavar="N", help="how many seeds of the stitch")
    add("--fit-samples", type=at_least(2), metavar="N", help="fit on the first N images only")
    add("--score-samples", type=at_least(2), metavar="N", help="score on the first N images only")
    add_out(parser, f"{out}, and for all that is measured")
    add_running(parser)
    add("--extend", action="store_true", help="let the folder --out take the trials of another plan than its own")
    add_json(parser)
    add_config(parser)


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """Return how to measure: what a plan takes beside networks, cuts and data."""
    runner_of(chosen)  # refused before anything is loaded
    return {
        "stitch": make("stitch", chosen.stitch) if chosen.stitch is not None else None,
        "fit": make("fit", chosen.fit),
        "controls": controls_of(chosen.controls),
        "seeds": chosen.seeds,
    }


def controls_of(text: str) -> tuple[Any, ...]:
    """Return the controls and baselines that a text names. Raises ``SutureError``."""
    from suture.measurement.trials.controls import DEFAULT

    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if names == ["none"]:
        return ()
    if "none" in names:
        raise SutureError(f"--controls {text}: 'none' stands alone; leave it out, or give nothing else")
    kinds = {name: kind for kind in CONTROLS.kinds for name in NAMES[kind]}
    found = [DEFAULT if name == "all" else (make(kinds[name], name),) for name in names]
    return tuple(dict.fromkeys(control for group in found for control in group))


def models_named(given: Sequence[str]) -> list[Any]:
    """Return the models of the strings (one, if they are equal), with their names; say which are random networks."""
    import torch

    from suture.common.seeds import derive_seed
    from suture.zoo.models import is_random, resolve, tell_names_apart

    texts = list(dict.fromkeys(given))
    roles = ("sender", "receiver", *range(2, len(texts)))
    models = []
    for role, text, name in zip(roles, texts, tell_names_apart(texts), strict=False):
        with torch.random.fork_rng(devices=[]):  # a random network is the same in every command
            torch.manual_seed(derive_seed("random network", role))
            models.append(resolve(text, name=name))
        if is_random(text):
            say(f"suture: {text} names no weights, so it is a random network; give trained weights after an @")
    return models


def store_to_write(folder: str) -> Any:
    """Return the store in a folder that is to be written to."""
    from suture.runs.store.store import Store

    return Store.make(folder)


def prepare(chosen: Namespace, models: list[Any], opened: Callable[[str], Any]) -> tuple[Any, Any, list[Any]]:
    """Return the store, if one is named, the data, and the networks."""
    store = opened(chosen.out) if chosen.out is not None else None
    data = load(chosen).limited(fit=chosen.fit_samples, score=chosen.score_samples)
    return store, data, [model.network(data.example) for model in models]


def asked_words(what: str, data: Any) -> str:
    """Say what is measured, on which data."""
    return f"{what} on {data.name}: {len(data.fit):,} images to fit, {len(data.score):,} to score"


def folder_of(asked: Asked) -> Path | None:
    """Return the folder of the run, if it has one."""
    return asked.store.path if asked.store is not None else None


def measure(chosen: Namespace, asked: Asked) -> Any:
    """Measure what is asked for, and return its table."""
    from suture.runs.runners import run
    from suture.runs.runners.progress import choose_progress

    say(asked.words)
    return run(
        asked.trials,
        store=asked.store,
        on=runner_of(chosen),
        progress=choose_progress(),
        retry=chosen.retry,
        extend=chosen.extend,
        command=chosen.line,
    )
