"""The curve of two small ResNets on CIFAR-10, by Suture and by the plain loop, interleaved cut by cut.

    python benchmarks/curve_cifar.py path/to/cifar10 runs/cifar

The plain loop is what a competent engineer writes: frozen prefix recomputed under ``no_grad`` at every step, the stitch
(BatchNorm-1×1-BatchNorm, linear on vectors) from its default initialisation, Adam 1e-3 with a cosine, batch 128, 5
epochs. Both use the same images to fit, one thread, and the whole test set to score. Prints CPU seconds and accuracy
for every cut, and Suture's time for all controls; writes ``plain-loop.json``, the table and the figures. Resumes:
networks that are trained and cuts that are measured are not done again.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from cifar_networks import load, make_all
from torch import nn

import suture
from suture.common.seeds import undisturbed
from suture.core.activations.cache import Activations
from suture.measurement.trials.plans import curve
from suture.reports.figures import curve as figures

EPOCHS, BATCH = 5, 128


def plain_loop(a: suture.Network, b: suture.Network, cut: str, data: suture.Data) -> float:
    """The stitched network's test accuracy, with nothing of Suture but the two halves."""
    prefix, suffix, (channels, *space) = a.upto(cut), b.after(cut), a.cuts.find(cut).shape
    torch.manual_seed(0)
    norm = (lambda: nn.BatchNorm2d(channels)) if space else nn.Identity
    join = nn.Conv2d(channels, channels, 1) if space else nn.Linear(channels, channels)
    stitch = nn.Sequential(norm(), join, norm()).train()
    steps = EPOCHS * (len(data.fit) // BATCH)
    optimiser = torch.optim.Adam(stitch.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(data.fit))[: steps // EPOCHS * BATCH].split(BATCH):
            with torch.no_grad():
                h = prefix(data.fit.images[chosen])
            loss = nn.functional.cross_entropy(suffix(stitch(h)), data.fit.labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    stitch.eval()
    with torch.no_grad():
        right = [
            (suffix(stitch(prefix(x))).argmax(1) == y).sum()
            for x, y in zip(data.score.images.split(500), data.score.labels.split(500), strict=True)
        ]
    return float(torch.stack(right).sum()) / len(data.score)


def interleaved(a: suture.Network, b: suture.Network, data: suture.Data, kept: Path) -> list[dict[str, object]]:
    rows = json.loads(kept.read_text()) if kept.exists() else []
    cache = Activations()
    for cut in a.cuts.names:
        if cut in [row["cut"] for row in rows]:
            continue
        with undisturbed():
            begun = time.process_time()
            plain = plain_loop(a, b, cut, data)
            middle = time.process_time()
            measured = suture.measure(curve(a, b, at=cut, data=data, controls=())[0], cache)
            end = time.process_time()
        ours = measured.scores.accuracy.value
        rows.append({"cut": cut, "plain": plain, "suture": ours, "plain_s": middle - begun, "suture_s": end - middle})
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v:14}" for k, v in rows[-1].items()), flush=True)
        kept.write_text(json.dumps(rows, indent=1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit-samples", type=int, default=10_000)
    given = parser.parse_args()
    make_all(given.data, given.folder, ["resnet-0", "resnet-1"])
    data = suture.load_data(given.data, name="cifar10").limited(fit=given.fit_samples)
    networks = [load(f"resnet-{seed}", given.folder, data, label) for seed, label in ((0, "A"), (1, "B"))]
    rows = interleaved(*networks, data, given.folder / "plain-loop.json")
    ratios = [row["plain_s"] / row["suture_s"] for row in rows]
    print(f"mean accuracy: plain loop {statistics.mean(r['plain'] for r in rows):.4f}, ", end="")
    print(f"Suture {statistics.mean(r['suture'] for r in rows):.4f}")
    print(
        f"CPU s: plain loop {sum(r['plain_s'] for r in rows):.0f}, Suture {sum(r['suture_s'] for r in rows):.0f}; ",
        end="",
    )
    print(f"median ratio per cut {statistics.median(ratios):.1f}")
    begun, cpu = time.perf_counter(), time.process_time()
    table = suture.run(suture.curve(*networks, data=data), store=given.folder)
    print(
        f"with all controls: {time.perf_counter() - begun:.0f} s wall, {time.process_time() - cpu:.0f} CPU s, ", end=""
    )
    print(f"{table['trial'].nunique()} trials, {(table['status'] == 'failed').sum()} rows failed")
    print(*figures.save(figures.curve(table), given.folder / "curve"))


if __name__ == "__main__":
    main()
