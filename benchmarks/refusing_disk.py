"""A disk that is full, or becomes read-only, in the middle of a run: the messages and the losses.

python benchmarks/refusing_disk.py

Each disk is a small file system in memory; it becomes read-only by a read-only one mounted over the results. Mounting
it needs root, or a system that lets a user mount in a name space of his own (``unshare``), which is tried.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from suture.runs.runners import Silent

SIZE = "40m"


def plan():  # type: ignore[no-untyped-def]
    import suture
    from suture.fits import LeastSquares
    from suture_papers.networks.architectures import convnet
    from suture_papers.training import Recipe, train

    data = suture.load_data("digits").limited(fit=300, score=260)
    a, b = (
        suture.Network(train(lambda: convnet(4), data.fit, Recipe(epochs=1), seed), example=data.example, name=name)
        for seed, name in enumerate("AB")
    )
    return suture.curve(a, b, data=data, fit=LeastSquares())


def mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True)


class Trouble(Silent):
    """Progress that makes trouble after some trials; a full disk is filled again, whatever is given up on it."""

    def __init__(self, disk: Path, kind: str, after: int) -> None:
        self.disk, self.kind, self.after = disk, kind, after

    def done(self, what: str, error: str | None) -> None:
        self.after -= 1
        if self.after == 0 and self.kind == "read-only":
            mount("-t", "tmpfs", "-o", "ro", "tmpfs", str(self.disk / "run" / "trials"))
        elif self.after <= 0 and self.kind == "full":
            with contextlib.suppress(OSError), open(self.disk / "filler", "ab") as file:
                while True:
                    file.write(b"x" * 4096)
                    file.flush()


def trouble(kind: str, workers: int) -> dict[str, object]:
    import suture
    from suture.runs.runners import Local
    from suture.runs.store.inspect import verify
    from suture.runs.store.store import Store

    trials = plan()
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder)
        mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder)
        try:
            said = "nothing"
            try:
                suture.run(trials, store=disk / "run", on=Local(workers=workers), progress=Trouble(disk, kind, 10))
            except suture.SutureError as error:
                said = f"{type(error).__name__}: {error}"
            if kind == "read-only":
                subprocess.run(["umount", disk / "run" / "trials"], check=True)
            else:
                (disk / "filler").unlink()
            kept = Store(disk / "run").finished()
            damaged = [str(finding) for finding in verify(disk / "run") if not finding.harmless]
            table = suture.run(trials, store=disk / "run", on=Local(workers=1))
        finally:
            subprocess.run(["umount", folder], check=True)
    alone = suture.run(trials, on=Local(workers=1))
    return {
        "disk": kind,
        "workers": workers,
        "said": said.replace(folder, "DISK"),
        "trials": len(trials),
        "measured before, kept": len(kept),
        "damaged": damaged,
        "failed after going on": int((table["status"] == "failed").sum()),
        "scores as if undisturbed": bool(table.drop(columns="seconds").equals(alone.drop(columns="seconds"))),
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if os.geteuid() != 0:
        os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.argv])
    for kind in ("full", "read-only"):
        for workers in (1, 2):
            print(json.dumps(trouble(kind, workers), indent=2), flush=True)
