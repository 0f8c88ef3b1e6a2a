"""Records of measurements, as plain values.

A measurement, or a failure, leaves the process that made it as a record: values that JSON can hold, from which the rows
of the table are made.
"""

import platform
from dataclasses import asdict
from math import isnan

import torch

from suture.common.devices import CPU, name_device
from suture.common.processor import processor
from suture.core.network.network import Network
from suture.core.saving import describe, suture_version, to_plain, to_safetensors
from suture.measurement.scores.pooled import default_scores
from suture.measurement.tables.described import Described, Record
from suture.measurement.trials.trial import Failure, Measurement, Trial


def describe_trial(trial: Trial) -> Described:
    """Describe a trial by the labels of its rows, whatever its result."""
    return Described(trial.key, trial.labels, tuple((score.name, score.unit) for score in trial.scores))


def record(result: Measurement | Failure) -> Record:
    """Make the record of a trial's result, without its stitch. The curve of the fit is under ``curve``."""
    trial = result.trial
    begun = {"status": "ok", "trial": trial.key, "versions": trial.versions, "seconds": result.seconds}
    begun["decided_by"] = {  # the fingerprints and settings that decide the numbers, for people
        "sender": trial.sender.fingerprint,
        "receiver": trial.receiver.fingerprint,
        "cuts": [trial.sender_cut, trial.receiver_cut],
        "stitch": str(trial.family),
        "fit": str(trial.fit),
        "scores": [score.name for score in trial.scores],
        "data": [samples.fingerprint for samples in (trial.fit_data, trial.validation_data, trial.score_data)],
        "seed": trial.seed,
    }
    begun |= {"device": trial.device.type, "machine": describe_machine(trial.device)}
    if isinstance(result, Failure):
        failed = {"error": result.error, "traceback": result.traceback, "of_machine": result.of_machine}
        return begun | {"status": "failed"} | failed
    made = begun | {
        "scores": {score.name: _estimates(result, score.name) for score in trial.scores},
        "representation_error": result.representation_error,
        "apart": {name: {"value": e.value, "low": e.low, "high": e.high} for name, e in result.apart.items()},
        "steps": result.steps,
        "start": result.start,
        "converged": result.converged,
        "gained": None if result.gained is None else asdict(result.gained),
        "validation_loss": None if isnan(result.validation_loss) else result.validation_loss,
        "alone": dict(result.alone),
        "chance": {default_scores(trial.task)[0].name: trial.task.chance(trial.score_data.labels)},
        "outcomes": "" if result.outcomes is None else result.outcomes.pack(),
        "notes": [*(f"Warning: {said}" for said in result.warnings), *result.notes],
        "curve": [asdict(point) for point in result.curve],
    }
    return to_plain(made, "the record")  # type: ignore[no-any-return]


def stitch_to_save(measurement: Measurement) -> tuple[Record | None, bytes]:
    """Return the description of the stitched network, if there is one, and the tensors of the stitch, to save."""
    trial = measurement.trial
    content = to_safetensors(measurement.stitch)
    if not isinstance(trial.sender, Network):
        return None, content
    return describe(trial.seam.sides, content, trial.family, measurement.record), content


def describe_machine(device: torch.device = CPU) -> Record:
    """Describe this machine, its GPU and its versions, because on others the last digits of a result may differ."""
    gpu = {} if device == CPU else {"gpu": name_device(device)}
    return gpu | {
        "host": platform.node(),
        "processor": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "suture": suture_version(),
    }


def _estimates(measurement: Measurement, name: str) -> Record:
    penalty = measurement.penalties[name]
    return {
        "stitched": asdict(measurement.scores[name]),
        "sender": asdict(measurement.sender[name]) if name in measurement.sender else None,
        "receiver": asdict(measurement.receiver[name]),
        "penalty": asdict(penalty) if penalty is not None else None,
    }
