"""Another domain: small language models of Python's own source, stitched behind every block, with controls.

    python benchmarks/language.py runs/language

Three models of letters (a transformer of four blocks, 48 wide, that sees 24 letters) are trained from different seeds
on modules of Python's standard library, and each is stitched into the next, round in a circle. Stitches are fitted to
4,500 windows of the training modules and scored on 3,000 of other modules. Prints what the models reach, the penalty of
each control at each cut, with 95 % t intervals over the three pairs, and the share of the most frequent letter; writes
the table and ``curve.png``. About half an hour of one core; resumes. The text is that of the Python that runs it.
"""

import argparse
import importlib
import inspect
import platform
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import suture
from suture.common.seeds import undisturbed
from suture.report.figures import curve as figures

LEARNED = ("argparse", "ast", "_pydecimal", "datetime", "doctest", "inspect", "mailbox", "optparse", "pdb", "pickle")
SCORED = ("subprocess", "tarfile", "typing", "unittest.mock", "zipfile")
LENGTH, WIDTH, BLOCKS, STEPS, BATCH = 24, 48, 4, 1500, 64
LETTERS = "\n" + "".join(map(chr, range(32, 127)))


class Block(nn.Module):
    """Attention to what came before, and two layers for each letter, both beside the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.read, self.write = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.read(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.write(found.transpose(1, 2).flatten(2))
        return x + self.layers(x)


class Letters(nn.Module):
    """The letter that comes after a window."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def everywhere(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.everywhere(ids)[:, -1]


def source(modules: tuple[str, ...]) -> Tensor:
    """The letters of the modules as numbers; what is not printable is left out."""
    text = "".join(inspect.getsource(importlib.import_module(name)) for name in modules)
    number = {letter: i for i, letter in enumerate(LETTERS)}
    return torch.tensor([number[letter] for letter in text if letter in number])


def windows(ids: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """So many different windows from random places, and the letter after each."""
    order = torch.randperm(len(ids) - LENGTH, generator=torch.Generator().manual_seed(seed))
    cut = ids.unfold(0, LENGTH + 1, 1)[order[: 2 * count]]
    seen = {tuple(row): i for i, row in reversed(list(enumerate(cut.tolist())))}
    chosen = cut[sorted(seen.values())[:count]]
    return chosen[:, :-1], chosen[:, -1]


def trained(seed: int, ids: Tensor, folder: Path) -> nn.Module:
    torch.manual_seed(seed)
    model, kept = Letters(), folder / f"letters-{seed}.safetensors"
    if kept.exists():
        model.load_state_dict(load_file(kept))
        return model
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, STEPS)
    rows = ids.unfold(0, LENGTH + 1, 1)
    for _ in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,))]
        loss = functional.cross_entropy(model.everywhere(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    save_file(model.state_dict(), kept)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    learned, scored = source(LEARNED), source(SCORED)
    with undisturbed():
        models = [trained(seed, learned, folder) for seed in range(3)]
    pairs = (windows(learned, 5000, 0), windows(scored, 3000, 1))
    data = suture.load_data(pairs, name="python", classes=[repr(letter) for letter in LETTERS])
    plan = suture.Plan(())
    for seed in range(3):
        a, b = (
            suture.Network(models[(seed + step) % 3], example=data.example, name=name, factory=Letters)
            for step, name in enumerate("AB")
        )
        plan += suture.curve(a, b, data=data, at="blocks.?", network_seed=seed)
    table = suture.run(plan, store=folder / "run")
    told = suture.summary(table)
    told = told[told["score"] == "accuracy"]
    frequent = data.score.labels.bincount().max().item() / len(data.score)
    print(f"Python {platform.python_version()}, torch {torch.__version__}: {len(learned):,} letters to learn, {data}")
    print(f"the receivers: {told['receiver_score'].iloc[0]:.1%}; the most frequent letter: {frequent:.1%}")
    shown = ["receiver_cut", "control", "stitched", "penalty", "penalty_low", "penalty_high", "seeds"]
    print(told[shown].round(3).to_string(index=False))
    print(*figures.save(figures.curve(table), folder / "curve"))


if __name__ == "__main__":
    main()
