"""``python -m residuum``: the same as the command ``residuum``."""

from residuum.cli import main

main()
