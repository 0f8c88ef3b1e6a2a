"""The Ray runner: the same bits as in one process, whoever dies; and words where there is no cluster."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from suture import Network, Trial, curve, run
from suture.common.errors import RunnerError
from suture.fits import Fit, LeastSquares, TaskLoss
from suture.measurement.trials import controls
from suture.measurement.trials.plans import Plan
from suture.runs.runners import Job, Local, Outcome, Queue, Ray
from suture.runs.runners import ray as cluster
from suture.runs.runners.tasks import Measuring
from trained import few_digits, hybrid, hybrids, wrap

pytestmark = pytest.mark.ray
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def here():
    """A cluster of two that this process is connected to."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suture.runs.runners.ray.cores", lambda: 2)
        with cluster.connect(None, retries=3):
            yield ray


@pytest.fixture
def nowhere(monkeypatch):
    """No cluster that this process is connected to."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)  # so that Ray, too, looks on loopback


def marked(path: str) -> int:
    """How often a mark was made, by whatever process."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def mark(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


@dataclass(frozen=True)
class Dies(Fit):
    """Takes its process along, as often as it is told to."""

    path: str
    times: int

    def fit(self, problem, stitch):
        if marked(self.path) < self.times:
            mark(self.path)
            os.kill(os.getpid(), signal.SIGKILL)
        return LeastSquares().fit(problem, stitch)


@dataclass(frozen=True)
class Spoils(Fit):
    """Changes what it was only lent."""

    def fit(self, problem, stitch):
        report = LeastSquares().fit(problem, stitch)
        problem.fit.activations.mul_(-1)
        problem.fit.expected().mul_(-1)
        return report


@dataclass(frozen=True)
class Passes:
    """A preprocessing that is seen at work."""

    path: str
    dies: int = 0
    factor: float = 1.0

    def __call__(self, images):
        if len(images) > 3:  # not a probe
            mark(self.path)
            if marked(self.path) <= self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return images * self.factor
        return images


def plan(a: Network | None = None, **settings) -> Plan:
    """Four trials and more."""
    settings = {"fit": LeastSquares(), "at": ("embed", "hidden"), "controls": (controls.itself,)} | settings
    one, two = hybrids()
    return curve(a or one, two, data=few_digits(), **settings)


def seen(path: Path, **settings) -> Network:
    """A network that tells when images go through it."""
    return Network(hybrid(0), example=few_digits().example, name="A", preprocess=Passes(str(path), **settings))


def timeless(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns="seconds")


def same(trials: list[Trial] | Plan, on: Ray | None = None) -> None:
    """Measured on Ray and in this process, a plan gives the same table."""
    on_ray = run(trials, on=on or Ray())
    assert_frame_equal(timeless(on_ray), timeless(run(trials, on=Local(workers=1))), check_exact=True)


def outcomes(trials: list[Trial] | Plan, on: Ray | None = None) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as scratch:
        found = (on or Ray()).run(Given(*map(Measuring, trials)), Path(scratch))
        return {task.key: outcome for task, outcome in found}


class Given:
    """A queue of tasks."""

    def __init__(self, *tasks: Job) -> None:
        self.tasks = deque(tasks)

    def take(self):
        return self.tasks.popleft() if self.tasks else None

    def hear(self, task, phase):
        """Show nothing."""

    @property
    def left(self):
        return len(self.tasks)

    @property
    def exhausted(self):
        return not self.tasks


# --- the same bits ----------------------------------------------------------------------------------------------------


def test_ray_measures_what_one_process_would(here):
    everything = plan(fit=TaskLoss(steps=4, check=2), controls=controls.DEFAULT)
    same(everything)


def test_records_and_stitches_are_the_same_bit_for_bit(here, tmp_path):
    trials = plan()
    on_ray, alone = outcomes(trials), dict(Local(workers=1).run(Given(*map(Measuring, trials)), tmp_path))  # type: ignore
    for task, outcome in alone.items():
        other = on_ray[task.key]
        assert other.tensors == outcome.tensors
        read = {"seconds": 0, "activations": []}  # which were there already depends on what was measured before
        assert outcome.record | read == other.record | read


@pytest.mark.parametrize("budget", [0, 60_000, "1 MB"])
def test_the_bits_do_not_depend_on_what_a_node_keeps(here, budget):
    same(plan(at=("relu", "embed", "hidden"), controls=()), Ray(disk=budget))


def test_images_go_through_a_network_once_on_a_node(here, tmp_path):
    trials = plan(seen(tmp_path / "seen"), at=("relu", "embed", "hidden"), controls=(controls.shuffled_pairs,), seeds=2)
    before = marked(str(tmp_path / "seen"))
    run(trials, on=Ray())
    data = few_digits()
    chunks = sum(-(-len(samples) // 256) for samples in (data.fit, data.validation, data.score))
    looks = marked(str(tmp_path / "seen")) - before - chunks  # at the first images, once in a worker
    assert 1 <= looks <= (os.cpu_count() or 1)


# --- what goes wrong there --------------------------------------------------------------------------------------------


def test_activations_that_are_not_finite_fail_a_trial_in_the_same_words(here, tmp_path):
    trials = plan(seen(tmp_path / "seen", factor=float("inf")), controls=())
    same(trials)
    assert run(trials, on=Ray())["error"].str.contains("of A at 'embed' on digits/fit.* are not finite").any()


def test_a_fit_that_changes_what_it_was_lent_spoils_nothing_for_others(here):
    trials = plan(fit=Spoils(), controls=()) + plan(controls=(), seeds=3) + plan(fit=Spoils(), controls=(), seeds=(7,))
    same(trials)


@dataclass(frozen=True)
class Bound(Fit):
    """Lives in one process only."""

    lock: object = field(default_factory=threading.Lock)

    def fit(self, problem, stitch):
        return LeastSquares().fit(problem, stitch)


def test_what_cannot_be_sent_fails_and_stops_nobody(here):
    trials = list(plan())
    trials[0] = replace(trials[0], fit=Bound())
    found = outcomes(trials)
    assert [found[trial.key].failed for trial in trials] == [True, False, False, False]
    error = found[trials[0].key].record["error"]
    assert "A → B at embed cannot be sent to another process: cannot pickle '_thread.lock' object" in error


# --- queues -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Says(Job):
    """A task that says where it ran."""

    what: str
    kind = "words"

    @property
    def key(self):
        return self.what

    @property
    def where(self):
        return self.what

    def run(self, activations):
        threads = torch.get_num_threads()
        return Outcome({"status": "ok", "pid": os.getpid(), "threads": threads}, b"x" * 300_000)

    def lost(self, reason):
        return Outcome({"status": "failed", "error": reason})


class OneAfterAnother(Given):
    """Has the next task only when the one before has ended."""

    waits = False

    def take(self):
        if self.waits or not self.tasks:
            return None
        self.waits = True
        return super().take()


def test_what_may_begin_only_when_something_else_has_ended_is_waited_for(here):
    queue: Queue = OneAfterAnother(Says("first"), Says("second"), Says("third"))
    order = []
    for task, outcome in Ray().run(queue, Path()):
        order.append(task.key)
        queue.waits = False
        assert outcome.record["pid"] != os.getpid()
        assert outcome.record["threads"] == 1
        assert len(outcome.tensors) == 300_000
    assert order == ["first", "second", "third"]


def test_a_queue_is_not_emptied_before_there_is_room(here):
    queue = Given(*(Says(str(i)) for i in range(40)))
    with closing(Ray().run(queue, Path())) as found:
        next(found)
        assert queue.left >= 40 - 2 * 2 - 2
        assert len(list(found)) == 39


def _wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- a cluster of its own ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trouble(Says):
    """A task that dies the first time, and sleeps for ever after."""

    def run(self, activations):
        mark(self.what)
        if marked(self.what) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        raise AssertionError("nobody ended it")


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
from pathlib import Path
import ray, psutil  # which comes with it
from suture.runs.runners import Ray
from test_ray import Given, Says, Trouble

def listening(process):
    try:
        return [c for c in process.net_connections("inet") if c.status == "LISTEN"]
    except psutil.NoSuchProcess:  # a worker that has just died, as one is to
        return []

for task, outcome in Ray().run(Given(Says("quick"), Trouble({path!r})), Path()):
    mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
    connections = [c for process in mine for c in listening(process)]
    print(outcome.record["status"], *{{c.laddr.ip.removeprefix("::ffff:") for c in connections}}, flush=True)
    print(*(p.pid for p in mine[1:]), flush=True)
"""


def test_a_cluster_of_its_own_listens_to_nobody_else_says_nothing_and_ends_with_the_run(tmp_path):
    path = str(tmp_path / "marks")
    code = SCRIPT.format(tests=str(TESTS), here=str(Path(__file__).parent), path=path)
    # An interrupt may leave a socket of Ray's own to the garbage.
    begun = [sys.executable, "-W", "error", "-W", "ignore:unclosed <socket:ResourceWarning", "-c", code]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline().split()
        assert first == ["ok", "127.0.0.1"], first or process.communicate(timeout=30)[1]
        children = [int(pid) for pid in process.stdout.readline().split()]
        _wait_for(lambda: marked(path) == 2)  # one worker has died, and another sleeps
        asked = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert time.monotonic() - asked < 15
    assert rest == ""
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "(raylet)" not in errors
    assert "worker died" not in errors
    _wait_for(lambda: not any(map(_alive, children)), 10)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# --- no cluster -------------------------------------------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_said_so_at_once(nowhere):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        begun = time.monotonic()
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(RunnerError, match=rf"no cluster of Ray answers at '{address}' .*ray start --head"):
                run(plan(), on=Ray(address))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_who_answers_but_is_not_ray_is_told_apart(nowhere, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RunnerError, match="the server there is not Ray"):
            run(plan(), on=Ray(f"127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


@pytest.mark.parametrize("address", ["nonsense", "http://host:6379", "host:port", ":6379", "ray://", "host:99999"])
def test_what_is_no_address_is_refused(nowhere, address):
    with pytest.raises(RunnerError, match=r"is not an address of Ray; give 'host:6379'"):
        run(plan(), on=Ray(address))


def test_auto_where_there_is_no_cluster_is_refused(nowhere, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: None)
    with pytest.raises(RunnerError, match="address='auto' finds no cluster of Ray"):
        run(plan(), on=Ray("auto"))


def test_another_cluster_than_the_one_at_hand_is_refused(here):
    with pytest.raises(RunnerError, match=r"connected to the cluster of Ray at .* so it cannot use 'far:6379'"):
        run(plan(), on=Ray("far:6379"))
    same_one = here.get_runtime_context().gcs_address
    assert len(outcomes(plan(controls=()), Ray(same_one))) == 2


def test_without_ray_the_remedy_is_an_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunnerError, match=r"Ray is not installed.*pip install 'suture\[ray\]'"):
        run(plan(), on=Ray())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus_per_trial": 4}, "has 1 CPU and 4 GPU for a trial; the most that one has is 2 CPU and 0 GPU"),
        ({"cpus_per_trial": 3}, "has 3 CPU for a trial; the most that one has is 2 CPU"),
    ],
)
def test_what_no_node_has_is_refused_before_any_work(here, asked, said):
    queue = Given(Says("never"))
    with pytest.raises(RunnerError, match=said):
        next(Ray(**asked).run(queue, Path()))
    assert queue.left == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpus_per_trial": -1}, "cpus_per_trial=-1"),
        ({"retries": -1}, "retries=-1"),
        ({"cpus_per_trial": 0}, "needs one of them"),
        ({"gpus_per_trial": 1.5}, "a share of one, or a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(RunnerError, match=said):
        Ray(**settings)


@pytest.mark.parametrize(
    ("device", "settings", "said"),
    [("cuda:0", {}, "gives its trials no GPU"), ("cuda:1", {"gpus_per_trial": 0.5}, "calls the GPU .* 'cuda:0'")],
)
def test_networks_on_a_gpu_need_one_there(here, device, settings, said):
    network = wrap(hybrid(0), "A")
    trials = plan(network)
    network.device = torch.device(device)
    with pytest.raises(RunnerError, match=f"A is on {device}, .*{said}"):
        Ray(**settings).prepared(trials)


def test_a_worker_with_another_version_is_refused(here, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "1.0")
    with pytest.raises(RunnerError, match=r"has torch .*, and the process that began the run has 1\.0.*on all nodes"):
        outcomes(plan(controls=()))


# --- deaths, last since new workers take their time -------------------------------------------------------------------


def test_whoever_dies_the_others_are_measured_as_ever(here, tmp_path):
    dies = plan(fit=Dies(str(tmp_path / "once"), 1), at="embed", controls=())
    always = plan(fit=Dies(str(tmp_path / "always"), 99), at="embed", controls=())
    passed = plan(seen(tmp_path / "passed", dies=1), at="hidden", controls=())  # dies where activations are computed
    table = run(dies + always + passed, on=Ray(retries=1))
    alone = run(dies + passed, on=Local(workers=1))
    lost = table["trial"] == always[0].key
    assert_frame_equal(timeless(table[~lost].reset_index(drop=True)), timeless(alone), check_exact=True)
    assert [marked(str(tmp_path / name)) for name in ("once", "always")] == [1, 2]
    said = "its worker died, and again when it was retried 1×: The worker died unexpectedly"
    assert table["error"][lost].str.contains(said).all()


def test_whoever_stops_listening_stops_the_work(here, tmp_path):
    path = str(tmp_path / "marks")
    mark(path)
    found = Ray().run(Given(Says("quick"), Trouble(path), Trouble(path), Trouble(path)), Path())
    next(found)
    _wait_for(lambda: marked(path) == 3)
    begun = time.monotonic()
    found.close()
    assert time.monotonic() - begun < 5
    assert here.is_initialized(), "a cluster that was there stays"
    _wait_for(lambda: here.available_resources().get("CPU") == 2, 10)
    assert marked(path) == 3, "who waited for room is not begun"


ALONE = """
import os, sys, threading, time
sys.path[:0] = [{tests!r}, {here!r}]
import suture
from suture.runs.progress import Silent
from suture.runs.runners import Ray
from suture.runs.store.store import Store
from test_ray import Naps, plan

class Kills(Silent):
    begun = 0
    def working_on(self, what, share=None):
        self.begun += 1
        if self.begun == 2:
            threading.Thread(target=self.kill).start()
    def kill(self):
        from ray._private import worker
        time.sleep(5)
        print(time.time(), flush=True)
        for process in worker._global_node.all_processes[{which!r}]:
            process.process.kill()

try:
    suture.run(plan(fit=Naps()), store={store!r}, on=Ray(), progress=Kills(), command="suture curve A B")
except suture.SutureError as error:
    print(time.time(), type(error).__name__, error)
print(Store({store!r}).failures())
"""


@dataclass(frozen=True)
class Naps(Fit):
    """Takes its time."""

    def fit(self, problem, stitch):
        time.sleep(600)


@pytest.mark.parametrize("which", ["raylet", "gcs_server"])
def test_a_run_whose_only_node_dies_ends_within_a_minute_and_says_how_to_go_on(tmp_path, which):
    code = ALONE.format(tests=str(TESTS), here=str(Path(__file__).parent), store=str(tmp_path / "run"), which=which)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    killed, said, failed = done.stdout.splitlines()
    ended, kind, reason = said.split(" ", 2)
    assert float(ended) - float(killed) < 60
    assert (kind, failed) == ("RunnerError", "{}")
    assert re.search(r"Ray.* trials are measured and kept in .*/run; continue with: suture curve A B$", reason)
