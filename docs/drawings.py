"""Draw the pictures of README.md and the site as SVG, each for a light and a dark ground.

    python docs/drawings.py            # rewrite docs/assets/*.svg
    python docs/drawings.py --check    # exit status 1 if a file differs

`errors` shows a record; the others show how things work. All are narrow, so that they can be read on a phone.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"
RECORDS = ROOT / "benchmarks" / "records"
PALETTES = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#818b98",
        "grid": "#d1d9e0",
        "box": "#f6f8fa",
        "accent": "#c2410c",
        "tint": "#fdeee4",
        "blue": "#1c46dc",
        "cool": "#e7ecfd",
        "purple": "#a44bc8",
        "navy": "#14336f",
    },
    "dark": {
        "ink": "#e6edf3",
        "soft": "#9da7b1",
        "line": "#7d8590",
        "grid": "#343b44",
        "box": "#1f252d",
        "accent": "#ff9e64",
        "tint": "#3d2a1e",
        "blue": "#8aa5ff",
        "cool": "#222c4a",
        "purple": "#d79bf0",
        "navy": "#7fb2e5",
    },
}
SHORT_NAMES = (
    "motion", "snow", "fog", "shot", "defocus", "contrast", "zoom", "bright", "frost", "elastic", "glass", "gauss",
    "pixel", "jpeg", "impulse",
)  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


class Drawing:
    """A canvas in one palette; coordinates are pixels at full size."""

    def __init__(self, width: int, height: int, palette: str, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.colour = PALETTES[palette]
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, *lines: str, fill: str = "box", edge: str = "line") -> None:
        """A rounded box with centred lines; the first is bold."""
        style = f'fill="{self.colour[fill]}" stroke="{self.colour[edge]}" stroke-width="1.5"'
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" {style}/>')
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 18 * number, line, bold=number == 0, soft=number > 0)

    def text(
        self,
        x: float,
        y: float,
        line: str,
        *,
        bold: bool = False,
        soft: bool = False,
        anchor: str = "middle",
        size: int = 14,
        colour: str = "",
    ) -> None:
        """One line of text."""
        fill = self.colour[colour or ("soft" if soft else "ink")]
        weight = ' font-weight="600"' if bold else ""
        at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        self.parts.append(f'<text {at} fill="{fill}"{weight}>{escape(line)}</text>')

    def arrow(self, *points: tuple[float, float], colour: str = "line", dashed: bool = False) -> None:
        """A line through some points with a head at its end."""
        path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        style = f'fill="none" stroke="{self.colour[colour]}" stroke-width="2"{dash}'
        self.parts.append(f'<path d="{path}" {style} marker-end="url(#head-{colour})"/>')

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2.5) -> None:
        """A line without a head."""
        path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
        style = f'fill="none" stroke="{self.colour[colour]}" stroke-width="{width}" stroke-linejoin="round"'
        self.parts.append(f'<path d="{path}" {style}/>')

    def block(self, x: float, y: float, w: float, h: float, fill: str) -> None:
        """A plain rectangle in any colour."""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}"/>')

    def frame(self, x: float, y: float, w: float, h: float) -> None:
        """An empty frame in the colour of the text."""
        style = f'fill="none" stroke="{self.colour["ink"]}" stroke-width="2.5"'
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" {style}/>')

    def svg(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="head-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{self.colour[name]}"/></marker>'
            for name in ("line", "accent", "blue")
        )
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        body = "\n".join(self.parts)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">'
        return f"{head}\n<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n{body}\n</svg>\n"


def errors(palette: str) -> Drawing:
    """The README's picture: error along the stream, from the records of CIFAR-10 with WRN-28-10, seed 1."""
    d = Drawing(680, 400, palette, "Error of five methods along a stream of 15 corruptions of CIFAR-10, WRN-28-10")
    shown = {
        "tent": ("TENT", "purple"),
        "bn": ("BN", "navy"),
        "source": ("Source", "line"),
        "rotta": ("RoTTA", "blue"),
        "resitta": ("ResiTTA", "accent"),
    }
    left, right, top, bottom = 44.0, 596.0, 44.0, 320.0
    names = list(SHORT_NAMES)
    step = (right - left) / len(names)
    d.text(
        left - 34, 22, "Error (%) on each corruption, in the order of the stream", anchor="start", bold=True, size=16
    )
    for value in range(0, 101, 20):
        y = bottom - (bottom - top) * value / 100
        d.line([(left, y), (right, y)], "grid", 1)
        d.text(left - 8, y + 5, str(value), anchor="end", soft=True)
    for number, name in enumerate(names):
        x = left + (number + 0.5) * step
        d.parts.append(
            f'<text transform="translate({x + 5:.1f} {bottom + 14}) rotate(-45)" text-anchor="end" font-size="14" '
            f'fill="{d.colour["soft"]}">{name}</text>'
        )
    ends = []
    for method, (title, colour) in shown.items():
        (path,) = (RECORDS / "cifar10-wrn28x10").glob(f"{method}-1-*.json")
        found = json.loads(path.read_text("utf-8"))["run"]["errors"]
        ys = [bottom - (bottom - top) * error / 100 for error in found]
        points = [(left + (number + 0.5) * step, y) for number, y in enumerate(ys)]
        d.line(points, colour, 3.5 if method == "resitta" else 2.2)
        ends.append((ys[-1], title, colour))
    places = {"TENT": -6.0, "BN": 6.0, "Source": 12.0, "RoTTA": 16.0, "ResiTTA": -2.0}
    for y, title, colour in ends:
        d.text(right - 10, y + places[title] + 4, title, anchor="start", bold=True, colour=colour, size=15)
    d.text(
        left - 34, 390, "CIFAR-10, WRN-28-10, 150,000 images, temporally correlated classes, severity 5", soft=True,
        anchor="start",
    )  # fmt: skip
    return d


HUES = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#79706e", "#ff9da6"]


def ptta(palette: str) -> Drawing:
    """A shuffled stream and a PTTA stream."""
    d = Drawing(440, 250, palette, "An i.i.d. stream and a stream of practical test-time adaptation")
    draw = random.Random(1)
    count, left, width = 100, 10, 420
    mixed = [draw.randrange(10) for _ in range(count)]
    blocks: list[int] = []
    while len(blocks) < count:
        blocks += [draw.randrange(10)] * draw.randint(3, 14)
    for y, title, classes in (
        (34, "i.i.d. stream: classes mixed", mixed),
        (104, "PTTA stream: classes in runs", blocks),
    ):
        d.text(left, y - 10, title, anchor="start", bold=True)
        for number in range(count):  # each block reaches to the end, so that no gap shows between two
            d.block(left + number * width / count, y, width - number * width / count, 26, HUES[classes[number]])
    names = ["motion", "snow", "fog", "shot", "…", "jpeg", "impulse"]
    share = width / len(names)
    for number, name in enumerate(names):
        d.box(left + number * share + 1, 138, share - 2, 28, fill="tint" if number % 2 else "box", edge="grid")
        d.text(left + (number + 0.5) * share, 157, name, size=13)
    d.text(left, 188, "and corruptions in sequence, without domain labels", anchor="start", soft=True)
    d.frame(left + 62, 100, 68, 34)
    d.text(left, 214, "A batch (framed) holds one or two classes:", anchor="start", colour="accent")
    d.text(left, 234, "its statistics mislead.", anchor="start", colour="accent")
    return d


def step(palette: str) -> Drawing:
    """One ResiTTA step: prediction, bank, update."""
    d = Drawing(440, 560, palette, "One step of ResiTTA")
    d.box(150, 10, 140, 40, "batch of images", fill="box")
    d.arrow((220, 50), (220, 78))
    d.box(120, 80, 200, 50, "teacher", "statistics frozen", fill="cool", edge="blue")
    d.arrow((320, 105), (360, 105))
    d.box(362, 84, 72, 42, "logits", fill="box")
    d.text(398, 146, "returned", soft=True, size=13)
    d.arrow((220, 130), (220, 178))
    d.text(228, 160, "label, entropy", soft=True, anchor="start", size=13)
    d.box(120, 180, 200, 50, "EntroBank", "64 samples", fill="tint", edge="accent")
    d.arrow((120, 205), (70, 205), (70, 302))
    d.arrow((320, 205), (370, 205), (370, 302))
    d.text(220, 258, "every 64 samples,", bold=True)
    d.text(220, 277, "one update on the whole bank", bold=True)
    d.text(62, 250, "as it is", soft=True, size=13, anchor="end")
    d.text(378, 250, "strong", soft=True, size=13, anchor="start")
    d.text(378, 266, "view", soft=True, size=13, anchor="start")
    d.box(20, 304, 170, 50, "teacher", "moves statistics", fill="cool", edge="blue")
    d.box(250, 304, 170, 50, "student", "moves statistics", fill="box")
    d.arrow((105, 354), (105, 392), (148, 410))
    d.arrow((335, 354), (335, 392), (292, 410))
    d.text(60, 380, "soft targets", soft=True, size=13)
    d.box(150, 388, 140, 44, "cross entropy", fill="box")
    d.arrow((220, 432), (220, 452))
    d.box(80, 454, 280, 40, "Adam on the student's BN affine", fill="box")
    d.arrow((360, 474), (432, 474), (432, 329), (422, 329), dashed=True)
    d.arrow((80, 474), (8, 474), (8, 329), (18, 329), dashed=True)
    d.text(14, 514, "teacher ← EMA of the student (ν_m)", anchor="start", soft=True)
    d.box(10, 522, 420, 32, "align statistics of both with the source (η)", fill="tint", edge="accent")
    return d


def bank(palette: str) -> Drawing:
    """The decisions of EntroBank."""
    d = Drawing(440, 420, palette, "How EntroBank decides which sample leaves")
    d.box(120, 8, 200, 36, "new sample, entropy e", fill="box")
    d.arrow((220, 44), (220, 62))
    d.box(120, 64, 200, 36, "bank full?", fill="tint", edge="accent")
    d.arrow((320, 82), (352, 82))
    d.text(336, 74, "no", soft=True, size=13)
    d.box(354, 64, 78, 36, "store", fill="box")
    d.arrow((220, 100), (220, 122))
    d.box(60, 124, 320, 44, "look only at the largest classes", "counted in the bank", fill="box")
    rules = (
        ("1  a sample with age ≥ 1000?", "the oldest leaves"),
        ("2  age ≥ 200 and the lowest entropy?", "over-confident: it leaves"),
        ("3  highest entropy e′ > e ?", "the uncertain one leaves"),
    )
    for number, (question, outcome) in enumerate(rules):
        y = 192 + 62 * number
        d.arrow((220, y - 24 + (0 if number == 0 else 4)), (220, y - 2))
        d.box(20, y, 400, 42, question, outcome, fill="tint", edge="accent")
        if number:
            d.text(230, y - 7, "no", soft=True, size=13, anchor="start")
    d.arrow((220, 358), (220, 376))
    d.text(230, 371, "no", soft=True, size=13, anchor="start")
    d.box(120, 378, 200, 34, "discard the new one", fill="box")
    return d


def alignment(palette: str) -> Drawing:
    """ResiBN's two moves, on a number line."""
    d = Drawing(440, 230, palette, "ResiBN moves statistics to the batch and a little back to the source")
    y = 112
    d.line([(20, y), (420, y)], "line", 2)
    places = {"source μ_s": (60, "blue"), "target μ_t": (210, "ink"), "bank μ_b": (380, "accent")}
    for name, (x, colour) in places.items():
        d.parts.append(f'<circle cx="{x}" cy="{y}" r="7" fill="{d.colour[colour]}"/>')
        d.text(x, y + 30, name, bold=True, colour=colour)
    d.arrow((218, y - 16), (218, y - 40), (290, y - 40), (290, y - 10), colour="accent")
    d.text(300, y - 52, "1. toward the bank, by ν_b", colour="accent", size=14)
    d.arrow((202, y - 16), (202, y - 62), (150, y - 62), (150, y - 10), colour="blue")
    d.text(120, y - 76, "2. toward the source, by 2η", colour="blue", size=14)
    d.text(20, 180, "Long-run share of the source: 2η / (1 − (1−2η)(1−ν_b))", soft=True, anchor="start")
    for number, (eta, share) in enumerate((("0.01", 0.29), ("0.05", 0.69))):
        x = 20 + 205 * number
        d.block(x, 192, 195 * share, 14, d.colour["blue"])
        d.block(x + 195 * share, 192, 195 * (1 - share), 14, d.colour["accent"])
        d.text(x, 224, f"η = {eta}: {share:.0%} source", anchor="start", size=13)
    return d


LAYERS = (
    ("cli", "", "flags only"),
    ("demo", "", "the demonstration"),
    ("serve", "distributed", "HTTP · groups, Ray"),
    ("report", "", "tables, figures, pages"),
    ("bench", "", "protocol, runner, records"),
    ("models", "data", "networks · streams"),
    ("conformance", "", "the suite for methods"),
    ("exports", "fleets", "verified files · streams"),
    ("adapter", "", "adapt() and Adapter"),
    ("monitor", "checkpoint", "callbacks, guard · save, load"),
    ("methods", "runtime", "one file each · locks, threads"),
    ("method", "", "Method, Learner, registry"),
    ("training", "memory", "teacher and student · banks"),
    ("norm", "accel", "BN layers · CUDA graphs"),
    ("inputs", "errors", "image checks · exceptions"),
)


def tree(palette: str) -> Drawing:
    """The packages; imports point downwards."""
    d = Drawing(440, 16 + 40 * len(LAYERS), palette, "Packages of resitta in layers; imports point downwards")
    core = {"adapter", "methods", "method", "training", "norm"}
    for number, (first, second, about) in enumerate(LAYERS):
        y = 8 + 40 * number
        width = 98 if second else 202
        d.box(
            10, y, width, 32, first, fill="tint" if first in core else "box", edge="accent" if first in core else "line"
        )
        if second:
            d.box(112, y, 100, 32, second, fill="tint" if second in core else "box")
        d.text(224, y + 21, about, anchor="start", soft=True, size=13)
    d.arrow((432, 20), (432, 16 + 40 * len(LAYERS) - 20))
    return d


def service(palette: str) -> Drawing:
    """Reader and writer of the service."""
    d = Drawing(440, 330, palette, "What happens to an image in the service")
    d.box(130, 8, 180, 36, "POST /predict", fill="box")
    d.arrow((220, 44), (220, 64))
    d.box(90, 66, 260, 46, "decode", "worker process with limits", fill="box")
    d.arrow((150, 112), (130, 134))
    d.box(20, 136, 190, 50, "reader", "predicts in batches", fill="cool", edge="blue")
    d.arrow((70, 186), (70, 216))
    d.box(20, 218, 100, 34, "answer", fill="box")
    d.arrow((210, 161), (248, 161))
    d.box(250, 136, 180, 50, "learning queue", "equal share per client", fill="box")
    d.arrow((340, 186), (340, 216))
    d.box(250, 218, 180, 50, "writer", "learns, one thread", fill="tint", edge="accent")
    d.arrow((250, 243), (165, 243), (165, 190), dashed=True)
    d.text(206, 262, "new version", soft=True, size=13)
    d.arrow((340, 268), (340, 288))
    d.box(250, 290, 180, 34, "snapshots", fill="box")
    return d


DRAWINGS: dict[str, Callable[[str], Drawing]] = {
    function.__name__: function for function in (errors, ptta, step, bank, alignment, tree, service)
}


def main() -> int:
    """Write the files, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file differs")
    check = parser.parse_args().check
    wrong = 0
    for name, draw in DRAWINGS.items():
        for palette in PALETTES:
            path, text = ASSETS / f"{name}-{palette}.svg", draw(palette).svg()
            if not path.exists() or path.read_text("utf-8") != text:
                wrong += 1
                sys.stdout.write(f"{path.relative_to(ROOT)} {'differs' if check else 'was written'}\n")
                if not check:
                    path.write_text(text, encoding="utf-8")
    return int(check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
