"""Seams between networks of real size: the time, the memory and the disk that they take, beside their forecast.

    python -m benchmarks.real_sizes run [--only PAIR …] [--samples N] [--part seam curve] [--device cuda]
    python -m benchmarks.real_sizes table

Weights are drawn from the libraries' configurations, inputs and labels at random, since seconds and bytes hardly depend
on them; the scores mean nothing. Every measurement is a process of its own, by default with one thread. ``seam`` fits
one seam in the middle by least squares, ``curve`` four by least squares. ``--fit quick`` or ``--fit converged`` fits by
a descent, which takes hours to days on a processor: for these a line has the seconds of one step, and the range that
``suture plan`` names. Results are added to ``benchmarks/results/real-sizes.json``.

Seconds are of the processor. Memory is the most that the process held for itself (``RssAnon``), beside the weights of
both networks; the disk is the most that lay in the run's folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import suture
from benchmarks.soon import look_at
from suture.common.sizes import in_words
from suture.runs.progress import Silent, clock

FILE = Path(__file__).parent / "results" / "real-sizes.json"
CLASSES = 1000
TOKENS = 512  #: of a text


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a factory of a network of timm."""

    def make() -> nn.Module:
        from timm import create_model

        return create_model(name, **options)

    return make


def resnet() -> nn.Module:
    """Make torchvision's ResNet-50."""
    from torchvision.models import resnet50

    return resnet50()


def gpt2() -> nn.Module:
    """Make a GPT-2 small with the vocabulary of Pythia, since two networks of one seam read the same ids."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=50_304))


def pythia() -> nn.Module:
    """Make a network of the size of Pythia-160M."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50_304, max_position_embeddings=2048, **sizes))


def bert() -> nn.Module:
    """Make a BERT-base with two classes."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_labels=2))


def images(count: int) -> suture.Data:
    """Draw coloured images at 224 px and their labels."""
    made = [torch.randint(0, 256, (count, 3, 224, 224), dtype=torch.uint8) for _ in range(2)]
    labels = [torch.arange(count) % CLASSES for _ in range(2)]
    return suture.load_data(tuple(zip(made, labels, strict=True)), classes=CLASSES, name="drawn")


def texts(count: int) -> suture.Data:
    """Draw texts of ``TOKENS`` tokens."""
    made = [(torch.randint(50_000, (count, TOKENS)), None) for _ in range(2)]
    return suture.load_data((made[0], made[1]), name="drawn", task=suture.tasks.NextToken())


def padded(count: int) -> suture.Data:
    """Draw texts of 32 to 128 tokens, padded on the right and masked, and labels."""
    sides = []
    for _ in range(2):
        mask = (torch.arange(128)[None] < torch.randint(32, 129, (count, 1))).long()
        ids = torch.randint(1000, 30_000, (count, 128)) * mask
        sides.append(({"input_ids": ids, "attention_mask": mask}, torch.arange(count) % 2))
    return suture.load_data((sides[0], sides[1]), classes=2, name="drawn")


Make, At = Callable[[], nn.Module], list[str | tuple[str, str]]
Pair = tuple[Make, Make, Callable[[int], suture.Data], At]
BLOCKS: At = ["blocks.2", "blocks.5", "blocks.8", "blocks.11"]
LAYERS: At = [(f"transformer.h.{i}", f"gpt_neox.layers.{i}") for i in (2, 5, 8, 11)]
PAIRS: dict[str, Pair] = {
    "ViT-B/16": (timm("vit_base_patch16_224"), timm("vit_base_patch16_224"), images, BLOCKS),
    "DINOv2-base with registers → ViT-B/16": (
        timm("vit_base_patch14_reg4_dinov2", img_size=224, num_classes=CLASSES),
        timm("vit_base_patch16_224"),
        images,
        BLOCKS,
    ),
    "ResNet-50 of timm → of torchvision": (
        timm("resnet50"),
        resnet,
        images,
        ["layer1.2", "layer2.3", "layer3.5", "layer4.2"],
    ),
    "GPT-2 small → Pythia-160M": (gpt2, pythia, texts, LAYERS),
    "BERT-base, padded": (bert, bert, padded, [f"bert.encoder.layer.{i}" for i in (2, 5, 8, 11)]),
}


@contextmanager
def sampled() -> Iterator[list[float]]:
    """Yield a list to which the bytes that this process holds for itself are added, ten times a second."""
    held, ended = [1e9 * look_at(os.getpid())["resident GB"]], threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            held.append(1e9 * look_at(os.getpid())["resident GB"])

    watching = threading.Thread(target=sample, daemon=True)
    watching.start()
    yield held
    ended.set()
    watching.join()


def work(name: str, part: str, samples: int, fit: str, folder: str, device: str) -> None:
    """Do one measurement in this process; print its record as JSON."""
    torch.set_num_threads(1)
    make_sender, make_receiver, draw, cuts = PAIRS[name]
    data = draw(samples)
    begun = time.process_time()
    torch.manual_seed(0)
    a = suture.Network(make_sender(), example=data.example, name="A")
    b = suture.Network(make_receiver(), example=data.example, name="B")
    made = time.process_time() - begun
    at = cuts[1:2] if part == "seam" else cuts
    trials = suture.curve(a, b, data=data, at=at, fit=fit, controls=())
    before = suture.forecast(trials, workers=1)
    begun = time.process_time()
    with sampled() as held:
        table = suture.run(trials, store=folder, on=suture.Local(workers=1), device=device, progress=Silent())
    seconds = time.process_time() - begun
    begun = time.process_time()
    ranges = {
        each: suture.forecast(suture.curve(a, b, data=data, at=at, fit=each, controls=()), workers=1, timed=True).range
        for each in ("quick", "converged", "least-squares")
    }
    said: dict[str, Any] = {
        "networks": made,
        "timing": time.process_time() - begun,
        "seconds": seconds,
        "ram_before": held[0],
        "ram": max(held),
        "weights": sum(p.nbytes for one in (a, b) for p in one.whole().parameters()),
        "ram_forecast": before.ram,
        "disk_forecast": before.disk,
        "ranges": ranges,
        "ok": bool((table["status"] == "ok").all()),
        "error": "" if (table["status"] == "ok").all() else str(table["error"].iloc[0]),
    }
    print(json.dumps(said))


def run(name: str, part: str, samples: int, fit: str, device: str) -> None:
    """Measure in a process of its own, watch it, and keep the record."""
    with tempfile.TemporaryDirectory(prefix="sizes-") as place:
        folder = str(Path(place) / "run")
        arguments = ["work", name, "--part", part, "--samples", str(samples), "--fit", fit, "--folder", folder]
        command = [sys.executable, "-m", "benchmarks.real_sizes", *arguments, "--device", device]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        disk = 0
        while process.poll() is None:
            disk = max(disk, sum(_size(file) for file in Path(folder).rglob("*") if file.is_file()))
            time.sleep(0.2)
        assert process.stdout is not None
        out = process.stdout.read()
    if process.returncode:
        sys.exit(f"{name}: ended with {process.returncode}")
    record = {"pair": name, "part": part, "samples": samples, "fit": fit, "device": device}
    record |= json.loads(out.splitlines()[-1]) | {"disk": disk}
    kept = json.loads(FILE.read_text()) if FILE.exists() else []
    FILE.write_text(json.dumps([*kept, record], indent=1) + "\n")
    print(json.dumps(record), flush=True)


def _size(file: Path) -> int:
    """Return the bytes of a file, 0 if it was removed just now."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def table() -> None:
    """Print the kept records as a table, with the forecast of both descents below each line."""
    heads = (
        "networks",
        "measured",
        "samples",
        "CPU time",
        "forecast",
        "memory beyond weights",
        "forecast",
        "disk",
        "forecast",
    )
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join("---" for _ in heads) + " |")
    for one in json.loads(FILE.read_text()):
        ranges = {fit: " to ".join(map(clock, found)) for fit, found in one["ranges"].items() if found}
        held = [in_words(one[key] - one["weights"]) for key in ("ram", "ram_forecast")]
        cells = [one["pair"], one["part"], f"{one['samples']:,}", clock(one["seconds"]), ranges["least-squares"], *held]
        print("| " + " | ".join([*cells, in_words(one["disk"]), in_words(one["disk_forecast"])]) + " |")
        print(f"    Quick: {ranges.get('quick')}, default: {ranges.get('converged')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    for command in ("run", "work"):
        added = commands.add_parser(command)
        if command == "work":
            added.add_argument("pair", choices=list(PAIRS))
            added.add_argument("--folder", required=True)
        else:
            added.add_argument("--only", nargs="+", choices=list(PAIRS), default=list(PAIRS), metavar="PAIR")
        added.add_argument("--part", choices=("seam", "curve"), default="seam")
        added.add_argument("--samples", type=int, default=32)
        added.add_argument("--fit", default="least-squares")
        added.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.command == "table":
        table()
    elif given.command == "work":
        work(given.pair, given.part, given.samples, given.fit, given.folder, given.device)
    else:
        for each in given.only:
            run(each, given.part, given.samples, given.fit, given.device)
