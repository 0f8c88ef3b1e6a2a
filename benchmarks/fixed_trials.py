"""A fixed set of trials whose scores are recorded, so that a change which should change no number can show it.

    python benchmarks/fixed_trials.py record DATA        writes benchmarks/results/fixed_trials.json
    python benchmarks/fixed_trials.py check DATA         compares with it, bit for bit; exit code 1 where one differs

``DATA`` is a folder with ``cifar10/`` in the hub's parquet layout. The set: the demo (two networks on digits, with all
controls), a curve of six cuts on CIFAR-10 by ``Quick``; by the default fit a 4 x 4 matrix on digits and one trial of
every family; and one of every fit.
Its networks are trained here in a few seconds, by plain torch, so that nothing but the measuring code is under test.
Of one thread ``--only families fits`` takes eight minutes, and the rest longer. On another processor the last digits
may differ: record before the change, on the machine on which you check. A trial is found by its place in its plan; its
key may change (with the versions of its parts), its numbers may not.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch
from torch import nn

import suture
from suture import fits
from suture.core import stitches
from suture_papers import recipes

RECORD = Path(__file__).parent / "results" / "fixed_trials.json"
SHORT = {"steps": 40, "check": 20}


def trained(model: nn.Module, data: suture.Data, epochs: int = 1) -> nn.Module:
    """Train a model by Adam on the first 2,000 images to fit, one thread, batches of 100 in order."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    images, labels = data.fit.images[:2000].float().div(255), data.fit.labels[:2000]
    for _ in range(epochs):
        for i in range(0, len(images), 100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[i : i + 100]), labels[i : i + 100]).backward()
            optimiser.step()
    return model.eval()


def network(name: str, data: suture.Data, seed: int, width: int, epochs: int = 1) -> suture.Network:
    """Return a convolutional network of six layers, a little trained."""
    torch.manual_seed(seed)
    channels = data.example.shape[1]
    layers: list[nn.Module] = []
    for i, (out, stride) in enumerate(((width, 1), (width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2))):
        layers += [nn.Conv2d(channels if i == 0 else layers[-3].out_channels, out, 3, stride, 1), nn.BatchNorm2d(out)]
        layers += [nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))
    return suture.Network(trained(model, data, epochs), example=data.example, name=name)


def vit(name: str, data: suture.Data, seed: int) -> suture.Network:
    """Return a small vision transformer, hardly trained."""
    import timm

    torch.manual_seed(seed)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=data.example.shape[-1], patch_size=4, in_chans=data.example.shape[1], embed_dim=24, depth=2,
        num_heads=2, num_classes=10,
    )  # fmt: skip
    return suture.Network(trained(model, data), example=data.example, name=name)


def plans(folder: Path) -> dict[str, suture.Plan]:
    """Return the plans by name."""
    from suture.cli.demo import demo_fit, two_networks

    digits = suture.load_data("digits")
    a, b = two_networks(digits, lambda said: None)
    cifar = suture.load_data(str(folder / "cifar10")).limited(fit=4000, score=2000)
    c, d = (network(name, cifar, seed, 12, 2) for name, seed in (("C", 0), ("D", 1)))
    plain = {"controls": (), "data": digits}
    v = vit("V", digits, 2)
    maps, tokens = "stage1.relu", v.cuts.names[3]
    families = suture.Plan(())
    for family, sender, receiver, at in (
        (stitches.Identity(), a, b, maps), (stitches.Linear(), a, b, "flatten"), (stitches.Conv(3), a, b, maps),
        (stitches.LowRank(3), a, b, maps), (stitches.Orthogonal(), a, b, maps), (stitches.Permutation(), a, b, maps),
        (stitches.Diagonal(), a, b, maps), (stitches.FullLinear(), a, b, "stage3.pool"),
        (stitches.ConvLinear(), a, b, ("stage3.pool", "flatten")),
        (stitches.StridedConv(), a, b, ("stage2.relu", "stage3.relu")),
        (stitches.UpsampledConv(), a, b, ("stage3.relu", "stage1.relu")),
        (stitches.MapsToTokens(), a, v, (maps, tokens)), (stitches.TokensToMaps(), v, a, (tokens, maps)),
        (stitches.TokensToTokens(), v, v, tokens),
    ):  # fmt: skip
        families += suture.curve(sender, receiver, at=[at], stitch=family, **plain)
    each = {
        "LeastSquares": fits.LeastSquares(), "Random": fits.Random(), "Converged": fits.Converged(),
        "TaskLoss": fits.TaskLoss(**SHORT), "SoftLabels": fits.TaskLoss(targets=fits.SoftLabels(), **SHORT),
        "MatchActivations": fits.MatchActivations(**SHORT),
        "BestOf": fits.BestOf((fits.LeastSquares(), fits.TaskLoss(**SHORT))),
        **{name: recipes.for_epochs(recipe, 1, 1000) for name, recipe in recipes.RECIPES.items()},
        "Quick": fits.Quick(),
    }  # fmt: skip
    fitted = suture.Plan(())
    for fit in each.values():
        fitted += suture.curve(a, b, at=["stage2.relu"], fit=fit, **plain)
    chosen_cuts = c.cuts.names[:: max(1, len(c.cuts) // 6)][:6]
    return {
        "demo": suture.curve(a, b, data=digits, fit=demo_fit()),
        "curve": suture.curve(c, d, data=cifar, at=list(chosen_cuts), fit=fits.Quick()),
        "matrix": suture.matrix(a, b, cuts=a.cuts.names[1:9:2], **plain),
        "families": families,
        "fits": fitted,
    }


def measured(folder: Path, only: list[str]) -> dict[str, object]:
    """Measure the plans; by plan and place, the scores with their intervals and a hash of the stitch."""
    found: dict[str, object] = {}
    for name, plan in plans(folder).items():
        if only and name not in only:
            continue
        for i, trial in enumerate(plan):
            result = suture.measure(trial)
            tensors = hashlib.sha256()
            for _, tensor in sorted(result.stitch.state_dict().items()):
                tensors.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            found[f"{name} {i}: {trial.where}, {trial.family} by {trial.fit}"] = {
                "scores": {n: [e.value, e.low, e.high] for n, e in result.scores.items()},
                "penalty": [result.penalty.value, result.penalty.low, result.penalty.high] if result.penalty else None,
                "representation_error": result.representation_error,
                "steps": result.steps,
                "stitch": tensors.hexdigest()[:16],
            }
            print(f"{name} {i + 1}/{len(plan)}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="plans: demo, curve, matrix, families, fits")
    parser.add_argument("--to", type=Path, default=RECORD)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(json.dumps(measured(chosen.data, chosen.only)))
    if chosen.what == "record":
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
        chosen.to.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        print(f"{len(found)} trials recorded in {chosen.to.name}")
        return 0
    before = json.loads(chosen.to.read_text(encoding="utf-8"))
    # what a trial is called may be renamed with its classes; its place may not
    old = {name.partition(":")[0]: value for name, value in before.items()}
    old = {name: value for name, value in old.items() if not chosen.only or name.split()[0] in chosen.only}
    new = {name.partition(":")[0]: (name, value) for name, value in found.items()}
    other = [name for place, (name, value) in new.items() if old.get(place) != value]
    print("\n".join([f"differs: {name}" for name in other]))
    print(f"{len(new) - len(other)} of {len(old)} trials are the same, bit for bit")
    return 0 if not other and len(new) == len(old) else 1


if __name__ == "__main__":
    sys.exit(main())
