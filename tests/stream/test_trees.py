"""Samples are taken apart and put together without loss."""

from collections import OrderedDict, namedtuple

import pytest

from argosy.stream.trees import flatten, map_leaves, unflatten

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "tree", [1, (1, 2), [1, [2, 3]], {"b": 1, "a": (2,)}, Pair(1, {"x": 2}), OrderedDict(z=1, a=2), ()]
)
def test_round_trip(tree) -> None:
    leaves, structure = flatten(tree)
    again = unflatten(leaves, structure)
    assert again == tree
    assert type(again) is type(tree)


def test_structures_can_be_compared() -> None:
    assert flatten((1, 2))[1] == flatten((3, 4))[1]
    assert flatten((1, 2))[1] != flatten([1, 2])[1]
    assert map_leaves(str, {"a": [1, 2]}) == {"a": ["1", "2"]}
