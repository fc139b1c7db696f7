"""Write the figures of README.md and docs/ from benchmarks/results/.

    python benchmarks/figures.py            rewrite
    python benchmarks/figures.py --check    exit 1 if a file is stale

A block stands between `<!-- figures: NAME -->` and `<!-- end -->`.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.score import compared, family_lines
from peers.score import DEMANDS_HEADER, ENGINES_HEADER, demand_rows, engine_rows

from mothertongue_export.summary import EXAM_SKILLS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENGINE_WORDS = {
    "mothertongue": "Mothertongue int8",
    "llamacpp_q8_0": "llama.cpp Q8_0",
    "genai_int8": "onnxruntime-genai int8",
    "genai_our_bundle": "onnxruntime-genai, our bundle",
}
BLOCK = re.compile(r"(<!-- figures: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) + ("---:",) * (len(header) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def proof() -> str:
    """The proof table of the nano model."""
    nano = result("nano")
    parity, certificate = nano["parity"], nano["certificate"]
    seconds = sum(check["seconds"] for check in certificate["checks"])
    checks = f"arbiter: {len(certificate['checks'])} checks in {seconds:.0f} s"
    difference = f"largest logit difference {parity['reference_max_abs']:.1e}"
    same = (
        f"KL divergence {parity['kl_mean']:.1e} nats, "
        f"same first choice {parity['top1_agreement_percent']:.2f} %, "
        f"clear flips {parity['clear_flips_percent']:.2f} %"
    )
    rows = [
        ("the training does what it claims", checks, certificate["verdict"]),
        ("the fp32 graph equals PyTorch", difference, parity["verdict"]),
        ("the shipped int8 bundle is the same model", same, parity["verdict"]),
    ]
    for language, text in parity["languages"].items():
        torch, bundle = text["bits_per_byte_torch"], text["bits_per_byte_bundle"]
        change = f"{torch:.4f} in PyTorch, {bundle:.4f} in the bundle ({text['increase_percent']:+.2f} %)"
        rows.append((f"bits per byte of unseen text, {language}", change, parity["verdict"]))
    return table(("claim", "measured", "verdict"), rows)


def nano() -> str:
    """What the nano model can do, and how long it took."""
    measured = result("nano")
    evaluation, machine, stages_s = measured["evaluation"], measured["machine"], measured["stages_s"]
    rows = [(label, f"{evaluation['chat'][key]:.1f} %") for key, label in EXAM_SKILLS.items()]
    for language, quality in evaluation["languages"].items():
        twin, unigram = (evaluation[other][language]["bits_per_byte"] for other in ("twin", "unigram"))
        bits = f"{quality['bits_per_byte']:.3f} bits per byte (random twin {twin:.2f}, unigram {unigram:.2f})"
        rows.append((f"unseen prose, {language}", bits))
        rows.append((f"characters per token, {language}", f"{quality['characters_per_token']:.2f}"))
    rows.append(("size of the bundle", f"{measured['bundle_bytes'] / 1e6:.1f} MB"))
    caption = (
        "\nAsked through the int8 bundle, greedy, exact match. "
        f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}, "
        f"onnxruntime {machine['onnxruntime']}: audit and training {stages_s['train'] / 60:.1f} minutes, "
        f"all stages {sum(stages_s.values()) / 60:.1f}.\n"
    )
    return table(("nano, 1.31 M parameters", "measured"), rows) + caption


def faults() -> str:
    """What the arbiter finds in the fault zoo, family by family, and beside it what others find."""
    zoo = result("arbiter-faults")
    total = zoo["summary"]
    header = ("faults", "found without a reference forward", "with one", "named at the right place")
    rows = [line[:4] for line in family_lines(zoo["faults"])]
    rows.append(
        (
            "all",
            f"{total['caught_without_reference']} / {total['faults']}",
            f"{total['caught']} / {total['faults']}",
            f"{total['localised']} / {total['gradient_faults']}",
        )
    )
    others = table(
        ("way of looking", "faults found", "healthy runs alarmed"), compared(zoo["faults"], zoo["healthy"])
    )
    caption = (
        f"\nMedian cost of a certificate in the zoo: {total['median_seconds']:.1f} s, "
        f"{total['median_steps']:.0f} training steps of its tiny model.\n\n"
    )
    return table(header, rows) + caption + others


def peers() -> str:
    """Our engine beside others, and every figure that was asked for, on each machine that was measured."""
    sections = [
        peers_on(json.loads(path.read_text(encoding="utf-8"))) for path in RESULTS.glob("peers-*.json")
    ]
    return "\n".join(sorted(sections)) or "Not measured yet: `make bench-peers`.\n"


def peers_on(measured: dict[str, Any]) -> str:
    machine, checkpoint, bound = measured["machine"], measured["checkpoint"], measured["bandwidth"]
    installed = ", ".join(f"{name} {number}" for name, number in measured["versions"]["peers"].items())
    caption = (
        f"\n{machine['cores']} cores of {machine['cpu']}, {checkpoint['parameters'] / 1e6:.0f} M parameters, "
        f"{measured['threads']} threads set in each engine, rounds in turn: {measured['rounds']}, medians; "
        f"`{measured['command']}`. Speeds in tokens/s. "
        f"Memory is read at {max(bound['gb_per_s_by_round']):.1f} GB/s, "
        f"so {checkpoint['weight_bytes'] / 1e6:.0f} MB of weights allow {bound['bound_tokens_per_s']:.0f} "
        f"tokens/s. Installed: {installed}.\n\n"
    )
    return (
        table(ENGINES_HEADER, engine_rows(measured)) + caption + table(DEMANDS_HEADER, demand_rows(measured))
    )


def turns() -> str:
    """How fast each engine decodes in short turns, and ours over each, as medians."""
    measured = result("decode-turns")
    rates, over = measured["decode_tokens_per_s"], measured["decode_over"]
    rows = [
        (
            ENGINE_WORDS[name],
            " ".join(f"{rate:.0f}" for rate in own),
            f"{over[name]:.2f}" if name in over else "",
        )
        for name, own in rates.items()
    ]
    return table(("decode, tokens/s", "turn by turn", "ours over it, median"), rows)


def export() -> str:
    """What the export of a base-size checkpoint with its whole proof costs."""
    measured = json.loads((RESULTS / "export-base.json").read_text(encoding="utf-8"))
    parity = measured["parity"]
    rows = [
        ("time, minutes", f"{measured['seconds'] / 60:.1f}", "at most 6"),
        ("peak memory, GB", f"{measured['peak_gb']:.2f}", "at most 6"),
        ("bytes of the bundle for each parameter", f"{measured['bytes_per_parameter']:.3f}", "at most 1.06"),
        ("KL divergence, nats", f"{parity['kl_mean']:.1e}", "at most 5e-3"),
        ("clear flips", f"{parity['clear_flips_percent']:.2f} %", "at most 0.1 %"),
    ]
    return table(("export of 407 M random weights, with its proof", "measured", "asked"), rows)


MAKERS: dict[str, Callable[[], str]] = {
    "proof": proof,
    "nano": nano,
    "faults": faults,
    "peers": peers,
    "turns": turns,
    "export": export,
}


def rendered(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + MAKERS[block[2]]() + block[3], text)


def main(check: bool) -> int:
    stale = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        fresh = rendered(text)
        if fresh != text:
            stale.append(path.name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale) or 'none'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
