"""``python -m argosy`` is the command ``argosy``."""

from argosy.cli import main

main()
