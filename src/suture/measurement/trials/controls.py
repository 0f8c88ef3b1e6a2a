"""Controls: the same trial with one thing changed, so that the result should collapse or stay.

A control is a function ``Trial → Trial``; runners and fits never hear of it.

==================  =====================================================  =====================================
control             what is changed                                        what it shows
==================  =====================================================  =====================================
itself              the sender is the receiver, cut at the same place      what the stitch adds: should stay
untrained sender    the sender has never seen data                         what suffix and stitch do alone
untrained receiver  the receiver has never seen data                       how much the stitch can learn
untrained both      neither has                                            the floor of the method
shuffled pairs      the stitch is fitted to the labels and activations of  whether it leaks: collapses to chance
                    other images
clustered noise     no sender: noise around one random point per class     how far class identity alone gets: it
                                                                           is expected to stay high, a warning
==================  =====================================================  =====================================

An untrained receiver is also the baseline of its penalty, which is therefore negative if the stitch learns the task
by itself: compare the stitched score. And least squares alone does not collapse on maps and tokens of shuffled pairs:
images have in common what they show at each position on average, and at an early cut that alone tells much about how
channels correspond. Fits that end on the task loss do collapse, given steps enough, and so do vectors, which have no
positions.

Clustered noise represents nothing but the class, and yet most receivers can be stitched to it without a loss
(smith2024: "full compatibility"). A seam at which it does as well as the sender shows that the receiver's suffix and a
trained stitch need the class and no more, and says nothing about what the sender represents.

bansal2021, section 2 (untrained sender); hernandez2022 (untrained sender, receiver, both); smith2024, section 4.2 and
appendix A (clustered noise), appendix C.5 (itself).
"""

from collections.abc import Callable
from dataclasses import replace

from suture.common.errors import NoClassesError, UntrainedError
from suture.common.seeds import derive_seed
from suture.core.network.network import Network
from suture.data.noise import SCALE, ClusteredNoise
from suture.data.tasks import Classification
from suture.measurement.trials.trial import Trial

Control = Callable[[Trial], Trial]


def itself(trial: Trial) -> Trial:
    """Stitch the receiver to itself, at the receiver's cut."""
    return _send_from(trial, trial.receiver, trial.receiver_cut, "itself")


def untrained_sender(trial: Trial) -> Trial:
    """Put a freshly initialised network in the sender's place."""
    seam = replace(trial.seam, sender=_untrained(trial.sender, trial, "sender"))
    return replace(trial, seam=seam, control="untrained sender")


def untrained_receiver(trial: Trial) -> Trial:
    """Put a freshly initialised network in the receiver's place."""
    seam = replace(trial.seam, receiver=_untrained(trial.receiver, trial, "receiver"))
    return replace(trial, seam=seam, control="untrained receiver")


def untrained_both(trial: Trial) -> Trial:
    """Put freshly initialised networks in both places, from different seeds."""
    return replace(untrained_sender(untrained_receiver(trial)), control="untrained both")


def shuffled_pairs(trial: Trial) -> Trial:
    """Fit the stitch to the labels and the receiver's activations of other images; score on the true pairs."""
    return replace(
        trial,
        fit_data=trial.fit_data.shuffled(trial.seed),
        validation_data=trial.validation_data.shuffled(trial.seed),
        control="shuffled pairs",
    )


def clustered_noise(trial: Trial, *, scale: float = SCALE) -> Trial:
    """Send noise around one random centre per class, of the shape of the receiver's cut.

    It is the same noise whatever the sender and its cut. Another ``scale`` is part of the control's name. Raises
    ``DataError`` if there are no class labels, at least two classes among the fit data, to draw clusters for:
    ``NoClassesError`` if the task is another.
    """
    if trial.task != Classification():
        data, task = trial.fit_data.name, trial.task.name
        raise NoClassesError(f"it needs a class for each sample, and the task of {data} is {task}")
    seed = derive_seed("clustered noise", trial.receiver.fingerprint, trial.receiver_cut, trial.seed)
    noise = ClusteredNoise(trial.seam.shapes[1], len(trial.fit_data.classes), scale, seed)
    return _send_from(trial, noise, "", "clustered noise" if scale == SCALE else f"clustered noise, scale {scale:g}")


DEFAULT: tuple[Control, ...] = (
    itself,
    untrained_sender,
    untrained_receiver,
    untrained_both,
    shuffled_pairs,
    clustered_noise,
)


def _send_from(trial: Trial, sender: Network | ClusteredNoise, cut: str, control: str) -> Trial:
    """Another sender of the shape of the receiver's cut; the default stitch if the named one cannot join that."""
    shape = trial.seam.shapes[1]
    keep = trial.stitch is not None and trial.stitch.accepts(shape, shape)
    stitch = trial.stitch if keep else None
    seam = replace(trial.seam, sender=sender, sender_cut=cut)
    return replace(trial, seam=seam, stitch=stitch, control=control)


def _untrained(network: Network | ClusteredNoise, trial: Trial, role: str) -> Network:
    """One untrained network for each network, role and seed, whatever the cut, so that its prefix runs once."""
    if isinstance(network, ClusteredNoise):
        raise UntrainedError("clustered noise was never trained; leave out the controls untrained_sender and _both")
    return network.untrained(derive_seed("untrained", network.fingerprint, role, trial.seed))
