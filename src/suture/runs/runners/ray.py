"""Trials on a cluster of Ray.

Every task of ours is one of Ray's, which schedules it and begins it again if its worker dies. Networks and data are put
once into the memory that the nodes share, and fetched once by each. Activations are files, as on this machine: a prefix
runs once on each node, however many trials want it. Only the process that began the run knows what was planned and
keeps results.

Left alone, Ray waits minutes for an address that does not answer, waits for ever for a GPU that no node has, and prints
what happens to its workers between the caller's own lines. So addresses and resources are checked before, and it is
told to be silent. A cluster that is started here listens on the loopback device alone.
"""

import os
import platform
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from unittest.mock import patch
from urllib.parse import urlsplit

import torch

from suture.common.devices import parse_device
from suture.common.errors import RunnerError, SutureError, may_be_of_machine
from suture.common.seeds import digest
from suture.common.sizes import cores, parse_size
from suture.core.activations.cache import Activations
from suture.core.activations.disk_cache import ActivationFolder, disk_budget
from suture.core.saving import suture_version
from suture.measurement.trials.trial import Trial
from suture.measurement.trials.versions import list_versions
from suture.runs.runners.tasks import POLL, Job, Outcome, Outcomes, Queue, Runner
from suture.runs.runners.transport import Packer, Payload, Unpacker

LOOK = 2.0  #: seconds between two looks at how large the cluster is
AHEAD = 2  #: tasks handed out for each that can run, so that no worker waits for the next
LOST = 30.0  #: seconds without a node for a trial, after which none is waited for; Ray itself would wait for ever
PATIENCE = 3.0  #: seconds to wait for an answer at an address
CLIENT_PORT = 10001  #: where a cluster listens for ray://
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # of HTTP/2, which gRPC speaks, with empty settings
_SETTINGS = 4  # the type of the frame that it answers with


@final
@dataclass(frozen=True)
class Ray(Runner):
    """A cluster of Ray; the scores are those of one process, bit for bit.

    ``address`` is ``"host:6379"``, ``"ray://host:10001"``, or ``"auto"`` for a cluster that this machine belongs to. By
    default it is the cluster that this process is connected to already (by ``ray.init`` with what it needs there, such
    as a ``runtime_env``), else one of this machine's cores, which ends with the run. The parts of trials must be
    importable on every node, or defined in the script itself.

    ``cpus_per_trial`` and ``gpus_per_trial`` are the resources that Ray sets aside for a trial, which computes with one
    thread. With ``gpus_per_trial=0.25`` four trials share a GPU, and each puts its networks there. A trial whose worker
    or node dies is begun again, at most ``retries`` times. ``disk`` is each node's budget for activations, as for
    ``Local``: on this machine they lie in the store, on others in Ray's own folder of the session.
    """

    address: str | None = None
    cpus_per_trial: float = 1
    gpus_per_trial: float = 0
    retries: int = 3
    disk: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("cpus_per_trial", "gpus_per_trial", "retries"):
            if getattr(self, name) < 0:
                raise RunnerError(f"Ray({name}={getattr(self, name)}): give 0 or more")
        if self.cpus_per_trial + self.gpus_per_trial == 0:
            raise RunnerError("Ray(cpus_per_trial=0, gpus_per_trial=0): a trial needs one of them")
        if self.gpus_per_trial > 1 and self.gpus_per_trial % 1:
            raise RunnerError(f"Ray(gpus_per_trial={self.gpus_per_trial}): give a share of one, or a whole number")
        if self.disk is not None:
            parse_size(self.disk)

    @property
    def device(self) -> str | None:
        """The default device of trials: a GPU, if Ray sets one aside."""
        return "cuda" if self.gpus_per_trial else None

    def prepared(self, trials: Sequence[Trial], device: str | None = None) -> "Ray":
        """Return itself. Raises ``RunnerError`` if Ray is not there, or would give trials no device to run on."""
        check_address(self.address)
        networks = {network.name: network.device for trial in trials for network in trial.seam.networks}
        wanted = {"every trial": parse_device(device)} if device is not None else networks
        for what, place in wanted.items():
            if place.type != "cpu" and not self.gpus_per_trial:
                raise RunnerError(
                    f"{what} is on {place}, and Ray(gpus_per_trial=0) gives its trials no GPU; say "
                    "Ray(gpus_per_trial=0.25), for instance, or device='cpu'"
                )
            if place.index:
                raise RunnerError(
                    f"{what} is on {place}, and Ray calls the GPU that it gives a trial 'cuda:0'; say device='cuda'"
                )
        return self

    @property
    def needed(self) -> dict[str, float]:
        """The resources of one trial, by Ray's names."""
        return {"CPU": self.cpus_per_trial, "GPU": self.gpus_per_trial}

    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Do the tasks on the cluster.

        Raises ``RunnerError`` if there is no cluster, if none of its nodes has the resources of a trial, or if a node
        has other versions than this machine.
        """
        running: dict[Any, Job] = {}
        with connect(self.address, self.retries) as ray:
            check_resources(ray, self.needed)
            options = {"num_cpus": self.cpus_per_trial, "num_gpus": self.gpus_per_trial, "max_retries": self.retries}
            do = ray.remote(_do)
            driver = ray.put(Driver(tuple(sys.path), _versions(), platform.node(), str(scratch.resolve()), self.disk))
            packer, parts = Packer(), dict[str, Any]()
            window, looked, alive = 0, -LOOK, time.monotonic()
            try:
                while running or not queue.exhausted:
                    if time.monotonic() - looked >= LOOK:  # the cluster may have grown, or shrunk
                        looked = time.monotonic()
                        slots = count_slots(ray, self.needed) if check_answers(ray) else 0
                        window, alive = max(2, AHEAD * slots), looked if slots else alive
                        if looked - alive > LOST:
                            raise RunnerError(f"for {LOST:.0f} seconds the cluster of Ray has had no node for a trial")
                    while len(running) < window and (task := queue.take()) is not None:
                        try:
                            payload = packer.pack(task)
                            parts |= {key: ray.put(packer.part(key)) for key in payload.parts if key not in parts}
                        except SutureError as error:  # it cannot be sent
                            yield task, task.lost(str(error))
                            continue
                        given = {key: parts[key] for key in payload.parts}
                        running[
                            do.options(name=task.where, retry_exceptions=False, **options).remote(
                                payload, given, driver
                            )
                        ] = task
                    if not running:
                        time.sleep(POLL)
                        continue
                    ended, _ = ray.wait(list(running), timeout=POLL)
                    for ref in ended:
                        task = running.pop(ref)
                        yield task, self._outcome(ray, ref, task)
            finally:
                for ref in running if ray.is_initialized() else ():
                    ray.cancel(ref, force=True)

    def _outcome(self, ray: Any, ref: Any, task: Job) -> Outcome:
        """Return a task's outcome. Raises ``RunnerError`` if its worker differs from this machine, or Ray has died."""
        try:
            outcome: Outcome = ray.get(ref)
            return outcome
        except RunnerError as error:
            raise RunnerError(str(getattr(error, "cause", error))) from error
        except ray.exceptions.RayTaskError as error:
            lost = task.lost(f"{type(error.cause).__name__}: {error.cause}")
            return lost.of_machine() if may_be_of_machine(error.cause) else lost
        except ray.exceptions.RayError as error:
            check_answers(ray)
            reason = str(error).strip().partition("\n")[0]
            return task.lost(f"its worker died, and again when it was retried {self.retries}×: {reason}").of_machine()


# --- on the nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Driver:
    """The process that began the run: its import path, the versions that every node must match, and its cache."""

    path: tuple[str, ...]
    versions: Mapping[str, str]
    host: str
    scratch: str
    disk: int | str | None


_parts: dict[str, Any] = {}  # references to the parts of the payload that is being opened


def _fetch(key: str) -> bytes:
    import ray

    content: bytes = ray.get(_parts[key])
    return content


_unpacker = Unpacker(_fetch)


def _versions() -> dict[str, str]:
    parts = digest(sorted((name, version) for name, version in list_versions().items() if version != 1))[:12]
    return {"suture": suture_version(), "parts": parts, "torch": torch.__version__}


def _do(payload: Payload, parts: Mapping[str, Any], driver: Driver) -> Outcome:
    """Do a task in a worker of Ray."""
    from ray._private import worker

    for name, here in _versions().items():
        if here != driver.versions[name]:
            raise RunnerError(
                f"{platform.node()} has {name} {here}, and the process that began the run has "
                f"{driver.versions[name]}, so results may differ; install the same on all nodes"
            )
    torch.set_num_threads(1)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of libraries; ours are errors
    sys.path += [folder for folder in driver.path if folder not in sys.path]
    _parts.clear()
    _parts.update(parts)
    task = _unpacker.unpack(payload)
    assert isinstance(task, Job)
    at_home = platform.node() == driver.host and os.path.isdir(driver.scratch)
    node: Any = worker.global_worker.node
    session = Path(node.get_session_dir_path())
    scratch = Path(driver.scratch) if at_home else session / "suture"
    return task.run(Activations(disk=ActivationFolder(scratch, disk_budget(driver.disk, session))))


# --- the cluster ------------------------------------------------------------------------------------------------------


def import_ray() -> Any:
    """Return the module ``ray``. Raises ``RunnerError`` if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise RunnerError(f"Ray is not installed ({error}); install it: pip install 'suture[ray]'") from error
    return ray


def check_address(address: str | None) -> None:
    """Raise ``RunnerError`` if no cluster of Ray answers at an address, or this process is connected to another."""
    ray = import_ray()
    if ray.is_initialized():
        connected_to = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected_to):
            raise RunnerError(
                f"this process is connected to the cluster of Ray at {connected_to} already, so it cannot use "
                f"'{address}'; leave address out, or call ray.shutdown() first"
            )
    elif address is not None:
        _check_answer(address)


def _check_answer(address: str) -> None:
    from ray._private import services

    found = address
    if address == "auto":
        try:
            found = str(services.canonicalize_bootstrap_address_or_die(address))
        except Exception as error:  # Ray raises several, by version
            raise RunnerError(
                "address='auto' finds no cluster of Ray on this machine; start one with ray start --head, give "
                "'host:port', or leave address out to run on this machine alone"
            ) from error
    client = found.startswith("ray://")
    try:
        parts = urlsplit(found if client else f"//{found}")
        host, port = parts.hostname, parts.port or (CLIENT_PORT if client else None)
    except ValueError:
        host, port = None, None
    if host is None or port is None or "/" in found.removeprefix("ray://"):
        raise RunnerError(f"'{address}' is not an address of Ray; give 'host:6379', 'ray://host:{CLIENT_PORT}', 'auto'")
    host = host if client else services.resolve_ip_for_localhost(host)  # as Ray will
    try:
        with socket.create_connection((host, port), PATIENCE) as connection:
            if "RAY_USE_TLS" not in os.environ:
                connection.sendall(_PREFACE)
                with connection.makefile("rb") as answer:
                    if answer.read(9)[3:4] != bytes([_SETTINGS]):
                        raise OSError("the server there is not Ray; give the port of ray start, not the dashboard's")
    except OSError as error:
        raise RunnerError(
            f"no cluster of Ray answers at '{address}' ({host}:{port}: {error}); start one with ray start --head "
            "--port=6379, give the address that it prints, or leave address out to run on this machine"
        ) from error


@contextmanager
def connect(address: str | None, retries: int) -> Iterator[Any]:
    """Yield the module ``ray``, connected; a cluster that was there before, or a connection, is left as it was.

    Raises ``RunnerError`` if that fails.
    """
    ray = import_ray()
    check_address(address)
    if ray.is_initialized():
        yield ray
        return
    from ray._private import worker

    with patch.object(worker, "_worker_logs_enabled", False, create=True):
        try:
            _init(ray, address, retries)
            yield ray
        finally:
            ray.shutdown()


def _init(ray: Any, address: str | None, retries: int) -> None:
    from ray._private import ray_constants

    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    try:
        with warnings.catch_warnings(), ExitStack() as patched:
            warnings.simplefilter("ignore")  # of what will change in Ray
            if address is None:  # what makes its servers listen on the loopback device alone
                name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
                patched.enter_context(patch.dict(os.environ, {name: "0"}))
                patched.enter_context(patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False))
                own = {"task_oom_retries": retries}  # else without end
                ray.init("local", num_cpus=cores(), include_dashboard=False, _system_config=own, **given)
            else:
                level = os.environ.get("RAY_BACKEND_LOG_LEVEL", "fatal")
                patched.enter_context(patch.dict(os.environ, {"RAY_BACKEND_LOG_LEVEL": level}))
                ray.init(address, **given)
    except Exception as error:
        where = f"cannot connect to the cluster of Ray at '{address}'" if address else "cannot start Ray here"
        raise RunnerError(f"{where}: {error}") from error


def check_answers(ray: Any) -> bool:
    """Return whether the head of the cluster can be reached, without which Ray reports no nodes.

    Raises ``RunnerError`` if this machine's own part of Ray has died: Ray fails what it is asked for, and seconds later
    ends this process without a word.
    """
    from ray._private import worker

    node: Any = worker.global_worker.node
    if node is None:  # ray://
        return True
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(node.raylet_socket_name)
    except OSError as error:
        raise RunnerError(f"Ray has died on this machine ({error})") from error
    try:
        host, _, port = node.gcs_address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError:
        return False
    return True


def count_slots(ray: Any, needed: Mapping[str, float]) -> int:
    """Return how many trials with these needs can run at once."""
    wanted = [(name, amount) for name, amount in needed.items() if amount]
    return int(sum(min(node.get(name, 0.0) // amount for name, amount in wanted) for node in _nodes(ray)))


def check_resources(ray: Any, needed: Mapping[str, float]) -> None:
    """Raise ``RunnerError`` if no node has the resources that one trial needs."""
    if count_slots(ray, needed):
        return
    nodes = _nodes(ray)
    asked = " and ".join(f"{amount:g} {name}" for name, amount in needed.items() if amount)
    most = " and ".join(f"{max((n.get(k, 0.0) for n in nodes), default=0):g} {k}" for k, v in needed.items() if v)
    raise RunnerError(
        f"no node of the cluster has {asked} for a trial; the most that one has is {most}: ask for less, "
        "Ray(cpus_per_trial=…, gpus_per_trial=…), or add such a node first"
    )


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
