"""Language: eight small byte-level transformers of the King James Bible, stitched to one another.

    python -m benchmarks.kjv train                           the networks that papers/results/networks has not
    python -m benchmarks.kjv curve|matrix|across [--store S]  their tables, into benchmarks/results/language
    python -m benchmarks.kjv carry                           a probe and a direction, carried to other networks
    python -m benchmarks.kjv figures docs/images             draws the tables, and says what they say

The text is that of Debian's package ``bible-kjv-text``. A document is a chapter: 240 are scored, 100 validated on, and
networks and stitches learn from the other 849. A sample is one window of 128 bytes of each chapter, so intervals, which
are over samples, are over documents. All that is measured is measured on weights rounded to 16 bit. Every step resumes;
all take about an hour and a half of one core.
"""

import argparse
import json
import math
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

import suture
from suture import controls, fits, tasks
from suture.measurement.tables import table as tables
from suture.measurement.tables.by_depth import by_depth
from suture.measurement.tables.read import make_reading
from suture.reports.figures import curve as curves
from suture.reports.figures import matrix as heatmaps
from suture.reports.style import LETTERS
from suture.runs.runners import Lines, Local

FOLDER = Path(__file__).parent / "results" / "language"
NETWORKS = Path(__file__).parents[1] / "papers" / "results" / "networks"
PACKAGE = "bible-kjv-text"
LENGTH = 128  #: bytes of a window
SCORED, VALIDATED = 240, 100  #: chapters that no network and no stitch has learned from


@dataclass(frozen=True)
class Model:
    family: str
    width: int
    depth: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.width}x{self.depth}-{self.seed}"

    def build(self) -> torch.nn.Module:
        import transformers

        sizes: dict[str, Any] = {"vocab_size": 128, "use_cache": False, "bos_token_id": None, "eos_token_id": None}
        if self.family == "gpt2":
            none: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
            made = transformers.GPT2Config(
                n_positions=LENGTH, n_embd=self.width, n_layer=self.depth, n_head=self.width // 32, **sizes, **none
            )
            return transformers.GPT2LMHeadModel(made)
        made = transformers.LlamaConfig(
            max_position_embeddings=LENGTH,
            hidden_size=self.width,
            intermediate_size=self.width * 8 // 3 // 16 * 16,
            num_hidden_layers=self.depth,
            num_attention_heads=self.width // 32,
            tie_word_embeddings=True,
            **sizes,
        )
        return transformers.LlamaForCausalLM(made)


MODELS = (
    Model("gpt2", 128, 4, 0),
    Model("gpt2", 128, 4, 1),
    Model("llama", 128, 4, 5),
    Model("gpt2", 160, 4, 3),
    Model("gpt2", 128, 6, 4),
    Model("gpt2", 128, 4, 2),
    Model("llama", 128, 4, 6),
    Model("llama", 160, 4, 7),
)


# --- the text ---------------------------------------------------------------------------------------------------------


@cache
def chapters() -> dict[str, str]:
    """Return the text of every chapter, verses on lines of their own, by names such as ``Ge1``.

    It is what Debian's package has, fetched by ``apt-get download`` unless its program ``bible`` is installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path("/")
        if shutil.which("bible") is None:
            root = Path(folder)
            subprocess.run(["apt-get", "download", PACKAGE, "bible-kjv"], cwd=root, check=True, capture_output=True)
            for package in root.glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        told = subprocess.run(
            [root / "usr/bin/bible", "-f", "Ge1:1-Rev99:99"], cwd=root / "usr/lib", check=True, capture_output=True
        )
    found: dict[str, list[str]] = {}
    for line in told.stdout.decode("ascii").splitlines():
        place, verse = line.split(" ", 1)
        found.setdefault(place.partition(":")[0], []).append(verse)
    return {name: "\n".join(verses) + "\n" for name, verses in found.items()}


@cache
def roles() -> dict[str, list[str]]:
    """Return the names of the chapters to score, to validate on and to fit, drawn once."""
    names = list(chapters())
    drawn = [names[i] for i in torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()]
    return {
        "score": drawn[:SCORED],
        "validation": drawn[SCORED : SCORED + VALIDATED],
        "fit": drawn[SCORED + VALIDATED :],
    }


def ids(text: str) -> Tensor:
    """Return the bytes of a text, which are its tokens."""
    return torch.frombuffer(bytearray(text.encode("ascii")), dtype=torch.uint8).long()


def windows(role: str) -> dict[str, Tensor]:
    """Return a window ``(LENGTH,)``, drawn once, of every chapter that is as long."""
    drawn = torch.Generator().manual_seed(1)
    texts = {name: ids(chapters()[name]) for name in roles()[role]}
    longer = {name: text for name, text in texts.items() if len(text) >= LENGTH}
    begins = {name: int(torch.randint(len(text) - LENGTH + 1, (), generator=drawn)) for name, text in longer.items()}
    return {name: text[begins[name] : begins[name] + LENGTH] for name, text in longer.items()}


@cache
def load() -> suture.Data:
    """Return the windows in their roles."""
    made = (
        suture.Samples(f"kjv/{role}", texts, texts, task=tasks.NextToken(bytes_per_token=1.0))
        for role in ("fit", "validation", "score")
        for texts in [torch.stack([*windows(role).values()])]
    )
    return suture.Data("kjv", *made)


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Muon for the matrices of the layers and AdamW for the rest, both falling to nothing from a short rise."""

    steps: int = 1000
    batch: int = 8
    muon: float = 7e-3
    adamw: float = 3e-3
    warm: int = 40


def descend(model: torch.nn.Module, text: Tensor, recipe: Recipe, name: str, length: int = LENGTH) -> list[float]:
    """Train a language model on random windows of a text's tokens; return the loss of every step."""
    matrix_names = {
        name for name, p in model.named_parameters() if p.ndim == 2 and (".h." in name or ".layers." in name)
    }
    layers = [p for name, p in model.named_parameters() if name in matrix_names]
    others = [p for name, p in model.named_parameters() if name not in matrix_names]
    optimisers = (
        torch.optim.Muon(layers, recipe.muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, recipe.adamw, betas=(0.9, 0.95), weight_decay=0.0),
    )
    losses: list[float] = []
    for step in range(recipe.steps):
        share = min(1.0, (step + 1) / recipe.warm) * (1 - step / recipe.steps)
        begin = torch.randint(len(text) - length, (recipe.batch, 1))
        batch = text[begin + torch.arange(length)]
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch).logits
        loss = functional.cross_entropy(outputs[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, rate in zip(optimisers, (recipe.muon, recipe.adamw), strict=True):
            optimiser.param_groups[0]["lr"] = rate * share
            optimiser.step()
            optimiser.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(name, step + 1, f"{sum(losses[-100:]) / 100:.3f} nats", flush=True)
    return losses


def train(made_of: Model, recipe: Recipe) -> None:
    """Train a network on random windows of the chapters to fit; write it, in 16 bit, with the card of its training."""
    torch.manual_seed(made_of.seed)
    model = made_of.build()
    text = torch.cat([ids(chapters()[name]) for name in roles()["fit"]])
    start = time.process_time()
    losses = descend(model, text, recipe, made_of.name)
    seconds = time.process_time() - start
    model.half().float().eval()
    with torch.no_grad():
        held = {
            role: [_nats(model, part) for part in torch.stack([*windows(role).values()]).split(50)]
            for role in ("validation", "score")
        }
    card = {
        "name": made_of.name,
        "model": asdict(made_of),
        "parameters": sum(p.numel() for p in model.parameters()),
        "text": {"package": PACKAGE, "fit": len(roles()["fit"]), "bytes": len(text)},
        "recipe": asdict(recipe),
        "losses": [sum(losses[i : i + 100]) / 100 for i in range(0, len(losses), 100)],
        "rounded": {"to": "float16", "nats": {role: torch.cat(each).mean().item() for role, each in held.items()}},
        "processor_seconds": seconds,
        "machine": {"processor": platform.processor(), "python": platform.python_version(), "torch": torch.__version__},
    }
    model.half().save_pretrained(NETWORKS / made_of.name)
    config = NETWORKS / made_of.name / "config.json"  # weights of 16 bit that are computed with in 32
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float32"}, indent=1) + "\n")
    (NETWORKS / f"{made_of.name}.json").write_text(json.dumps(card, indent=1) + "\n")
    print(json.dumps(card["rounded"]), f"{seconds:.0f} s", flush=True)


def _nats(model: torch.nn.Module, batch: Tensor) -> Tensor:
    losses = functional.cross_entropy(model(batch).logits[:, :-1].transpose(1, 2), batch[:, 1:], reduction="none")
    return losses.mean(1)


# --- tables -----------------------------------------------------------------------------------------------------------

A, B, C = "gpt2-128x4-0", "gpt2-128x4-1", "gpt2-128x4-2"
WIDE, DEEP = "gpt2-160x4-3", "gpt2-128x6-4"
LLAMA, LLAMA_TOO, LLAMA_WIDE = "llama-128x4-5", "llama-128x4-6", "llama-160x4-7"
ACROSS = {
    "seed": ((A, B), (C, A), (LLAMA, LLAMA_TOO)),
    "width": ((A, WIDE), (WIDE, A), (LLAMA, LLAMA_WIDE)),
    "depth": ((A, DEEP), (DEEP, A)),
    "family": ((A, LLAMA), (LLAMA, A)),
}
TABLES = "curve", "matrix", "across"
DESCENT = fits.Converged(cap=280, batch=4)
LEAST = fits.LeastSquares()
QUICK = fits.Quick(steps=0)
MARGIN = 0.05  #: nats per byte that a compatible network may cost


@cache
def network(name: str) -> suture.Network:
    return suture.load_network(f"hf:{NETWORKS / name}", example=load().example)


def blocks(name: str) -> str:
    """Return the pattern of the cuts behind a network's blocks."""
    return "transformer.h.?" if name.startswith("gpt2") else "model.layers.?"


def middle(name: str) -> str:
    """Return the cut behind half of a network's blocks."""
    depth = int(name.split("-")[1].split("x")[1])
    return blocks(name).replace("?", str(depth // 2 - 1))


def plan(what: str) -> suture.Plan:
    """Plan the trials of a table."""
    if what == "curve":
        settings: dict[str, Any] = {"data": load(), "at": blocks(A)}
        least = suture.curve(network(A), network(B), **settings, fit=LEAST, controls=())
        return suture.curve(network(A), network(B), **settings, fit=DESCENT) + least
    if what == "matrix":
        return suture.matrix(network(A), network(B), data=load(), cuts=blocks(A), fit=QUICK)
    planned = suture.Plan(())
    for sender, receiver in (pair for pairs in ACROSS.values() for pair in pairs):
        at = [(middle(sender), middle(receiver))]
        pair = network(sender), network(receiver)
        planned += suture.curve(*pair, data=load(), at=at, fit=DESCENT, controls=())
        beside = (controls.untrained_sender, controls.shuffled_pairs)
        planned += suture.curve(*pair, data=load(), at=at, fit=LEAST, controls=beside)
    return planned


def measure(what: str, store: Path) -> None:
    """Measure a table and write it."""
    found = suture.run(plan(what), store=store / what, on=Local(workers=1), progress=Lines(every=60.0))
    FOLDER.mkdir(parents=True, exist_ok=True)
    tables.save(found, FOLDER / f"{what}.parquet")


# --- what is carried --------------------------------------------------------------------------------------------------

CARRIED = ((A, B), (A, LLAMA), (A, WIDE))  #: whose probe and direction, and to whom
NEW = "Mat1"  #: the first chapter of the New Testament
WORDS = "Jesus", "LORD"  #: of the New and of the Old Testament
STRENGTHS = (1.0, 2.0, 4.0)  #: steps along a direction, in lengths of the receiver's own
FITS = {"task loss": DESCENT, "least squares": LEAST}
WAYS = ("own", *FITS, "random map")
RANDOM = 4  #: maps
DRAWS = 1000  #: of documents, for intervals
PROBED = 20_000  #: positions that a probe learns from
SEEN = 32  #: bytes before a position that is probed


def is_new(names: list[str]) -> Tensor:
    """Return which chapters are of the New Testament."""
    order = list(chapters())
    return torch.tensor([order.index(name) >= order.index(NEW) for name in names])


def mark_words(role: str, pattern: str, first: int, last: int) -> Tensor:
    """Label the letters of words amid sentences, from ``first`` to ``last`` before the end: 1 if a word is like this.

    Other bytes are −1, and so are the first few ``SEEN``.
    """
    labels = torch.full((len(windows(role)), LENGTH), -1)
    for row, window in enumerate(windows(role).values()):
        text = bytes(window.tolist()).decode("ascii")
        for word in re.finditer(r"(?<=[a-z] )[A-Z]?[a-z]+(?=[^A-Za-z])", text):
            labels[row, word.start() + first : word.end() - last] = int(re.fullmatch(pattern, word[0]) is not None)
    labels[:, :SEEN] = -1
    return labels


PROBES: dict[str, Callable[[str], Tensor]] = {
    "name": lambda role: mark_words(role, "[A-Z].*", 2, 0),  # told once the capital is two letters past
    "ending": lambda role: mark_words(role, ".*eth", 2, 3),  # told before the ending is there
}


@dataclass(frozen=True)
class Probe:
    """A logistic regression on the activations of one network at its middle cut."""

    weight: Tensor

    @classmethod
    def learn(cls, activations: Tensor, labels: Tensor) -> "Probe":
        there = (labels >= 0).nonzero()
        chosen = there[torch.randperm(len(there), generator=torch.Generator().manual_seed(2))[:PROBED]]
        x, y = activations[tuple(chosen.T)].double(), labels[tuple(chosen.T)]
        scale = x.std(0)
        learned = LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000).fit(x / scale, y)
        return cls(torch.from_numpy(learned.coef_[0]) / scale)

    def read(self, activations: Tensor) -> Tensor:
        return activations.double() @ self.weight


def auroc(readings: Tensor, labels: Tensor, weights: Tensor) -> np.ndarray:
    """Return the area under the ROC curve for each row of weights ``(draws, documents)``."""
    there = labels >= 0
    document, order = there.nonzero()[:, 0], readings[there].argsort()
    truth = labels[there][order].double()
    found = []
    for row in weights.double():
        weight = row[document[order]]
        wrong = weight * (1 - truth)
        found.append((weight * truth @ (wrong.cumsum(0) - wrong / 2) / ((weight @ truth) * wrong.sum())).item())
    return np.array(found)


def draw_documents(count: int) -> Tensor:
    """Return how often each document is drawn: first once each, then by the bootstrap."""
    drawn = torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(3))
    return torch.cat([torch.ones(1, count, dtype=torch.int64), functional.one_hot(drawn, count).sum(1)])


def activations_of(net: suture.Network, role: str) -> Tensor:
    """Return a network's activations at its middle cut of all windows of a role."""
    prefix = net.upto(middle(net.name))
    with torch.no_grad():
        return torch.cat([prefix(part) for part in getattr(load(), role).images.split(50)])


def join(sender: str, receiver: str, fit: fits.Fit) -> suture.Stitched:
    """Fit a stitch between the middles of two networks."""
    at = middle(sender), middle(receiver)
    made = suture.stitch(network(sender), network(receiver), at=at, data=load(), fit=fit, controls=()).stitched
    assert made is not None
    return made


def carry_probes(owner: str, reader: str, joined: dict[str, suture.Stitched]) -> Iterator[dict[str, Any]]:
    """Score probes of ``owner`` on activations of ``reader`` stitched into ``owner``, and their bounds."""
    own, other = (network(name) for name in (owner, reader))
    learned, seen, sent = activations_of(own, "fit"), activations_of(other, "fit"), activations_of(other, "score")
    weights = draw_documents(len(sent))
    for name, mark in PROBES.items():
        labels, probe = mark("score"), Probe.learn(learned, mark("fit"))
        with torch.no_grad():
            readings = {fit: probe.read(stitched.stitch(sent)) for fit, stitched in joined.items()}
        readings["own"] = Probe.learn(seen, mark("fit")).read(sent)
        readings["in its owner"] = probe.read(activations_of(own, "score"))
        spread = {fit: auroc(reading, labels, weights) for fit, reading in readings.items()}
        drawn = torch.Generator().manual_seed(4)
        scale = learned.flatten(0, 1).std(0)
        centred = (sent - seen.flatten(0, 1).mean(0)) / seen.flatten(0, 1).std(0)
        maps = (torch.randn(len(scale), sent.shape[-1], generator=drawn) / sent.shape[-1] ** 0.5 for _ in range(RANDOM))
        at_random = [auroc(probe.read(centred @ each.T * scale), labels, weights) for each in maps]
        spread["random map"] = np.mean(at_random, 0)
        for fit, values in spread.items():
            less = np.quantile(spread["task loss"][1:] - values[1:], (0.025, 0.975))
            yield {
                "what": name,
                "by": fit,
                "value": values[0],
                "low": np.quantile(values[1:], 0.025),
                "high": np.quantile(values[1:], 0.975),
                "less_than_task_loss_low": less[0],
                "less_than_task_loss_high": less[1],
                "lowest_map": min(each[0] for each in at_random) if fit == "random map" else None,
                "highest_map": max(each[0] for each in at_random) if fit == "random map" else None,
            }


def before_names(texts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the blanks amid sentences that a capital follows, and those that a small letter follows."""
    blank = (texts == ord(" ")) & (torch.arange(LENGTH) >= SEEN)
    amid, following = texts.roll(1, 1) >= ord("a"), texts.roll(-1, 1)
    blank[:, -1] = False
    return blank & amid & _is_capital(following), blank & amid & (following >= ord("a"))


def _is_capital(bytes_: Tensor) -> Tensor:
    return (bytes_ >= ord("A")) & (bytes_ <= ord("Z"))


def direction_of(net: suture.Network, what: str) -> Tensor:
    """Return a difference of mean activations at the middle cut, of windows to fit."""
    found = activations_of(net, "fit")
    if what == "testament":
        new = is_new(list(windows("fit")))
        return found[new, SEEN:].flatten(0, 1).mean(0) - found[~new, SEEN:].flatten(0, 1).mean(0)
    names, others = before_names(load().fit.images)
    return found[names].mean(0) - found[others].mean(0)


def read_steps(net: suture.Network, steps: list[Tensor], texts: Tensor, read: Callable[..., Tensor]) -> Tensor:
    """Return the effect of steps at the middle cut on a reading of ``(logits, texts)``: ``(steps, texts)``."""
    prefix, suffix = net.upto(middle(net.name)), net.after(middle(net.name))
    found = []
    with torch.no_grad():
        for batch in texts.split(60):
            sent = prefix(batch)
            plain = read(suffix(sent), batch)
            found.append(torch.stack([read(suffix(sent + step), batch) - plain for step in steps]))
    return torch.cat(found, 1)


def read_names(logits: Tensor, texts: Tensor) -> Tensor:
    """Return the mean log-odds, behind the blanks amid the sentences of each text, that a capital comes."""
    every = torch.arange(logits.shape[-1])
    odds = logits[..., _is_capital(every)].logsumexp(-1) - logits[..., every >= ord("a")].logsumexp(-1)
    blanks = torch.stack(before_names(texts)).any(0)
    return (odds * blanks).sum(1) / blanks.sum(1).clamp(min=1)


def read_word(logits: Tensor, texts: Tensor, word: str) -> Tensor:
    """Return the log-probability of a word that ``write_in`` wrote into each text."""
    chances = logits[:, :-1].log_softmax(-1).gather(2, texts[:, 1:, None])[..., 0]
    begin = _room(texts)[:, None] - 1
    return chances.gather(1, begin + torch.arange(len(word))).sum(1)


def write_in(texts: Tensor, word: str) -> Tensor:
    """Write a word behind the last blank that leaves room for one, into each text."""
    written = texts.clone()
    places = _room(texts)[:, None] + torch.arange(len(word))
    return written.scatter_(1, places, ids(word).expand(len(texts), -1))


def _room(texts: Tensor) -> Tensor:
    blanks = (texts[:, : LENGTH - 16] == ord(" ")).long()
    return (blanks * torch.arange(LENGTH - 16)).argmax(1) + 1


def read_words(net: suture.Network, steps: list[Tensor], texts: Tensor) -> Tensor:
    """Return the effect of steps on the log-odds of one of ``WORDS`` against the other."""
    more, less = (read_steps(net, steps, write_in(texts, word), partial(read_word, word=word)) for word in WORDS)
    return more - less


DIRECTIONS: dict[str, Callable[[suture.Network, list[Tensor], Tensor], Tensor]] = {
    "names": partial(read_steps, read=read_names),
    "testament": read_words,
}


def carry_directions(owner: str, reader: str, joined: dict[str, suture.Stitched]) -> Iterator[dict[str, Any]]:
    """Score the effect of directions of ``owner`` in ``reader``, carried by stitches, and their bounds."""
    other, texts = network(reader), load().score.images
    weights = draw_documents(len(texts)).float()
    for what, read in DIRECTIONS.items():
        direction, best = direction_of(network(owner), what), direction_of(other, what)
        drawn = torch.Generator().manual_seed(5)
        ways = {"own": [best]} | {fit: [stitched.carry(direction)] for fit, stitched in joined.items()}
        ways["random map"] = [
            torch.randn(len(best), len(direction), generator=drawn) @ direction for _ in range(RANDOM)
        ]
        for by, way in ways.items():
            steps = [strength * best.norm() * each / each.norm() for each in way for strength in STRENGTHS]
            effects = (weights @ read(other, steps, texts).T / len(texts)).unflatten(1, (len(way), len(STRENGTHS)))
            for strength, each in zip(STRENGTHS, effects.unbind(2), strict=True):
                spread = each.mean(1)
                yield {
                    "what": what,
                    "by": by,
                    "strength": strength,
                    "value": spread[0].item(),
                    "low": spread[1:].quantile(0.025).item(),
                    "high": spread[1:].quantile(0.975).item(),
                    "lowest_map": each[0].min().item() if by == "random map" else None,
                    "highest_map": each[0].max().item() if by == "random map" else None,
                    "cosine": functional.cosine_similarity(way[0], best, dim=0).item() if len(way) == 1 else None,
                }


def carry() -> None:
    """Score probes and directions of every pair that is still missing, and write them."""
    done = pd.read_csv(FOLDER / "carried.csv") if (FOLDER / "carried.csv").exists() else pd.DataFrame()
    for owner, reader in CARRIED:
        if len(done) and ((done["owner"] == owner) & (done["reader"] == reader)).any():
            continue
        told = [
            {"kind": kind, "owner": owner, "reader": reader, **row}
            for kind, carried, pair in (
                ("probe", carry_probes, (reader, owner)),
                ("direction", carry_directions, (owner, reader)),
            )
            for row in carried(owner, reader, {name: join(*pair, fit) for name, fit in FITS.items()})
        ]
        done = pd.concat([done, pd.DataFrame(told)])
        done.to_csv(FOLDER / "carried.csv", index=False, float_format="%.5g")


# --- what is told -----------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "language-models.md"


def read(what: str) -> pd.DataFrame:
    found = tables.read(FOLDER / f"{what}.parquet")
    assert found is not None
    return found[found["score"] == "loss"]


def descended(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that were fitted on the task loss."""
    return table[table["fit"] != str(LEAST)]


def tell(row: pd.Series, what: str = "value") -> str:
    """Write a number with its interval."""
    low, high = ("low", "high") if what == "value" else (f"{what}_low", f"{what}_high")
    return f"{row[what]:.3f} [{row[low]:.3f}, {row[high]:.3f}]"


def rows_of_seams(seams: Iterable[tuple[str, pd.DataFrame]]) -> Iterator[str]:
    """Write a row for each seam: penalties by the task loss and by least squares, and the nats of the controls."""
    seams = list(seams)
    kinds = [kind for kind in CONTROLS if kind in set(seams[0][1]["control"])]
    yield f"| | penalty | by least squares | {' | '.join(kinds)} |"
    yield f"| {' | '.join(['---'] * (3 + len(kinds)))} |"
    for label, seam in seams:
        plain, beside = seam[seam["control"] == ""].set_index("fit"), seam.set_index("control")["stitched"]
        told = [tell(plain.loc[str(fit)], "penalty") for fit in (DESCENT, LEAST)]
        told += [f"{beside[kind]:.3f}" for kind in kinds]
        yield f"| {label} | {' | '.join(told)} |"


CONTROLS = ("itself", "untrained sender", "untrained receiver", "untrained both", "shuffled pairs")


PAGE_TEXT = """# Language models

Eight small language models read the King James Bible byte by byte, and each was stitched to others. Are their layers
worth as much to each other as those of image networks are, and can a finding in one be used in another?

In short, another seed, width or depth costs 0.03 to 0.12 nats per byte, of 1.3; a GPT-2 into a Llama costs 0.16. These
are upper bounds: the fits had not converged. Untrained senders and shuffled pairs cost about a nat or more. A probe for
names that was trained in one model reads the others nearly as well as a probe of their own.

The models are transformers' own `GPT2LMHeadModel` and `LlamaForCausalLM`, of two widths, two depths and different seeds
(`family-WIDTHxDEPTH-SEED`), trained for 1,000 steps on 849 chapters of Debian's package `bible-kjv-text`. Their
weights, in 16 bit, are in `papers/results/networks`.

<details markdown="1">
<summary>The eight networks: parameters, nats and bits per byte</summary>

{networks}

</details>

A document is a chapter, and a sample is one window of 128 bytes of a chapter: 849 windows to fit, 100 to validate on
and 240 to score. No network and no stitch has learned from the last two. All scores are nats per byte, and all
intervals are 95 % over documents.

```python
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import suture
from suture import tasks

texts = torch.randint(128, (90, 16))  # your bytes or tokens
data = suture.load_data(((texts[:60], None), (texts[60:], None)), name="texts", task=tasks.NextToken())
sizes = GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2)  # your models
a, b = (suture.Network(GPT2LMHeadModel(sizes), example=data.example, name=name) for name in "AB")
print(suture.explain(suture.run(suture.curve(a, b, data=data, at="transformer.h.?")), margin=0.05))
```

## Behind every block of another seed

![Nats per byte and penalty behind every block of one GPT-2 stitched into another, with controls](images/kjv-curve.png)

No fit had converged, so a penalty is an upper bound, and `explain` says that a cut works only if that bound is within
0.05 nats. The penalty in nats per byte, by the default fit (`{fit_of_curve}`) and by least
squares to the receiver's activations alone; and the nats per byte of the controls:

{curve}

## Every block into every block

![Nats per byte of every block stitched into every block, with controls](images/kjv-matrix.png)

Means of the nats per byte over the seams, in closed form (`{fit_of_matrix}`):

{matrix}

## Other seeds, widths, depths and families

The same at half the depth, by `{fit_of_across}`, with controls by least squares:

<details markdown="1">
<summary>Ten pairs: penalty, by least squares, untrained sender, shuffled pairs</summary>

{across}

</details>

## A probe and a direction, carried

Two linear probes were trained on the activations of one network, the *owner*, behind half of its blocks. At each
letter, one finds whether the word is a *name* (in mid-sentence, its capital at least two letters back). The other finds
whether the word will have the *ending* -eth. Another network, the *reader*, is stitched into the owner, and the owner's
probe reads the result. It is compared with a probe trained on the reader itself, and with a stitch by least squares.
Four random maps of the reader's activations, with the owner's means and deviations, show chance (their mean, and from
least to most).

<details markdown="1">
<summary>Areas under the ROC curve, for each probe and each of its readers</summary>

{probes}

</details>

The other way round, directions: differences of the owner's mean activations, carried into the reader by the stitch
(`stitched.carry`) and added there at every byte. *names* is blanks before a capital less those before a small letter,
and is scored by the log-odds of a capital. *testament* is the New Testament less the Old, and is scored by the log-odds
of "Jesus" against "LORD". Steps are four times as long as the reader's own direction, all of one length.

<details markdown="1">
<summary>Effects in nats, for each direction and each reader</summary>

{directions}

</details>

The owner's probe reads a name in all three readers nearly as well as one of their own, and far above any random map.
The direction of names does as much there as the reader's own, or more. Weak features are carried only in part, or not
at all. The ending is near the random maps, and in the wider network so is the effect of the direction of the
testaments. Least squares alone carries about as well as the task loss, although its penalty is higher.

![Probes and directions of one network, carried to another](images/kjv-carried.png)

Sparse autoencoders of these networks are carried on [Features](how-to/features.md#between-language-models), and a
network of bytes is compared with one of another tokeniser on [Views](how-to/views.md#two-tokenisers).

## Repeat it

`python -m benchmarks.kjv train`, then `curve`, `matrix`, `across`, `carry`, and `figures docs/images`, which draws the
tables of `benchmarks/results/language` and writes this page. An hour and a half of one core; every step resumes.
"""


def say_networks() -> Iterator[str]:
    yield from ("| network | parameters | nats per byte | bits per byte |", "| --- | --- | --- | --- |")
    for model in MODELS:
        card = json.loads((NETWORKS / f"{model.name}.json").read_text())
        nats = card["rounded"]["nats"]["score"]
        yield f"| `{model.name}` | {card['parameters']:,} | {nats:.3f} | {nats / math.log(2):.3f} |"


def say_curve() -> Iterator[str]:
    table = read("curve")
    yield from rows_of_seams((f"`{cut}`", seam) for cut, seam in table.groupby("receiver_cut"))
    yield ""
    yield '<details markdown="1">'
    yield f"<summary>What <code>suture.explain(table, margin={MARGIN})</code> says</summary>"
    yield ""
    said = suture.explain(descended(table), margin=MARGIN)
    yield from (f"- {line}" for line in (*said.warnings, *(" ".join(answer) for answer in said.answers)))
    yield from ("", "</details>")


def say_matrix() -> Iterator[str]:
    table = read("matrix")
    depth = by_depth(table, "loss", pooled=True)
    columns = {"all": "mean", "late → early": "late_to_early", "early → late": "early_to_late", "near": "near"}
    yield from (f"| | {' | '.join(columns)} |", f"| --- | {' | '.join(['---'] * len(columns))} |")
    for _, row in depth.iterrows():
        told = (f"{row[column]:.3f}" if row[column] == row[column] else "" for column in columns.values())
        yield f"| {row['control'] or 'trained'} | {' | '.join(told)} |"


def say_across() -> Iterator[str]:
    table = read("across")
    yield from rows_of_seams(
        (f"{kind}: `{sender}` → `{receiver}`", table[(table["sender"] == sender) & (table["receiver"] == receiver)])
        for kind, pairs in ACROSS.items()
        for sender, receiver in pairs
    )


def say_carried(kind: str, ways: tuple[str, ...], heads: str) -> Iterator[str]:
    """Write a row for each pair and each carried probe or direction; of directions, for the longest step."""
    rows = pd.read_csv(FOLDER / "carried.csv").query(
        "kind == @kind and (kind == 'probe' or strength == @STRENGTHS[-1])"
    )
    yield from (f"| {heads} | {' | '.join(ways)} |", f"| --- | {' | '.join(['---'] * len(ways))} |")
    for (owner, reader, what), found in rows.groupby(["owner", "reader", "what"], sort=False):
        told = [tell(found[found["by"] == way].iloc[0]) for way in ways]
        chance = found[found["by"] == "random map"].iloc[0]
        told[-1] = f"{chance['value']:.3f} ({chance['lowest_map']:.3f} to {chance['highest_map']:.3f})"
        yield f"| `{owner}`, `{reader}`: {what} | {' | '.join(told).replace('-', '−')} |"


def page() -> str:
    """Return docs/language-models.md, made of the cards, the tables and ``PAGE_TEXT``."""
    parts: dict[str, Callable[[], Iterable[str]]] = {
        **{f"fit_of_{what}": lambda what=what: [descended(read(what))["fit"].iloc[0]] for what in TABLES},
        "networks": say_networks,
        "curve": say_curve,
        "matrix": say_matrix,
        "across": say_across,
        "probes": lambda: say_carried("probe", ("in its owner", *WAYS), "owner, reader: property"),
        "directions": lambda: say_carried("direction", WAYS, "from, in: effect"),
    }
    return re.sub(r"\{(\w+)\}", lambda found: "\n".join(parts[found[1]]()), PAGE_TEXT)


def draw_carried() -> Figure:
    """Draw probes and directions of every pair: the reader's own, carried by either fit, and by chance."""
    rows = pd.read_csv(FOLDER / "carried.csv")
    rows["least"] = rows["value"] - rows["lowest_map"].fillna(rows["low"])
    rows["most"] = rows["highest_map"].fillna(rows["high"]) - rows["value"]
    readers = list(dict.fromkeys(rows["reader"]))
    marks, colours = dict(zip(readers, "os^", strict=False)), dict(zip(WAYS, ("black", "C0", "C1", "0.6"), strict=True))
    titles = {
        "name": "probe: in a name",
        "ending": "probe: will end in -eth",
        "names": "step: a capital comes",
        "testament": f"step: “{WORDS[0]}” over “{WORDS[1]}”",
    }
    units = ("area under the ROC curve", "", "log-odds (nats)", "")
    with curves.styled():
        figure, axes = pyplot.subplots(1, 4, figsize=(7.2, 2.5), layout="constrained")
        for panel, unit, (what, title) in zip(axes, units, titles.items(), strict=True):
            for (by, reader), found in rows[rows["what"] == what].groupby(["by", "reader"]):
                if by in colours:
                    own = {"color": colours[by], "marker": marks[reader], "ms": 3, "lw": 0.8, "elinewidth": 0.7}
                    at = found["strength"] if what not in PROBES else [WAYS.index(by) + 0.2 * readers.index(reader)]
                    panel.errorbar(at, found["value"], found[["least", "most"]].T, **own)
            panel.axhline(0.5 if what in PROBES else 0, color="0.8", lw=0.8, zorder=0)
            panel.set_title(title, fontsize=LETTERS)
            panel.set_ylabel(unit)
            if what in PROBES:
                panel.set_xticks([])
            else:
                panel.set_xlabel("length (own = 1)")
        named = {f"{way}, carried" if way in FITS else way: (colour, "") for way, colour in colours.items()}
        named |= {f"in {reader}": ("0.4", mark) for reader, mark in marks.items()}
        lines = [pyplot.Line2D([], [], color=c, marker=m, ms=4, lw=0 if m else 1.2) for c, m in named.values()]
        figure.legend(lines, named, loc="outside upper center", ncols=4, fontsize=LETTERS, frameon=False)
    return figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG alone."""
    with tempfile.TemporaryDirectory() as elsewhere:
        curves.save(figure, Path(elsewhere) / path.stem)
        shutil.copy(Path(elsewhere) / path.name, path)


def draw(folder: Path) -> None:
    """Draw all tables, and write the page."""
    drawn = {
        "curve": curves.curve(make_reading(descended(read("curve")), margin=MARGIN)),
        "matrix": heatmaps.matrix(make_reading(read("matrix"))),
        "carried": draw_carried(),
    }
    for name, figure in drawn.items():
        save_picture(figure, folder / f"kjv-{name}.png")
    PAGE.write_text(page(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("train")
    for what in TABLES:
        commands.add_parser(what).add_argument("--store", type=Path, default=Path("runs/language"))
    commands.add_parser("carry")
    commands.add_parser("figures").add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "train":
        for model in MODELS:
            if not (NETWORKS / f"{model.name}.json").exists():
                train(model, Recipe())
    elif given.what == "carry":
        carry()
    elif given.what == "figures":
        draw(given.folder)
    else:
        measure(given.what, given.store)


if __name__ == "__main__":
    main()
