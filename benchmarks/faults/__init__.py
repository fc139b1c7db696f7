"""The fault zoo: one sound training run, faults to put into it, and healthy runs that only look ill.

    model.py subject.py reference.py      the sound run, and an independent forward of the same weights
    fault.py                              what a fault is, and how an operation gets another backward
    severed.py gradients.py ...           the faults, a file a family
    second_author.py                      what somebody else thought of, most of it missed at first
    healthy.py architectures.py           what must not alarm
    assessment.py processes.py score.py   the battery on all of them, each in a process of its own
    baselines.py tools/                   what simpler habits and other checkers find

`make bench-arbiter` runs everything; tests/arbiter runs a part.
"""
