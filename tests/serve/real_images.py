"""Hooks for schemathesis: where the interface asks for images, it sends some. Loaded by `test_schema`."""

import base64

import numpy as np
import schemathesis
from hypothesis import strategies as st
from tests.serve.helpers import SIZE, array, picture

from resitta.serve.images import RAW

seeds, sides = st.integers(0, 99), st.integers(1, 40)
arrays = seeds.map(lambda seed: array(np.random.default_rng(seed).random((3, SIZE, SIZE), np.float32)))
FILES = {
    kind: st.builds(picture, st.just(kind.rpartition("/")[2].upper()), seed=seeds, width=sides, height=sides)
    for kind in RAW
    if kind.startswith("image/")
}
FILES["application/x-npy"] = arrays
FILES["application/octet-stream"] = anything = st.one_of(*FILES.values())

for kind, files in FILES.items():
    schemathesis.openapi.media_type(kind, files)
schemathesis.openapi.format("binary", anything)
schemathesis.openapi.format("byte", anything.map(lambda file: base64.b64encode(file).decode()))
