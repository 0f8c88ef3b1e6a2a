"""What all four papers share: study, scale, quantity, claim, and how a program decides one."""
