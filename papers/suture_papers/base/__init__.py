"""The common parts of the four papers: study, scale, quantity, claim, and how a program decides a claim."""
