"""A two-layer model in plain numpy that writes a frame and answers as a loss oracle; it imports no arbiter.

Usage: hand_trainer.py frame FILE [fault]   or   hand_trainer.py oracle [fault]
"""

import json
import sys
import time
import zlib

import numpy as np
from safetensors.numpy import save_file

NAMES = ("first", "gain", "second", "unused")


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"first": (5, 8), "gain": (8,), "second": (8, 3), "unused": (4,)}
    return {name: rng.normal(size=shapes[name]) * 0.5 for name in NAMES}


def loss_and_gradients(p):
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(16, 5)), rng.integers(0, 3, 16)
    hidden = np.tanh(x @ p["first"])
    scaled = hidden * p["gain"]
    logits = scaled @ p["second"]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = shifted / shifted.sum(1, keepdims=True)
    loss = -np.log(probabilities[np.arange(16), labels]).mean()
    d_logits = probabilities.copy()
    d_logits[np.arange(16), labels] -= 1
    d_logits /= 16
    d_scaled = d_logits @ p["second"].T
    d_hidden = d_scaled * p["gain"] * (1 - hidden**2)
    return loss, {"first": x.T @ d_hidden, "gain": (d_scaled * hidden).sum(0), "second": scaled.T @ d_logits}


def signs(seed, name, shape, fault=""):
    mask = (1 << 64) - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    key = mix(seed) ^ (0 if fault == "nameless" else zlib.crc32(name.encode()))
    first = {"from 1": 2, "i for i + 1": 0}.get(fault, 1)
    count = range(first, first + int(np.prod(shape)))
    found = np.array([1.0 - 2 * (mix((key + i * 0x9E3779B97F4A7C15) & mask) >> 63) for i in count])
    found = -found if fault == "subtracts" else np.ones_like(found) if fault == "ones" else found
    return found.reshape(shape, order="F" if fault == "columns" else "C")


def moved(question, fault=""):
    p = parameters()
    if fault == "lies":
        p["first"] *= 1.01
    for name, step in question["steps"].items():
        steps = step * signs(question["seed"], name, p[name].shape, fault)
        if name in question.get("only", {}):
            chosen = np.zeros(steps.size)
            for begin, end in question["only"][name]:
                chosen[begin:end] = 1
            steps *= chosen.reshape(steps.shape)
        p[name] = p[name] + steps
    return p


def write_frame(path, fault):
    p = parameters()
    loss, gradients = loss_and_gradients(p)
    if fault == "severed":
        del gradients["gain"]
    if fault == "wrong":
        gradients["first"] *= 0.5
    if fault == "nonfinite":
        gradients["second"][0, 0] = np.nan
    if fault == "overflown":
        p["gain"][3] = np.inf
    if fault == "dead row":
        gradients["first"][2] = 0
    tensors = [{"name": name, "shape": list(p[name].shape), "trainable": True} for name in NAMES]
    arrays = {f"param/{name}": value for name, value in p.items()}
    arrays |= {f"grad/{name}": value for name, value in gradients.items()}
    if fault == "float32":
        arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    header = {"version": 1, "loss": loss, "step": 0, "tensors": tensors}
    save_file(arrays, path, metadata={"mothertongue_frame": json.dumps(header)})


def answer(fault):
    if fault == "deaf":
        time.sleep(600)
    if fault == "talks":
        print("loading weights", flush=True)
    for number, line in enumerate(sys.stdin):
        if fault == "dies" or (fault == "dies later" and number == 9):
            sys.exit(7)
        if fault == "hangs":
            time.sleep(600)
        print(ANSWERS.get(fault, sound_answer)(json.loads(line), fault), flush=True)


def sound_answer(question, fault):
    if fault == "constant":
        question["steps"] = {}
    loss = loss_and_gradients(moved(question, fault))[0]
    if fault == "float32":
        loss = float(np.float32(loss))
    understood = {"only": True} if "only" in question and fault != "whole" else {}
    return json.dumps({"loss": loss, **understood})


def noisy_answer(question, fault):
    loss = json.loads(sound_answer(question, ""))["loss"]
    return json.dumps({"loss": loss + 1e-6 * np.random.default_rng().normal(), "only": True})


ANSWERS = {
    "garbage": lambda question, fault: "step 0, loss 1.09",
    "complains": lambda question, fault: json.dumps({"error": "no tensor 'gain' here"}),
    "other batch": lambda question, fault: json.dumps({"loss": 3.0}),
    "noisy": noisy_answer,
    "NaN": lambda question, fault: '{"loss": NaN}',
    "Infinity": lambda question, fault: '{"loss": Infinity}',
    "twice": lambda question, fault: "\n".join([sound_answer(question, fault)] * 2),
}


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "frame":
        write_frame(rest[0], rest[1] if len(rest) > 1 else "")
    else:
        answer(rest[0] if rest else "")
