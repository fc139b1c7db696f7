"""The commands that use a bundle: chat, generate, inspect, doctor, bench."""

from __future__ import annotations

import contextlib
import json
import locale
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mothertongue.errors import DataError

if TYPE_CHECKING:
    from mothertongue.answer import Answer
    from mothertongue.conversation import Chat
    from mothertongue.sampling import Sampling

CHAT_HELP = """\
  /reset   forget what was said and start again
  /quit    leave (so does Ctrl-D)
  Ctrl-C   stop an answer"""

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Default: what this process may use."
)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add to `command` the options that say how an answer is made."""
    option, whole = click.option, click.IntRange(min=1)
    options = [
        option("--temperature", type=float, metavar="T", default=0.0, show_default=True, help="0 is greedy."),
        option("--top-k", type=int, metavar="K", help="Choose among the K most probable tokens."),
        option("--top-p", type=float, metavar="P", default=1.0, help="Choose among those that make up P."),
        option(
            "--min-p", type=float, metavar="P", default=0.0, help="Drop those less than P times the first."
        ),
        option("--repetition-penalty", type=float, metavar="X", default=1.0, help="Above 1: repeat less."),
        option("--presence-penalty", type=float, metavar="X", default=0.0, help="Against tokens used."),
        option("--frequency-penalty", type=float, metavar="X", default=0.0, help="The same, each time."),
        option("--stop", multiple=True, metavar="TEXT", help="End before TEXT; may be given again."),
        option("--seed", type=int, metavar="N", help="Make the same choices again."),
        option("--max-tokens", type=whole, metavar="N", help="Default: until the context is full."),
        threads_option,
        json_option,
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command


@click.command()
@bundle_argument
@click.option("--system", metavar="TEXT", help="A system message before the conversation.")
@answer_options
def chat(bundle: Path, system: str | None, threads: int | None, as_json: bool, **choice: Any) -> None:
    """Chat with the model in BUNDLE. A question piped in is answered once.

    Example: echo 'নদী শব্দের অর্থ কী?' | mothertongue chat bundles/nano
    """
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive and as_json:
        raise click.UsageError(
            "--json answers one question from a pipe: echo QUESTION | mothertongue chat ..."
        )
    sampling = read_sampling(**choice)
    question = None if interactive else read_prompt()

    from mothertongue.model import load

    model = load(bundle, threads=threads)
    conversation = model.chat(system=system, sampling=sampling)
    if question is None:
        alone = " Each question is answered by itself." if model.format.turns == 1 else ""
        click.echo(f"Chatting with {bundle.name}.{alone} /help lists the commands, Ctrl-D leaves.")
        converse(conversation)
        return
    answer = conversation.say(question, graphemes=not as_json and sys.stdout.isatty())
    show(answer, as_json=as_json)


@click.command(short_help="Continue a text with the model in BUNDLE.")
@bundle_argument
@click.argument("prompt", required=False)
@answer_options
def generate(bundle: Path, prompt: str | None, threads: int | None, as_json: bool, **choice: Any) -> None:
    """Let the model in BUNDLE continue PROMPT, or else the text piped in."""
    sampling = read_sampling(**choice)
    prompt = read_prompt() if prompt is None else prompt

    from mothertongue.model import load

    model = load(bundle, threads=threads)
    answer = model.generate(prompt, sampling, graphemes=not as_json and sys.stdout.isatty())
    show(answer, as_json=as_json)


@click.command(short_help="Show what BUNDLE is, every byte verified.")
@bundle_argument
@json_option
def inspect(bundle: Path, as_json: bool) -> None:
    """Verify every byte of BUNDLE and show what it is."""
    from mothertongue.model import load

    model = load(bundle)
    facts = asdict(model.manifest) | {
        "bundle": str(bundle),
        "bytes": model.manifest.total_bytes,
        "model_sha256": model.manifest.model_sha256,
        "context": model.context,
        "vocabulary": model.engine.vocabulary,
        "inputs": model.engine.inputs,
    }
    if as_json:
        print_json(facts)
        return
    print_facts(
        {
            "bundle": f"{bundle} ({facts['bytes'] / 1e6:.2f} MB, every byte verified)",
            "recipe": facts["recipe"].get("name", "unnamed"),
            "format": f"version {facts['format_version']}",
            "needs": f"onnxruntime {facts['minimum_onnxruntime']} or newer",
            "model": f"context {facts['context']} tokens, vocabulary {facts['vocabulary']}",
            "trained at": facts["training_commit"],
            "sha256": f"model {facts['model_sha256'][:12]}, tokenizer {facts['tokenizer_sha256'][:12]}",
        }
    )
    click.echo("\nparity with the trained checkpoint")
    print_facts(facts["parity"])
    click.echo("\nquantization")
    for row in facts["quantization"]:
        click.echo(f"  {in_words(row)}")
    click.echo("\nfiles")
    for name, record in facts["files"].items():
        click.echo(f"  {name:<24} {record['bytes']:>13,} bytes  {record['sha256'][:12]}")
    click.echo("\ninputs of the graph")
    print_facts({name: " x ".join(map(str, shape)) for name, shape in facts["inputs"].items()})


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@json_option
@click.pass_context
def doctor(ctx: click.Context, bundle: Path | None, as_json: bool) -> None:
    """Check this machine, and BUNDLE. What is bad comes with what to do about it."""
    from mothertongue.doctor import examine

    findings = []
    for finding in examine(bundle):
        findings.append(finding)
        if not as_json:
            mark = "good" if finding.good else "bad "
            remedy = "" if finding.good else f": {finding.remedy}"
            click.echo(f"{mark}  {finding.name:<12} {finding.found}{remedy}")
    good = all(finding.good for finding in findings)
    if as_json:
        print_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    ctx.exit(0 if good else 1)


@click.command()
@bundle_argument
@threads_option
@click.option(
    "--load",
    "busy",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="Run N busy processes beside it.",
)
@json_option
def bench(bundle: Path, threads: int | None, busy: int, as_json: bool) -> None:
    """Measure how fast BUNDLE is here. Medians after a warm-up, beside the bound of the memory."""
    from mothertongue.bench import measure

    report = measure(bundle, threads=threads, busy=busy)
    if as_json:
        print_json(asdict(report))
        return
    print_facts(report.rows())


def read_sampling(**choice: Any) -> Sampling:
    """Return the options as a Sampling, a value out of range as click's usage error."""
    from mothertongue.sampling import Sampling

    try:
        return Sampling(**choice)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_prompt() -> str:
    """Return the text on standard input; raise DataError if it is empty or not UTF-8."""
    try:
        prompt = "" if sys.stdin is None else sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: byte {error.start} is not UTF-8; save the text as UTF-8") from error
    if not prompt:
        raise DataError("standard input: the prompt is empty; try: echo QUESTION | mothertongue ...")
    return prompt


def converse(conversation: Chat) -> None:
    """Ask and answer at the terminal until the person leaves."""
    # Arrow keys and history for input(). In another locale readline swallows every letter but ASCII's.
    if locale.getencoding().lower() == "utf-8":
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /quit leaves.")
            continue
        except UnicodeDecodeError:
            click.echo("(the terminal sent bytes that are no text)")
            continue
        if question == "/quit":
            return
        if question == "/reset":
            conversation.reset()
        elif question.startswith("/"):
            click.echo(CHAT_HELP)
        elif question:
            ask(conversation, question)


def ask(conversation: Chat, question: str) -> None:
    """Print the answer to one question; neither Ctrl-C nor a question too long ends the conversation."""
    try:
        answer = conversation.say(question, graphemes=sys.stdout.isatty())
    except DataError as error:
        click.echo(f"({error})")
        return
    try:
        print_answer(answer)
    except KeyboardInterrupt:
        answer.cancel()
        click.echo("\n(stopped)")
    if answer.forgotten_turns:
        click.echo("(the oldest turns no longer fit and are forgotten)")


def show(answer: Answer, *, as_json: bool) -> None:
    """Print an answer as it comes, or as one JSON object when it is over."""
    if as_json:
        print_json(asdict(answer.complete()))
    else:
        print_answer(answer)


def print_answer(answer: Answer) -> None:
    """Print an answer as it comes and, on standard error, why it ended if the model did not end it."""
    for token in answer:
        click.echo(token.text, nl=False)
    click.echo()
    if answer.finish_reason == "context":
        click.echo("(the context is full)", err=True)
    elif answer.finish_reason == "length":
        click.echo("(--max-tokens reached)", err=True)


def print_facts(facts: dict[str, Any]) -> None:
    """Print names and values in two columns."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"  {name:<{width}}  {in_words(value)}")


def in_words(value: Any) -> str:
    """Return a value of a table on one line, the entries of a mapping one after the other."""
    return (
        ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, dict) else f"{value}"
    )


def print_json(value: dict[str, Any]) -> None:
    """Print the one JSON object of `--json`."""
    click.echo(json.dumps(value, ensure_ascii=False))
