"""The families of faults; the name of a fault begins with the letter of its family."""

FAMILIES = {
    "a": "gradient severed",
    "b": "gradient wrong",
    "c": "optimizer, schedule, precision, average",
    "d": "data, labels, packing",
    "e": "normalisation of the loss",
    "f": "forward pass, positions",
    "g": "ranks",
    "h": "checkpoint, resume, mode, speed",
}
