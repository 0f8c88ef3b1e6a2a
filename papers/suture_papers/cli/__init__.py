"""The commands that this package adds to ``suture``."""

from suture_papers.cli import complexity, studies, train, zoo

#: In the groups in which the help of ``suture`` shows them.
COMMANDS = {
    "measuring": (complexity.complexity,),
    "networks and data": (train.train, zoo.zoo),
    "experiments of the papers": (studies.studies, studies.run, studies.claims),
}
