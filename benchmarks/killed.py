"""Kill a run again and again, its driver or a worker, at random moments, and count the lost trials.

python benchmarks/killed.py [--rounds 100] [--seed 0] [--folder FOLDER]

Two small networks are stitched on the digits with 252 trials into one store, by a driver with two workers, which is
killed (SIGKILL) at a random moment, or one of its workers is; it is started again until it ends, and then another run
begins, until all rounds are done. After every kill each finished trial must still be there, bit for bit as it was, and
never be begun again; no file may be torn. At the end the scores must be those of a run that nobody disturbed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from suture.runs.progress import Progress

SEEDS = 6  # 3 seams × 7 (a trial and its controls) × 2 directions × 6 seeds = 252 trials


def plan(folder: Path):  # type: ignore[no-untyped-def]
    """Six seams of two small networks, with all controls; the networks are trained once into a store of their own."""
    import suture
    from suture.fits import LeastSquares
    from suture_papers.networks import BaseModel
    from suture_papers.training import Recipe, train_networks

    data = suture.load_data("digits").limited(fit=300, score=260)
    bases = [BaseModel("zoo:convnet,width=4", data.fit, Recipe(epochs=2), seed, name) for seed, name in enumerate("AB")]
    store = suture.Store.make(folder / "networks")
    train_networks(bases, store)
    a, b = (base.load(store) for base in bases)
    cuts = a.cuts.names[:: max(1, len(a.cuts) // 3)][:3]
    settings = {"data": data, "fit": LeastSquares(), "at": cuts, "seeds": SEEDS}
    return suture.curve(a, b, **settings) + suture.curve(b, a, **settings)


class Log(Progress):
    """Progress that writes down each trial before its work begins."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "a")  # noqa: SIM115 - for as long as the process lives

    def begin(self, total: int, done: int, noun: str = "trial") -> None:
        self._say(f"total {total} {done}")

    def working_on(self, what: str, share: object = None) -> None:
        self._say("began")

    def done(self, what: str, error: str | None) -> None:
        self._say(f"failed {error}" if error else "done")

    def end(self) -> None:
        self._say("end")

    def _say(self, line: str) -> None:
        print(f"{time.time()} {line}", file=self.file, flush=True)


def drive(folder: Path) -> None:
    """Make one run with two workers, which is then killed."""
    import suture
    from suture.runs.runners import Local
    from suture.runs.store.store import Store

    finished = Store.make(folder / "store").finished()
    original = Store.keep

    def keep(self, kind, key, record, tensors):  # type: ignore[no-untyped-def]
        if key in finished:
            with open(folder / "again", "a") as file:
                print(key, file=file)
        original(self, kind, key, record, tensors)

    Store.keep = keep  # type: ignore[method-assign]
    suture.run(plan(folder.parent), store=folder / "store", on=Local(workers=2), progress=Log(folder / "log"))


def snapshot(store: Path) -> dict[str, str]:
    """Every finished trial and a hash of all its files."""
    found = {}
    for folder in (store / "trials").glob("[!.]*"):
        content = b"".join(file.name.encode() + file.read_bytes() for file in sorted(folder.iterdir()))
        found[folder.name] = hashlib.sha256(content).hexdigest()
    return found


def workers_of(driver: int) -> list[int]:
    """The processes that a driver has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == driver and state != "Z":
            found.append(int(stat.parent.name))
    return found


def done(log: Path) -> int:
    return log.read_text().count("done") if log.exists() else 0


class Round:
    """One driver, and when it is killed."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.killed = folder, chance, ""
        self.before = snapshot(folder / "store")
        self.done = done(folder / "log")
        self.child = subprocess.Popen([sys.executable, __file__, "--drive", str(folder)])

    def play(self) -> str:
        """Wait for the moment, and kill; return the name of the killed process, or that the run ended before."""
        if self.chance.random() < 0.25:
            self._wait(self.chance.uniform(0, 14))
        else:
            while done(self.folder / "log") == self.done and self.child.poll() is None:
                time.sleep(0.01)
            self._wait(self.chance.uniform(0, 2))
        workers = workers_of(self.child.pid)
        if workers and self.chance.random() < 0.4:
            os.kill(self.chance.choice(workers), signal.SIGKILL)
            self.killed = "worker"
            self._wait(self.chance.uniform(0, 3))
        if self.child.poll() is None:
            self.child.kill()
            self.killed = f"{self.killed} and driver" if self.killed else "driver"
        self.child.wait()
        return self.killed or "nothing: it had ended"

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(seconds)


def bench(rounds: int, seed: int, folder: Path) -> dict[str, object]:
    import suture
    from suture.runs.runners import Local
    from suture.runs.store.inspect import verify
    from suture.runs.store.store import Store

    chance = random.Random(seed)
    started = time.time()
    reference = suture.run(plan(folder), on=Local(workers=1))
    print(f"undisturbed: {reference['trial'].nunique()} trials in {time.time() - started:.0f} s", flush=True)
    counts = {"kills": 0, "rounds": 0, "runs": 0, "lost": 0, "altered": 0, "measured again": 0, "torn": 0}
    counts |= {"failed": 0, "different scores": 0}
    done_per_round: list[int] = []
    while counts["rounds"] < rounds:
        counts["runs"] += 1
        run_folder = folder / f"run-{counts['runs']}"
        run_folder.mkdir(parents=True)
        ended = False
        while not ended and counts["rounds"] < rounds:
            counts["rounds"] += 1
            disturbed = Round(run_folder, chance)
            killed = disturbed.play()
            counts["kills"] += killed.count("worker") + killed.count("driver")
            after = snapshot(run_folder / "store")
            counts["lost"] += len(disturbed.before.keys() - after.keys())
            counts["altered"] += sum(after.get(key) != value for key, value in disturbed.before.items())
            counts["torn"] += len(verify(run_folder / "store")) if after else 0
            done_per_round.append(len(after) - len(disturbed.before))
            ended = disturbed.child.returncode == 0
            print(f"round {counts['rounds']}: {killed}; {len(after)} trials are finished", flush=True)
        table = suture.run(plan(folder), store=run_folder / "store", on=Local(workers=2))
        counts["failed"] += int((table["status"] == "failed").sum())
        again = run_folder / "again"
        counts["measured again"] += len(again.read_text().split()) if again.exists() else 0
        same = table.drop(columns="seconds").equals(reference.drop(columns="seconds"))
        counts["different scores"] += not same
        pd.testing.assert_frame_equal(
            table.drop(columns="seconds"), reference.drop(columns="seconds"), check_exact=True
        )
        assert len(Store(run_folder / "store").finished()) == reference["trial"].nunique()
    return counts | {
        "trials a run": int(reference["trial"].nunique()),
        "median trials finished between two kills": statistics.median(done_per_round),
        "seconds": round(time.time() - started),
    }


def main(
    bench: Callable[[int, int, Path], dict[str, object]], drive: Callable[[Path], None], text: str, rounds: int
) -> None:
    """Read the command line of a benchmark whose driver is killed, and run the benchmark, or its driver."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--drive", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive is not None:
        drive(given.drive)
        return
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(bench(given.rounds, given.seed, given.folder or Path(temporary)), indent=2))


if __name__ == "__main__":
    main(bench, drive, __doc__, 100)
