"""Make a testbed from the public CIFAR archives: test images as a zip, and a source network trained on one GPU.

    python benchmarks/testbeds.py --bed cifar10-wrn16x1 --device cuda
    python benchmarks/testbeds.py --bed cifar100-resnext29 --source ~/data --out testbeds --device cuda
    python benchmarks/beds.py --bed cifar10-wrn16x1 --beds testbeds --per-domain 2000

The first command downloads cifar-10-python.tar.gz (170 MB) to --source unless it, or the unpacked folder
cifar-10-batches-py, is there; CIFAR-100 likewise (169 MB, cifar-100-python). It writes OUT/cifar10-test.zip and
OUT/cifar10-wrn16x1.safetensors, and prints the clean error. Training is SGD with Nesterov momentum and a cosine
schedule on random crops and flips, for ResNeXt-29 with AugMix.
"""

import argparse
import hashlib
import io
import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from augmix import CONSISTENCY, augmix, consistency
from beds import TESTBEDS
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.data.datasets.pickles import read_batch
from resitta.data.download.transfer import download
from resitta.data.download.unpack import unpack
from resitta.errors import BadData
from resitta.models import create as create_model

PAD = 4


@dataclass(frozen=True)
class Cifar:
    """One of the two public archives."""

    url: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str


CIFAR = {
    "cifar10": Cifar(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
    ),
    "cifar100": Cifar(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train=("train",),
        test="test",
    ),
}


@dataclass(frozen=True)
class Images:
    """Images N×3×32×32 as bytes, and their labels, on a device."""

    pixels: Tensor
    labels: Tensor

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, in a random order; the last short batch is left out."""
        order = torch.randperm(len(self.labels), device=self.labels.device)
        for some in torch.split(order, size):
            if len(some) == size:
                yield self.pixels[some].float() / 255, self.labels[some]


def main() -> None:
    """Write the files of one testbed and print what came of it."""
    args = arguments()
    dataset = TESTBEDS[args.bed].task
    torch.manual_seed(args.seed)
    folder = obtain(CIFAR[dataset], args.source)
    train = read(folder, CIFAR[dataset].train, args.device)
    test = read(folder, (CIFAR[dataset].test,), args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    write_zip(args.out / TESTBEDS[args.bed].images, test)
    begin = time.perf_counter()
    model = trained(args, train)
    weights = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    save_file(weights, args.out / f"{args.bed}.safetensors")
    result = {
        "bed": args.bed,
        "clean_error": round(error(model, test), 2),
        "train_images": len(train.labels),
        "epochs": args.epochs,
        "seed": args.seed,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    (args.out / f"{args.bed}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{args.bed}: clean error {result['clean_error']:.2f} %, files in {args.out}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name, testbed in TESTBEDS.items() if testbed.task in CIFAR]
    parser.add_argument("--bed", choices=known, default="cifar10-wrn16x1")
    parser.add_argument("--source", type=Path, default=Path("data"), help="folder of the archives (default: data)")
    parser.add_argument("--out", type=Path, default=Path("testbeds"), help="folder to write to (default: testbeds)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def obtain(cifar: Cifar, source: Path) -> Path:
    """The folder of batches under `source`, unpacked or downloaded first where it has to be."""
    folder = source / cifar.folder
    if folder.is_dir():
        return folder
    source.mkdir(parents=True, exist_ok=True)
    archive = source / cifar.url.rpartition("/")[2]
    if not archive.exists():
        print(f"downloading {cifar.url}", flush=True)
        download(cifar.url, archive)
    found = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    if found != cifar.md5:
        raise BadData(f"{archive} has the md5 {found} instead of {cifar.md5}; delete it and run again")
    unpack(archive, source, [cifar.folder])
    return folder


def read(folder: Path, names: tuple[str, ...], device: str) -> Images:
    """Read pickled batches, without running what they may contain."""
    parts = [read_batch(folder / name) for name in names]
    pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32)
    labels = [label for _, some in parts for label in some]
    return Images(torch.from_numpy(pixels).to(device), torch.tensor(labels, device=device))


def write_zip(path: Path, images: Images) -> None:
    """Write images losslessly as CLASS/NUMBER.png; sorted, the folders are the classes in their order."""
    with zipfile.ZipFile(path, "w") as file:
        pixels = images.pixels.permute(0, 2, 3, 1).cpu().numpy()
        for number, (image, label) in enumerate(zip(pixels, images.labels.tolist(), strict=True)):
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, "PNG")
            file.writestr(f"{label:03d}/{number:05d}.png", stream.getvalue())


def trained(args: argparse.Namespace, images: Images) -> nn.Module:
    """Train the testbed's source network."""
    testbed = TESTBEDS[args.bed]
    model = initialised(create_model(testbed.model, **testbed.options)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    size = min(args.batch_size, len(images.labels))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * (len(images.labels) // size))
    loss_of = augmix_loss if testbed.task == "cifar100" else plain_loss
    torch.backends.cudnn.benchmark = True
    begin = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        model.train()
        for pixels, labels in images.batches(size):
            with torch.autocast(torch.device(args.device).type, torch.bfloat16):
                loss = loss_of(model, crop_and_flip(pixels), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        if epoch % max(1, args.epochs // 20) == 0:
            spent = time.perf_counter() - begin
            left = spent / epoch * (args.epochs - epoch)
            print(f"epoch {epoch} of {args.epochs}, {spent:.0f} s, {left:.0f} s left", flush=True)
    return model.eval()


def initialised(model: nn.Module) -> nn.Module:
    """Start convolutions as He et al. (2015) propose for ReLUs, by the number of outgoing connections."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def crop_and_flip(images: Tensor) -> Tensor:
    """Move each image by up to four pixels, with black beyond the border, and mirror half of them."""
    count, height, width = len(images), *images.shape[2:]
    padded = F.pad(images, (PAD,) * 4)
    top, left = torch.randint(0, 2 * PAD + 1, (2, count, 1), device=images.device)
    columns = left + torch.arange(width, device=images.device)
    flipped = torch.rand(count, 1, device=images.device) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    rows = top + torch.arange(height, device=images.device)
    which = torch.arange(count, device=images.device)
    cropped = padded[which[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return cropped.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def plain_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy."""
    return F.cross_entropy(model(images).float(), labels)


def augmix_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy on the images, and agreement between them and two AugMix versions."""
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        versions = torch.cat((images, augmix(images), augmix(images)))
    logits = model(versions).float()
    return F.cross_entropy(logits[: len(images)], labels) + CONSISTENCY * consistency(logits)


@torch.inference_mode()
def error(model: nn.Module, images: Images) -> float:
    """The share of images that a network gets wrong, in per cent."""
    parts = zip(torch.split(images.pixels, 500), torch.split(images.labels, 500), strict=True)
    wrong = sum(int((model(pixels.float() / 255).argmax(dim=1) != labels).sum()) for pixels, labels in parts)
    return 100 * wrong / len(images.labels)


if __name__ == "__main__":
    main()
