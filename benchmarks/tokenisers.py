"""Two language models whose tokenisers differ, each with its own view of one text: are they alike, and does one serve?

    python -m benchmarks.tokenisers train                  the tokeniser and the model of pieces, if FOLDER has none
    python -m benchmarks.tokenisers compare                indices of pooled layers, with untrained networks beside them
    python -m benchmarks.tokenisers stitch                 the model of bytes into a reader of pieces, with controls
    python -m benchmarks.tokenisers figure docs/images     draws both, and prints their tables

The text, its roles and the model of bytes are those of ``benchmarks.kjv``. The other model, a GPT-2 of 96 features and
four blocks, reads pieces: a byte-level BPE of 512 tokens, learned from the chapters to fit. A sample is a window of 128
bytes, up to four of a chapter; its views are its bytes and its pieces, and its class the part of the Bible. What is
measured is measured on weights rounded to 16 bit. ``compare`` asks for the mean of a layer over its tokens and for its
last token, and beside the pair puts two models of one tokeniser, which differ in their seed alone. ``stitch`` joins the
mean of the bytes at three cuts to the *reader*: the model of pieces, its last layer averaged, and a small head that was
trained on the parts. A quarter of an hour of one core.
"""

import argparse
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from torch import Tensor, nn

import suture
from benchmarks import kjv
from suture import indices
from suture.measurement.tables import table as tables
from suture.reports.figures import curve as curves
from suture.reports.style import LETTERS
from suture.runs.runners import Lines, Local

FOLDER = kjv.FOLDER / "pieces"
PIECES, WIDTH, BLOCKS, LENGTH = 512, 96, 4, 64
PER_CHAPTER = 4
CUTS = tuple(f"transformer.h.{block}" for block in (0, 1, 3))
BY = (indices.LinearCKA(debiased=True), indices.mutual_knn)
#: The books of a part of the Bible, in the order of the text.
PARTS = {"law": 5, "history": 12, "poetry": 5, "prophets": 17, "gospels": 5, "letters": 22}
MEAN = "div"  #: the cut behind the mean over tokens
SEEDS = 3  #: untrained networks of each kind
COMPARED = 600  #: windows


@cache
def tokeniser() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def learn_pieces() -> None:
    """Learn the tokeniser from the chapters to fit, and write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([kjv.chapters()[name] for name in kjv.roles()["fit"]], trainer)
    made.save(str(FOLDER / "tokenizer.json"))


def build() -> nn.Module:
    import transformers

    none: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=PIECES,
            n_positions=kjv.LENGTH,
            n_embd=WIDTH,
            n_layer=BLOCKS,
            n_head=WIDTH // 32,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            **none,
        )
    )


def train() -> None:
    """Train the model of pieces, and write it in 16 bit."""
    torch.manual_seed(0)
    model: Any = build()
    text = torch.cat([torch.tensor(tokeniser().encode(kjv.chapters()[name]).ids) for name in kjv.roles()["fit"]])
    kjv.descend(model, text, kjv.Recipe(batch=16), "pieces", LENGTH)
    model.half().save_pretrained(FOLDER)


# --- the data ---------------------------------------------------------------------------------------------------------


def part_of(chapter: str) -> int:
    """Return the part of the Bible that a chapter such as ``1Sam3`` is of."""
    books = list(dict.fromkeys(re.sub(r"\d+$", "", name) for name in kjv.chapters()))
    before = torch.tensor([*PARTS.values()]).cumsum(0)
    return int((books.index(re.sub(r"\d+$", "", chapter)) >= before).sum())


def windows(role: str) -> tuple[list[str], list[int]]:
    """Return the texts of a role, up to ``PER_CHAPTER`` of a chapter, that do not overlap, and their parts."""
    drawn, texts, parts = torch.Generator().manual_seed(7), [], []
    for name in kjv.roles()[role]:
        text = kjv.chapters()[name]
        places = torch.randperm(len(text) // kjv.LENGTH, generator=drawn)[:PER_CHAPTER]
        texts += [text[place * kjv.LENGTH : (place + 1) * kjv.LENGTH] for place in places.tolist()]
        parts += [part_of(name)] * len(places)
    return texts, parts


@cache
def load() -> suture.Data:
    """Return the windows with both views: the sender reads bytes, the receiver pieces."""

    def views(role: str) -> tuple[datasets.Dataset, datasets.Dataset]:
        texts, parts = windows(role)
        in_bytes = [kjv.ids(text).tolist() for text in texts]
        in_pieces = [one.ids for one in tokeniser().encode_batch(texts)]
        made = [datasets.Dataset.from_dict({"input_ids": ids, "label": parts}) for ids in (in_bytes, in_pieces)]
        return made[0], made[1]

    splits = {role: views(role) for role in ("fit", "score")}
    bytes_, pieces = ({"train": splits["fit"][i], "test": splits["score"][i]} for i in (0, 1))
    return suture.load_views(
        datasets.DatasetDict(bytes_), datasets.DatasetDict(pieces), name="kjv", classes=list(PARTS)
    )


@cache
def reads_bytes(name: str = kjv.A) -> suture.Network:
    source = f"hf:{kjv.NETWORKS / name}"
    return suture.load_network(source, example=load().for_sender.example, name=f"bytes {name[-1]}")


@cache
def reads_pieces() -> suture.Network:
    return suture.load_network(f"hf:{FOLDER}", example=load().for_receiver.example, name="pieces")


# --- comparing --------------------------------------------------------------------------------------------------------


def pooled(network: suture.Network, samples: suture.Samples) -> dict[str, dict[str, Tensor]]:
    """Return a network's activations at every cut, by pooling: the mean of the tokens that count, and the last."""
    mask = torch.ones(samples.images.shape[0], samples.images.shape[-1]) if samples.counted is None else samples.counted
    last = mask.shape[1] - 1 - mask.long().flip(1).argmax(1)
    found: dict[str, dict[str, Tensor]] = {"mean": {}, "last": {}}
    for cut in CUTS:
        prefix = network.upto(cut)
        with torch.no_grad():
            x = torch.cat([prefix(part) for part in samples.images.split(100)])
        weights = mask.to(x.dtype)[..., None]
        found["mean"][cut] = (x * weights).sum(1) / weights.sum(1)
        found["last"][cut] = x[torch.arange(len(x)), last]
    return found


def compare() -> pd.DataFrame:
    """Compare both models, trained and not, and two models of bytes, at three cuts, by mean and by last token."""
    sent, received = load().score.first(COMPARED).for_sender, load().score.first(COMPARED).for_receiver
    a, b = reads_bytes(), reads_pieces()
    in_bytes, in_pieces = pooled(a, sent), pooled(b, received)
    pairs = [("two tokenisers", in_bytes, in_pieces), ("one tokeniser", in_bytes, pooled(reads_bytes(kjv.B), sent))]
    for seed in range(SEEDS):
        in_bytes_before, in_pieces_before = pooled(a.untrained(seed), sent), pooled(b.untrained(seed), received)
        pairs += [
            ("bytes untrained", in_bytes_before, in_pieces),
            ("pieces untrained", in_bytes, in_pieces_before),
            ("both untrained", in_bytes_before, in_pieces_before),
        ]
    parts = [
        suture.compare({cut: xs[way][cut]}, {cut: ys[way][cut]}, by=BY).assign(kind=kind, pooled=way)
        for kind, xs, ys in pairs
        for way in ("mean", "last")
        for cut in CUTS
    ]
    return pd.concat(parts, ignore_index=True)


# --- stitching --------------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """The model of pieces without its table of outputs, the mean of its last layer, and a head that names the part."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.hidden, self.act, self.head = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, len(PARTS))

    def mean(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(found.dtype)
        return (found * mask).sum(1) / mask.sum(1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        y: Tensor = self.head(self.act(self.hidden(self.mean(input_ids, attention_mask))))
        return y


def reader() -> suture.Network:
    """Return the reader, its head trained on the windows to fit with the model left as it is."""
    import transformers

    torch.manual_seed(1)
    made = Reader(transformers.GPT2Model.from_pretrained(FOLDER, dtype=torch.float32).eval())
    samples = load().for_receiver.fit
    with torch.no_grad():
        x = torch.cat([made.mean(part[:, 0].clamp(min=0), part[:, 1]) for part in samples.images.split(256)])
    head = nn.Sequential(made.hidden, made.act, made.head)
    optimiser = torch.optim.AdamW(head.parameters(), 3e-3, weight_decay=0.1)
    for step in range(300):
        rows = torch.randint(len(x), (256,))
        nn.functional.cross_entropy(head(x[rows]), samples.labels[rows]).backward()
        optimiser.param_groups[0]["lr"] = 3e-3 * (1 - step / 300)
        optimiser.step()
        optimiser.zero_grad()
    return suture.Network(made.eval(), example=load().for_receiver.example, name="reader of pieces")


def stitch(store: Path) -> pd.DataFrame:
    """Stitch the model of bytes, at three cuts, into the reader of pieces."""
    plan = suture.curve(reads_bytes(), reader(), data=load(), at=[(cut, MEAN) for cut in CUTS])
    return suture.run(plan, store=store, on=Local(workers=1), progress=Lines(every=60.0))


# --- what is told -----------------------------------------------------------------------------------------------------

KINDS = {
    "one tokeniser": ("0.2", "o"),
    "two tokenisers": ("C0", "o"),
    "bytes untrained": ("C1", "^"),
    "pieces untrained": ("C2", "v"),
    "both untrained": ("C3", "x"),
}


def rows() -> Iterator[str]:
    """Write calibrated indices, with intervals; of untrained networks the mean over seeds."""
    alike = pd.read_csv(FOLDER / "alike.csv")
    yield "| index, tokens | pair | " + " | ".join(f"block {cut[-1]}" for cut in CUTS) + " |"
    yield "| --- | --- | " + " | ".join("---" for _ in CUTS) + " |"
    alike["kind"] = pd.Categorical(alike["kind"], KINDS)
    for (index, pooled, kind), found in alike.groupby(["index", "pooled", "kind"], observed=True):
        means = found.groupby("sender_cut")[["calibrated", "low", "high"]].mean()
        told = (f"{means['calibrated'][c]:.2f} [{means['low'][c]:.2f}, {means['high'][c]:.2f}]" for c in CUTS)
        yield f"| `{index}`, {pooled} | {kind} | {' | '.join(told)} |"
    yield ""
    joined = tables.read(FOLDER / "stitched.parquet")
    assert joined is not None
    joined = joined[joined["score"] == joined["score"].iloc[0]]
    kinds = list(dict.fromkeys(joined[joined["sender_cut"].isin(CUTS)]["control"]))
    yield f"| cut | {' | '.join(kind or 'stitch' for kind in kinds)} |"
    yield "| --- | " + " | ".join("---" for _ in kinds) + " |"
    for cut in CUTS:
        seam = joined[joined["sender_cut"] == cut].set_index("control")
        told = (f"{100 * seam['stitched'][kind]:.1f} %" for kind in kinds)
        yield f"| `{cut}` | {' | '.join(told)} |"


def figure() -> Figure:
    """Draw the calibrated indices of both poolings over the cuts."""
    alike = pd.read_csv(FOLDER / "alike.csv")
    with curves.styled():
        drawn, axes = pyplot.subplots(1, 4, figsize=(7.2, 2.4), sharex=True, layout="constrained")
        panels = [(index, pooled) for index in dict.fromkeys(alike["index"]) for pooled in ("mean", "last")]
        for panel, (index, pooled) in zip(axes, panels, strict=True):
            here = alike[(alike["index"] == index) & (alike["pooled"] == pooled)]
            for i, (kind, (colour, mark)) in enumerate(KINDS.items()):
                means = here[here["kind"] == kind].groupby("sender_cut")[["calibrated", "low", "high"]].mean()
                value = means["calibrated"]
                errors = [value - means["low"], means["high"] - value]
                at = [x + 0.07 * (i - 2) for x in range(len(CUTS))]
                panel.errorbar(at, value, errors, color=colour, marker=mark, ms=3.5, lw=0.9, elinewidth=0.7, label=kind)
            panel.axhline(0, color="0.8", lw=0.8, zorder=0)
            called = "CKA" if "cka" in index else "neighbours"
            panel.set_title(f"{called}, {'mean of tokens' if pooled == 'mean' else 'last token'}", fontsize=LETTERS)
            panel.set_xticks(range(len(CUTS)), [cut[-1] for cut in CUTS])
            panel.set_xlabel("behind block")
        axes[0].set_ylabel("calibrated index")
        handles, names = axes[0].get_legend_handles_labels()
        drawn.legend(handles, names, loc="outside upper center", ncols=5, fontsize=LETTERS, frameon=False)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("train", "compare"):
        commands.add_parser(what)
    commands.add_parser("stitch").add_argument("--store", type=Path, default=Path("runs/tokenisers"))
    commands.add_parser("figure").add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    match given.what:
        case "train":
            if not (FOLDER / "tokenizer.json").exists():
                learn_pieces()
            if not (FOLDER / "model.safetensors").exists():
                train()
        case "compare":
            compare().to_csv(FOLDER / "alike.csv", index=False, float_format="%.5g")
        case "stitch":
            tables.save(stitch(given.store), FOLDER / "stitched.parquet")
        case "figure":
            kjv.save_picture(figure(), given.folder / "kjv-tokenisers.png")
            print("\n".join(rows()))


if __name__ == "__main__":
    main()
