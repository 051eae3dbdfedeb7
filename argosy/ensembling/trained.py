"""The networks of a run, which is the part of a report that needs the study and torch."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from argosy.ensembling.combining import Combine, Combines, as_averaged, check_same_structure, combine_per_output
from argosy.ensembling.ensemble import Ensemble, member_of, snapshot_name
from argosy.ensembling.exporting import build_exported
from argosy.ensembling.making import (
    PROBABILITIES,
    Reducible,
    Select,
    check_classes_first,
    make_cross_validated,
    make_ensemble,
    make_reducer,
    make_uniform,
    weights_of,
)
from argosy.ensembling.opening import network_with_weights
from argosy.ensembling.predict import (
    Predicted,
    Reduced,
    check_features,
    data_with_samples,
    errors_of_samples,
    make_preparer,
    predict,
    preparation_of,
)
from argosy.ensembling.preparing import Prepared, device_of, prepares_itself
from argosy.ensembling.select import How
from argosy.errors import CheckpointError, DiskError, RunError, StudyError
from argosy.errors.checks import check_choice, describe_value
from argosy.errors.spelling import did_you_mean, format_names
from argosy.errors.warned import warn_caller
from argosy.export import check_format, push, write
from argosy.results.fold import MemberState, RunState
from argosy.results.member import MemberResult
from argosy.stream.copied import copy_network
from argosy.stream.trees import flatten, unflatten
from argosy.study import Member, Study, ignored_class
from argosy.training.member import checkpoint
from argosy.training.member.answers import answer_kind
from argosy.training.member.building import effective_seed
from argosy.training.member.snapshots import unstack_snapshots

__all__ = ["Trained"]


@dataclass(frozen=True, slots=True)
class Trained:
    """Implement `argosy.results.member.Networks` with the run's study."""

    study: Study | None
    state: RunState
    directory: Path
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By member: what has changed in its network since it was trained."""

    def load(self, name: str, *, preprocess: bool = False) -> nn.Module:
        """Implement `Networks.load`; raises RunError if nothing was saved or the study has no such member."""
        preparation = preparation_of(self.known_study()) if preprocess else None
        network, _ = self._load_best(name)
        return network if preparation is None else Prepared(network, preparation).eval()

    def _load_best(self, name: str) -> tuple[nn.Module, tuple[int, int]]:
        """Return a member's network with its best saved weights, and their (epoch, section); warn if better ones are not saved yet."""
        study, state = self.known_study(), self.state.member(name)
        saved = next((saved for saved in reversed(state.saved) if saved.best is not None), None)
        if saved is None or saved.best is None:
            raise RunError(
                f"member {name!r} has not finished and saved a section, so there is nothing to load. Train it further."
            )
        if name not in study.names:
            raise RunError(
                f"the study has no member {name!r}{did_you_mean(name, study.names)}, only {format_names(study.names)}. Pass the "
                "run's own study or, with members that `argosy add` brought, a list of it and theirs: study=[study, added], or --study for each file."
            )
        best = self._weights(name, saved.best, saved.best_sha256)
        # The file is either a whole checkpoint, which names the section of its best weights under "best", or only the best weights.
        epoch, section, value, *_ = best.get("best") or (best["epoch"], best["section"], best["value"])
        if state.best is not None and (epoch, section) < (state.best.epoch, state.best.section):
            objective = study.objective
            warn_caller(
                f"member {name!r}: the best saved weights are from epoch {epoch + 1}, with {objective} {value:.4g}; "
                f"the weights of epoch {state.best.epoch + 1}, with {state.best.metrics[objective]:.4g}, are not "
                "saved yet. Train it further, then load it again.",
            )
        member = study.member(name)
        seed, late = effective_seed(member, study.seed), best.get("late", ())
        network = network_with_weights(member, best["model"], seed, late=late)
        if changed := self.changed.get(name):
            warn_caller(
                f"member {name!r}: its network has changed since it was trained ({'; '.join(changed)}), but it has "
                "the old weights, so its outputs may differ from the report's. Load it with the original study."
            )
        return network, (epoch, section)

    def _weights(self, name: str, file: str, sha256: str | None) -> dict[str, Any]:
        path = self.directory / "members" / name / file
        try:
            return checkpoint.load(path, sha256, key="model")
        except (CheckpointError, DiskError) as error:
            # The link names newer weights before older ones are deleted.
            newest = Path(os.path.realpath(path.with_name("best.pt")))  # resolve() raises for links in a circle
            here, newer = (os.path.exists(one) for one in (path, newest))  # noqa: PTH110  # Path.exists() may raise
            if here or newest.name == file or not newer:
                raise
            raise CheckpointError(
                f"the run has replaced {path} since this report was read, or trained while the directory was copied. Call "
                "argosy.load again, repeat the command, or copy the directory again."
            ) from error

    def predict(self, network: nn.Module, samples: Any) -> Any:
        """Implement `Networks.predict`.

        Raises RunError if no samples are given and the study has no validation data, and StudyError for samples that raise and are not skipped.
        """
        study = self.known_study()
        _check_module("predict", network)
        if samples is None and not study.data.has_val:
            raise RunError(
                f"the study of {self.directory} has no validation data to predict. Pass samples, for example "
                "report.predict((x,))."
            )
        with nullcontext() if samples is None else errors_of_samples():
            data = study.data if samples is None else data_with_samples(study, samples)
            if samples is not None:
                check_features(study, data)
            preparation = study.data.on_device if samples is None else make_preparer(study, device_of(network))
            if prepares_itself(network):
                preparation = None
            predicted = predict([network], data, seed=study.seed, preparation=preparation, sizes=_batch_sizes(study))
        return predicted.outputs[0] if len(predicted.indices) == predicted.length else _with_gaps(predicted)

    def ensemble(
        self,
        names: Sequence[str],
        *,
        combine: Combines | None,
        select: Select,
        snapshots: bool,
        calibrate: bool,
        preprocess: bool,
    ) -> Ensemble:
        """Implement `Networks.ensemble`; without `combine`, the combination that fits the losses is used."""
        for way in [] if combine is None else flatten(combine)[0]:
            check_choice("report.ensemble: combine", way, get_args(Combine))
        combined = self._combined(names, combine=combine, select=select, snapshots=snapshots, calibrate=calibrate)
        combined.preparation = preparation_of(self.known_study()) if preprocess else None
        return combined

    def _combined(
        self, names: Sequence[str], *, combine: Combines | None, select: Select, snapshots: bool, calibrate: bool
    ) -> Ensemble:
        study = self.known_study()
        networks = {name: self.load(name) for name in names}
        members = [study.member(name) for name in names]
        seeds = [effective_seed(member, study.seed) for member in members]
        combine = combine or _default_combine(members)
        if calibrate and not {"probabilities", "logits", "votes"} & {*flatten(combine)[0]}:
            raise RunError(
                f"report.ensemble: calibrate=True fits a temperature to class logits, but with combine={combine!r} "
                "outputs are numbers. Remove calibrate=True."
            )
        logits = combine == "mean" and any(isinstance(member.loss, nn.BCEWithLogitsLoss) for member in members)
        if logits and select is not None:
            raise RunError(
                f"report.ensemble: select={select!r} compares errors of numbers, but members with BCEWithLogitsLoss "
                f"return logits. Remove select=, or use {PROBABILITIES}."
            )
        shared = study.data.has_val and _share_validation(members)
        if not shared and (select is not None or calibrate):
            problem = "have different validation samples" if study.data.has_val else "have no validation samples"
            raise RunError(
                f"members {format_names(map(repr, names))} {problem}, but select= and calibrate= need the same ones for all. "
                "Remove these arguments, or choose members that share validation samples, with members=. For argosy.distill, pass teacher=report.ensemble()."
            )
        if not study.data.has_val:
            return make_uniform(networks, seeds, combine, note="no scores: the study has no validation samples")
        if logits:
            return make_uniform(networks, seeds, combine, note="no scores: outputs are logits, but targets are not")
        weights: list[float] = []
        if snapshots and select is not None and not calibrate and (combine == "probabilities" or combine == "mean"):
            networks, weights = self._with_snapshots(networks, combine, select)
            seeds = [effective_seed(study.member(member_of(name)), study.seed) for name in networks]
        if shared:
            predicted = [self._predict_validation(list(networks.values()), members)]
            outputs = predicted[0].outputs
        else:
            predicted = [self._predict_validation([networks[member.name]], [member]) for member in members]
            outputs = [part.outputs[0] for part in predicted]
        check_same_structure(dict(zip(networks, outputs, strict=True)))
        if combine != "mean":
            check_classes_first(predicted[0], known={*map(answer_kind, members)} == {"classes"})
        tree = flatten(outputs[0])[1]
        how = combine_per_output(combine, tree)[0]
        if (
            (tree is not None or _several_numbers(outputs[0], predicted[0].targets))
            and select is None
            and not calibrate
        ):
            return make_uniform(networks, seeds, combine, note="no scores: the networks have several outputs")
        if shared:
            return make_ensemble(
                networks, seeds, predicted[0], combine=how, select=select, calibrate=calibrate, weights=weights
            )
        return make_cross_validated(networks, seeds, predicted, combine=how)

    def _with_snapshots(
        self, networks: dict[str, nn.Module], combine: Reducible, how: How
    ) -> tuple[dict[str, nn.Module], list[float]]:
        """Return these networks with the snapshots that selection takes, and the weights; no weights if no snapshots are kept.

        Only what selection needs of each network's outputs is kept, because there may be thousands of snapshots.
        """
        snapshots = {name: network for member in networks for name, network in self._snapshots(member).items()}
        if not snapshots:
            return networks, []
        every = networks | snapshots
        members = [*map(self.known_study().member, networks)]
        weights = weights_of(
            self._predict_validation([*every.values()], members, make_reducer(combine)).outputs, combine, how
        )
        kept = {name: weight for name, weight in zip(every, weights, strict=True) if weight or name in networks}
        return {name: every[name] for name in kept}, [*kept.values()]

    def _snapshots(self, name: str) -> dict[str, nn.Module]:
        """Return a member's networks after its last sections, except the best section, by `snapshot_name`.

        They come from the newest readable file, because a run in progress may have replaced a file meanwhile.
        """
        study, state = self.known_study(), self.state.member(name)
        if study.ensemble is None or not study.ensemble.snapshot_bytes:
            return {}
        member, sections, networks = study.member(name), study.validations_per_epoch, dict[str, nn.Module]()
        best = None if state.best is None else (state.best.epoch, state.best.section)
        for at, weights in self._kept_weights(state).items():
            if at != best:
                label = snapshot_name(name, at[0] + (at[1] + 1) / sections)
                networks[label] = network_with_weights(member, weights, effective_seed(member, study.seed))
        return networks

    def _kept_weights(self, state: MemberState) -> Mapping[tuple[int, int], Mapping[str, Any]]:
        for saved in reversed(state.saved):
            with contextlib.suppress(CheckpointError):
                file = self.directory / "members" / state.name / saved.file
                return unstack_snapshots(checkpoint.load(file, saved.sha256).get("snapshots"))
        return {}

    def export(
        self,
        network: Any,
        row: MemberResult | None,
        folder: Path,
        *,
        format: str,
        preprocess: bool,
        push_to_hub: str | None,
    ) -> None:
        """Implement `Networks.export`."""
        check_format(format, push_to_hub=push_to_hub)
        study = self.known_study()
        if row is None:
            _check_module("export", network)
            whole = copy_network(network)
        else:
            whole, at = self._load_best(row.name)
            row = _result_at(row, at)
        whole = whole.cpu().eval()
        preparation = preparation_of(study) if preprocess else None
        if preparation is not None and not prepares_itself(whole):
            whole = Prepared(whole, preparation).eval()
        samples = {} if self.state.started is None else dict(self.state.started.lengths)
        if row is not None:
            member = study.member(row.name)
            for split, subset in {"train": member.subset, "val": member.val_subset}.items():
                if subset is not None and split in samples:
                    samples[split] = len(np.unique(subset))
        write(build_exported(study, samples, whole, row), folder, format)
        if push_to_hub is not None:
            push(folder, push_to_hub)

    def out_of_fold(self, names: Sequence[str]) -> Any:
        """Return each sample's mean prediction by the members that held it out, ``[N, …]``."""
        study = self.known_study()
        parts = []
        for name in names:
            network = self.load(name)
            member = study.member(name)
            if member.val_subset is None:
                raise RunError(
                    f"member {name!r} has no val_subset, so it holds out no fold. Choose members made by argosy.kfold."
                )
            parts.append(self._predict_validation([network], [member]))
        several = zip(*(flatten(part.outputs[0])[0] for part in parts), strict=True)
        return unflatten([_mean_of_parts(parts, outputs) for outputs in several], flatten(parts[0].outputs[0])[1])

    def _predict_validation(
        self, networks: Sequence[nn.Module], members: Sequence[Member], reducing: Reduced | None = None
    ) -> Predicted:
        """Run networks on the validation samples of these members, which have the same ones; no score counts targets that a loss ignores."""
        study = self.known_study()
        return predict(
            networks,
            study.data,
            seed=study.seed,
            indices=members[0].val_subset,
            preparation=study.data.on_device,
            sizes=_batch_sizes(study),
            reduced=reducing,
            ignored={ignored_class(member.loss) for member in members},
        )

    def known_study(self) -> Study:
        if self.study is None:
            of = "search" if self.state.searches else "study"
            raise RunError(
                f"the report of {self.directory} was read without its {of} and cannot build networks. Pass the {of}: "
                f"argosy.load(directory, study={of})."
            )
        return self.study


def _check_module(method: str, network: Any) -> None:
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"report.{method}: network is {describe_value(network)}; it must be the name of a member or a torch.nn.Module. For several "
            "members, pass report.ensemble(members=[...])."
        )


def _result_at(row: MemberResult, at: tuple[int, int]) -> MemberResult:
    """Return the result with the metrics of this (epoch, section), whose weights are exported."""
    until = tuple(ended for ended in row.sections if (ended.epoch, ended.section) <= at)
    if not until or (until[-1].epoch, until[-1].section) != at:
        return row
    return replace(row, metrics=dict(until[-1].metrics), best_epoch=at[0] + 1, sections=until)


def _with_gaps(predicted: Predicted) -> Any:
    """Return the output of one network with a row for each sample; samples that raised get NaN and a warning."""
    missing = np.setdiff1d(np.arange(predicted.length), predicted.indices.numpy())
    named = ", ".join(map(str, missing[:5])) + (" and others" if len(missing) > 5 else "")
    leaves, tree = flatten(predicted.outputs[0])
    if not all(leaf.is_floating_point() for leaf in leaves):
        raise RunError(
            f"{len(missing):,} of {predicted.length:,} samples to predict raised ({named}), but the network returns "
            "whole numbers, which cannot be NaN in their place. Remove these samples from the prediction."
        )
    warn_caller(f"{len(missing):,} of {predicted.length:,} samples to predict raised ({named}); their rows are NaN.")
    rows = [leaf.new_full((predicted.length, *leaf.shape[1:]), torch.nan) for leaf in leaves]
    return unflatten(
        [row.index_copy_(0, predicted.indices, leaf) for row, leaf in zip(rows, leaves, strict=True)], tree
    )


def _mean_of_parts(parts: Sequence[Predicted], outputs: Sequence[Tensor]) -> Tensor:
    """Return each sample's mean output over the parts that contain it, ``[N, …]``; NaN for samples in no part."""
    outputs = [*map(as_averaged, outputs)]
    total = outputs[0].new_zeros(parts[0].length, *outputs[0].shape[1:])
    times = outputs[0].new_zeros(parts[0].length, *[1] * (total.dim() - 1))
    for part, output in zip(parts, outputs, strict=True):
        total.index_add_(0, part.indices, output.to(total.dtype))
        times.index_add_(0, part.indices, times.new_ones(len(part.indices), *times.shape[1:]))
    return total / times


def _batch_sizes(study: Study) -> list[int]:
    """Return the batch sizes with which members of the study are validated."""
    return list(dict.fromkeys(member.eval_batch_size or member.batch_size for member in study.members))


def _default_combine(members: Sequence[Member]) -> Combine:
    """Return how to combine members with these losses; raise RunError if the losses do not determine it."""
    kinds = {answer_kind(member) for member in members}
    if kinds == {"classes"}:
        return "probabilities"
    if kinds == {"numbers"}:
        return "mean"
    raise RunError(
        f"the losses of members {', '.join(repr(member.name) for member in members)} do not show what their outputs "
        "are. Pass combine='probabilities' for class logits, combine='mean' for numbers, and one for each of several "
        "outputs, for example combine={'class': 'probabilities', 'age': 'mean'}. For one logit for two classes, "
        f"use {PROBABILITIES}. For argosy.distill, pass that ensemble as teacher=."
    )


def _share_validation(members: Sequence[Member]) -> bool:
    first, *others = [member.val_subset for member in members]
    if first is None:
        return all(other is None for other in others)
    return all(other is not None and np.array_equal(first, other) for other in others)


def _several_numbers(output: Any, target: Any) -> bool:
    """Return whether an output has more numbers than its target, for example several quantiles."""
    numbers = isinstance(output, Tensor) and isinstance(target, Tensor) and target.is_floating_point()
    return numbers and output.numel() > target.numel()
