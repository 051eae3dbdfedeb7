"""What a machine can tell of a message's wording."""

import re
from collections.abc import Iterator

__all__ = ["faults"]

FEWEST_WORDS = 7
NAMED = re.compile(r"'[^']+'|`[^`]+`|\w\.\w|\w=|\d|--\w|\w/\w|\w_\w|[A-Z]\w+[A-Z]")
"""What a message is about: a name in quotes, a file, a field, a flag, a number."""
VERBS = """
add allow apply ask augment bind build call change check choose clone close compare compute continue convert copy create declare define
delete divide draw encode end exclude export fill fix flatten free give grant import include increase install keep leave let load log look
lower make measure mount move number omit open pad pass pip plan point put raise re-create read reduce register remove rename repair
replace report resize restart restore resume retry return run save say see select set shorten show skip specify split start stop switch
tell train try undo unset update upgrade use wait wrap write yield
"""
ADVICE = re.compile(
    rf"(?im)(?:^|[.;:,(]\s|\b(?:or|and|so|then)\s)(?:{'|'.join(VERBS.split())})\b"
    r"|\b(?:must|can) (?:be|give|have|return)\b|same command resumes"
)
"""What to do about it: a clause that begins with a verb, or says what a value must be."""
INTERNAL = re.compile(
    r"(?<!or )(?<!=)(?<!`is )(?<!\[)\bNone\b|[^.]\.\.\s|\bobject at 0x|Exception\b|\{\}|\[\]|<class|<function|\.\.$|\s$"
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
