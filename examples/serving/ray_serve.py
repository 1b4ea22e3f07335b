"""A Ray Serve deployment of a classifier that adapts to the images it is sent.

pip install "ray[serve]"
python examples/serving/ray_serve.py         # serves http://127.0.0.1:8000/
python examples/serving/ray_serve.py --try   # sends it 256 images, prints what it learned, and stops
curl --data-binary @photo.jpg http://127.0.0.1:8000/

There is one replica, since each would adapt to its own share of the images. For one adaptation and many processes that
predict, with snapshots, quotas and guards: resitta serve MODEL --engine ray --readers 4.
"""

import argparse
import asyncio
import io
from typing import Any

import torch
from PIL import Image
from ray import serve
from starlette.requests import Request
from torch import Tensor, nn

import resitta


def make_model() -> nn.Module:
    """Return your classifier: float images N×3×32×32 in [0, 1] to logits."""
    features = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(8, 10)).eval()


@serve.deployment(num_replicas=1, max_ongoing_requests=128)
class Adaptive:
    """Predicts the images of several requests at once, and learns from them."""

    def __init__(self, size: int = 32) -> None:
        self.size = size
        self.adapter = resitta.adapt(make_model(), "resitta", guard=True, anchor=0.1)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.01)  # type: ignore[untyped-decorator]
    async def predict(self, images: list[Tensor]) -> list[list[float]]:
        """Return probabilities, one list per image."""
        logits = await asyncio.to_thread(self.adapter, torch.stack(images))
        found: list[list[float]] = logits.softmax(dim=1).tolist()
        return found

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a JPEG, PNG or WebP file."""
        image = await asyncio.to_thread(self.decode, await request.body())
        return {"probabilities": await self.predict(image)}

    def decode(self, file: bytes) -> Tensor:
        """Return the image of a file, 3×size×size."""
        return resitta.images(Image.open(io.BytesIO(file)).convert("RGB"), size=self.size)[0]

    def stats(self) -> str:
        """Tell what was learned."""
        found = self.adapter.stats
        return f"{found.samples} samples, {found.updates} updates, mean entropy {found.mean_entropy:.2f}"


def main() -> None:
    """Serve, or try it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", action="store_true", dest="once")
    once = parser.parse_args().once
    handle = serve.run(Adaptive.bind(), blocking=not once)  # type: ignore[attr-defined]
    if once:
        answers = [handle.predict.remote(image) for image in torch.rand(256, 3, 32, 32)]
        print(len([answer.result() for answer in answers]), "answers;", handle.stats.remote().result())
        serve.shutdown()


if __name__ == "__main__":
    main()
