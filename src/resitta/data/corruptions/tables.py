"""The strength of every corruption at severities 1 to 5, as the public sets were made.

One row per image side: 32 (CIFAR-10-C, CIFAR-100-C), 64 (Tiny-ImageNet-C) and 224 (ImageNet-C). Images of another size
use the row nearest to their shorter side, with its numbers unchanged. Commas separate the five
severities; a line that ends with a comma continues on the next one.

>>> setting("gaussian_noise", 5, side=32), setting("glass_blur", 1, side=256)
({'std': 0.1}, {'sigma': 0.7, 'reach': 1.0, 'rounds': 2.0})
"""

SIDES = (32, 64, 224)

# For each corruption: the names of its numbers, then their values for each of the three sides.
_TABLES = {
    # standard deviation of the noise; white is 1
    "gaussian_noise": """std
        0.04, 0.06, 0.08, 0.09, 0.1
        0.04, 0.08, 0.12, 0.15, 0.18
        0.08, 0.12, 0.18, 0.26, 0.38""",
    # photons of a white pixel
    "shot_noise": """photons
        500, 250, 100, 75, 50
        250, 100, 50, 30, 15
        60, 25, 12, 5, 3""",
    # share of the values that turn black or white
    "impulse_noise": """amount
        0.01, 0.02, 0.03, 0.05, 0.07
        0.01, 0.02, 0.05, 0.08, 0.14
        0.03, 0.06, 0.09, 0.17, 0.27""",
    # standard deviation relative to the pixel's value
    "speckle_noise": """std
        0.06, 0.1, 0.12, 0.16, 0.2
        0.15, 0.2, 0.25, 0.3, 0.35
        0.15, 0.2, 0.35, 0.45, 0.6""",
    "gaussian_blur": """sigma
        0.4, 0.6, 0.7, 0.8, 1
        0.5, 0.75, 1, 1.25, 1.5
        1, 2, 3, 4, 6""",
    # sigma of the blurs, farthest step of a pixel, rounds of steps
    "glass_blur": """sigma reach rounds
        0.05 1 1, 0.25 1 1, 0.4 1 1, 0.25 1 2, 0.4 1 2
        0.1 1 1, 0.5 1 1, 0.6 1 2, 0.7 2 1, 0.9 2 2
        0.7 1 2, 0.9 2 1, 1 2 3, 1.1 3 2, 1.5 4 2""",
    # radius of the disc, sigma that smooths its edge
    "defocus_blur": """radius edge
        0.3 0.4, 0.4 0.5, 0.5 0.6, 1 0.2, 1.5 0.1
        0.5 0.6, 1 0.1, 1.5 0.1, 2.5 0.01, 3 0.1
        3 0.1, 4 0.5, 6 0.5, 8 0.5, 10 0.5""",
    "motion_blur": """radius sigma
        6 1, 6 1.5, 6 2, 8 2, 9 2.5
        10 1, 10 1.5, 10 2, 10 2.5, 12 3
        10 3, 15 5, 15 8, 15 12, 20 15""",
    # zoom factors from 1 up to below the first number, in steps of the second
    "zoom_blur": """stop step
        1.06 0.01, 1.11 0.01, 1.16 0.01, 1.21 0.01, 1.26 0.01
        1.06 0.01, 1.11 0.01, 1.16 0.01, 1.21 0.01, 1.26 0.01
        1.11 0.01, 1.16 0.01, 1.21 0.02, 1.26 0.02, 1.31 0.03""",
    # thickness, how fast the finer details fade
    "fog": """thickness decay
        0.2 3, 0.5 3, 0.75 2.5, 1 2, 1.5 1.75
        0.4 3, 0.7 3, 1 2.5, 1.5 2, 2 1.75
        1.5 2, 2 2, 2.5 1.7, 2.5 1.5, 3 1.4""",
    # share of the image, share of the texture, size of the texture relative to the photographs
    "frost": """share ice scale
        1 0.2 0.2, 1 0.3 0.2, 0.9 0.4 0.2, 0.85 0.4 0.2, 0.75 0.45 0.2
        1 0.3 0.3, 0.9 0.4 0.3, 0.8 0.45 0.3, 0.75 0.5 0.3, 0.7 0.55 0.3
        1 0.4 1, 0.8 0.6 1, 0.7 0.7 1, 0.65 0.7 1, 0.6 0.75 1""",
    # noise that becomes flakes and its blur, share of the image that is not whitened
    "snow": """mean std zoom threshold radius sigma share
        0.1 0.2 1 0.6 8 3 0.95, 0.1 0.2 1 0.5 10 4 0.9, 0.15 0.3 1.75 0.55 10 4 0.9,
          0.25 0.3 2.25 0.6 12 6 0.85, 0.3 0.3 1.25 0.65 14 12 0.8
        0.1 0.2 1 0.6 8 3 0.8, 0.1 0.2 1 0.5 10 4 0.8, 0.15 0.3 1.75 0.55 10 4 0.7,
          0.25 0.3 2.25 0.6 12 6 0.65, 0.3 0.3 1.25 0.65 14 12 0.6
        0.1 0.3 3 0.5 10 4 0.8, 0.2 0.3 2 0.5 12 4 0.7, 0.55 0.3 4 0.9 12 8 0.7,
          0.55 0.3 4.5 0.85 12 8 0.65, 0.55 0.3 2.5 0.85 12 12 0.55""",
    # noise that becomes drops, strength of the water or sigma of the mud's edge, water (0) or mud (1)
    "spatter": """mean std sigma threshold strength mud
        0.62 0.1 0.7 0.7 0.5 0, 0.65 0.1 0.8 0.7 0.5 0, 0.65 0.3 1 0.69 0.5 0,
          0.65 0.1 0.7 0.69 0.6 1, 0.65 0.1 0.5 0.68 0.6 1
        0.62 0.1 0.7 0.7 0.6 0, 0.65 0.1 0.8 0.7 0.6 0, 0.65 0.3 1 0.69 0.6 0,
          0.65 0.1 0.7 0.68 0.6 1, 0.65 0.1 0.5 0.67 0.6 1
        0.65 0.3 4 0.69 0.6 0, 0.65 0.3 3 0.68 0.6 0, 0.65 0.3 2 0.68 0.5 0,
          0.65 0.3 1 0.65 1.5 1, 0.67 0.4 1 0.65 1.5 1""",
    # share of the contrast that is left
    "contrast": """share
        0.75, 0.5, 0.4, 0.3, 0.15
        0.4, 0.3, 0.2, 0.1, 0.05
        0.4, 0.3, 0.2, 0.1, 0.05""",
    # added to the value of HSV
    "brightness": """amount
        0.05, 0.1, 0.15, 0.2, 0.3
        0.1, 0.2, 0.3, 0.4, 0.5
        0.1, 0.2, 0.3, 0.4, 0.5""",
    # the saturation of HSV is multiplied by the first and increased by the second
    "saturate": """factor amount
        0.3 0, 0.1 0, 1.5 0, 2 0.1, 2.5 0.2
        0.3 0, 0.1 0, 2 0, 5 0.1, 30 0.2
        0.3 0, 0.1 0, 2 0, 5 0.1, 20 0.2""",
    "jpeg_compression": """quality
        80, 65, 58, 50, 40
        65, 58, 50, 40, 25
        25, 18, 15, 10, 7""",
    # share of the side that is left
    "pixelate": """share
        0.95, 0.9, 0.85, 0.75, 0.65
        0.9, 0.8, 0.7, 0.6, 0.5
        0.6, 0.5, 0.4, 0.3, 0.25""",
    # displacement of the pixels, farthest shift of the corners of the affine map
    "elastic_transform": """strength sigma shift
        0 0 2.56, 1.6 6.4 2.24, 2.56 1.92 1.92, 3.2 1.28 1.6, 3.2 0.96 0.96
        0 0 5.12, 3.2 19.2 3.84, 6.4 5.12 3.84, 6.4 1.92 1.92, 10.24 1.92 1.28
        488 170.8 24.4, 488 19.52 48.8, 12.2 2.44 4.88, 17.08 2.44 4.88, 29.28 2.44 4.88""",
}


def setting(name: str, severity: int, *, side: int) -> dict[str, float]:
    """Return the numbers of one corruption at one severity, for images whose shorter side is `side`."""
    fields, *rows = _TABLES[name].replace(",\n", ",").splitlines()
    nearest = min(range(len(SIDES)), key=lambda i: abs(SIDES[i] - side))
    numbers = rows[nearest].split(",")[severity - 1].split()
    return dict(zip(fields.split(), map(float, numbers), strict=True))
