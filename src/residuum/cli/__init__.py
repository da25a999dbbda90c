"""The command line: one module per group of commands, thin over the library.

Nothing heavy is imported before a command needs it: ``residuum --help`` answers in well under a second.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point of ``residuum``."""
    from residuum.cli.app import run

    run()
