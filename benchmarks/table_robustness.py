"""Tables of faults, endurance, kills, and the service."""

import statistics
from collections.abc import Sequence

from table_tools import TITLES, Cell, markdown, record, table

FAULTS = (
    "NaN",
    "all black",
    "all equal",
    "random noise",
    "huge contrast",
    "tiny contrast",
    "one class only",
    "foreign data set",
    "5 % poisoned",
    "scrambled blocks",
    "brightening to white",
)


def fault_cell(name: str, fault: str, guard: str, seeds: Sequence[int]) -> str:
    """The mean error after a fault, and in brackets the difference from a run that never saw it."""
    found = record(name)
    keys = [f"fault: {{}}, 10000 samples, guard {guard}, seed {seed}" for seed in seeds]
    control = "no_fault" if fault == "5 % poisoned" else "none"  # it hides among ordinary images: compare with those
    if any(key.format(fault) not in found for key in keys):
        return "–"
    after, without = (statistics.mean(found[key.format(what)]["error"] for key in keys) for what in (fault, control))
    return f"{after:.1f} ({round(after - without, 1) + 0.0:+.1f})"  # + 0.0 makes +0.0 of -0.0


@table("faults")
def faults() -> str:
    """What is left of each fault, guarded and not, with and without the anchor and the detector."""
    rows = [
        [
            fault,
            fault_cell("faults", fault, "off", [1]),
            fault_cell("faults", fault, "on", [1]),
            fault_cell("faults-anchor", fault, "off", [1, 2]),
            fault_cell("faults-anchor", fault, "on", [1, 2]),
            fault_cell("faults-renew", fault, "on", [1]),
        ]
        for fault in FAULTS
    ]
    head = ["after 10,000 samples of", "paper's method", "guard", "`anchor=0.1`", "guard, `anchor=0.1`"]
    return markdown([*head, "guard, `anchor=0.1`, `reset_on_shift=2`"], rows)


@table("false-alarms")
def false_alarms() -> str:
    """Guards on healthy streams."""
    rows = []
    for key, found in record("faults-anchor").items():
        if key.startswith("healthy: "):
            method, order = key.removeprefix("healthy: ").split(", ")
            rows.append([f"{TITLES[method]}, {order}", f"{found['samples']:,}", str(found["events"])])
    return markdown(["healthy stream", "samples", "guard events"], rows)


def visits(errors: Sequence[float]) -> list[Cell]:
    """First, second, the mean of those between, and last."""
    return [errors[0], errors[1], statistics.mean(errors[2:-1]), errors[-1], str(len(errors))]


@table("wear")
def wear() -> str:
    """Recurring corruptions, with and without the anchor."""
    found = record("endurance")
    rows: list[list[Cell]] = []
    for key, title in {
        "anchor 0, on an H200, stopped after 14 of 20 visits": "the paper's method, seed 1",
        "anchor 0.003, on an H200, stopped after 13 of 20 visits": "`anchor=0.003`, seed 1",
        "anchor 0.01, on an H200, stopped after 14 of 20 visits": "`anchor=0.01`, seed 1",
        "anchor 0.03, on an H200, stopped after 14 of 20 visits": "`anchor=0.03`, seed 1",
        "anchor 0.3, on an H200, stopped after 12 of 20 visits": "`anchor=0.3`, seed 1",
    }.items():
        rows.append([title, *visits(found[f"recurring, 10000 images, {key}"]["error_of_each_visit"])])
    for suffix, settings in {"": "`anchor=0.1`", ", reset_on_shift 2": "`anchor=0.1, reset_on_shift=2`"}.items():
        for seed in (1, 2, 3):
            key = f"recurring, 20 visits of 10000 images, anchor 0.1{suffix}, seed {seed}, cuda"
            rows.append([f"{settings}, seed {seed}", *visits(found[key]["error_of_each_visit"])])
    key = "recurring, 20 visits of 10000 images, anchor 1, seed 1, cuda"
    rows.append(["`anchor=1` (affine parameters fixed), seed 1", *visits(found[key]["error_of_each_visit"])])
    head = ["error (%), 10,000 images of each corruption", "first visit", "second", "mean between", "last", "visits"]
    return markdown(head, rows)


@table("wear-small")
def wear_small() -> str:
    """The same with fewer images."""
    found = record("endurance")
    keys = {
        "20 visits of 200 images, anchor 0": "200 images, the paper's method",
        "4 visits of 1000 images, anchor 0": "1,000 images, the paper's method",
        "20 visits of 500 images, anchor 0.1": "500 images, `anchor=0.1`",
        "20 visits of 1000 images, anchor 0.1, reset_on_shift 2, seed 2, cpu": "1,000 images, both, seed 2",
    }
    rows = [[title, *visits(found[f"recurring, {key}"]["error_of_each_visit"])] for key, title in keys.items()]
    return markdown(["error (%)", "first visit", "second", "mean between", "last", "visits"], rows)


@table("million")
def million() -> str:
    """Memory, throughput and error over a million small samples."""
    rows: list[list[Cell]] = []
    for key, found in record("endurance").items():
        if key.startswith("1,000,000"):
            _, noise, anchor = key.replace("1,000,000", "1000000").split(", ")
            rates, errors = found["images_per_second"], found["errors"]
            rows.append(
                [
                    f"`--{noise} --{anchor}`",
                    f"{100 * found['largest_change_of_memory']:.1f} %",
                    f"{rates[0]:,} / {rates[-1]:,}",
                    f"{errors[0]:.1f} / {errors[-1]:.1f}",
                ]
            )
    return markdown(["1,000,000 samples", "growth of memory", "images/s, first / last tenth", "error (%), same"], rows)


@table("kills")
def kills() -> str:
    """Processes killed at random moments."""
    found = record("kills")
    names = {
        "kills": "processes killed",
        "during_a_save": "of these, during a save",
        "before_the_first_save": "killed before their first save",
        "recovered": "recovered",
        "not_recovered": "had a state and did not recover",
        "files_checked": "files checked",
        "files_unreadable": "files unreadable",
        "predictions_compared": "predictions compared with an uninterrupted run",
        "predictions_different": "predictions that differ",
    }
    return markdown(["`python benchmarks/kills.py`", "count"], [[t, f"{found[k]:,}"] for k, t in names.items()])


@table("clients")
def clients() -> str:
    """One hostile client among honest ones."""
    found = record("clients")
    rows: list[list[Cell]] = []
    for suffix, title in {"4 clients, rate 6": "4 honest, 6 times", "1 clients, rate 2": "1 honest, 2 times"}.items():
        for attack in ("no attack", "noise", "black", "adversarial", "brightening", "one corruption"):
            keys = [f"{attack}, {how}, seed 1, {suffix}, 600 per corruption" for how in ("as one client", "apart")]
            if keys[0] in found:
                rows.append([f"{attack}; {title}", *(found[key]["error"] for key in keys)])
    rows.append(["source model, no adaptation", *[found["source, 4 clients, rate 6, 600 per corruption"]["error"]] * 2])
    return markdown(["error (%) of the honest clients", "all clients as one", "equal shares per client"], rows)


@table("hostile")
def hostile() -> str:
    """Latency of honest clients beside hostile ones."""
    found = record("hostile")
    honest, bad = found["clients"]["honest"], found["clients"]["hostile"]
    rows: list[list[Cell]] = []
    for key, title in {"alone": f"{honest} honest clients", "attacked": f"and {bad} hostile ones"}.items():
        one_ = found[key]
        answered = f"{one_['outcomes']['200']:,} of {found['requests_while_attacked']['honest']:,}"
        times = [f"{one_[name]:.0f}" for name in ("p50_ms", "p90_ms", "p99_ms")]
        rows.append([title, answered, *times, f"{found['health_and_ready'][key]['p99_ms']:.0f}"])
    rows.append(["ratio", None, f"{found['p50_ratio']:.2f}", None, f"{found['p99_ratio']:.2f}", None])
    head = ["2 cores", "honest requests answered", "p50 (ms)", "p90 (ms)", "p99 (ms)", "`/health`, `/ready` p99 (ms)"]
    return markdown(head, rows)


@table("serving")
def serving() -> str:
    """Latency with and without adaptation."""
    found = record("serving")
    rows: list[list[Cell]] = []
    for key, title in {
        "cameras": "like cameras, 240 requests/s together",
        "load": "each as fast as it gets answers, all cores busy",
        "load_no_guard": "the same with `--no-guard`",
    }.items():
        part = found[key]
        on, off = part["with_adaptation"], part["without_adaptation"]
        errors = sum(n for side in (on, off) for status, n in side["outcomes"].items() if status != "200")
        pairs = part["p50_ratio_of_each_pair_of_blocks"]
        rows.append(
            [
                title,
                f"{on['p50_ms']:.1f} / {off['p50_ms']:.1f}",
                f"{part['p50_ratio']:.2f} ({min(pairs):.2f}–{max(pairs):.2f})",
                f"{on['p99_ms']:.0f} / {off['p99_ms']:.0f}",
                str(errors),
                str(part["dropped"]),
                f"{min(part['memory_mb']):.0f}–{max(part['memory_mb']):.0f}",
            ]
        )
    head = ["16 clients, 2 cores", "p50 with / without (ms)", "ratio (pairs of blocks)", "p99 with / without (ms)"]
    return markdown([*head, "errors", "images dropped", "memory (MB)"], rows)


@table("killed-service")
def killed_service() -> str:
    """`kill -9` under load."""
    found = record("serving")["kill"]
    last, after = found["last_snapshot"], found["after_restart"]
    rows = [
        ["answered", f"{found['outcomes']['200']:,}"],
        ["cut off by the kill", str(found["outcomes"]["cut off"])],
        ["connections refused until the restart", str(found["outcomes"]["refused"])],
        ["version / samples of the last snapshot", f"{last['version']} / {last['samples']:,}"],
        ["version / samples after the restart", f"{after['version']} / {after['samples']:,}"],
        ["seconds from start to ready", f"{found['seconds_to_ready']:.1f}"],
    ]
    return markdown(["`kill -9` with 16 clients", "found"], rows)


@table("capacity")
def capacity() -> str:
    """What one image costs on one core."""
    names = {"demo": "demo", "wrn16x1": "WRN-16-1", "wrn40x2": "WRN-40-2"}
    keys = ("predict_1", "predict_32", "learn", "publish", "save", "model_mb", "state_mb")
    rows = [[title, *(f"{record('capacity')['models'][n][k]:.2g}" for k in keys)] for n, title in names.items()]
    head = ["32×32, one core", "predict alone (ms)", "predict in batches of 32 (ms)", "learn (ms)"]
    return markdown([*head, "publish an update (ms)", "save (ms)", "model (MB)", "state of a stream (MB)"], rows)
