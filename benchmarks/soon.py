"""How soon there is something to see: two ResNet-20s on CIFAR-10, nine cuts, one core.

    python -m benchmarks.soon DATA [--steps N] [--only startup plan first quick]

``DATA`` is what ``suture --data`` takes: ``cifar10``, or a folder in the hub's parquet layout. The two networks (blocks
3, 3, 3 of width 16, cut after each block) are trained here for ``--steps`` steps of 128 images, since seconds and bytes
hardly depend on the weights; the scores that come out mean nothing. Every command is a process of its own with one
thread. Seconds are of the processor, the disk is the most that lay in the folder of the run.

``startup`` times commands that measure nothing, ``plan`` says what a curve will cost, ``first`` is a default curve
until its first picture stands on the screen (then it is ended), ``quick`` is ``--fit quick`` with all controls.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

import suture
from suture.data.images import as_floats

NETWORK = "zoo:resnet,blocks=(3,3,3),width=16"
CUTS = ",".join(f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1, 2))
PARTS = ("startup", "plan", "first", "quick")
FIRST = "Preview by"  #: the word by which the first picture is known on standard error


def train(data: suture.Data, steps: int, seed: int, path: Path) -> None:
    """Train a network a little and keep its weights."""
    torch.manual_seed(seed)
    built = suture.zoo.resolve(NETWORK, name="one")
    model, prepare = built.model.train(), built.network(data.example).preprocess
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        chosen = torch.randint(len(data.fit), (128,))
        loss = functional.cross_entropy(model(prepare(as_floats(data.fit.images[chosen]))), data.fit.labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    save_file(model.state_dict(), path)
    print(f"trained for {steps} steps: a last loss of {float(loss.detach()):.2f}", flush=True)


def look_at(pid: int) -> dict[str, float]:
    """Read the seconds and the memory of a process so far, its children's seconds included."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    held = dict(line.split()[:2] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "kB" in line)
    return {
        "CPU s": sum(map(int, spent)) / os.sysconf("SC_CLK_TCK"),
        "resident GB": int(held.get("RssAnon:", 0)) / 1e6,
        "mapped GB": (int(held.get("VmRSS:", 0)) - int(held.get("RssAnon:", 0))) / 1e6,
    }


def watch(command: list[str], folder: Path, until: str = "") -> dict[str, float]:
    """Run a command until it ends, or prints a word on standard error; return its seconds, memory and disk."""
    began = time.monotonic()
    whole = [sys.executable, "-m", "suture", *command]
    process = subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found: dict[str, float] = {}
    heard = threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            print(f"    {time.monotonic() - began:7.1f} s  {line.rstrip()}", flush=True)
            if until and until in line:
                heard.set()

    threading.Thread(target=listen, daemon=True).start()
    while not heard.is_set() and process.poll() is None:
        now = look_at(process.pid)
        du = subprocess.run(["du", "-sB1", folder], capture_output=True, text=True, check=False).stdout
        now["disk GB"] = int(du.split()[0]) / 1e9 if du else 0.0
        found = {name: max(value, found.get(name, 0)) for name, value in now.items()}
        time.sleep(0.1)
    found["wall s"] = time.monotonic() - began
    process.terminate()
    process.wait()
    return found


def main() -> None:
    """Measure, and print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    chosen = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    data = suture.load_data(chosen.data)
    with tempfile.TemporaryDirectory(prefix="soon-") as name:
        folder = Path(name)
        for seed, letter in enumerate("ab"):
            train(data, chosen.steps, seed, folder / f"{letter}.safetensors")
        del data
        networks = [f"{NETWORK}@{folder / letter}.safetensors" for letter in "ab"]
        curve = ["curve", *networks, "--data", chosen.data, "--at", CUTS, "--workers", "1"]
        small = ["curve", *networks, "--data", "digits", "--variant", "grey3", "--size", "32", "--at", "layer3.2"]
        few = [*small, "--fit", "least-squares", "--fit-samples", "200", "--score-samples", "100", "--controls", "none"]
        commands: dict[str, list[tuple[list[str], str]]] = {
            "startup": [
                ([*few, "--out", str(folder / "few")], ""),
                *(([*line.split(), str(folder / "few")], "") for line in ("status", "table")),
                *((line.split(), "") for line in ("--help", "curve --help", "curve a b --data c --on moon")),
            ],
            "plan": [(["plan", *curve], "")],
            "first": [([*curve, "--out", str(folder / "first")], FIRST)],
            "quick": [([*curve, "--fit", "quick", "--out", str(folder / "quick")], "")],
        }
        for part in chosen.only:
            for command, until in commands[part]:
                found = watch(command, Path(command[-1]) if "--out" in command else folder / "none", until)
                said = ", ".join(f"{value:.2f} {unit}" for unit, value in found.items())
                print(f"{part}: {said}: {' '.join(command[:2])} … {' '.join(command[-2:])}", flush=True)


if __name__ == "__main__":
    main()
