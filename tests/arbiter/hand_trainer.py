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


def signs(seed, name, shape):
    mask = (1 << 64) - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    key = mix(seed) ^ zlib.crc32(name.encode())
    found = [1 - 2 * (mix((key + (i + 1) * 0x9E3779B97F4A7C15) & mask) >> 63) for i in range(np.prod(shape))]
    return np.array(found, dtype=float).reshape(shape)


def write_frame(path, fault):
    p = parameters()
    loss, gradients = loss_and_gradients(p)
    if fault == "severed":
        del gradients["gain"]
    if fault == "wrong":
        gradients["first"] *= 0.5
    if fault == "nonfinite":
        gradients["second"][0, 0] = np.nan
    tensors = [{"name": name, "shape": list(p[name].shape), "trainable": True} for name in NAMES]
    arrays = {f"param/{name}": value for name, value in p.items()}
    arrays |= {f"grad/{name}": value for name, value in gradients.items()}
    if fault == "float32":
        arrays = {name: value.astype(np.float32) for name, value in arrays.items()}
    header = {"version": 1, "loss": loss, "step": 0, "tensors": tensors}
    save_file(arrays, path, metadata={"mothertongue_frame": json.dumps(header)})


def answer(fault):
    for line in sys.stdin:
        if fault == "dies":
            sys.exit(7)
        if fault == "hangs":
            time.sleep(600)
        if fault == "garbage":
            print("step 0, loss 1.09", flush=True)
            continue
        question = json.loads(line)
        p = parameters()
        if fault == "lies":
            p["first"] *= 1.01
        for name, step in question["steps"].items():
            p[name] = p[name] + step * signs(question["seed"], name, p[name].shape)
        loss = loss_and_gradients(p)[0]
        if fault == "float32":
            loss = float(np.float32(loss))
        print(json.dumps({"loss": loss}), flush=True)


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "frame":
        write_frame(rest[0], rest[1] if len(rest) > 1 else "")
    else:
        answer(rest[0] if rest else "")
