"""The subject of benchmarks/faults for tests of single checks: the same run, with fewer members and beliefs.

Its rows are cut alike in each step, and its learning rate is constant. A test that is about resume, ranks,
averages or a reference takes `faults.subject.ZooRun` itself.
"""

import torch
from faults import subject
from faults.model import FFN as FFN
from faults.model import HEADS as HEADS
from faults.model import KV_HEADS as KV_HEADS
from faults.model import LAYERS as LAYERS
from faults.model import TOKENS as TOKENS
from faults.model import VOCABULARY as VOCABULARY
from faults.model import WIDTH as WIDTH
from faults.model import ByteModel as ByteModel
from faults.model import causal_mask as causal_mask
from faults.model import rms_norm as rms_norm
from faults.model import rotate as rotate
from faults.subject import sum_of_cross_entropy as sum_of_cross_entropy
from faults.text import END_OF_TEXT as END_OF_TEXT
from faults.text import ROWS as ROWS

from mothertongue_arbiter import Declared

LEARNING_RATE = 1e-3


class Hidden:
    """A member that this run does not have."""

    def __get__(self, run, kind):
        raise AttributeError


class ZooRun(subject.ZooRun):
    reference = checkpoint = resume = rebuild = eval_batches = evaluate = replicas = Hidden()
    highest_rate, betas, weight_decay = LEARNING_RATE, (0.9, 0.999), 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.ema
        torch.manual_seed(self.seed)  # what a test draws next is the same each time

    def average_weights(self) -> None:
        """There is no average."""

    def part_of_rank(self, batch, rank):
        """There is one rank, whatever a test declares."""
        return batch

    def learning_rate(self, step):
        return LEARNING_RATE

    def belief(self) -> Declared:
        return Declared(
            vocabulary=VOCABULARY,
            isolated_documents=True,
            tied=(("embedding.weight", "head.weight"),) if self.tied else (),
            must_learn=(END_OF_TEXT,),
            no_weight_decay=("*norm*",),
            accumulation=self.accumulation,
        )

    def batch(self, step):
        """Random rows; each begins with a document of another length, and a second one that is cut."""
        generator = torch.Generator().manual_seed(100 + step)
        ids = torch.randint(2, VOCABULARY, (ROWS, TOKENS), generator=generator)
        for row in range(ROWS):
            ids[row, 3 + 2 * row] = END_OF_TEXT
        documents = (ids == END_OF_TEXT).cumsum(1) - (ids == END_OF_TEXT).long()
        return self.collate(ids, documents)

    def documents(self, step, rank):
        return self.batch(step)["documents"]
