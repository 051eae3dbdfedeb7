"""Tests that samples are flattened into leaves and put together again without loss."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from argosy.stream.trees import PAIR, flatten, map_leaves, unflatten

Pair = namedtuple("Pair", "left right")


@dataclass
class Fields:
    """A dataclass of two leaves."""

    left: Any
    right: Any


@pytest.mark.parametrize(
    "tree",
    [1, (1, 2), [1, [2, 3]], {"b": 1, "a": (2,)}, Pair(1, {"x": 2}), Fields(1, (2, 3)), OrderedDict(z=1, a=2), ()],
)
def test_round_trip(tree) -> None:
    leaves, structure = flatten(tree)
    again = unflatten(leaves, structure)
    assert again == tree
    assert type(again) is type(tree)


class Point(tuple):
    """A tuple whose constructor takes two numbers instead of an iterable, so that it cannot be rebuilt in the usual way."""

    def __new__(cls, x: Any, y: Any) -> "Point":
        return super().__new__(cls, (x, y))


class Sizes(list[int]):
    """A list whose constructor computes its elements from other objects, so that it cannot be rebuilt of leaves."""

    def __init__(self, images: Any) -> None:
        super().__init__(len(image) for image in images)


@pytest.mark.parametrize(
    ("tree", "again"),
    [
        (torch.Size([3, 4]), (3, 4)),
        (defaultdict(list, x=1, y=2), {"x": 1, "y": 2}),
        (MappingProxyType({"x": 1}), {"x": 1}),
        (Point(1, 2), (1, 2)),
        (Sizes(["ab"]), [2]),
    ],
)
def test_what_cannot_be_made_of_other_leaves_becomes_plain(tree: Any, again: Any) -> None:
    leaves, structure = flatten({"sample": (torch.ones(1), tree)})
    stacked = [torch.as_tensor([leaf]) for leaf in leaves]
    made = unflatten(stacked, structure)["sample"][1]
    assert made == again
    plain = type(again) if not isinstance(tree, MappingProxyType) else MappingProxyType
    assert type(made) is plain


def test_structures_can_be_compared() -> None:
    assert flatten((1, 2))[1] == flatten((3, 4))[1]
    assert flatten((1, 2))[1] != flatten([1, 2])[1]
    assert map_leaves(str, {"a": [1, 2]}) == {"a": ["1", "2"]}


@pytest.mark.parametrize("inputs", [torch.ones(2), np.ones(2), 0.5])
@pytest.mark.parametrize("target", [torch.tensor(1), np.ones(()), 1])
def test_usual_samples_are_not_walked(inputs: Any, target: Any) -> None:
    leaves, structure = flatten((inputs, target))
    assert leaves[0] is inputs and leaves[1] is target
    assert structure is PAIR  # not an equal one that was built for this sample
