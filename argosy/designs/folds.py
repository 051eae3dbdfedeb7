"""Several members from one, each on its own part of the samples: folds of a cross-validation, bootstraps for bagging.

The validation data of such a study are the training samples again, ``Data(arrays=a, val_arrays=a)`` or ``Data(train=d, val=d)``: a
member trains on its `subset` and is validated on the rest. All share one stream, so samples are prepared for all folds at once.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.designs.grid import repeated
from argosy.errors import StudyError
from argosy.errors.checks import check_indices, check_whole, describe_value
from argosy.errors.labels import labels_of
from argosy.errors.spelling import known_keywords
from argosy.study import Member

__all__ = ["bootstrap", "kfold"]

Indices = npt.NDArray[np.int64]
OnSamples = Member | Callable[[Indices], Member]
"""A member, or a function that makes one from the indices of its training samples, for preprocessing fitted to them."""


@known_keywords("argosy.kfold")
def kfold(
    member: OnSamples,
    folds: int | Iterable[tuple[Any, Any]] = 5,
    *,
    samples: int | None = None,
    stratify: Sequence[Any] | Any | None = None,
    groups: Sequence[Any] | Any | None = None,
    repeats: int = 1,
    seed: int = 0,
) -> list[Member]:
    """Return one member per fold, named ``mlp-fold=0`` and so on: trained on all other folds and validated on this one.

    `stratify` gives a label for each training sample, and each fold gets an equal share of every label. `groups` gives a group for each
    sample, and no group is in two folds. Without either, `samples` is the number of training samples. Folds depend on these and on `seed` only.

    If preprocessing is fitted on the training samples of a fold, such as means for normalisation, give a function in place of the member:
    it gets the indices of these samples and returns the member to train on them.

    `folds` may also be pairs of training and validation indices, one pair for each fold, as every splitter of scikit-learn makes them:
    ``argosy.kfold(mlp, TimeSeriesSplit(5).split(x))``. All other arguments but `member` are then left out.

    With `repeats`, the samples are divided into folds several times, each time differently, with members ``mlp-repeat=0-fold=0`` and so on; the
    first division is the same as without repeats. Confidence intervals are corrected for the samples that folds share (Nadeau and Bengio
    2003; for repeats Bouckaert and Frank 2004).
    """
    if not isinstance(folds, int):
        pairs = _pairs(folds)
        if any(value is not None for value in (samples, stratify, groups)) or (repeats, seed) != (1, 0):
            raise StudyError(
                "argosy.kfold was given the pairs of all folds, and also how to divide the samples. Pass the member and folds= only."
            )
        return [_on("argosy.kfold", member, f"fold={fold}", train, val) for fold, (train, val) in enumerate(pairs)]
    for name, value, least in (("folds", folds, 2), ("repeats", repeats, 1), ("seed", seed, 0)):
        check_whole(f"argosy.kfold: {name}", value, least=least)
    if repeats > 1 and groups is not None:
        raise StudyError(
            "argosy.kfold: groups are distributed by size, so repeats= would mostly give the same folds again. "
            "Remove repeats=."
        )
    random = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])
    members = []
    for repeat in range(repeats):
        fold_N = _fold_of_each(folds, samples, stratify, groups, random)
        index_N = _indices(len(fold_N))
        for fold in range(folds):
            name = f"fold={fold}" if repeats == 1 else f"repeat={repeat}-fold={fold}"
            members.append(_on("argosy.kfold", member, name, index_N[fold_N != fold], index_N[fold_N == fold]))
    return members


@known_keywords("argosy.bootstrap")
def bootstrap(member: OnSamples, times: int = 10, *, samples: int, seed: int = 0) -> list[Member]:
    """Return one member per bootstrap, named ``mlp-bootstrap=0`` and so on: trained on `samples` samples drawn with replacement, and validated on
    those that were not drawn. A function can be given in place of the member, as for `kfold`."""
    for name, value, least in (("times", times, 1), ("samples", samples, 2), ("seed", seed, 0)):
        check_whole(f"argosy.bootstrap: {name}", value, least=least)
    random = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])
    members, index_N = [], _indices(samples)
    for number in range(times):
        drawn = np.sort(random.randint(samples, size=samples))
        out_of_bag = np.setdiff1d(np.arange(samples), drawn)
        members.append(_on("argosy.bootstrap", member, f"bootstrap={number}", index_N[drawn], index_N[out_of_bag]))
    return members


def _pairs(folds: Any) -> list[tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]]:
    """Return the training and the validation indices of each fold; raise StudyError unless these are such pairs."""
    if not isinstance(folds, Iterable) or isinstance(folds, str):
        split = hasattr(folds, "split") and not isinstance(folds, str)
        raise StudyError(
            f"argosy.kfold: folds is {describe_value(folds)}; it must be an int of at least 2, or pairs of training and validation "
            f"indices. Pass {'what its split(x, y) returns' if split else 'for example TimeSeriesSplit(5).split(x)'}."
        )
    pairs = [*folds]
    if len(pairs) < 2:
        raise StudyError(
            f"argosy.kfold: folds has {len(pairs)} pairs of training and validation indices; it must have at least 2. For several "
            "members, pass list(splitter.split(x)), because a generator can be read only once."
        )
    pairs = [_arrays(f"argosy.kfold: folds[{number}]", pair) for number, pair in enumerate(pairs)]
    index_N = _indices(1 + max(int(indices.max()) for pair in pairs for indices in pair))
    return [(index_N[train], index_N[val]) for train, val in pairs]


def _arrays(what: str, pair: Any) -> tuple[Indices, Indices]:
    """Return a pair of training and validation indices as arrays; raise StudyError unless it is one."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        length = f" of length {len(pair)}" if isinstance(pair, list | tuple) else ""
        raise StudyError(
            f"{what} is {describe_value(pair)}{length}; it must be a pair of training and validation indices."
        )
    for part, indices in zip(("training", "validation"), pair, strict=True):
        check_indices(f"{what}, {part}", indices)
    train, val = map(np.asarray, pair)
    if shared := int(np.isin(train, val).sum()):
        raise StudyError(
            f"{what} validates on {shared} of its training samples. Remove them from one of its two lists."
        )
    return train, val


def _fold_of_each(
    folds: int, samples: int | None, stratify: Any, groups: Any, random: np.random.RandomState
) -> Indices:
    """Return the number of each sample's fold."""
    keywords = [
        name for name, value in (("samples", samples), ("stratify", stratify), ("groups", groups)) if value is not None
    ]
    if len(keywords) != 1:
        raise StudyError(
            f"argosy.kfold was given {' and '.join(f'{name}=' for name in keywords) or 'no samples'}. Pass exactly one "
            "of stratify= (a label for each training sample), groups= (a group for each sample) and samples= (the "
            "number of samples)."
        )
    if samples is not None:
        check_whole("argosy.kfold: samples", samples, least=folds)
        return _dealt(random.permutation(samples), folds)
    if groups is not None:
        return _by_groups(labels_of("argosy.kfold: groups=", groups), folds, random)
    return _by_labels(labels_of("argosy.kfold: stratify=", stratify), folds, random)


def _by_labels(label_N: Any, folds: int, random: np.random.RandomState) -> Indices:
    """Deal out the samples of one label after another, each label starting at the fold where the previous one ended."""
    labels, counts = np.unique(label_N, return_counts=True)
    if counts.min() < folds:
        few = labels[counts.argmin()]
        raise StudyError(
            f"argosy.kfold: label {few!s} has {counts.min()} of the samples, too few for {folds} folds. Choose fewer "
            "folds, or remove the samples of such labels."
        )
    return _dealt(np.concatenate([random.permutation(np.flatnonzero(label_N == label)) for label in labels]), folds)


def _by_groups(group_N: Any, folds: int, random: np.random.RandomState) -> Indices:
    """Assign groups to the smallest fold, largest group first; groups of equal size come in random order."""
    groups, group_N, counts = np.unique(group_N, return_inverse=True, return_counts=True)
    if len(groups) < folds:
        raise StudyError(
            f"argosy.kfold: groups= has {len(groups)} different groups, too few for {folds} folds. Choose fewer folds."
        )
    fold_of, sizes = np.empty(len(groups), np.int64), np.zeros(folds, np.int64)
    drawn = random.permutation(len(groups))
    for group in drawn[np.argsort(-counts[drawn], kind="stable")]:
        fold_of[group] = sizes.argmin()
        sizes[fold_of[group]] += counts[group]
    fold_N: Indices = fold_of[group_N]
    return fold_N


def _dealt(order: Indices, folds: int) -> Indices:
    """Deal samples one after another to fold 0, 1, …, 0, 1, …"""
    fold_N = np.empty(len(order), np.int64)
    fold_N[order] = np.arange(len(order)) % folds
    return fold_N


def _indices(samples: int) -> npt.NDArray[np.object_]:
    """Return the index of each sample, as objects that all members' lists share; for millions of samples this takes a fifth of the memory."""
    return np.arange(samples).astype(object)


def _on(
    function: str, samples: OnSamples, what: str, train: npt.NDArray[np.object_], val: npt.NDArray[np.object_]
) -> Member:
    """Return the member on these samples."""
    member = samples if isinstance(samples, Member) or not callable(samples) else samples(train.astype(np.int64))
    _check_member(function, member)
    subset = train.tolist()
    # A sample that was drawn twice is one sample of what repetitions share. `np.unique` takes twenty times as long.
    return repeated(member, what, overlap=len(val) / len({*subset}), subset=subset, val_subset=val.tolist())


def _check_member(function: str, member: Any) -> None:
    if not isinstance(member, Member):
        raise StudyError(
            f"{function} was given {describe_value(member)}; it must be an argosy.Member, or a function that returns one for "
            "the indices of its training samples. For several members, call it once for each."
        )
    if member.subset is not None or member.val_subset is not None:
        raise StudyError(
            f"member {member.name!r} already has a subset, but {function} sets one for each part. Remove the member's "
            "subset."
        )
