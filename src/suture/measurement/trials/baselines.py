"""Baselines to compare with stitching, at the same cuts and from the same cached activations.

A baseline is a function ``Trial → Trial``, as a control is, and is planned like one:
``suture.curve(a, b, data=data, controls=(*controls.DEFAULT, baselines.linear_probe))``. Its rows lie in the same table,
under its name in the column ``control``; of a trial that is a control itself, under both names.

=============  ========================================================  ==============================================
baseline       what takes the place of the stitch and the receiver       what bansal2021 says of it
=============  ========================================================  ==============================================
linear probe   a linear classifier of the sender's tensor                unfair to early layers, whose features are not
                                                                         yet linearly separable (section 2)
fine-tuned     the sender's own further layers, all of them trained on   so free that it can do well whatever the
               from where they are                                       sender's first layers are (section 2)
retrained      the same, drawn anew                                      hides a random sender (appendix B.3)
plugged in     the receiver's further layers, without a stitch           fails even where networks differ by the order
                                                                         of their neurons (section 2)
=============  ========================================================  ==============================================

The first three end at ``OUTPUT``, behind all of the receiver's layers, so the receiver only gives the score that the
penalty is relative to, and their ``representation_error`` is that of the receiver's outputs.

Whose further layers: those of the sender by default, as in appendix B.3 ("freeze the first l layers of the bottom
network and train the top layers after reinitialising them"), which exist at every cut. ``of="receiver"`` takes the
receiver's, behind the sender's cut (section 2: "start with the initialized network A∘r and optimize over all choices of
A"), if the shapes at the two cuts agree. No image is augmented: the trained layers read the cached activations.

bansal2021, section 2 and appendix B.3; Alain & Bengio 2016 (probes).
"""

from dataclasses import replace
from typing import Literal

from suture.common.constants import OUTPUT
from suture.common.errors import CutError, NetworkError, NoClassesError, ShapeError
from suture.common.seeds import derive_seed
from suture.core.network.network import Network
from suture.core.stitches import Identity, Layers, Probe
from suture.core.stitches.base import spell_shape
from suture.data.tasks import Classification
from suture.fits import BestOf, Fit, Logistic, Random, TaskLoss
from suture.fits.optimisers import Adam, Cosine
from suture.measurement.trials.trial import Trial


def _anneal(rate: float) -> TaskLoss:
    return TaskLoss(
        start=Random(),
        optimiser=Adam(lr=rate),
        schedule=Cosine(),
        steps=2_000,
        batch=128,
        check=200,
        patience=10,
        retries=1,
    )


TRAINING = BestOf((_anneal(1e-2), _anneal(1e-3)))
"""How layers train unless told otherwise: at two rates, each annealed, of which the validation data chooses.

Of each the best of ten moments is kept, the start included; layers that no step has made better are tried once more, at
a tenth of the rate. Layers drawn anew that read features of a very small scale (no BatchNorm among them) may take more
steps than these: say so by ``fit``.
"""

Of = Literal["sender", "receiver"]


def linear_probe(trial: Trial, *, probe: Probe = Probe(), fit: Fit = Logistic()) -> Trial:  # noqa: B008
    """Classify by a linear map of the sender's tensor at its cut.

    Another probe or fit is named in the columns ``stitch`` and ``fit``. Raises ``CutError`` if the receiver has a
    cut called ``OUTPUT``, and ``NoClassesError`` if the fit needs classes and the task has none.
    """
    if isinstance(fit, Logistic) and trial.task != Classification():
        data, task = trial.fit_data.name, trial.task.name
        raise NoClassesError(f"it needs a class for each sample, and the task of {data} is {task}; give it another fit")
    return _end_at_output(trial, "linear probe", stitch=probe, fit=fit)


def fine_tuned(trial: Trial, *, of: Of = "sender", fit: Fit = TRAINING) -> Trial:
    """Freeze the sender up to its cut and train the further layers on from where they are.

    Raises ``CutError`` as ``linear_probe`` does, ``NetworkError`` if the sender is noise, and ``ShapeError`` if
    the receiver's layers do not take the sender's tensor.
    """
    network, after = _find_layers(trial, of, "fine_tuned")
    return _end_at_output(trial, _name_for("fine-tuned", of), stitch=Layers(network, after), fit=fit)


def retrained(trial: Trial, *, of: Of = "sender", fit: Fit = TRAINING) -> Trial:
    """Freeze the sender up to its cut, draw the further layers anew, and train them.

    They are drawn from the trial's seed, alike at every cut. Raises the errors of ``fine_tuned``, and
    ``UntrainedError`` if layers cannot be drawn anew.
    """
    network, after = _find_layers(trial, of, "retrained")
    seed = derive_seed("retrained", network.fingerprint, trial.seed)
    network.untrained(seed)  # refused here, if it must be
    return _end_at_output(trial, _name_for("retrained", of), stitch=Layers(network, after, seed=seed), fit=fit)


def plugged(trial: Trial) -> Trial:
    """Give the receiver the sender's tensor unchanged.

    Raises ``ShapeError`` if the shapes at the two cuts differ: there is no way without parameters to join them.
    """
    sent, received = trial.seam.shapes
    if sent != received:
        raise ShapeError(
            f"{trial.where}: the sender's {spell_shape(sent)} cannot be plugged in for the receiver's "
            f"{spell_shape(received)} without a stitch; leave out baselines.plugged, or plan it at cuts of one shape"
        )
    return replace(trial, stitch=Identity(), fit=Random(), control=_add_label(trial, "plugged in"))


def _end_at_output(trial: Trial, name: str, *, stitch: Probe | Layers, fit: Fit) -> Trial:
    """Return the trial with a stitch that gives the outputs."""
    receiver = trial.receiver
    if not receiver.cuts.find(OUTPUT).is_output:
        raise CutError(
            f"{receiver.name} has a cut called '{OUTPUT}', which is the word for behind all of its layers; give its "
            "module another name"
        )
    seam = replace(trial.seam, receiver_cut=OUTPUT)
    return replace(trial, seam=seam, stitch=stitch, fit=fit, control=_add_label(trial, name))


def _find_layers(trial: Trial, of: Of, baseline: str) -> tuple[Network, str]:
    """Return the network whose layers train, and the cut after which they lie."""
    if of == "receiver":
        sent, received = trial.seam.shapes
        if sent != received:
            raise ShapeError(
                f"{trial.where}: the receiver's layers take {spell_shape(received)}, and the sender gives "
                f"{spell_shape(sent)}; plan it at cuts whose shapes agree, or train the sender's own: of='sender'"
            )
        return trial.receiver, trial.receiver_cut
    if of != "sender":
        raise NetworkError(f"of={of!r}: the layers are those of the 'sender' or the 'receiver'")
    if not isinstance(trial.sender, Network):
        raise NetworkError(f"clustered noise has no layers to train; leave out baselines.{baseline}, or of='receiver'")
    return trial.sender, trial.sender_cut


def _name_for(name: str, of: Of) -> str:
    return name if of == "sender" else f"{name} receiver"


def _add_label(trial: Trial, name: str) -> str:
    """Return the name, after that of the control that the trial is already."""
    return f"{trial.control}, {name}" if trial.control else name
