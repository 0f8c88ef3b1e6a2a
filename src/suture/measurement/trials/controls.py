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

With a view of a sample for each network, shuffled pairs break the pairing of the views. The networks that take the
sender's place, the receiver itself and noise, have no view of their own: they read the receiver's.

Clustered noise represents nothing but the class, and yet most receivers can be stitched to it without a loss
(smith2024: "full compatibility"). A seam at which it does as well as the sender shows that the receiver's suffix and a
trained stitch need the class and no more, and shows nothing about the sender's representation.

``invariance_aware`` is none of the usual ones, and costs hundreds of passes through the sender. It asks for more than a
stitch that works: that receiver and sender agree also on images which the sender cannot tell from the data's own, made
of noise until they look the same to it. Whatever these lack, the sender does without. A penalty far above the trial's
own shows that the receiver reads features that the sender does not represent (Athanasiadis et al. 2026,
arXiv:2505.20142v2).

bansal2021, section 2 (untrained sender); hernandez2022 (untrained sender, receiver, both); smith2024, section 4.2 and
appendix A (clustered noise), appendix C.5 (itself).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from suture.common.constants import CHUNK
from suture.common.errors import DataError, NoClassesError, UntrainedError
from suture.common.seeds import derive_seed, generator, undisturbed
from suture.core.network.network import Network
from suture.data import Samples
from suture.data.images import are_token_ids, as_floats
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
    """Put a freshly initialised network in the receiver's place.

    Raises ``UntrainedError`` if the targets are the receiver's own outputs: those of an untrained one hardly vary, so
    that any stitch gives them.
    """
    if trial.task.copies:
        raise UntrainedError(f"the targets of {trial.fit_data.name} would be the untrained network's own outputs")
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


def invariance_aware(trial: Trial, *, steps: int = 200) -> Trial:
    """Fit the stitch on images that the sender represents as it does the trial's own; validate and score on these.

    Each begins as uniform noise and goes ``steps`` times by 1/255 along the signs of the gradient of ‖f(x′) − f(x)‖,
    where f is the sender up to its cut: identically represented inputs, with the settings of the authors' code for
    CIFAR-10. Labels stay. Raises ``DataError`` if the sender is noise, the data are token ids, or pairs are broken.
    """
    fit, sender = trial.fit_data, trial.sender
    no_pictures = are_token_ids(fit.images) or trial.has_views
    if isinstance(sender, ClusteredNoise) or no_pictures or fit.pairing is not None:
        raise DataError(
            f"no images can be made that look to {sender.name or 'noise'} like those of {fit.name}; leave the "
            "control out"
        )
    return replace(trial, fit_data=_look_alike(sender, trial.sender_cut, fit, steps), control="invariance aware")


@lru_cache(maxsize=4)  # for other seeds and fits at the same cut
def _look_alike(network: Network, cut: str, samples: Samples, steps: int) -> Samples:
    """Return images that a network represents at a cut as it does these, under their labels."""
    prefix, made = network.upto(cut), []
    random = generator("identically represented", network.fingerprint, cut, samples.image_fingerprint)
    with undisturbed(), torch.enable_grad():
        for part in samples.images.split(CHUNK):  # type: ignore[no-untyped-call]
            wanted = prefix(as_floats(part).to(network.device)).detach()
            x = torch.rand(part.shape, generator=random).to(network.device)
            for _ in range(steps):
                x.requires_grad_()
                (gradient,) = torch.autograd.grad((prefix(x) - wanted).norm(), x)
                x = (x.detach() - gradient.sign() / 255).clamp(0, 1)
            made.append(x.detach().cpu() if part.is_floating_point() else (255 * x.detach()).round().byte().cpu())
    return replace(samples, name=f"{samples.name} as {network.name} sees it", images=torch.cat(made))


DEFAULT: tuple[Control, ...] = (
    itself,
    untrained_sender,
    untrained_receiver,
    untrained_both,
    shuffled_pairs,
)


def _send_from(trial: Trial, sender: Network | ClusteredNoise, cut: str, control: str) -> Trial:
    """Return the trial with another sender, and with the default stitch if the trial's own cannot join it.

    It has no view of its own: it reads as the receiver does.
    """
    shape = trial.seam.shapes[1]
    keep = trial.stitch is not None and trial.stitch.accepts(shape, shape)
    stitch = trial.stitch if keep else None
    seam = replace(trial.seam, sender=sender, sender_cut=cut)
    data = {name: getattr(trial, name).for_receiver for name in ("fit_data", "validation_data", "score_data")}
    judged_on = None if trial.judged_on is None else trial.judged_on.for_receiver
    return replace(trial, seam=seam, stitch=stitch, control=control, judged_on=judged_on, **data)


def _untrained(network: Network | ClusteredNoise, trial: Trial, role: str) -> Network:
    """Return the untrained network of a role and the trial's seed: one for all cuts, because its prefix runs once."""
    if isinstance(network, ClusteredNoise):
        raise UntrainedError("clustered noise was never trained; leave out the controls untrained_sender and _both")
    return network.untrained(derive_seed("untrained", network.fingerprint, role, trial.seed))
