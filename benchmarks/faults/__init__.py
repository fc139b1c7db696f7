"""The fault zoo: one sound training run, faults to put into it, and healthy runs that only look ill.

    model.py subject.py reference.py      the sound run, and an independent forward of the same weights
    fault.py                              what a fault is, and how an operation gets another backward
    severed.py gradients.py ...           the faults, a file a family
    healthy.py architectures.py           what must not alarm
    score.py baselines.py tools/          the battery, and what others find, on all of them

`make bench-arbiter` runs everything; tests/arbiter runs a part.
"""
