# %% [markdown]
# # Revisiting model stitching, in minutes
#
# Bansal, Nakkiran & Barak (2021, *Revisiting Model Stitching to Compare Neural Representations*) made stitching a way
# to ask whether two networks have learned the same thing. This notebook re-enacts their main claims with tiny networks
# on scikit-learn's 8×8 digits, in about three minutes on a laptop. The point is not the digits: it is what each
# experiment shows, what it does not, and which control tells the two apart. For the experiments on real data, in
# smaller networks than the papers', see *The papers' claims*.
#
# Here is all that is needed: a network, a way to train it, and three of them from different seeds.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn

import suture
from suture import controls, indices

data = suture.load_data("digits")


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class Small(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.early = block(1, width)
        self.middle = block(width, 2 * width)
        self.late = block(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.head(self.late(self.middle(self.early(x))).flatten(1))


def trained(seed, width=8, images=None, epochs=20):
    torch.manual_seed(seed)
    model = Small(width)
    x, y = data.fit.images[:images] / 255, data.fit.labels[:images]
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs * len(data.fit) // len(x)):  # as many steps, however few images
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model


def network(model, name):
    return suture.Network(model, example=data.example, name=name)


models = [trained(seed) for seed in range(3)]
nets = [network(model, f"net {seed}") for seed, model in enumerate(models)]
cuts = ["early", "middle", "late"]
torch.set_num_threads(1)

# %%
BLUE, RED, GREEN, YELLOW = "#0072B2", "#D55E00", "#009E73", "#E69F00"  # Okabe & Ito
plt.rcParams |= {"font.size": 8, "figure.dpi": 110}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}


def line(axes, rows, name, colour, marker, column="stitched"):
    """The mean over pairs of networks at each cut, and the range of the pairs."""
    scale = 100 if column != "penalty" else 1
    found = (scale * rows.set_index("receiver_cut")[column]).groupby(level=0, sort=False)
    places = range(len(found))
    axes.fill_between(places, found.min(), found.max(), color=colour, alpha=0.18, linewidth=0)
    axes.plot(places, found.mean(), color=colour, marker=marker, markersize=4, label=name)
    axes.set_xticks(places, [cut.partition(".")[0] for cut in found.groups])


def of(table, control="", score="accuracy"):
    return table[(table["score"] == score) & (table["control"] == control)]


# %% [markdown]
# ## 1. Stitching connectivity
#
# *Section 4, figure 2A: networks of one kind trained from different seeds can be stitched to each other at every
# layer with a penalty close to zero.* Three pairs, each at three cuts, with the controls that this claim needs.

# %%
pairs = [(0, 1), (1, 2), (2, 0)]
beside = (
    controls.itself,
    controls.untrained_sender,
    controls.untrained_receiver,
    controls.clustered_noise,
)
plan = suture.Plan(())
for number, (i, j) in enumerate(pairs):
    plan += suture.curve(nets[i], nets[j], data=data, at=cuts, controls=beside, network_seed=number)
table = suture.run(plan)

plain = of(table).assign(pair=of(table)["sender"] + " → " + of(table)["receiver"])
wide = plain.pivot(index="pair", columns="receiver_cut", values="penalty")
wide[plain["receiver_cut"].unique()].round(1)

# %%
figure, axes = plt.subplots(figsize=(5, 2.8))
line(axes, of(table), "sender trained", BLUE, "o")
line(axes, of(table, "itself"), "receiver to itself", GREEN, "s")
line(axes, of(table, "untrained sender"), "sender never trained", RED, "v")
axes.set(ylabel="accuracy of the stitched network (%)", xlabel="cut", ylim=(0, 102))
legend = axes.legend(frameon=False, loc="lower left")

# %% [markdown]
# **What it shows.** At every cut, one network's first layers serve another's last layers about as well as its own. The
# two were never trained together; a 1×1 convolution between them is enough. The penalty may be negative, and so may
# that of the receiver stitched *to itself*: the stitch is a little training on top. So read the blue line against the
# green one.
#
# **What it does not.** That the two "represent the same". They can be *used* alike by this receiver, for this task.

# %% [markdown]
# ## 2. "Stitching is not learning": an untrained sender
#
# *Section 2: if the stitch were able to learn the task by itself, an untrained sender would do as well; its penalty is
# high, "specially for high l".* That is the red line above. In numbers:


# %%
def mean(rows, column="penalty"):
    return rows.groupby("receiver_cut", sort=False)[column].mean()


untrained = of(table, "untrained sender")
pd.DataFrame({"trained, pp": mean(of(table)), "untrained, pp": mean(untrained)}).round(1)

# %% [markdown]
# **What it shows.** The penalty of an untrained sender grows with depth, as in the paper, and with it what a success
# of the trained one is worth. At the first cut random filters are only six points behind learned ones: there, a low
# penalty says little.
#
# **What it does not.** It guards one side only. Does the *receiver* matter? Replace that by an untrained one
# (hernandez2022):

# %%
figure, axes = plt.subplots(figsize=(5, 2.8))
line(axes, of(table), "both trained", BLUE, "o")
line(axes, of(table, "untrained sender"), "sender never trained", RED, "v")
line(axes, of(table, "untrained receiver"), "receiver never trained", YELLOW, "^")
axes.set(ylabel="accuracy of the stitched network (%)", xlabel="cut", ylim=(0, 102))
legend = axes.legend(frameon=False, loc="lower right")

# %% [markdown]
# Late in the network the stitch can do what is left of the receiver's work. Success is informative where *both*
# controls fall behind: in the middle. In the first pair the untrained receiver's fit was not done there when it reached
# the cap of its steps, so how far behind it is stays open: the column `converged` says so, and `explain` below.

# %% [markdown]
# ## 3. CKA disagrees
#
# *Section 3, table 1: CKA may call representations far that stitching shows to be worth the same.* Debiased and
# calibrated, so that 0 is what chance gives, for the same three pairs:

# %%
by = [indices.LinearCKA(debiased=True)]
alike = pd.concat([suture.compare(nets[i], nets[j], data=data, by=by, cuts=cuts) for i, j in pairs])
alike = alike[alike["sender_cut"] == alike["receiver_cut"]]
pd.DataFrame({"linear CKA": mean(alike, "calibrated").round(2), "penalty, pp": mean(of(table)).round(1)})

# %% [markdown]
# CKA falls with depth, the penalty does not rise. Then the paper's thought experiment: *"suppose we augment a
# representation by concatenating 1000 'useless' coordinates … this would reduce the CKA"*, though nothing that the
# network uses has changed. It is easily done. This network computes exactly what net 0 does, and carries a few large
# random features along that nothing reads:


# %%
class Cluttered(nn.Module):
    def __init__(self, model, useless=4):
        super().__init__()
        self.early, self.middle, self.late, self.head = model.early, model.middle, model.late, model.head
        self.clutter = nn.Conv2d(1, useless, 4, stride=4)
        self.useful = self.middle[0].out_channels

    def forward(self, x):
        x = torch.cat([self.middle(self.early(x)), 8 * torch.sin(100 * self.clutter(x))], dim=1)
        return self.head(self.late(x[:, : self.useful]).flatten(1))


torch.manual_seed(3)
cluttered = network(Cluttered(models[0]), "net 0, cluttered")
seams = {"net 0": (nets[0], "middle"), "net 0, cluttered": (cluttered, "cat")}
found = {}
for name, (sender, cut) in seams.items():
    m = suture.stitch(sender, nets[1], at=(cut, "middle"), data=data, controls=())
    cka = suture.compare(sender, nets[1], data=data, by=by, sender_cuts=[cut], receiver_cuts=["middle"])
    found[name] = {"linear CKA": round(cka["calibrated"].item(), 2), "penalty into net 1": str(m.penalty)}
pd.DataFrame(found).transpose()

# %% [markdown]
# **What it shows.** CKA compares all that varies, in proportion to how much it varies, and falls from 0.81 to 0.16.
# Stitching asks what the receiver can use, and that costs little more, if anything. Neither is wrong: they answer
# different questions.
#
# **What it does not.** That stitching is the better similarity. It needs a task, and says nothing beyond it: two
# networks that differ in everything the task ignores are alike to it. And "throwing away the useless coordinates" is
# for a stitch that knows which they are: fitted on 1,080 images, it must find out, which is why there may be a cost at
# all. Of the six settings of clutter that were tried when this was first written (4 to 64 features, amplitudes of 3 to
# 8; by a fit that stopped sooner) this one cost the least, and the worst 10 pp. That says nothing of what the network
# knows: a penalty is an upper bound.

# %% [markdown]
# ## 4. More is better
#
# *Section 6, figure 3: representations learned from more data can be plugged into networks trained on less and improve
# them, but not vice versa.* Networks trained on 60, 240 and all 1,080 images, as many steps each:

# %%
few = {n: network(trained(7, images=n), f"{n} images") for n in (60, 240)}
few[1080] = nets[0]
rows = []
for n in (60, 240):
    for direction, sender, receiver in (("more → less", few[1080], few[n]), ("less → more", few[n], few[1080])):
        plan = suture.curve(sender, receiver, data=data, at=cuts, controls=(controls.itself,))
        curve = suture.run(plan)
        own, stitched = (100 * of(curve)[column].mean() for column in ("receiver_score", "stitched"))
        rows.append((n, direction, own, stitched, 100 * of(curve, "itself")["stitched"].mean()))
columns = ["images", "direction", "receiver alone, %", "stitched, mean of cuts", "receiver to itself"]
pd.DataFrame(rows, columns=columns).round(1)

# %% [markdown]
# **What it shows.** Plugged into a network trained on less, the layers trained on more improve it; the reverse costs
# points. A similarity is symmetric and could not say so.
#
# **What it does not.** That all of the gain is the sender's. The stitch was fitted on *all* 1,080 images, and the last
# column says what that is worth: stitched to *itself*, the poor receiver gains as well, though nothing better was
# plugged in. At 60 images the better sender is still almost three points ahead of that. At 240 nothing is left of its
# advantage: the improvement is real, and it is the stitch's.

# %% [markdown]
# ## 5. Noise, as a warning
#
# Bansal et al. did not try this one; smith2024 did (section 4.2). Take no network at all as the sender, but noise
# around one random point for each class:

# %%
noise = of(table, "clustered noise")
columns = {"noise → receiver, %": mean(noise, "stitched"), "receiver alone, %": mean(noise, "receiver_score")}
(100 * pd.DataFrame(columns)).round(1)

# %% [markdown]
# It is perfect at two cuts of three, and everywhere better than the receiver itself. Whatever tells the classes apart
# can be stitched into a trained network. So a low penalty is no sufficient sign of a shared representation; and a high
# one proves little, since a better map may exist.

# %% [markdown]
# ## What may be said
#
# `explain` reads the table by these rules. For one of the pairs:

# %%
print(suture.explain(table[table["network_seed"] == 0]))
