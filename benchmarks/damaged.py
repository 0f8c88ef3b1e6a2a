"""Kill a run, damage every cached activation that it left, resume it, and count the damaged and lost ones.

python -m benchmarks.damaged [--rounds 10] [--seed 0] [--folder FOLDER]

Two small networks are stitched on the digits with 42 trials into one store, by a driver with two workers, which is
killed (SIGKILL) at a random moment. Every file of activations in the store is then damaged in one of five ways, and the
run is resumed, and resumed once more. The scores must be those of a run that nobody disturbed, and no trial may end as
failed for good: what failed in the first resumed run is printed with its error, and must be measured by the second.

Each round is written to ``rounds.jsonl`` in the folder when it ends, so the loop itself may be stopped and goes on.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import killed

killed.SEEDS = 1  # 3 seams × 7 (a trial and its controls) × 2 directions = 42 trials


def drive(folder: Path) -> None:
    """Run with two workers, and write each beginning and end of a trial to ``log``; this process is killed."""
    import suture
    from suture.runs.runners import Local

    log = killed.Log(folder / "log")
    suture.run(killed.plan(folder.parent), store=folder / "store", on=Local(workers=2), progress=log)


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file in place, as a disk may; return how."""
    content = bytearray(path.read_bytes())
    how = chance.choice(("a bit", "its end", "zeros", "its header", "something behind it"))
    at = chance.randrange(len(content))
    match how:
        case "a bit":
            content[at] ^= 1 << chance.randrange(8)
        case "its end":
            del content[at:]
        case "zeros":
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        case "its header":
            content[chance.randrange(min(300, len(content)))] ^= 1 << chance.randrange(8)
        case "something behind it":
            content += chance.randbytes(chance.randrange(1, 64))
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate(len(content))
    return how


def begin_and_kill(folder: Path, chance: random.Random) -> bool:
    """Begin a run and kill its driver when some trials are done and activations lie there; say if it was killed."""
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.damaged", "--drive", str(folder)])
    wanted = chance.randrange(1, 30)
    activations = folder / "store" / "activations"
    while child.poll() is None:
        if killed.done(folder / "log") >= wanted and any(activations.glob("[!.]*.safetensors")):
            break
        time.sleep(0.01)
    alive = child.poll() is None
    workers = killed.workers_of(child.pid)
    child.kill()
    child.wait()
    for worker in workers:  # which end by themselves when their driver is gone
        while Path(f"/proc/{worker}").exists():
            time.sleep(0.01)
    return alive


def play(folder: Path, reference: pd.DataFrame, chance: random.Random) -> dict[str, Any]:
    """Play one round in a folder; return its record."""
    import suture
    from suture.runs.runners import Local

    folder.mkdir(parents=True)
    was_killed = begin_and_kill(folder, chance)
    files = sorted((folder / "store" / "activations").glob("[!.]*.safetensors")) if was_killed else []
    how = [damage(path, chance) for path in files if path.is_file()]
    tables = [suture.run(killed.plan(folder.parent), store=folder / "store", on=Local(workers=2)) for _ in range(2)]
    errors = [sorted({*table.loc[table["status"] == "failed", "error"]}) for table in tables]
    one, other = (table.drop(columns="seconds") for table in (tables[-1], reference))
    return {
        "killed": was_killed,
        "damaged": {kind: how.count(kind) for kind in sorted({*how})},
        "failed, then measured": errors[0],
        "failed for good": errors[1],
        "other scores": not one.equals(other),
    }


def bench(rounds: int, seed: int, folder: Path) -> dict[str, Any]:
    """Play the rounds that are not written yet; return the counts of all."""
    import suture
    from suture.runs.runners import Local

    written = folder / "rounds.jsonl"
    found = [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []
    reference = suture.run(killed.plan(folder), on=Local(workers=1)) if len(found) < rounds else pd.DataFrame()
    for number in range(len(found), rounds):
        place = folder / f"round-{number}"
        with contextlib.suppress(FileNotFoundError):  # of a round that was stopped
            shutil.rmtree(place)
        result = play(place, reference, random.Random(f"{seed} {number}"))
        shutil.rmtree(place)
        found.append(result)
        with open(written, "a") as file:
            print(json.dumps(result), file=file, flush=True)
            os.fsync(file.fileno())
        print(f"round {number}: {json.dumps(result)}", flush=True)
    return {
        "rounds": len(found),
        "killed": sum(one["killed"] for one in found),
        "files damaged": sum(sum(one["damaged"].values()) for one in found),
        "rounds with failures that the next run measured": sum(bool(one["failed, then measured"]) for one in found),
        "rounds with failures for good": sum(bool(one["failed for good"]) for one in found),
        "rounds with other scores": sum(one["other scores"] for one in found),
    }


if __name__ == "__main__":
    killed.main(bench, drive, __doc__, 10)
