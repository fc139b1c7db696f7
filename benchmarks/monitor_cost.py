"""What the monitor costs a training of nano's size: benchmarks/results/monitor-cost.json.

    python benchmarks/monitor_cost.py [TURNS]

Blocks of 60 steps with and without the monitor, in turn, on the same model and rows. Times are CPU time of
this process, since other work may share the machine. Two figures: the share of the time spent inside
`observe`, and the ratio of neighbouring blocks, which also sees what the monitor costs elsewhere (caches,
memory) and the noise of the machine.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
from record import machine

from mothertongue_arbiter.torch.monitor import BUDGET, Monitor
from mothertongue_trainer.audit import SyntheticRows
from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import build_optimizer
from mothertongue_trainer.recipe import read_recipe
from mothertongue_trainer.step import TensorBatch, take_step

STEPS, WARMUP_STEPS = 60, 5
RESULT = Path("benchmarks/results/monitor-cost.json")


class Training:
    """nano from the start; its rows are random documents, which cost what real ones do."""

    def __init__(self) -> None:
        self.recipe = read_recipe(Path("recipes/nano.toml"))
        self.model = Qwen3(self.recipe.model, self.recipe.tokenizer.vocabulary, seed=0)
        self.optimizer = build_optimizer(self.model, self.recipe.optimizer)
        rows = SyntheticRows(self.recipe)
        self.batches = [TensorBatch.of(rows.batch(step), torch.device("cpu")) for step in range(STEPS)]
        self.steps_done = 0

    def block(self, monitor: Monitor | None, steps: int) -> tuple[float, float]:
        """Return the CPU seconds of `steps` steps, and those of them inside `observe`."""
        inside, begin = 0.0, time.process_time()
        for i in range(steps):
            result = take_step(
                self.model, self.optimizer, self.batches[i], training=self.recipe.training,
                step=self.steps_done, steps=self.recipe.steps,
            )  # fmt: skip
            if monitor is not None:
                before = time.process_time()
                monitor.observe(self.steps_done, self.batches[i], result.loss)
                inside += time.process_time() - before
            self.steps_done += 1
        return time.process_time() - begin, inside


def main(turns: int) -> None:
    torch.set_num_threads(1)
    training = Training()
    training.block(None, WARMUP_STEPS)
    shares, ratios, step_ms, every, measured = [], [], [], [], []
    for turn in range(turns):
        monitor = Monitor(training.model, training.optimizer)
        blocks = {}
        for watched in (True, False) if turn % 2 else (False, True):  # neither always goes first
            blocks[watched] = training.block(monitor if watched else None, STEPS)
        monitor.close()
        (on, inside), (off, _) = blocks[True], blocks[False]
        shares.append(inside / (on - inside))
        ratios.append(on / off - 1)
        step_ms.append(1e3 * off / STEPS)
        every.append(monitor.as_dict()["every_steps"])
        measured.append(monitor.measured)
        print(f"turn {turn}: inside {shares[-1]:.2%}, on/off {ratios[-1]:+.2%}, step {step_ms[-1]:.0f} ms")
    result = {
        "command": f"python benchmarks/monitor_cost.py {turns}",
        "machine": machine(),
        "threads": 1,
        "steps_a_block": STEPS,
        "turns": turns,
        "budget_percent": 100 * BUDGET,
        "step_ms": round(median(step_ms), 1),
        "measured_every_steps": median(every),
        "measured_steps_a_block": median(measured),
        "inside_observe_percent": round(100 * median(shares), 3),
        "inside_observe_percent_worst": round(100 * max(shares), 3),
        "on_over_off_percent": round(100 * median(ratios), 2),
        "on_over_off_percent_all": [round(100 * ratio, 2) for ratio in ratios],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {RESULT}: {result['inside_observe_percent']} % inside observe")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) == 2 else 6)
