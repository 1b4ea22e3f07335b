"""Three ways to an adapter: `adapt` a model, `load` a saved state, `recover` the newest state of a folder."""

from typing import Any

from torch import nn

from resitta.adapter.adapter import Adapter
from resitta.adapter.options import Options, Ranks
from resitta.checkpoint import io as store
from resitta.checkpoint.autosave import newest_state
from resitta.inputs import NonFinite
from resitta.method import Method, create
from resitta.monitor.guard import Guard
from resitta.training.network import Normalized, Output, Precision


def adapt(
    model: nn.Module,
    method: str | Method = "tide",
    *,
    preset: str | None = None,
    seed: int = 0,
    output: Output = None,
    normalized: Normalized | None = None,
    non_finite: NonFinite = "raise",
    guard: Guard | bool = False,
    precision: Precision = "exact",
    cuda_graphs: bool = True,
    background: bool = False,
    group: Ranks = None,
    classes: int | None = None,
    shadow: float | None = None,
    fallback: bool = False,
    **settings: Any,
) -> "Adapter":
    """Wrap a classifier so that it adapts to the stream of images it is called on.

    The model is never modified. Its frozen weights are shared, not copied: to continue training the same model object,
    give the adapter a `copy.deepcopy` of it.

    Args:
        model: any classifier: float images N×C×H×W in, logits N×classes out. Each method says what it needs of it.
        method: a name of `list_methods()`, or a method with its settings such as `methods.ResiTTA(eta=0.05)`. The
            default is our own method, Tide; "resitta" is the paper's, and the default of `fleet` and `resitta serve`.
        preset: named settings of the method: "cifar10", "cifar100", "imagenet".
        seed: fixes all randomness.
        output: where the logits are when the model returns more than them: a key, an attribute, an index or a function.
        normalized: (mean, std) if your images are normalised already; otherwise they must lie in [0, 1].
        non_finite: what to do with images that hold NaN or Inf: "raise", or "skip" (predicted, never learned from).
        guard: True, or a `Guard` with settings of its own, undoes updates that would break the adapter.
        precision: "exact" computes in the model's own precision; "bf16" uses bfloat16 autocast where that is safe, and
            on a CUDA device bfloat16 copies of the frozen weights.
        cuda_graphs: on a CUDA device, record repeated work as CUDA graphs; False if your model's forward pass depends
            on more than its inputs and weights.
        background: learn in a thread (and CUDA stream) of its own, so that a call takes about as long as the model
            alone; predictions use what was learned a little later. `sync()` waits. For "tide", "resitta", "rotta" and
            "tribe".
        group: torch.distributed processes that adapt together, each on its own stream: see `resitta.distributed.group`.
        classes: the number of classes; needed only where a method has to know it and the model takes images of none
            of the usual sizes.
        shadow: the share of images that the source network predicts, too, such as 0.05: `stats.shadow` compares the
            two, and `feedback` judges both by labels that arrive later.
        fallback: return the source's predictions while labels show that it is significantly better; learning continues.
            Needs `shadow`.
        settings: any setting of the method, by name. Methods that need source data take `source`: clean images in
            batches (a tensor or a DataLoader), or a file made by `resitta.prepare`. Every method takes
            `label_prior="temporal"`, which corrects predictions where neighbours in the stream share classes.

    >>> import torch
    >>> features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    >>> model = nn.Sequential(*features, nn.Linear(8, 5))
    >>> adapter = adapt(model, "resitta", lr=5e-4)
    >>> logits = adapter(torch.rand(16, 3, 8, 8))
    >>> logits.shape, adapter.stats.samples, adapter.stats.bank.occupancy
    (torch.Size([16, 5]), 16, 16)
    """
    given = locals()
    options = {name: given[name] for name in Options.__dataclass_fields__}
    return Adapter(model, create(method, preset=preset, **settings), **options)


def load(model: nn.Module, path: store.StatePath, **functions: Any) -> "Adapter":
    """Make an adapter from a file that `adapter.save` wrote; it continues bit for bit where that one stopped.

    Args:
        model: the same source model, with the same weights, as the saved adapter's; it is not in the file.
        path: the file.
        functions: what a file cannot hold, by name, if the adapter had it: `strong_view=...`, `output=...`, a detector
            as `reset_on_shift=...`.

    Raises:
        BadState: the file is missing, damaged, of a newer format, or belongs to another model.
        UnsuitableModel: the model lacks what the saved method needs.

    >>> import tempfile, torch
    >>> model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    >>> adapter, images = adapt(model, "tent"), torch.rand(8, 3, 2, 2)
    >>> _ = adapter(images)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     adapter.save(f"{folder}/state.safetensors")
    ...     other = load(model, f"{folder}/state.safetensors")
    >>> torch.equal(adapter(images), other(images))
    True
    """
    return store.read_adapter(path, functions, lambda method, **options: Adapter(model, method, **options))


def recover(model: nn.Module, folder: store.StatePath, **functions: Any) -> "Adapter":
    """Continue from the newest intact file of an `Autosave`; see `load` for the arguments and errors.

    >>> recover(nn.Linear(2, 2), "no/such/folder")
    Traceback (most recent call last):
        ...
    resitta.errors.BadState: no/such/folder holds no state that verifies (0 files); begin with resitta.adapt
    """
    return load(model, newest_state(folder), **functions)
