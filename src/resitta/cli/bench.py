"""Commands that measure: bench, reproduce, report."""

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from resitta.cli.flags import Dataset, ModelOptions, Numbers, Running, Settings, Words
from resitta.names import CORRUPTIONS, EXPERIMENTS, METHODS, Course, OrderName, WithinSlot
from resitta.settings import BY_METHOD, parse_pairs

if TYPE_CHECKING:
    from resitta.bench.record import Records

T = TypeVar("T")
How = Annotated[Running, Parameter(name="*")]
LOCALLY = Running()


def bench(
    model: str,
    data: Path,
    *,
    checkpoint: Path | None = None,
    model_options: ModelOptions = (),
    methods: Words = ("source", "bn", "tent", "rotta", "resitta"),
    settings: Settings = (),
    preset: str | None = None,
    seeds: Numbers = (1,),
    corruptions: Words = CORRUPTIONS,
    severity: int = 5,
    order: OrderName = "ptta",
    delta: float = 0.1,
    within_slot: WithinSlot = "blocks",
    course: Course = "once",
    visits: int = 1,
    per_domain: int | None = None,
    batch_size: int = 64,
    size: int | None = None,
    source: Path | None = None,
    source_images: int = 2000,
    out: Path = Path("runs/bench"),
    running: How = LOCALLY,
) -> None:
    """Compare methods on your model and your images.

    Clean images are corrupted first (once; cached in the folder). Finished runs are kept: repeating an interrupted
    command continues it and gives the same numbers. Runs are repeated if your method, your model or the version of
    this library has changed.

    Examples: resitta bench wrn28x10 CIFAR-10-C --checkpoint Standard.pt, or
    resitta bench my_code.py:make_model photos/ --corruptions clean --methods source resitta --set resitta.eta=0.05

    Parameters
    ----------
    model
        A name of `resitta models`, timm:NAME, torchvision:NAME, package.module:function or path/to/file.py:function.
    data
        CIFAR-C or ImageNet-C as published, CIFAR batches, a folder or zip of class/image files.
    checkpoint
        Weights for the model: safetensors, or a torch file without code.
    model_options
        Options of the function that makes the model: pretrained=true num_classes=10 weights=DEFAULT.
    methods
        The methods to compare: all, or some of `resitta methods`, or your own as path/to/file.py:name.
    settings
        Settings of methods: lr=5e-4 for every method that has it, resitta.eta=0.05 for one.
    preset
        The methods' named settings: cifar10, cifar100, imagenet.
    seeds
        One stream and one run per seed.
    corruptions
        The domains in their order; "clean" is the images without corruption.
    severity
        1 (mild) to 5.
    order
        ptta: temporally correlated; slots: the same, shuffled inside each time slot; sorted: by label; iid: shuffled;
        mixed: all domains at once.
    delta
        The Dirichlet parameter of ptta; smaller means more correlated.
    within_slot
        The order within a time slot of ptta: classes in blocks, or shuffled.
    course
        once; gradual: severities 1 to 5 and back; recurring: see visits.
    visits
        The number of passes over the sequence of corruptions.
    per_domain
        The number of images of each domain (default: all).
    batch_size
        Images per call of the adapter.
    size
        Resize and crop images of a folder or zip to this side.
    source
        For methods that need source data, such as eata: clean images, or a file of `resitta prepare`. By default DATA
        if those are clean images.
    source_images
        How many of these images to use.
    out
        The folder for records, corrupted images and the page.
    """
    given = dict(locals())
    from resitta.bench import run  # noqa: PLC0415  (torch, which --help does not need)

    given |= {"images": given.pop("data"), **vars(given.pop("running"))}
    given["model_options"] = parse_pairs(model_options, "--model-set")
    given["settings"] = parse_pairs(settings, "--set", BY_METHOD)
    records = _with_bars(run, **given)
    _print_records(records, out, title=f"{model} on {data.name}")


def reproduce(
    experiment: Literal[EXPERIMENTS],  # type: ignore[valid-type]
    data: Path,
    checkpoint: Path,
    *,
    dataset: Dataset | None = None,
    model: str | None = None,
    model_options: ModelOptions = (),
    methods: Words = METHODS,
    seeds: Numbers = (1,),
    per_domain: int | None = None,
    out: Path | None = None,
    running: How = LOCALLY,
) -> None:
    """Run a table, the ablation or a sweep of the paper, and compare the results.

    The Source row must equal the paper's on the public weights and data; a warning is printed if it does not.

    Example: resitta reproduce table1 CIFAR-10-C Standard.pt --seeds 1 2 3 --device cuda

    Parameters
    ----------
    experiment
        table1 (CIFAR-10-C), table2 (CIFAR-100-C), table3 (ImageNet-C), ablation, or the sweep of a setting.
    data
        The corrupted set as published (`resitta data fetch` gets it), or clean images to corrupt.
    checkpoint
        The weights of the source network.
    dataset
        The paper's column to compare the ablation and the sweeps with (default cifar100).
    model
        The source network, if not the paper's.
    model_options
        Options of the function that makes the model: num_classes=10.
    methods
        Only these rows of a table, or all.
    seeds
        The paper used one seed, 1.
    per_domain
        The number of images of each corruption (default: all).
    out
        The folder for records, tables and the page (default runs/EXPERIMENT).
    """
    given = dict(locals())
    from resitta import bench as api  # noqa: PLC0415
    from resitta.cli.terminal import say  # noqa: PLC0415
    from resitta.report.paper_comparison import find_comparisons  # noqa: PLC0415

    name, out = str(experiment), out or Path("runs") / str(experiment)
    given |= {"name": given.pop("experiment"), "out": out, **vars(given.pop("running"))}
    given["model_options"] = parse_pairs(model_options, "--model-set")
    found = _with_bars(api.reproduce, **given)
    comparisons = find_comparisons(found.records, found.experiment.task.dataset)
    title = f"The paper's {name} on {data.name}"
    _print_records(found.records, out, title=title, paper=found.paper, comparisons=comparisons)
    if check := found.source_check:
        say(str(check), style="green" if check.passed else "bold red")


def report(
    folder: Path,
    *folders: Path,
    form: Annotated[Literal["text", "markdown", "csv", "latex", "html"], Parameter(name="--format")] = "text",
    paper: Dataset | None = None,
    title: str = "",
    highlight: str = "",
) -> None:
    """Make a table or a page from the records in folders.

    Only runs that differ in nothing but their seed are averaged; rows are named by what differs. Below each table, its
    best two rows are compared: the mean difference over seeds and domains with a 95 % bootstrap interval.

    Examples: resitta report runs/bench --format latex, or
    resitta report runs/before runs/after

    Parameters
    ----------
    folder
        The --out folder of bench, reproduce or demo.
    folders
        Further folders to compare with. Rows that differ in nothing readable are named by their folders.
    form
        text, markdown, csv and latex are printed; html is written to FOLDER/index.html (of several folders, to
        compared.html in the first).
    paper
        Compare with the paper's numbers on this data set, where protocol, network and settings are the paper's. Records
        of its ablation and sweeps are recognised.
    title
        The title of the page (default: the name of the folder).
    highlight
        The row or method to highlight on the page (default: ResiTTA, else the best method that adapts).
    """
    from resitta.cli.terminal import say  # noqa: PLC0415
    from resitta.report.api import read_folders, report_text, write_pages  # noqa: PLC0415

    every = (folder, *folders)
    if form == "html":
        for page in write_pages(every, dataset=paper, title=title, highlight=highlight):
            say(f"written: {page}")
    else:
        say(report_text(read_folders(every), form, dataset=paper, highlight=highlight))


def _with_bars(measure: Callable[..., T], **options: Any) -> T:
    """Measure with progress bars; print the warning about random weights in bold instead of to stderr."""
    from resitta.bench.executors import DoubtfulRuns  # noqa: PLC0415
    from resitta.cli.terminal import bars  # noqa: PLC0415

    with bars() as bar, warnings.catch_warnings():
        warnings.simplefilter("always", DoubtfulRuns)
        show = warnings.showwarning

        def print_in_bold(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, DoubtfulRuns):
                _print_warning(str(message))
            else:
                show(message, category, *place, **more)

        warnings.showwarning = print_in_bold
        return measure(progress=bar, **options)


def _print_records(records: "Records", out: Path, **about: Any) -> None:
    """Write the tables and the page of records; print the table, what it shows, and where everything is."""
    from resitta.cli.terminal import console, say  # noqa: PLC0415
    from resitta.report.api import conclusions, publish  # noqa: PLC0415
    from resitta.report.formats import as_rich  # noqa: PLC0415
    from resitta.report.groups import grouped  # noqa: PLC0415

    if kept := records.kept_lines():
        say("\n".join([*kept, "--rerun repeats them"]))
    command = [shlex.join(["resitta", *sys.argv[1:]])] if Path(sys.argv[0]).name == "resitta" else []
    table, page = publish(out, list(records), commands=command, **about)
    console().print(as_rich(table))
    for sentence in (*table.notes, *conclusions(grouped(records))):
        say(sentence)
    say(f"Tables, records and the page are in {out}; open {page}")
    _print_warning(records.warning)


def _print_warning(warning: str) -> None:
    from resitta.cli.terminal import say  # noqa: PLC0415

    if warning:
        say(f"WARNING: {warning}", style="bold red")
