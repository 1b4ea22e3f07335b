"""Commands that measure: bench, reproduce, report."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from resitta.names import CORRUPTIONS, EXPERIMENTS, METHODS, Course, OrderName, WithinSlot

Many = Parameter(consume_multiple=True)
ModelSet = Parameter(name="--model-set", consume_multiple=True)


def bench(
    model: str,
    data: Path,
    *,
    checkpoint: Path | None = None,
    model_options: Annotated[tuple[str, ...], ModelSet] = (),
    methods: Annotated[tuple[str, ...], Many] = ("source", "bn", "tent", "rotta", "resitta"),
    settings: Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=True)] = (),
    preset: str | None = None,
    seeds: Annotated[tuple[int, ...], Many] = (1,),
    corruptions: Annotated[tuple[str, ...], Many] = CORRUPTIONS,
    severity: int = 5,
    order: OrderName = "ptta",
    delta: float = 0.1,
    within_slot: WithinSlot = "blocks",
    course: Course = "once",
    visits: int = 1,
    per_domain: int | None = None,
    batch_size: int = 64,
    size: int | None = None,
    listing: Path | None = None,
    out: Path = Path("runs/bench"),
    rerun: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    engine: Literal["local", "processes", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
) -> None:
    """See which method helps a model of yours on images of yours.

    Clean images are corrupted first (once; kept in the folder). Finished runs are kept too: the same command after an
    interruption goes on where it stopped and ends with the same numbers. A method or model of yours that has changed
    since is run again, and so is everything under another version of this library.

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
        The methods to compare, or all; `resitta methods` lists them. One of your own: path/to/file.py:name.
    settings
        Settings of methods: lr=5e-4 for every method that has it, resitta.eta=0.05 for one.
    preset
        The methods' named settings: cifar10, cifar100, imagenet.
    seeds
        Each seed makes a stream and a run of its own.
    corruptions
        The domains in their order; "clean" stands for the images as they are.
    severity
        1 (mild) to 5.
    order
        ptta: temporally correlated; sorted: by label; iid: shuffled; mixed: all domains at once.
    delta
        The Dirichlet parameter of ptta; smaller means more correlated.
    within_slot
        Whether classes come as blocks or shuffled inside a time slot of ptta.
    course
        once; gradual: severities 1 to 5 and back; recurring: see visits.
    visits
        How often the whole sequence of corruptions is visited.
    per_domain
        Use only so many images of each domain.
    batch_size
        Images per call of the adapter.
    size
        Resize and crop images of a folder or zip to this side.
    listing
        A text file with the images of ImageNet-C to use, wnid/name.JPEG on each line.
    out
        The folder for records, corrupted images and the page.
    rerun
        Run again what is finished, and replace its records.
    device
        cpu, cuda, cuda:1, ...
    threads
        Threads of each run on the CPU (default: torch's own number; one with processes and ray).
    engine
        local: one run after the other; processes: several at a time; ray: spread over a Ray cluster.
    workers
        How many runs at a time on this machine (default: one per core).
    address
        A running Ray cluster, such as auto or HOST:6379; without it one is started here.
    """
    from resitta.cli.benching import run_bench  # noqa: PLC0415  (torch, which --help does not need)

    run_bench(
        model,
        data,
        checkpoint=checkpoint,
        model_options=model_options,
        methods=methods,
        settings=settings,
        preset=preset,
        seeds=seeds,
        corruptions=corruptions,
        severity=severity,
        order=order,
        delta=delta,
        within_slot=within_slot,
        course=course,
        visits=visits,
        per_domain=per_domain,
        batch_size=batch_size,
        size=size,
        listing=listing,
        out=out,
        rerun=rerun,
        device=device,
        threads=threads,
        engine=engine,
        workers=workers,
        address=address,
    )


def reproduce(
    experiment: Literal[EXPERIMENTS],  # type: ignore[valid-type]
    data: Path,
    checkpoint: Path,
    *,
    dataset: Literal["cifar10", "cifar100", "imagenet"] | None = None,
    model: str | None = None,
    model_options: Annotated[tuple[str, ...], ModelSet] = (),
    methods: Annotated[tuple[str, ...], Many] = METHODS,
    seeds: Annotated[tuple[int, ...], Many] = (1,),
    per_domain: int | None = None,
    listing: Path | None = None,
    out: Path | None = None,
    rerun: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    engine: Literal["local", "processes", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
) -> None:
    """Run a table, the ablation or a sweep of the paper, and put ours beside theirs.

    The Source row must equal the paper's on the public weights and data; if it does not, the run says so loudly.

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
        For the ablation and the sweeps: the paper's column to compare with (default cifar100).
    model
        Another source network than the paper's.
    model_options
        Options of the function that makes the model: num_classes=10.
    methods
        Only these rows of a table, or all.
    seeds
        The paper used one seed, 1.
    per_domain
        Use only so many images of each corruption.
    listing
        A text file with the images of ImageNet-C to use, wnid/name.JPEG on each line: the paper's table3 is on the
        5,000 of RobustBench's imagenet_test_image_ids.txt.
    out
        The folder for records, tables and the page (default runs/EXPERIMENT).
    rerun
        Run again what is finished, and replace its records.
    device
        cpu, cuda, cuda:1, ...
    threads
        Threads of each run on the CPU (default: torch's own number; one with processes and ray).
    engine
        local: one run after the other; processes: several at a time; ray: spread over a Ray cluster.
    workers
        How many runs at a time on this machine (default: one per core).
    address
        A running Ray cluster, such as auto or HOST:6379; without it one is started here.
    """
    from resitta.cli.benching import run_reproduction  # noqa: PLC0415

    run_reproduction(
        str(experiment),
        data,
        checkpoint=checkpoint,
        dataset=dataset,
        model=model,
        model_options=model_options,
        methods=methods,
        seeds=seeds,
        per_domain=per_domain,
        listing=listing,
        out=out or Path("runs") / str(experiment),
        rerun=rerun,
        device=device,
        threads=threads,
        engine=engine,
        workers=workers,
        address=address,
    )


def report(
    folder: Path,
    *folders: Path,
    form: Annotated[Literal["text", "markdown", "csv", "latex", "html"], Parameter(name="--format")] = "text",
    paper: Literal["cifar10", "cifar100", "imagenet"] | None = None,
    title: str = "",
    highlight: str = "",
) -> None:
    """Turn the records of folders into a table or a page.

    Runs are averaged only where nothing but their seed differs; other rows are named by what differs. Below a table
    stands how its best two rows compare: the mean difference over seeds and domains with a 95 % bootstrap interval.

    Examples: resitta report runs/bench --format latex, or
    resitta report runs/before runs/after

    Parameters
    ----------
    folder
        Where a bench, a reproduction or the demo has put its records.
    folders
        More of them, to stand beside the first. Rows that differ in nothing readable are named by their folders.
    form
        text, markdown, csv and latex are printed; html is written to FOLDER/index.html (of several folders, to
        compared.html in the first).
    paper
        Compare with the paper's numbers on this data set, where protocol, network and settings are the paper's. Records
        of its ablation and sweeps are recognised.
    title
        What the page is called (default: the name of the folder).
    highlight
        The row or method that the page is about (default: ResiTTA, else the best that adapts).
    """
    from resitta.cli.benching import print_report  # noqa: PLC0415

    print_report((folder, *folders), form, paper, title=title, highlight=highlight)
