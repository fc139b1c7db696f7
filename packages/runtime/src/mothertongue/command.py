"""The `mothertongue` command: a group that finds its sub-commands through entry points.

Only click and the standard library are imported here, so that `mothertongue --help` stays fast.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from importlib.metadata import entry_points
from typing import Any, NoReturn

import click

from mothertongue.errors import MothertongueError

# Which package brings a command, so that a missing one is answered with the line that installs it.
PACKAGES = {
    "prepare": "mothertongue-trainer",
    "tokenizer": "mothertongue-trainer",
    "train": "mothertongue-trainer",
    "evaluate": "mothertongue-trainer",
    "audit": "mothertongue-arbiter",
    "export": "mothertongue-export",
    "verify": "mothertongue-export",
    "build": "mothertongue-export",
}

SIGPIPE = 13  # `signal.SIGPIPE` does not exist on Windows


class CommandGroup(click.Group):
    """Sub-commands of every installed package, in one list, with our errors shown on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry_point.name for entry_point in entry_points(group="mothertongue.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry_point in entry_points(group="mothertongue.commands", name=cmd_name):
            command = entry_point.load()
            assert isinstance(command, click.Command), f"{entry_point.value} is not a click command"
            return command
        if cmd_name in PACKAGES:
            message = f"'{cmd_name}' needs another package: pip install {PACKAGES[cmd_name]}"
            raise click.UsageError(message, ctx)
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MothertongueError as error:
            leave(f"Error: {error}", error.exit_code)
        except KeyboardInterrupt:
            leave("Stopped.", 128 + signal.SIGINT)
        except BrokenPipeError:
            # The reader has gone; nothing more can be said, and the final flush must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(128 + SIGPIPE) from None
        except OSError as error:  # a full disk, a folder without permission: not a bug, so no traceback
            where = f"{error.filename}: " if error.filename else ""
            leave(f"Error: {where}{error.strerror or error}", 2)


def leave(message: str, exit_code: int) -> NoReturn:
    """Print `message` on standard error and end the program with `exit_code`."""
    click.echo(message, err=True)
    raise click.exceptions.Exit(exit_code)


@click.command("mothertongue", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mothertongue", prog_name="mothertongue")
def main() -> None:
    """Train a small language model in your own language, prove it sound, and run it anywhere."""
    # Bangla must pass a pipe whatever the locale says; a terminal keeps the encoding that it can show.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
