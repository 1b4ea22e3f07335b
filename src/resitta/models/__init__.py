"""The paper's source networks, their public checkpoints, and models from elsewhere."""

from resitta.models.checkpoints import load_checkpoint, load_into
from resitta.models.normalise import Normalised
from resitta.models.resnet import ResNet50
from resitta.models.resnet26gn import ResNet26GN
from resitta.models.resnext import ResNeXt29
from resitta.models.vit import VisionTransformer
from resitta.models.wide_resnet import WideResNet
from resitta.models.zoo import MODELS, ModelEntry, create, find, list_models, why_untrained

__all__ = [
    "MODELS",
    "ModelEntry",
    "Normalised",
    "ResNeXt29",
    "ResNet26GN",
    "ResNet50",
    "VisionTransformer",
    "WideResNet",
    "create",
    "find",
    "list_models",
    "load_checkpoint",
    "load_into",
    "why_untrained",
]
