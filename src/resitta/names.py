"""Names that people type, apart from what they stand for: `resitta --help` shows them without importing torch."""

from typing import Literal

METHODS = ("source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta")
"""The methods of the paper's tables, in their order."""

TABLES = {"table1": "cifar10", "table2": "cifar100", "table3": "imagenet"}
"""The main tables and their data sets."""

SWEEPS = {"eta": "eta", "mature": "mature_age", "forget": "forget_age", "nu_b": "nu_b", "nu_m": "nu_m", "lr": "lr"}
"""The names of the sweeps and the settings they vary."""

EXPERIMENTS = (*TABLES, "ablation", *SWEEPS)
"""Everything that `resitta reproduce` runs."""

CORRUPTIONS = (
    "motion_blur",
    "snow",
    "fog",
    "shot_noise",
    "defocus_blur",
    "contrast",
    "zoom_blur",
    "brightness",
    "frost",
    "elastic_transform",
    "glass_blur",
    "gaussian_noise",
    "pixelate",
    "jpeg_compression",
    "impulse_noise",
)
"""The fifteen corruptions of the paper's tables, in their order."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four further corruptions of the public sets, meant for validation."""

SHORT = {name: name.partition("_")[0] for name in CORRUPTIONS + EXTRA} | {"gaussian_blur": "gaussian_blur"}
"""The names as tables print them, such as "motion" for "motion_blur"; `corrupt` takes them too."""

OrderName = Literal["ptta", "slots", "sorted", "iid", "mixed"]
"""How the images of a domain come."""

Course = Literal["once", "gradual", "recurring"]
"""How the corruptions of a stream follow each other."""

WithinSlot = Literal["blocks", "shuffled"]
"""How classes come inside a time slot of a PTTA stream."""
