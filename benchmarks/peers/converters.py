"""Convert a checkpoint for one engine, in a process of its own.

    python -m peers.converters NAME CHECKPOINT TARGET [SITE]

`conversion.py` starts it. SITE is a folder of packages that come after this environment's own: the project's
torch for the converters of the peers, the peers' gguf for ours.
"""

import os
import runpy
import site
import sys
from pathlib import Path


def mothertongue(checkpoint: Path, target: Path) -> None:
    """Export the int8 bundle with its proof, on the held-out text of the checkpoint's run folder."""
    from mothertongue_export.exporter import export
    from mothertongue_trainer.document import read_documents
    from mothertongue_trainer.recipe import ExportConfig

    corpus = checkpoint.resolve().parents[1] / "corpus"
    export(
        checkpoint,
        target,
        config=ExportConfig(),
        heldout=list(read_documents(corpus / "heldout.jsonl")),
    )


def llamacpp(checkpoint: Path, target: Path) -> None:
    from mothertongue_export.checkpoint import read_checkpoint
    from mothertongue_export.gguf_file import write_gguf

    write_gguf(read_checkpoint(checkpoint), target, storage="Q8_0", name="peers")


def genai(checkpoint: Path, target: Path) -> None:
    """Run onnxruntime-genai's own model builder: int8, blocks of 32, as it does by default."""
    arguments = [
        "-i",
        str(checkpoint),
        "-o",
        str(target),
        "-p",
        "int8",
        "-e",
        "cpu",
        "-c",
        str(target / "cache"),
    ]
    sys.argv = ["builder", *arguments]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


def ctranslate2(checkpoint: Path, target: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(checkpoint)).convert(str(target), quantization="int8", force=True)


CONVERTERS = {function.__name__: function for function in (mothertongue, llamacpp, genai, ctranslate2)}

if __name__ == "__main__":
    name, checkpoint, target, *sites = sys.argv[1:]
    os.environ["HF_HUB_OFFLINE"] = "1"  # the checkpoint is a folder; nothing is to be looked up
    for folder in sites:
        site.addsitedir(folder)
    CONVERTERS[name](Path(checkpoint), Path(target))
