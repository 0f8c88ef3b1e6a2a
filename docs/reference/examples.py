"""One example for each page of the reference; ``make.py`` puts each block on the page that its mark names."""

# %% start
import torch
from torch import nn

import suture

data = suture.load_data("digits").limited(fit=400, score=200)


def trained(seed, name):
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)]
    model = nn.Sequential(*layers)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.fit.images.float() / 255), data.fit.labels).backward()
        optimiser.step()
    return suture.Network(model, example=data.example, name=name)


a, b = trained(0, "a"), trained(1, "b")
table = suture.run(suture.curve(a, b, data=data, fit="least-squares"))

# %% suture.Network
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
network = suture.Network(model, example=data.example, name="mine")
print(network.cuts)
features = network.upto("2")(data.score.images)  # what passes the cut "2"
outputs = network.after("2")(features)  # the model's own outputs

# %% suture.load_network
network = suture.load_network(
    "timm:test_vit,num_classes=10,in_chans=1,img_size=32,preprocess.size=32", example=data.example
)

# %% suture.load_data
digits = suture.load_data("digits")  # or a folder, a hub id, tensors, Datasets, DataLoaders
print(len(digits.fit), len(digits.validation), len(digits.score))

# %% suture.load_views
texts = torch.arange(200)[:, None] + torch.arange(5)  # token ids, as the receiver reads the same samples
two = suture.load_views((torch.rand(200, 1, 8, 8), torch.arange(200) % 10), (texts, torch.arange(200) % 10), split=0.2)
print(two, two.for_sender.example.shape, two.for_receiver.example.shape)

# %% suture.Data
smaller = data.limited(fit=100, score=50)
mixed = suture.Data("two sources", fit=smaller.fit, validation=data.validation, score=data.score)

# %% suture.Samples
images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
samples = suture.Samples("mine", images, torch.arange(20) % 10, classes=data.fit.classes)

# %% suture.Preprocess
prepared = suture.Preprocess(size=16, channels=3, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

# %% suture.stitch
m = suture.stitch(a, b, at="2", data=data, fit="quick")
print(m)
print(m.penalty.value, m.penalty.low, m.penalty.high)  # percentage points

# %% suture.curve
plan = suture.curve(a, b, data=data)  # every shared cut; nothing is measured yet
plan = suture.curve(a, b, data=data, at=["2", "4"], fit="quick", seeds=3)
pairs = suture.curve(a, b, data=data, at=[("2", "4")])  # if names differ: (sender cut, receiver cut)

# %% suture.matrix
plan = suture.matrix([a], [b], data=data, cuts=["2", "4"], fit="quick", controls="untrained-sender")

# %% suture.localise
trait = suture.traits.knows(data, "9")
plan = suture.localise(trait, carrier=a, reference=b, data=data, at=["2", "4"], fit="least-squares")

# %% suture.run
table = suture.run(suture.curve(a, b, data=data, fit="least-squares"), store="runs/ab")  # the same call continues

# %% suture.forecast
print(suture.forecast(suture.curve(a, b, data=data, seeds=3)))

# %% suture.measure
(trial,) = suture.curve(a, b, data=data, at="2", fit="least-squares", controls=())
measurement = suture.measure(trial)

# %% suture.Plan
plan = suture.curve(a, b, data=data) + suture.curve(b, a, data=data)  # plans add up
first = plan[:3]

# %% suture.Trial
seam = suture.Seam(a, b, "2", "2")
trial = suture.Trial(seam, data.fit, data.validation, data.score)

# %% suture.Measurement
m = suture.stitch(a, b, at="2", data=data, fit="least-squares", controls=())
print(m.scores["accuracy"].value, m.penalty.low, m.converged, m.seconds)

# %% suture.stitches
print(suture.stitches.stitch_for((32, 8, 8), (64, 4, 4)))  # the default family for these two shapes
m = suture.stitch(a, b, at="2", data=data, stitch=suture.stitches.LowRank(4), fit="least-squares", controls=())

# %% suture.fits
m = suture.stitch(a, b, at="2", data=data, fit=suture.fits.Quick(steps=100), controls=())

# %% suture.controls
plan = suture.curve(a, b, data=data, controls=(*suture.controls.DEFAULT, suture.controls.clustered_noise))

# %% suture.baselines
plan = suture.curve(a, b, data=data, controls=(*suture.controls.DEFAULT, suture.baselines.linear_probe))

# %% suture.scores
nines = suture.scores.Accuracy(classes=(9,))
m = suture.stitch(
    a, b, at="2", data=data, scores=(suture.scores.CrossEntropy(), nines), fit="least-squares", controls=()
)

# %% suture.tasks
numbers = torch.rand(60, 1, 8, 8), torch.rand(60, 2)
regression = suture.load_data((numbers, (torch.rand(40, 1, 8, 8), torch.rand(40, 2))), task=suture.tasks.Regression())

# %% suture.traits
mistaken = suture.traits.confuses(data, "4", "9")  # fours called nines
attacked = suture.traits.falls_to(suture.traits.FGSM(0.1))

# %% suture.changes
covered = suture.changes.Covered(top=0, left=0, height=4, width=8)(data)  # the upper half of each image is black

# %% suture.explain
answers = suture.explain(table)
print(answers.verdict)  # a sentence
print(answers.full)  # all answers, and what must not be concluded

# %% suture.plot
figure = suture.plot(table)  # a matplotlib figure
figure.savefig("ab.pdf")

# %% suture.report
path = suture.report(table, "ab.html")

# %% suture.summary
means = suture.summary(table)  # over seeds, with intervals

# %% suture.over_networks
three = [trained(seed, f"net {seed}") for seed in range(3)]
grid = suture.run(suture.matrix(three, data=data, cuts="2", fit="least-squares", controls=()))
print(suture.over_networks(grid))

# %% suture.by_depth
print(suture.by_depth(grid))

# %% suture.profiles
print(suture.profiles(grid))

# %% suture.onset
plan = suture.localise(trait, carrier=a, reference=b, data=data, at=["2", "4"], fit="least-squares")
print(suture.onset(suture.run(plan), trait, "a", "b"))

# %% suture.compare
alike = suture.compare(a, b, data=data, by=suture.indices.mutual_knn, cuts=["2", "4"], samples=100)
print(alike[["sender_cut", "receiver_cut", "value", "calibrated"]])

# %% suture.indices
x, y = torch.randn(50, 8), torch.randn(50, 5)  # the same 50 samples in two layers
print(suture.indices.LinearCKA(debiased=True)(x, y))

# %% suture.features
units = suture.features.directions(torch.eye(b.cuts.find("2").shape[0]))
print(suture.features.transfer(units, suture.stitch(a, b, at="2", data=data, fit="least-squares")))

# %% suture.beside
print(suture.beside(table, alike))

# %% suture.Stitched
stitched = suture.stitch(a, b, at="2", data=data, fit="least-squares", controls=()).stitched
logits = stitched(data.score.images)
stitched.stitch.requires_grad_(True)  # all of it is frozen; this lets the stitch train on

# %% suture.Seam
seam = suture.Seam(a, b, "2", "4")  # a up to "2", then b after "4"
print(seam.shapes)

# %% suture.load_stitched
stitched.save("saved")
again = suture.load_stitched("saved", a, b)

# %% suture.can_fold
print(suture.can_fold(stitched))
plain = stitched.folded()

# %% suture.foldable_cuts
for cut, fold in suture.foldable_cuts(b).items():
    print(cut, fold)

# %% suture.Store
suture.run(suture.curve(a, b, data=data, fit="least-squares"), store="runs/ab")
store = suture.Store("runs/ab")
print(store.table())

# %% suture.Local
plan = suture.curve(a, b, data=data, fit="least-squares")
table = suture.run(plan, on=suture.Local(workers=1, ram="8 GB", disk="20 GB"))

# %% suture.Ray
cluster = suture.Ray(address="auto", gpus_per_trial=0.25)  # suture.run(plan, store="runs/ab", on=cluster)

# %% suture.zoo
source = suture.zoo.parse_source("timm:resnet18,num_classes=10@weights.safetensors")
print(source.kind, source.arguments, source.checkpoint)

# %% suture.errors
try:
    suture.curve(a, b, data=data, at="no such cut")
except suture.errors.CutError as error:
    print(error)  # names the cuts that there are

# %% suture.SutureError
try:
    suture.load_data("./no-such-folder")
except suture.SutureError as error:
    print(error)

# %% suture_papers.complexity
from suture_papers import complexity

print(complexity.complexity(stitched, data.score.first(50), by=complexity.RANKS))

# %% suture_papers.networks
from suture_papers import networks

model = networks.resnet(blocks=(1, 1, 1), width=8)

# %% suture_papers.recipes
from suture_papers import recipes

m = suture.stitch(a, b, at="2", data=data, fit=recipes.for_epochs(recipes.smith2024, 1, len(data.fit)), controls=())

# %% suture_papers.training
from suture_papers.training import Recipe, train

model = train(lambda: networks.mlp(16, 2), data.fit, Recipe(epochs=2), seed=0)

# %% suture_papers.variants
from suture_papers import variants

fewer = variants.Without("9")(data)  # nobody is taught nines; they are still scored

# %% suture_papers.STUDIES
from suture_papers import STUDIES

print(list(STUDIES))

# %% suture_papers.study_named
from suture_papers import study_named

study = study_named("bansal-2A")

# %% suture_papers.Study
print(study.question, [claim.statement for claim in study.claims])

# %% suture_papers.SCALES
from suture_papers import SCALES

print(SCALES)

# %% suture_papers.scale_named
from suture_papers import scale_named

tiny = scale_named("tiny")

# %% suture_papers.Scale
print(tiny)

# %% suture_papers.run_study
from suture_papers import run_study

result = run_study(study_named("smith-C5"), tiny, "runs/tiny")

# %% suture_papers.Result
print(result.tables["trials"].columns)
result.save("results")

# %% suture_papers.load_result
from suture_papers import load_result

result = load_result("results", "smith-C5")

# %% suture_papers.Where
from suture_papers import Where

rows = Where(control="untrained sender", receiver_cut="layer4*")

# %% suture_papers.Claim
claim = study.claims[0]
print(claim.statement, claim.threshold)

# %% suture_papers.Decided
decided = tuple(claim.decide(result.tables) for claim in study_named("smith-C5").claims)

# %% suture_papers.verdict_of
from suture_papers import verdict_of

print(verdict_of(decided))

# %% suture_papers.Figure
print([one.figure for one in decided])

# %% suture_papers.Roles
from suture_papers import Roles

roles = Roles(fitted="images without trucks")

# %% suture_papers.Panel
from suture_papers import Panel

panel = Panel("lines", "stitched", "accuracy [%]", (("trained", Where()), ("untrained sender", rows)))

# %% suture_papers.Beside
from suture_papers import Beside

beside = [part for part in study_named("bansal-5").plan(tiny) if isinstance(part, Beside)]
