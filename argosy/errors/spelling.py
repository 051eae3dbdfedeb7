"""Suggestions for unknown names: keywords, members, metrics, choices."""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from argosy.errors import StudyError

__all__ = [
    "OWNERS",
    "did_you_mean_flag",
    "known_keywords",
    "format_names",
    "did_you_mean",
    "close_matches",
    "keyword_of_flag",
]

C = TypeVar("C", bound=Callable[..., Any])
"""A class or a function."""

MOST_LISTED = 20
"""Most names that a message lists as choices."""
ELSEWHERE = {
    "clip_grad_norm": "clip grad_clip clip_norm clipnorm max_grad_norm gradient_clip_val",
    "stop": "epochs epoch max_epochs num_epochs n_epochs nb_epoch num_train_epochs max_steps early_stopping patience",
    "optimizer": "lr learning_rate optim opt weight_decay momentum",
    "loss": "criterion loss_fn loss_function",
    "schedule": "scheduler lr_scheduler lr_schedule",
    "model": "net network module estimator model_init",
    "batch_size": "bs batch train_batch_size per_device_train_batch_size",
    "batch_tokens": "max_tokens tokens_per_batch token_budget",
    "eval_batch_size": "val_batch_size valid_batch_size test_batch_size per_device_eval_batch_size",
    "accumulate": "accumulate_grad_batches gradient_accumulation_steps grad_accumulation accumulation_steps",
    "average": "ema ema_decay model_ema swa polyak weight_averaging averaged_model",
    "precision": "amp fp16 bf16 mixed_precision dtype",
    "metrics": "metric scoring compute_metrics",
    "augment": "augmentation transforms",
    "seed": "random_state manual_seed random_seed",
    "random_state": "seed manual_seed random_seed",
    "train": "dataset train_data train_dataset training_data train_loader train_dataloader dataloader",
    "val": "valid validation validation_data valid_data val_data eval_dataset val_dataset validation_split val_loader test",
    "arrays": "x y xy tensors inputs",
    "on_device": "transform preprocess preprocessing",
    "members": "models networks nets",
    "objective": "monitor metric target_metric metric_for_best_model",
    "metric": "monitor",
    "min_delta": "delta threshold tol early_stopping_threshold",
    "mode": "direction goal greater_is_better maximize minimize",
    "directory": "dir path out out_dir output_dir save_dir log_dir logdir default_root_dir checkpoint_dir run_dir",
    "devices": "device gpus gpu accelerator cuda",
    "loader_workers": "num_workers workers dataloader_num_workers",
    "cores": "n_jobs jobs num_cpus cpus",
    "trackers": "logger loggers log report_to tracker",
    "progress": "verbose progress_bar enable_progress_bar disable_tqdm",
    "quiet": "silent",
    "time_limit": "timeout max_time time_budget_s",
    "nodes": "num_nodes",
    "launcher": "strategy backend",
    "policy": "placement planner",
    "n_trials": "trials max_trials num_trials num_samples n_iter max_evals",
    "max_epochs": "epochs epoch num_epochs n_epochs max_t max_resource stop",
    "epochs": "max_epochs num_epochs n_epochs nb_epoch num_train_epochs",
    "space": "search_space param_distributions param_space",
    "scheduler": "pruner",
    "eta": "factor reduction_factor",
    "at_once": "max_concurrent max_concurrent_trials",
    "enqueue": "points_to_evaluate",
    "build": "objective_function",
    "seeds": "n num n_seeds repeats random_states",
    "folds": "k cv n_splits splits",
    "fresh": "restart overwrite reset",
}
"""Argosy's keywords, each with its names in Lightning, Keras, Hugging Face, skorch, scikit-learn, Ray Tune and Optuna."""
OWNERS = {
    "argosy.Data": "train val arrays val_arrays then keep ragged on_device on_error",
    "argosy.Member": "model optimizer batch_size batch_tokens loss schedule augment subset drop_last metrics precision clip_grad_norm accumulate average",
    "argosy.Study": "members stop objective mode seed",
    "argosy.train": "directory devices loader_workers cores trackers progress time_limit nodes launcher policy fresh",
    "argosy.tune": "n_trials max_epochs space",
}
"""Other functions to which a keyword may belong."""
FOR_EXAMPLE = {"stop": "argosy.MaxEpochs(10)", "optimizer": "functools.partial(SGD, lr=0.1)"}
"""Examples for keywords that are numbers in other libraries."""
WITHOUT = {
    "shuffle": "the order of every epoch is drawn from Study.seed",
    "collate_fn": "samples are stacked, and Data(ragged=...) pads samples of varying length",
    "callbacks": "stopping rules end a member, and trackers= or view= of argosy.train watch a run",
    "resume": "the same call on the same directory resumes the run",
    "resume_from_checkpoint": "the same call on the same directory resumes the run",
    "ckpt_path": "the same call on the same directory resumes the run",
    "pin_memory": "the stream's memory is pinned if there is a GPU",
    "sample_weight": "fit of argosy.Classifier and argosy.Regressor accepts it; elsewhere a Member.step can read weights from its batches",
    "class_weight": "a loss can weight classes, for example nn.CrossEntropyLoss(weight=...), and fit of an estimator accepts sample_weight",
    "sampler": "the order of every epoch is drawn from Study.seed; choose samples with Member.subset",
}
"""Keywords without a counterpart, and why none is needed."""


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that may have been meant, best match first.

    >>> close_matches("MaxEpoch", ["MaxSteps", "MaxEpochs"]), close_matches("lr", ["batch_size", "optimizer.lr"])
    (['MaxEpochs', 'MaxSteps'], ['optimizer.lr'])
    >>> close_matches("mp", ["cnn-seed=1", "mlp-seed=1"])
    ['mlp-seed=1']
    """
    words = [*known]
    by_letters: dict[str, str] = {}
    # Members of grids and repetitions are also found by what comes before their parameters.
    for written, one in [*zip(words, words, strict=True), *((one.partition("-")[0], one) for one in words)]:
        by_letters.setdefault(written.casefold(), one)
    folded = word.casefold()
    beginning = [
        one for one in by_letters if folded and any(part.startswith(folded) for part in re.split(r"[\W_]+", one))
    ]
    return [*dict.fromkeys(by_letters[one] for one in [*get_close_matches(folded, by_letters), *beginning])]


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """Return a suggestion to append to an unknown word in a message; empty if no known word is close.

    >>> did_you_mean("val_acc", ["val_loss", "val_accuracy"])
    " (did you mean 'val_accuracy'?)"
    """
    matches = close_matches(word, known)[:1] if isinstance(word, str) else []
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def format_names(names: Iterable[str]) -> str:
    """Return names for a message, cut after the first `MOST_LISTED`.

    >>> format_names(["mlp", "cnn"])
    'mlp, cnn'
    """
    listed = [*names]
    more = len(listed) - MOST_LISTED
    return f"{', '.join(listed[:MOST_LISTED])}{f' and {more:,} more' if more > 0 else ''}"


def known_keywords(
    owner: str, *also: Callable[..., Any], tabular: Callable[..., Any] | None = None
) -> Callable[[C], C]:
    """Make a class or function raise a StudyError with a suggestion for unknown keywords, and for too many values without one.

    With `also`, it passes keywords of these on. Its signature stays what it was. An estimator's suggestions begin with keywords of
    `tabular`, which makes its members.
    """
    of_tabular = {} if tabular is None else _keywords(tabular)

    def checking(called: Any) -> Any:
        takes = _keywords(called)
        by_name = [name for name, kind in takes.items() if kind is inspect.Parameter.KEYWORD_ONLY]
        most, of_init = len(takes) - len(by_name), called.__name__ == "__init__"
        for one in also:
            takes |= {name: kind for name, kind in _keywords(one).items() if kind is inspect.Parameter.KEYWORD_ONLY}

        @functools.wraps(called)
        def checked(*values: Any, **keywords: Any) -> Any:
            for keyword in keywords:
                if keyword not in takes:
                    name = values[1:2] if of_init else ()
                    named = "".join(f" {value!r}" for value in name if isinstance(value, str))
                    members = f". Pass members=argosy.tabular({keyword}=...)" if keyword in of_tabular else ""
                    raise StudyError(
                        f"{owner}{named} has no keyword {keyword}={members or _advice_for(keyword, takes)}."
                    )
            given = len(values) - of_init
            if given > most and (left := [name for name in by_name if name not in keywords]):
                raise StudyError(
                    f"{owner} was given {given} values without keywords, but takes {most}. Pass the others by keyword, such as {left[0]}=."
                )
            return called(*values, **keywords)

        return checked

    def decorated(called: Any) -> Any:
        if not isinstance(called, type):
            return checking(called)
        called.__init__ = checking(called.__init__)  # type: ignore[misc]
        return called

    return decorated


def did_you_mean_flag(flag: str, flags: Mapping[str, str], owners: Mapping[str, str]) -> str:
    """Return a suggestion to append to an unknown flag in a message.

    Known `flags` are given by their words and keywords. `owners` are the classes that the command's file is made of, with their keywords.
    """
    word = keyword_of_flag(flag)
    names = _own_words_for(word)
    meant = next((name for name in names if name in flags), None)
    if meant is None and (owned := _owner_of((word, *names), owners)):
        return f". In the file, set {owned[0]}= of {owned[1]}{_example(owned[0])}."
    if meant is None and word in WITHOUT:
        return f": {WITHOUT[word]}. Remove it."
    meant = meant or next(iter(close_matches(word, flags)), None)
    return f" (did you mean {flags[meant]}?)" if meant else ""


def keyword_of_flag(flag: str) -> str:
    """Return the keyword that corresponds to a flag."""
    return flag.strip("-").replace("-", "_").casefold()


def _keywords(called: Callable[..., Any]) -> dict[str, Any]:
    """Return the names of parameters with their kinds."""
    parameters = inspect.signature(called).parameters.values()
    without = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {one.name: one.kind for one in parameters if one.kind not in without and one.name != "self"}


def _advice_for(keyword: str, takes: Collection[str]) -> str:
    """Return what to pass instead of an unknown keyword."""
    word = keyword.casefold()
    same = _own_words_for(word)
    for name in same:
        if name in takes:
            return f". Use {name}={_example(name)}"
    if word in WITHOUT:
        return f": {WITHOUT[word]}. Remove it"
    if owned := _owner_of((word, *(() if close_matches(word, takes) else same)), OWNERS):
        return f". Pass {owned[0]}= to {owned[1]}"
    return f"{did_you_mean(keyword, takes)}; choose one of {', '.join(takes)}"


def _own_words_for(word: str) -> list[str]:
    """Return Argosy's names for a word of another library."""
    return [name for name, words in ELSEWHERE.items() if word.casefold() in words.split()]


def _owner_of(names: Iterable[str], owners: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first of these keywords that belongs elsewhere, followed by its owner."""
    names = [*names]
    return next(((name, owner) for owner, own in owners.items() for name in names if name in own.split()), None)


def _example(name: str) -> str:
    return f", for example {name}={FOR_EXAMPLE[name]}" if name in FOR_EXAMPLE else ""
