"""Features that go through stitches: false alarms on independent pairs, and autoencoders of the small language models.

    python -m benchmarks.features alarms                 1,000 independent pairs, counted two ways: about six minutes
    python -m benchmarks.features train                  the sparse autoencoders that FOLDER has not, two minutes each
    python -m benchmarks.features carry                  each read through stitches from other networks: half an hour
    python -m benchmarks.features figure docs/images     draws what was carried, and prints its table

``alarms``. Chance alone should give at most 5 % of the pairs a feature with p ≤ 0.05. ``chain``: two networks of random
weights, whose views have nothing in common, are stitched in closed form, and the receiver's features are scored by
``transfer``. ``places``: features at three places of a sample that resemble one another, and a trend over the places
that both share, so that places are not independent and only samples are. Intervals are Clopper and Pearson's.

``train`` and ``carry``. The networks are those of ``benchmarks.kjv``. A sparse autoencoder of the activations behind
half of a network's blocks has twice as many latents as the network has features, and keeps the 8 largest (top-k), or
pays for their sum (ReLU). It learns from windows of the chapters that networks learn from, and is scored on windows of
others. Its weights are kept in 16 bit, and everything is measured on these.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from safetensors.torch import save_file
from scipy.stats import beta
from torch import Tensor, nn

import suture
from benchmarks import kjv
from suture import controls, features
from suture.reports.figures import curve as curves
from suture.reports.style import LETTERS

FOLDER = kjv.FOLDER / "features"
PAIRS = 1000
LATENTS, KEPT = 2, 8  #: latents for each feature of the network, and how many of them a top-k keeps
WINDOWS, STEPS, BATCH, RATE = 3000, 1500, 2048, 2e-3
COST = 1.0  #: of the sum of latents in a ReLU's loss, for about as many active latents as a top-k keeps
#: Networks with an autoencoder, and its kind.
MADE = ((kjv.A, "top-k"), (kjv.A, "relu"), (kjv.LLAMA, "top-k"))
#: By network whose features are read: the networks that they are read in, by what sets these apart.
READ = {
    kjv.A: {"seed": kjv.B, "width": kjv.WIDE, "depth": kjv.DEEP, "family": kjv.LLAMA},
    kjv.LLAMA: {"seed": kjv.LLAMA_TOO, "width": kjv.LLAMA_WIDE, "family": kjv.A},
}


SIZES = ("value", "low", "high", "chance", "p", "active")  #: columns that are kept in float32


# --- false alarms -----------------------------------------------------------------------------------------------------


def chain(seed: int, samples: int = 40, width: int = 8) -> pd.DataFrame:
    """Measure the transfer between two random networks that see independent views."""
    torch.manual_seed(seed)
    labels = torch.randint(3, (2 * samples,))
    views = [(torch.rand(2 * samples, 1, 4, 4), labels) for _ in range(2)]
    data = suture.load_views(*views, split=samples, name="independent")
    a, b = (
        suture.Network(
            nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 3)), example=e, name=name
        )
        for name, e in (("A", data.for_sender.example), ("B", data.for_receiver.example))
    )
    measured = suture.stitch(a, b, at="2", data=data, fit="least-squares", controls=())
    return features.transfer(features.directions(torch.eye(width)), measured)


def places(seed: int) -> pd.DataFrame:
    """Measure how well independent features tell each other, at three places of a sample that resemble one another."""
    random = np.random.default_rng(seed)
    own, carried = (random.normal(size=(16, 1, 8)) + random.normal(size=(16, 3, 8)) for _ in range(2))
    return features.tells(np.maximum(own, 0), carried + np.arange(3)[:, None])


def count_alarms(pairs: int = PAIRS) -> Iterator[str]:
    """Count the pairs in which any feature has p ≤ 0.05, and write a line for each way and measure."""
    for way in (chain, places):
        found = [way(seed).groupby("measure")["p"].min() <= 0.05 for seed in range(pairs)]
        for measure, count in pd.DataFrame(found).sum().items():
            low, high = beta.ppf((0.025, 0.975), (count or 1e-9, count + 1), (pairs - count + 1, pairs - count))
            yield f"{way.__name__}, {measure}: {count} of {pairs:,} ({low:.1%} to {high:.1%})"


# --- autoencoders -----------------------------------------------------------------------------------------------------


def learn_from(net: suture.Network) -> Tensor:
    """Return a network's activations ``(positions, width)`` of windows drawn from the chapters to fit."""
    text = torch.cat([kjv.ids(kjv.chapters()[name]) for name in kjv.roles()["fit"]])
    begin = torch.randint(len(text) - kjv.LENGTH, (WINDOWS, 1), generator=torch.Generator().manual_seed(5))
    prefix = net.upto(kjv.middle(net.name))
    with torch.no_grad():
        return torch.cat([prefix(text[b + torch.arange(kjv.LENGTH)]).flatten(0, 1) for b in begin.split(50)])


def train(name: str, kind: str) -> dict[str, Tensor]:
    """Train a sparse autoencoder on a network's activations, from the network's features to their size."""
    x = learn_from(kjv.network(name))
    middle, scale = x.mean(0), x.std()
    drawn = torch.Generator().manual_seed(6)
    width, count = x.shape[1], LATENTS * x.shape[1]
    outward = nn.functional.normalize(torch.randn(count, width, generator=drawn), dim=1)
    weights = [outward.T.clone(), torch.zeros(count), outward, torch.zeros(width)]
    weights = [each.requires_grad_() for each in weights]
    optimiser = torch.optim.Adam(weights, RATE, betas=(0.9, 0.99))
    for step in range(STEPS):
        batch = (x[torch.randint(len(x), (BATCH,), generator=drawn)] - middle) / scale
        found = ((batch - weights[3]) @ weights[0] + weights[1]).relu()
        if kind == "top-k":
            largest = found.topk(KEPT, -1)
            found = torch.zeros_like(found).scatter(-1, largest.indices, largest.values)
        loss = (found @ weights[2] + weights[3] - batch).square().sum(1).mean()
        loss = loss + (COST * found.sum(1).mean() if kind == "relu" else 0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, (STEPS - step) / (0.3 * STEPS))
        optimiser.step()
        with torch.no_grad():
            weights[2].copy_(nn.functional.normalize(weights[2], dim=1))
        if (step + 1) % 300 == 0:
            print(
                name, kind, step + 1, f"{loss.item() / width:.3f}, {(found > 0).sum(1).float().mean():.1f}", flush=True
            )
    inward, off, outward, shift = (each.detach() for each in weights)
    made = {"W_enc": inward / scale, "b_enc": off, "W_dec": outward * scale, "b_dec": shift * scale + middle}
    return {key: value.half().contiguous() for key, value in made.items()}


def path_of(name: str, kind: str) -> Path:
    return FOLDER / f"{name}-{kind}.safetensors"


def read(name: str, kind: str) -> features.Dictionary:
    return features.load(path_of(name, kind), k=KEPT if kind == "top-k" else None)


def describe(name: str, kind: str) -> dict[str, Any]:
    """Return the share of the variance that an autoencoder explains on scored windows, and how many latents act."""
    x = kjv.activations_of(kjv.network(name), "score").flatten(0, 1)
    made = read(name, kind)
    found = made.encode(x)
    left = (made.decode(found) - x).square().sum() / (x - x.mean(0)).square().sum()
    active = (found > 0).float()
    return {
        "network": name,
        "kind": kind,
        "latents": found.shape[1],
        "alive": int((active.mean(0) > 0).sum()),
        "active": active.sum(1).mean().item(),
        "explained": 1 - left.item(),
    }


# --- what is carried --------------------------------------------------------------------------------------------------


def carry() -> None:
    """Score every autoencoder's latents through stitches from other networks, with controls; keep scores that exist."""
    for owner, kind in MADE:
        for apart, reader in READ[owner].items():
            path = FOLDER / f"{owner}-{kind}-{apart}.parquet"
            if path.exists() or (kind == "relu" and apart in ("width", "depth")):
                continue
            at = kjv.middle(reader), kjv.middle(owner)
            beside = (controls.untrained_sender, controls.shuffled_pairs)
            nets = kjv.network(reader), kjv.network(owner)
            measured = suture.stitch(*nets, at=at, data=kjv.load(), fit=kjv.LEAST, controls=beside)
            table = features.transfer(read(owner, kind), measured, samples=None, permutations=99)
            table.astype(dict.fromkeys(SIZES, "float32")).to_parquet(path, index=False)
            print(path.name, flush=True)


def carried() -> pd.DataFrame:
    """Return all scores, with the kind of autoencoder and the difference between the networks."""
    parts = []
    for owner, kind in MADE:
        for apart in READ[owner]:
            path = FOLDER / f"{owner}-{kind}-{apart}.parquet"
            if path.exists():
                parts.append(pd.read_parquet(path).assign(kind=kind, apart=apart))
    return pd.concat(parts)


CONTROLS = {"": "stitch", "untrained sender": "untrained sender", "shuffled pairs": "shuffled pairs"}


def rows() -> Iterator[str]:
    """Write the table: of the latents that act, the median correlation and AUROC, and how many are told at all."""
    yield (
        "| latents of, read in | apart | latents | "
        + " | ".join(f"r, {c}" for c in CONTROLS.values())
        + " | p ≤ 0.05 |"
    )
    yield "| " + " | ".join(["---"] * (4 + len(CONTROLS))) + " |"
    for (kind, owner, reader, apart), found in carried().groupby(["kind", "receiver", "sender", "apart"], sort=False):
        told = found[(found["measure"] == "correlation") & found["value"].notna()]
        medians = told.groupby("control")["value"].median()
        own = told[told["control"] == ""]
        less = told[told["control"] == "untrained sender"]
        yield (
            f"| `{owner}` ({kind}), `{reader}` | {apart} | {len(own)} | "
            + " | ".join(f"{medians[control]:.2f}".replace("-0.00", "0.00").replace("-", "−") for control in CONTROLS)
            + f" | {(own['p'] <= 0.05).sum()}, untrained {(less['p'] <= 0.05).sum()} |"
        )


def figure() -> Figure:
    """Draw which share of the latents is told at least so well: through the stitch, and by controls."""
    table = carried()
    table = table[(table["measure"] == "correlation") & table["value"].notna()]
    colours = {"seed": "C0", "width": "C1", "depth": "C2", "family": "C3"}
    with curves.styled():
        drawn, axes = pyplot.subplots(1, len(MADE), figsize=(7.2, 2.6), sharey=True, layout="constrained")
        for panel, (owner, kind) in zip(axes, MADE, strict=True):
            here = table[(table["receiver"] == owner) & (table["kind"] == kind)]
            for (apart, control), found in here.groupby(["apart", "control"]):
                style = {"": "-", "untrained sender": "--", "shuffled pairs": ":"}[control]
                count = np.arange(len(found), 0, -1) / len(found)
                panel.plot(np.sort(found["value"]), count, style, color=colours[apart], lw=1.2 if not control else 0.9)
                if not control:
                    low, high = (np.sort(found[end]) for end in ("low", "high"))
                    panel.fill_betweenx(count, low, high, color=colours[apart], alpha=0.15, lw=0)
            panel.set_title(
                f"{'GPT-2' if owner == kjv.A else 'Llama'}'s latents, {kind.replace('relu', 'ReLU')}", fontsize=LETTERS
            )
            panel.set_xlabel("correlation of a latent, read elsewhere")
            panel.set_xlim(-0.1, 1.0)
            panel.set_ylim(0, 1.02)
        axes[0].set_ylabel("share of latents with at least")
        named: dict[str, tuple[str, str]] = {f"another {apart}": (colour, "-") for apart, colour in colours.items()}
        named |= {"untrained sender": ("0.3", "--"), "shuffled pairs": ("0.3", ":")}
        lines = [pyplot.Line2D([], [], color=colour, ls=style, lw=1.2) for colour, style in named.values()]
        drawn.legend(
            lines,
            named,
            loc="outside upper center",
            ncols=6,
            fontsize=LETTERS,
            frameon=False,
            columnspacing=1,
            handlelength=1.5,
        )
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("alarms", "train", "carry"):
        commands.add_parser(what)
    commands.add_parser("figure").add_argument("folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    match given.what:
        case "alarms":
            for line in count_alarms():
                print(line, flush=True)
        case "train":
            for name, kind in MADE:
                if not path_of(name, kind).exists():
                    save_file(train(name, kind), path_of(name, kind))
            told = [describe(name, kind) for name, kind in MADE]
            (FOLDER / "autoencoders.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            print(pd.DataFrame(told).to_string(index=False))
        case "carry":
            carry()
        case "figure":
            kjv.save_picture(figure(), given.folder / "kjv-features.png")
            print("\n".join(rows()))


if __name__ == "__main__":
    main()
