"""Reaching a cluster of Ray, or starting one on this machine; what goes wrong there in words, and soon.

Ray itself waits minutes for an address that does not answer, and for ever for a GPU that no node has. It also prints
what happens to its workers to standard output, between the caller's own lines. A cluster started here listens
on the loopback device alone.
"""

import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from suture.common.errors import RunnerError
from suture.common.sizes import cores

PATIENCE = 3.0  #: seconds to wait for an answer at an address
CLIENT_PORT = 10001  #: where a cluster listens for ray://
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # of HTTP/2, which gRPC speaks, with empty settings
_SETTINGS = 4  # the type of the frame that it answers with


def import_ray() -> Any:
    """Give the module ``ray``. Raises ``RunnerError`` if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise RunnerError(f"Ray is not installed ({error}); install it: pip install 'suture[ray]'") from error
    return ray


def check_address(address: str | None) -> None:
    """Raise ``RunnerError`` if nothing like a cluster of Ray is at an address, or this process is at another."""
    ray = import_ray()
    if ray.is_initialized():
        _check_same(ray, address)
    elif address is not None:
        _check_answer(address)


def _check_answer(address: str) -> None:
    from ray._private import services

    host, port = _host_and_port(_find_address(address) if address == "auto" else address)
    if not address.startswith("ray://"):
        host = services.resolve_ip_for_localhost(host)  # as Ray will
    try:
        with socket.create_connection((host, port), PATIENCE) as connection:
            if "RAY_USE_TLS" not in os.environ and not _speaks_grpc(connection):
                raise OSError("who answers there is not Ray; the port is that of ray start --port, not the dashboard's")
    except OSError as error:
        raise RunnerError(
            f"no cluster of Ray answers at '{address}' ({host}:{port}: {error}); start one with ray start --head "
            "--port=6379, give the address that it prints, or leave address out to run on this machine"
        ) from error


def _check_same(ray: Any, address: str | None) -> None:
    if address in (None, "auto"):
        return
    connected_to = ray.get_runtime_context().gcs_address
    if address != connected_to:
        raise RunnerError(
            f"this process is connected to the cluster of Ray at {connected_to} already, so it cannot use '{address}'; "
            "leave address out, or call ray.shutdown() first"
        )


def _find_address(address: str) -> str:
    """The address that ``auto`` stands for."""
    from ray._private import services

    try:
        return str(services.canonicalize_bootstrap_address_or_die(address))
    except Exception as error:  # Ray raises several, by version
        raise RunnerError(
            f"address='{address}' finds no cluster of Ray on this machine; start one with ray start --head, give "
            "'host:port', or leave address out to run on this machine alone"
        ) from error


def _host_and_port(address: str) -> tuple[str, int]:
    client = address.startswith("ray://")
    try:
        parts = urlsplit(address if client else f"//{address}")
        host, port = parts.hostname, parts.port or (CLIENT_PORT if client else None)
    except ValueError:
        host, port = None, None
    if host is None or port is None or "/" in address.removeprefix("ray://"):
        raise RunnerError(f"'{address}' is no address of Ray; give 'host:6379', 'ray://host:{CLIENT_PORT}' or 'auto'")
    return host, port


def _speaks_grpc(connection: socket.socket) -> bool:
    connection.sendall(_PREFACE)
    answer = b""
    while len(answer) < 9:
        more = connection.recv(9 - len(answer))
        if not more:
            return False
        answer += more
    return answer[3] == _SETTINGS


@contextmanager
def connect(address: str | None, retries: int) -> Iterator[Any]:
    """Give the module ``ray``, connected; a cluster that was there before, or a connection, is left as it was.

    Raises ``RunnerError`` if that fails.
    """
    ray = import_ray()
    check_address(address)
    if ray.is_initialized():
        yield ray
        return
    with _quieten():
        try:
            _init(ray, address, retries)
            yield ray
        finally:
            ray.shutdown()


def _init(ray: Any, address: str | None, retries: int) -> None:
    silent = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what will change in Ray
            if address is None:
                _init_here(ray, retries, silent)
            else:
                with patch.dict(
                    os.environ, {"RAY_BACKEND_LOG_LEVEL": os.environ.get("RAY_BACKEND_LOG_LEVEL", "fatal")}
                ):
                    ray.init(address, **silent)
    except Exception as error:
        where = f"cannot connect to the cluster of Ray at '{address}'" if address else "cannot start Ray here"
        raise RunnerError(f"{where}: {error}") from error


def _init_here(ray: Any, retries: int, silent: Mapping[str, Any]) -> None:
    """Start a cluster of this machine's cores, whose servers listen on the loopback device alone."""
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    with patch.dict(os.environ, {name: "0"}), patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False):
        given = {"task_oom_retries": retries}  # else without end
        ray.init("local", num_cpus=cores(), include_dashboard=False, _system_config=given, **silent)


@contextmanager
def _quieten() -> Iterator[None]:
    """Keep Ray from printing what it has to say about its workers."""
    from ray._private import worker

    with patch.object(worker, "_worker_logs_enabled", False, create=True):
        yield


def count_slots(ray: Any, needed: Mapping[str, float]) -> int:
    """How many trials that need these resources find room at once."""
    room = 0.0
    for have in _nodes(ray):
        room += min((have.get(name, 0.0) // amount for name, amount in needed.items() if amount), default=1)
    return int(room)


def check_resources(ray: Any, needed: Mapping[str, float]) -> None:
    """Raise ``RunnerError`` if no node has what one trial needs."""
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
