"""Tables of speed and memory."""

import json

from table_tools import RECORDS, TITLES, VALUES, Cell, markdown, record, runs, spread, table

SPEED = {
    "WRN-16-1, CPU, 2 cores": "speed-cifar10-wrn16x1-cpu",
    "WRN-16-1, H200": "speed-cifar10-wrn16x1-h200",
    "WRN-28-10, H200": "speed-cifar10-wrn28x10-h200",
}


@table("speed")
def speed() -> str:
    """The cost of a batch in units of plain inference."""
    columns = [record(name)["rows"] for name in SPEED.values()]
    names = {
        "ResiTTA, plain code": "resitta, plain code",
        "ResiTTA, exact (default)": "resitta, exact",
        "ResiTTA, `cuda_graphs=False`": "resitta, without CUDA graphs",
        'ResiTTA, `precision="bf16"`': "resitta, bf16",
        "ResiTTA, `micro_batch=8`": "resitta, micro-batches of 8",
        'ResiTTA, `bank_device="cpu", bank_bytes=True`': "resitta, bank as bytes on the host",
        **{TITLES[name]: name for name in ("source", "bn", "pl", "tent", "lame", "note", "rotta")},
    }
    rows = [[title, *(column[name]["ratio"] for column in columns)] for title, name in names.items()]
    return markdown(["batches of 64, times plain inference", *SPEED], rows)


@table("latency")
def latency() -> str:
    """Calls with `background=True` beside those of the plain model."""
    columns = [record(name) for name in list(SPEED.values())[1:]]
    rows = []
    for name, title in {"plain inference": "plain model", "resitta, background": "`background=True`"}.items():
        found = [column["latency"][name] for column in columns]
        texts = [f"{found_['median']:.2f} / {found_['p99']:.2f}" for found_ in found]
        rows.append([f"{title}: median / p99 of a batch of 64 (ms)", *texts])
        rows.append([f"{title}: images/s, one at a time", *(f"{column['batch_1'][name]:,.0f}" for column in columns)])
    return markdown(["H200", "WRN-16-1", "WRN-28-10"], rows)


@table("memory")
def memory() -> str:
    """Peak device memory beyond the model."""
    columns = [record(name)["memory"] for name in list(SPEED.values())[1:]]
    names = {
        "plain code": "plain code",
        "exact": "exact",
        '`precision="bf16"`': "bf16",
        "`micro_batch=8`": "micro-batches of 8",
    }
    rows: list[list[Cell]] = []
    for title, name in names.items():
        rows.append([title, *(f"{column[name]:,.0f}" for column in columns)])
    share = "own parameters, share of the model"
    rows.append(["own parameters, % of the model's", *(f"{100 * column[share]:.1f}" for column in columns)])
    return markdown(["H200, peak memory beyond the model (MB)", "WRN-16-1", "WRN-28-10"], rows)


@table("bf16-error")
def bf16_error() -> str:
    """The error in bfloat16."""
    cells = [spread(runs(f"cifar10-wrn28x10{suffix}", "resitta")) for suffix in ("", "-bf16")]
    rows = [["CIFAR-10, WRN-28-10, average error (%)", *cells]]
    return markdown(["150,000 images, 3 seeds", "exact", '`precision="bf16"`'], rows)


@table("bank")
def bank() -> str:
    """Decisions of EntroBank a second."""
    rates = record("speed-cifar10-wrn16x1-cpu")["bank"]
    rows = [
        [title, *(f"{round(rates[f'{size}, {order}'], -3):,.0f}" for size in ("64/10", "16,384/1,000"))]
        for title, order in {"classes mixed": "mixed classes", "in runs of one class": "runs of 50"}.items()
    ]
    return markdown(["samples/s on one core", "64 samples, 10 classes", "16,384 samples, 1,000 classes"], rows)


@table("corruption-speed")
def corruption_speed() -> str:
    """Our corruptions against the package `imagecorruptions`."""
    total, setting = record("corruptions")["total"], record("corruptions")["setting"]
    title = f"all 19 corruptions of one {setting['side']}×{setting['side']} image, one core"
    rows = [[title, total["theirs_ms"], total["ours_ms"], total["ratio"], total["ratio_without_glass_blur"]]]
    return markdown(["", "`imagecorruptions` (ms)", "resitta (ms)", "ratio", "ratio without glass blur"], rows)


@table("host-memory")
def host_memory() -> str:
    """What a run holds on the host beyond the model and the data."""
    rows = []
    wanted = {
        "cifar10-wrn16x1-all": ("source", "CPU"),
        "cifar10-wrn16x1-renew": ("resitta", "CPU"),
        "cifar10-wrn28x10": ("resitta", "H200"),
        "imagenet-resnet50": ("resitta", "H200"),
    }
    for folder, (method, device) in wanted.items():
        found = [json.loads(path.read_text("utf-8"))["run"] for path in (RECORDS / folder).glob(f"{method}-*.json")]
        most = max(run["host_memory_mb"] for run in found)
        rows.append([f"`{folder}`, {TITLES[method]}, {device}", f"{found[0]['samples']:,}", f"{most:,.0f}"])
    return markdown(["records", "images", "host memory (MB)"], rows)


def rate(row: str) -> float:
    """Images a second of WRN-28-10 on an H200, in batches of 64."""
    return float(record("speed-cifar10-wrn28x10-h200")["rows"][row]["images_per_second"])


def ratio() -> float:
    """How many predictions an image costs with ResiTTA."""
    return float(record("speed-cifar10-wrn28x10-h200")["rows"]["resitta, exact"]["ratio"])


@table("plan")
def plan() -> str:
    """GPUs for 1,000 streams of 5 images a second: arithmetic from the rates."""
    images, plain, adapting = 5000, rate("plain inference"), rate("resitta, exact")
    extra = ratio() - 1  # what learning costs, in predictions, with an update every 64 images
    writer = (
        f"all share the shift; a writer takes up to {round(adapting, -2):,.0f} images/s, the rest is only predicted"
    )
    own, shared = f"{1 + extra:.1f}", f"{1 + extra / 16:.1f}"
    rows = [
        ["an adapter per stream", own, f"{images / adapting:.1f}", "1.4 GB", "every stream has a shift of its own"],
        [
            "an adapter per 16 streams, `update_every=1024`",
            shared,
            f"{images * (1 + extra / 16) / plain:.1f}",
            "86 MB",
            "neighbours share the shift; one machine sees their images",
        ],
        ["one writer and readers", f"1, {own} in the writer", f"{images / plain:.1f} + 1", "1.4 MB", writer],
        [
            "a group of k processes",
            own,
            f"{images / adapting:.1f}",
            "1.4 MB per rank",
            "images must stay where they are; updates wait for each other",
        ],
    ]
    return markdown(["arrangement", "predictions per image", "GPUs", "state", "when"], rows)


VALUES |= {
    "rate-plain": lambda: f"{rate('plain inference'):,.0f}",
    "rate-resitta": lambda: f"{rate('resitta, exact'):,.0f}",
    "rate-ratio": ratio,
}
