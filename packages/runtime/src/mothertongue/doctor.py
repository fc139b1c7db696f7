"""Whether this machine, and a bundle on it, are ready: each finding with what to do if it is bad."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mothertongue.bundle import onnxruntime_version, require_onnxruntime, verify
from mothertongue.chat import Message
from mothertongue.device import describe_device
from mothertongue.errors import BundleError, MothertongueError
from mothertongue.golden import GOLDEN_FILE, golden_findings, read_golden
from mothertongue.model import load
from mothertongue.threads import choose_threads

MINIMUM_PYTHON = (3, 11)
MINIMUM_ONNXRUNTIME = "1.23"  # the first with 8-bit kernels for x86-64 and ARM64
MINIMUM_FREE_BYTES = 1 << 30
TRIAL_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    good: bool
    found: str
    remedy: str = ""  # what to do, if it is not good


def examine(folder: Path | None = None) -> Iterator[Finding]:
    """Yield the findings about this machine and, if `folder` is given, about the bundle in it."""
    yield examine_python()
    yield examine_onnxruntime()
    yield examine_cpu()
    threads = choose_threads()
    yield Finding(name="threads", good=True, found=f"{threads.count} ({threads.reason})")
    yield examine_disk(folder or Path())
    if folder is not None:
        yield examine_files(folder)
        if (folder / GOLDEN_FILE).exists():
            yield examine_golden(folder)
        yield examine_answer(folder)


def examine_python() -> Finding:
    """Return whether this Python is new enough."""
    wanted = ".".join(map(str, MINIMUM_PYTHON))
    return Finding(
        name="python",
        good=sys.version_info >= MINIMUM_PYTHON,
        found=sys.version.split()[0],
        remedy=f"install Python {wanted} or newer",
    )


def examine_onnxruntime() -> Finding:
    """Return whether an onnxruntime is installed that has the 8-bit kernels."""
    try:
        require_onnxruntime(MINIMUM_ONNXRUNTIME)
    except BundleError as error:
        return Finding(name="onnxruntime", good=False, found="not usable", remedy=str(error))
    return Finding(name="onnxruntime", good=True, found=onnxruntime_version())


def examine_cpu() -> Finding:
    """Return which processor this is, and what it has for 8-bit arithmetic."""
    device = describe_device()
    flags = ", ".join(device.int8_flags) or "8-bit instructions unknown"
    return Finding(name="cpu", good=True, found=f"{device.cpu} ({flags})")


def examine_disk(folder: Path) -> Finding:
    """Return whether the disk of `folder`, which need not exist, has room."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    return Finding(
        name="disk",
        good=free_bytes >= MINIMUM_FREE_BYTES,
        found=f"{free_bytes / 1e9:.1f} GB free",
        remedy=f"free {MINIMUM_FREE_BYTES / 1e9:.0f} GB or more",
    )


def examine_files(folder: Path) -> Finding:
    """Return whether every file of the bundle is the one that was proved."""
    try:
        manifest = verify(folder)
    except MothertongueError as error:
        return Finding(name="bundle", good=False, found="not sound", remedy=str(error))
    found = f"{len(manifest.files)} files, {manifest.total_bytes / 1e6:.1f} MB, every byte verified"
    return Finding(name="bundle", good=True, found=found)


def examine_golden(folder: Path) -> Finding:
    """Return whether this processor computes what was proved on another."""
    try:
        golden = read_golden(folder)
        findings = golden_findings(golden, load(folder).session)
    except (MothertongueError, ValueError) as error:
        return Finding(name="golden", good=False, found="not run", remedy=str(error))
    tokens = sum(len(text.greedy_ids) for text in golden)
    return Finding(
        name="golden",
        good=not findings,
        found=f"{tokens} proved tokens, {len(findings) or 'none'} of {len(golden)} texts differ",
        remedy=f"{findings[0]}; update with: pip install -U onnxruntime" if findings else "",
    )


def examine_answer(folder: Path) -> Finding:
    """Return whether the bundle answers, and how fast."""
    try:
        answer = load(folder).reply([Message("user", "?")], max_tokens=TRIAL_TOKENS)
    except (MothertongueError, ValueError) as error:
        return Finding(name="answer", good=False, found="none", remedy=str(error))
    return Finding(
        name="answer",
        good=True,
        found=f"{answer.tokens} tokens, {answer.tokens_per_second:.0f} tokens/s, "
        f"first after {1e3 * answer.seconds_to_first_token:.0f} ms",
    )
