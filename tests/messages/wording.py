"""What a machine can tell of a message's wording."""

import re
from collections.abc import Iterator

__all__ = ["faults"]

FEWEST_WORDS = 7
NAMED = re.compile(r"'[^']+'|`[^`]+`|\w\.\w|\w=|\d|--\w|\w/\w|\w_\w|[A-Z]\w+[A-Z]")
"""What a message is about: a name in quotes, a file, a field, a flag, a number."""
VERBS = """
add ask bind build change check choose clone close convert copy create delete draw encode fix flatten free give import install keep leave let look lower make
measure fix move omit open pad pass pip plan put raise read remove rename restore retry return run say see set shorten split start tell train try
undo upgrade use wait wrap write
augment bind call check compute define exclude increase load omit pass register resize restore resume skip yield
"""
ADVICE = re.compile(
    rf"(?im)(?:^|[.;:,(]\s|\b(?:or|and|so|then)\s)(?:{'|'.join(VERBS.split())})\b"
    r"|\b(?:must|can) (?:be|give|return)\b|same command goes on"
)
"""What to do about it: a clause that begins with a verb, or says what a value must be."""
INTERNAL = re.compile(
    r"(?<!or )(?<!=)\bNone\b|[^.]\.\.\s|\bobject at 0x|Exception\b|\{\}|\[\]|<class|<function|\.\.$|\s$"
)
"""What no person wrote for another."""


def faults(text: str) -> Iterator[str]:
    """What is wrong with a message, as far as a machine can tell."""
    if len(text.split()) < FEWEST_WORDS:
        yield f"has fewer than {FEWEST_WORDS} words"
    if not text.endswith("."):
        yield "does not end as a sentence does"
    if not NAMED.search(text):
        yield "names nothing"
    if not ADVICE.search(text):
        yield "does not say what to do"
    if found := INTERNAL.search(text):
        yield f"shows {found[0]!r}"
