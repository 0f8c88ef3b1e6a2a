"""The models that strings on the command line name."""

from collections.abc import Sequence
from typing import Any

from suture.cli.output import say


def models_named(given: Sequence[str]) -> list[Any]:
    """The models of the strings (one, where they are equal), with their names; a random network is said to be one."""
    import torch

    from suture.common.seeds import derive_seed
    from suture.zoo.load import is_random, load_model, tell_names_apart

    texts = list(dict.fromkeys(given))
    roles = ("sender", "receiver", *range(2, len(texts)))
    models = []
    for role, text, name in zip(roles, texts, tell_names_apart(texts), strict=False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed("random network", role))
            models.append(load_model(text, name=name))
        if is_random(text):
            say(f"suture: {text} names no weights, so it is a random network; give trained weights after an @")
    return models
