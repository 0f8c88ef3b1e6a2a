"""One plan on a cluster of three nodes, undisturbed, and with a worker, a node and the driver killed under way.

    python benchmarks/ray_nodes.py [--trials 60] [--folder FOLDER]

The nodes are those of Ray's own test cluster, all on this machine and on its loopback device: a head without a core and
two nodes of one core each. A driver of its own process stitches two small networks on the digits with that many trials
into a store. When a third of them is there, (b) a worker process at work is killed (SIGKILL); (c) a node is, and then
another joins; (d) the driver is, and is begun again. Each time the table must be that of the first run, all but the
seconds, bit for bit. Prints what each cost in seconds, from the start of the driver to its end, and writes
``ray-nodes.json`` to the folder.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # servers listen on the loopback device alone
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(32)),
    "OMP_NUM_THREADS": "1",
}

import pandas as pd
import ray
from ray.cluster_utils import Cluster

DEADLINE = 900.0  #: seconds for one run, after which it counts as hung


def plan(folder: Path, trials: int):  # type: ignore[no-untyped-def]
    """That many trials of two small networks, which are trained once and kept in the folder."""
    from safetensors.torch import save_file

    import suture
    from suture import load_network
    from suture.fits import TaskLoss
    from suture_papers.networks.architectures import convnet
    from suture_papers.networks.recipes import DIGITS
    from suture_papers.training import train

    data = suture.load_data("digits")
    weights = {name: folder / f"{name}.safetensors" for name in "AB"}
    for seed, file in enumerate(weights.values()):
        if not file.exists():
            save_file(train(lambda: convnet(8), data.fit, DIGITS, seed).state_dict(), file)
    a, b = (load_network("zoo:convnet,width=8", file, example=data.example, name=n) for n, file in weights.items())
    seeds = -(-trials // len(a.cuts))
    return suture.curve(a, b, data=data, fit=TaskLoss(steps=200, check=50), controls=(), seeds=seeds)[:trials]


def drive(address: str, folder: Path, store: Path, trials: int) -> None:
    """Run as the driver."""
    import suture

    suture.run(plan(folder, trials), store=store, on=suture.Ray(address=address))


class Nodes:
    """A head without a core, and two nodes with one each."""

    def __init__(self) -> None:
        quiet = {"include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **quiet})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]

    def replace_one(self) -> None:
        """Kill a node with all its processes; a little later another joins."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)
        time.sleep(1)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


class Run:
    """One run of the plan, in a process of its own."""

    def __init__(self, nodes: Nodes, folder: Path, name: str, trials: int) -> None:
        self.nodes, self.trials, self.store = nodes, trials, folder / name
        self.command = [sys.executable, __file__, "--trials", str(trials), "--folder", str(folder)]
        self.command += ["--drive", nodes.cluster.address, "--store", str(self.store)]
        self.driver = subprocess.Popen(self.command)

    @property
    def done(self) -> int:
        """How many trials are in the store."""
        return len(list(self.store.glob("trials/*/done")))

    def wait_for_a_third(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while self.done < self.trials // 3:
            assert self.driver.poll() is None, "the driver ended too soon"
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.05)

    def table(self) -> pd.DataFrame:
        """Wait for the end."""
        assert self.driver.wait(timeout=DEADLINE) == 0, "the driver failed"
        found = pd.read_parquet(self.store / "table.parquet")
        assert (found["status"] == "ok").all(), found["error"].unique()
        return found.drop(columns="seconds")

    # --- disturbances -------------------------------------------------------------------------------------------------

    def kill_worker(self) -> None:
        import psutil  # comes with Ray, which makes it known

        ours = [child for child in psutil.Process().children(recursive=True) if _works(child.pid)]
        os.kill(ours[0].pid, signal.SIGKILL)

    def kill_node(self) -> None:
        self.nodes.replace_one()

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.wait()
        self.driver = subprocess.Popen(self.command)


def _works(pid: int) -> bool:
    """Whether a process measures a trial, after which Ray calls it."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return title.startswith("ray::") and "→" in title


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        return drive(given.drive, given.folder, given.store, given.trials)
    with tempfile.TemporaryDirectory(prefix="suture-ray-") as temporary:
        return measure(Path(given.folder or temporary), given.trials)


def measure(folder: Path, trials: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plan(folder, trials)
    disturbances: dict[str, Callable[[Run], None] | None] = {
        "undisturbed": None,
        "worker killed": Run.kill_worker,
        "node killed, another joins": Run.kill_node,
        "driver killed, begun again": Run.kill_driver,
    }
    nodes = Nodes()
    rows, first = [], None
    try:
        for name, disturb in disturbances.items():
            table, row = measured(nodes, folder, name, trials, disturb)
            first = table if first is None else first
            rows.append(row | {"same": table.equals(first), "lost": row["seconds"] - (rows or [row])[0]["seconds"]})
            print("{name:<28} {seconds:6.1f} s  {lost:+6.1f} s  same table: {same}".format(**rows[-1]), flush=True)
    finally:
        nodes.cluster.shutdown()
    found = {"trials": trials, "ray": ray.__version__, "runs": rows}
    (folder / "ray-nodes.json").write_text(json.dumps(found, indent=1))
    assert all(row["same"] for row in rows)


def measured(nodes, folder, name, trials, disturb):  # type: ignore[no-untyped-def]
    begun = time.perf_counter()
    run = Run(nodes, folder, name.replace(" ", "-").replace(",", ""), trials)
    at = None
    if disturb is not None:
        run.wait_for_a_third()
        at = run.done
        disturb(run)
    table = run.table()
    return table, {"name": name, "seconds": time.perf_counter() - begun, "disturbed_at": at}


if __name__ == "__main__":
    main()
