"""Checks of a member when it is built and tried; they refuse members that would train wrongly, or not at all."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import MultiStepLR, ReduceLROnPlateau

from argosy.averages import SWA, LastK
from argosy.errors import StudyError
from argosy.stopping import Mode
from argosy.stream.own_generators import generators_of
from argosy.study import IGNORED, Member, ignored_class
from argosy.training.member.running_average import norms_of

__all__ = [
    "check_average_of",
    "check_differentiated",
    "check_generators",
    "check_gradients",
    "are_probabilities",
    "check_labels",
    "check_step_updates",
    "check_modes",
    "check_not_doubled",
    "check_network",
    "check_optimizer",
    "check_own",
    "check_parameters",
    "check_schedule",
    "check_stepped",
    "modes_of",
    "collect_registered",
    "takes_classes",
]


@contextlib.contextmanager
def collect_registered() -> Iterator[set[int]]:
    """Collect the ids of the parameters and buffers that modules register inside."""
    registered: set[int] = set()
    register = register_module_parameter_registration_hook, register_module_buffer_registration_hook
    hooks = [add(lambda module, name, tensor: registered.add(id(tensor))) for add in register]
    try:
        yield registered
    finally:
        for hook in hooks:
            hook.remove()


def check_generators(member: Member, functions: Iterable[tuple[str, Any]]) -> None:
    """Raise StudyError if one of the member's functions draws from its own generator, which members would share and no checkpoint contains."""
    for what, function in functions:
        generators = generators_of(function)
        if generators:
            kind = type(generators[0])
            raise StudyError(
                f"member {member.name!r}: its {what} has its own generator, a {kind.__module__.partition('.')[0]} "
                f"{kind.__name__}. Other members would also draw from it, and a resumed run would not have its "
                "state. Draw from torch, numpy.random or random, which are seeded for each member."
            )


def check_network(member: Member, model: Any) -> None:
    """Raise StudyError for a model that is no nn.Module, or has lazy parameters."""
    if not isinstance(model, nn.Module):
        raise StudyError(
            f"member {member.name!r}: its model factory returned {type(model).__name__}; it must return a torch.nn.Module."
        )
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        raise StudyError(
            f"member {member.name!r}: {', '.join(lazy[:3])} of its network have no shape yet, but the optimizer "
            "needs one. In the factory, run the network once on zeros of the shape of a batch before returning it."
        )


def check_own(member: Member, model: nn.Module, registered: set[int], build: Callable[[], Any]) -> None:
    """Raise StudyError if parameters existed before the factory's call: other members may train them too.

    Parameters registered during the call are new. The others may belong to a copy; then a second call returns different ones.
    """
    parameters = list(model.parameters())
    if registered.issuperset(map(id, parameters)):
        return
    again = {id(parameter) for parameter in build().parameters()}
    shared = sum(id(parameter) in again for parameter in parameters)
    if shared:
        raise StudyError(
            f"member {member.name!r}: its model factory returned {shared} parameters that existed before the call, "
            "so members (or one that starts over) would train the same ones. Build the network inside the "
            "factory, or return copy.deepcopy(network)."
        )


def check_parameters(member: Member, model: nn.Module, what: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise StudyError for an optimizer that does not call the `__init__` of torch's Optimizer, or holds parameters of another network."""
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):  # wrappers often set the public attributes themselves
        raise StudyError(
            f"member {member.name!r}: {type(optimizer).__name__} never calls __init__ of torch's Optimizer, so it "
            "can be neither copied nor saved. Call super().__init__(parameters, defaults) in the first line of "
            "its __init__, even if it wraps another optimizer, for example Lookahead."
        )
    # Files hold what is registered; `parameters` may return more, if the network's class replaces it.
    own = set(map(id, nn.Module.parameters(model)))
    foreign = sum(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"])
    if foreign:
        raise StudyError(
            f"member {member.name!r}: {what} holds {foreign} parameters that do not belong to its network. Build it "
            "from the parameters, or the network, that its factory is given. Make other trained tensors part of the "
            "network, as nn.Parameter(tensor), and layers in a list as nn.ModuleList(layers)."
        )


def check_optimizer(member: Member, model: nn.Module, optimizer: Any) -> None:
    """Raise StudyError for an optimizer that is no torch Optimizer, needs a closure, or holds parameters of another network."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise StudyError(
            f"member {member.name!r}: its optimizer factory returned {type(optimizer).__name__}; it must return a "
            "torch.optim.Optimizer over the parameters passed to it, or a list of several."
        )
    check_parameters(member, model, "its optimizer", optimizer)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise StudyError(
            f"member {member.name!r}: {type(optimizer).__name__}.step needs a closure that computes the loss "
            "several times per batch, but a member computes it once. Use an optimizer whose step() needs no "
            "closure, or call it in your own step=, with optimizers= instead of optimizer=."
        )


def check_schedule(member: Member, optimizer: torch.optim.Optimizer, schedule: Any, mode: Mode) -> None:
    """Raise StudyError for a schedule of another optimizer, or one that `check_stepped` refuses."""
    if schedule is not None:
        check_stepped(member, "its schedule", schedule, mode)
    if getattr(schedule, "optimizer", optimizer) is not optimizer:
        raise StudyError(
            f"member {member.name!r}: its schedule belongs to another optimizer. Build it for the optimizer passed "
            "to the factory: schedule=lambda optimizer: StepLR(optimizer, step_size=10)."
        )


def check_stepped(member: Member, what: str, schedule: Any, mode: Mode) -> None:
    """Raise StudyError for a schedule that cannot be stepped or saved, or that would need the objective at each step or in another direction."""
    problems = [f"has no {name}()" for name in ("step", "state_dict", "load_state_dict") if not hasattr(schedule, name)]
    if not problems and not isinstance(schedule, ReduceLROnPlateau):
        taken = inspect.signature(schedule.step).parameters.values()
        needed = [one for one in taken if one.default is one.empty and one.kind < 2]  # positional
        problems = [f"wants {one.name} in step()" for one in needed]
    if problems:
        raise StudyError(
            f"member {member.name!r}: {what} is an instance of {type(schedule).__name__}, which {problems[0]}. A "
            "schedule needs step() without arguments, state_dict() and load_state_dict(). Add what is missing, or "
            "use one of torch.optim.lr_scheduler, for example LambdaLR, which takes a function of the number of "
            "steps or epochs."
        )
    if isinstance(schedule, MultiStepLR) and (texts := [one for one in schedule.milestones if isinstance(one, str)]):
        raise StudyError(
            f"member {member.name!r}: {what} has milestones that are text, such as {texts[0]!r}, which no number of epochs or "
            "steps equals, so it would never lower the learning rate. Pass numbers: milestones=[30, 60]."
        )
    if isinstance(schedule, ReduceLROnPlateau) and member.schedule_per == "step":
        raise StudyError(
            f"member {member.name!r}: ReduceLROnPlateau watches the objective, which is known at the end of an "
            "epoch, not at each step. Remove schedule_per='step'."
        )
    if isinstance(schedule, ReduceLROnPlateau) and schedule.mode != mode:
        raise StudyError(
            f"member {member.name!r}: its ReduceLROnPlateau has mode={schedule.mode!r}, but the study's objective "
            f"has mode {mode!r}, so it would lower the learning rate when the member improves. Use the same mode: "
            f"schedule=partial(ReduceLROnPlateau, mode={mode!r}, patience=3)."
        )


def check_average_of(member: Member, model: nn.Module) -> None:
    """Raise StudyError if validating averaged weights would need statistics that cannot be computed."""
    if isinstance(member.average, SWA | LastK) and member.optimizers is not None and norms_of(model):
        raise StudyError(
            f"member {member.name!r} has BatchNorm, average={member.average} and its own optimizers. The BatchNorm "
            "statistics of averaged weights need a pass over its batches, and its step would move those weights. "
            "Use argosy.EMA, which uses the statistics of the raw weights, or layers without running statistics, "
            "for example GroupNorm."
        )


def check_gradients(member: Member, model: nn.Module, error: RuntimeError) -> None:
    """Raise StudyError if the cause of torch's error in a step is known."""
    if "does not require grad" in str(error) and all(weight.grad is None for weight in model.parameters()):
        raise StudyError(
            f"member {member.name!r}: no gradient flows from its loss to any parameter. Compute the loss from the "
            "network's output, in torch, and leave at least one parameter unfrozen."
        )
    if "does not require grad" in str(error) and member.step is not None:
        raise StudyError(
            f"member {member.name!r}: its step calls backward() and returns a loss without gradients, but Argosy calls backward() on it. "
            "Remove backward() and detach() from the step; to call backward() yourself, pass optimizers= and update the weights in the step."
        )
    if "backward through the graph a second time" in str(error) and member.step is not None:
        raise _calls_backward(member)
    if "Found dtype" in str(error):
        raise StudyError(
            f"member {member.name!r}: torch has no gradient of its loss if targets and outputs have different "
            f"dtypes ({error}). Convert the targets, for example with tensor.float() or array.astype('float32')."
        )
    if member.clip_grad_norm is not None and any(p.grad is not None and p.grad.is_sparse for p in model.parameters()):
        raise StudyError(
            f"member {member.name!r}: clip_grad_norm is {member.clip_grad_norm}, but torch cannot clip sparse "
            "gradients, such as those of Embedding(sparse=True). Remove one of the two."
        )


def check_not_doubled(member: Member, weights: Sequence[torch.Tensor], left: Sequence[torch.Tensor | None]) -> None:
    """Raise StudyError if the gradients that a step has `left` are those of the loss that it returned, which have been added to them."""
    pairs = [
        (before, weight.grad)
        for before, weight in zip(left, weights, strict=True)
        if before is not None and not before.is_sparse
    ]
    if any(before.any() for before, _ in pairs) and all(
        after is not None and torch.allclose(2 * before, after, rtol=1e-3) for before, after in pairs
    ):
        raise _calls_backward(member)


def _calls_backward(member: Member) -> StudyError:
    return StudyError(
        f"member {member.name!r}: its step calls backward() on the loss that it returns, and Argosy does so too, so gradients would be "
        "doubled. Remove the call; to call it yourself, pass optimizers= and update the weights in the step."
    )


@contextlib.contextmanager
def check_step_updates(member: Member, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Raise StudyError if the member's own step inside leaves gradients and updates nothing, for example to accumulate gradients."""
    stepped: list[bool] = []
    hooks = [one.register_step_post_hook(lambda *_: stepped.append(True)) for one in optimizers]
    weights = list(model.parameters())
    # Sums, because copies would need as much memory as the weights.
    before = [weight.detach().sum() for weight in weights]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    unused = [weight.grad for weight in weights if weight.grad is not None and not stepped]
    # Gradients that are not finite come from too large a loss scale, with which the step is skipped on purpose.
    if any(bool(grad.any()) for grad in unused) and all(bool(grad.isfinite().all()) for grad in unused):
        after = [weight.detach().sum() for weight in weights]
        if all(map(torch.equal, before, after)):
            raise StudyError(
                f"member {member.name!r}: its step leaves gradients and calls no optimizer's step(), as if it "
                "accumulated gradients over several batches. Gradients do not survive a step. Set batch_size to "
                "the samples of one optimizer step, and split the batch inside the step, for example with "
                "tensor.split(16)."
            )


def modes_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Return the parts of a network, each with whether it is in train(), except dropout layers, which a validation may put into train() on purpose."""
    dropout = nn.modules.dropout._DropoutNd
    return [(part, part.training) for part in model.modules() if not isinstance(part, dropout)]


def check_modes(member: Member, modes: list[tuple[nn.Module, bool]]) -> None:
    """Raise StudyError if a validation has changed the mode of parts of the network, for example by calling train()."""
    # Layers that a forward pass makes, such as `self.act = nn.ReLU()`, are in train() whatever the network is in.
    if any(part.training != mode for part, mode in modes):
        raise StudyError(
            f"member {member.name!r}: its {('step' if member.validate is None else 'validate')} calls train() on "
            "its network during validation too. It would be validated with dropout, and validation samples would "
            "change its statistics. Remove the call: the network is already in train() or eval() mode. To "
            "validate with dropout, call train() on the dropout layers only."
        )


def check_differentiated(member: Member, error: RuntimeError) -> None:
    """Raise StudyError if a validation has asked torch for gradients."""
    if "require grad" in str(error):
        raise StudyError(
            f"member {member.name!r}: its validation asks for gradients, for example with torch.autograd.grad or backward(), but "
            "they are disabled in validation. Call no backward() on the loss that a step returns. Compute other gradients and everything "
            "they depend on under torch.enable_grad(), or pass a validate= that needs none."
        )


def takes_classes(loss: Any) -> bool:
    """Return whether the loss is cross-entropy, so that labels are indices of outputs; None is the default loss."""
    return loss is None or loss is functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)


def are_probabilities(output: Any) -> bool:
    """Return whether outputs ``[B, classes, …]`` are those of a softmax: at least 0, with a sum of 1 for each sample; waits for the device."""
    if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.shape[1:2].numel() < 2:
        return False
    return bool((output >= 0).all()) and bool(((output.sum(1, dtype=torch.float64) - 1).abs() < 0.01).all())


def check_labels(member: Member, output: Any, target: Any) -> None:
    """Raise StudyError for labels that do not fit outputs ``[B, classes, …]``; waits for the device.

    Refused are labels outside the classes, samples without a label under the default loss, float targets of a single output, and
    under the default loss those that are no probabilities.
    """
    if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        return
    if target.is_floating_point() and output.shape[1:2].numel() == 1:
        raise StudyError(
            f"member {member.name!r}: its network has one output and targets are floats, but its loss is the "
            "default, cross-entropy, with which a single output learns nothing. Set a loss for numbers, for "
            "example loss=nn.MSELoss(), or BCEWithLogitsLoss() if they are 0 and 1."
        )
    if member.loss is None and target.is_floating_point() and target.dim() > 1 and target.shape[1:] == output.shape[1:]:
        # Probabilities of low precision do not sum to 1 exactly. Sums that are given on purpose need a loss that is.
        sums = target.sum(1, dtype=torch.float64)
        if bool(((sums - 1).abs() > 0.1).any()):
            raise StudyError(
                f"member {member.name!r}: its targets are floats, of which those of one sample sum to "
                f"{float(sums.flatten()[(sums - 1).abs().argmax()]):.3g}, but its loss is the default, cross-entropy, which takes floats as "
                "probabilities of classes. Set a loss for numbers, for example loss=nn.MSELoss(), or BCEWithLogitsLoss() if several "
                "classes may apply; loss=nn.CrossEntropyLoss() takes other sums as weights."
            )
    if output.dim() < 2 or target.is_floating_point() or target.dim() < 1 or target.shape[1:] != output.shape[2:]:
        return
    classes, ignored = output.shape[1], ignored_class(member.loss)
    unlabelled = int((target == IGNORED).sum()) if member.loss is None and target.dim() == 1 else 0
    if unlabelled:
        raise StudyError(
            f"member {member.name!r}: {unlabelled} of {len(target)} samples have the label {IGNORED}, which "
            "cross-entropy ignores. The default loss is a mean over samples, so these samples would count with a "
            "loss of 0. Exclude them with subset= and val_subset=, or set loss=nn.CrossEntropyLoss()."
        )
    outside = target[((target < 0) | (target >= classes)) & (target != ignored)]
    if len(outside):
        raise StudyError(
            f"member {member.name!r}: a target has label {int(outside.max())}, but its network has {classes} "
            f"outputs, for labels 0 to {classes - 1}. Use a last layer with one output per class, and number the "
            "classes from 0."
        )
