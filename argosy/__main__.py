"""``python -m argosy`` is the command ``argosy``."""

from argosy.cli.app import main

main()
