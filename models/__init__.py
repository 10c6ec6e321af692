"""Reference architectures: the networks of the paper, and their close relatives.

Every model takes channels-last images and returns logits. `build` makes one by its
name, `targets` says which of its layers the paper prunes, and `load_weights` fills
it from a file.
"""

from .mobilenet import mobilenet_v1
from .pretrained import IMAGENET, build_application, build_preset
from .registry import build, default_classes, names, targets
from .resnet import imagenet_resnet
from .resnet_cifar import cifar_resnet
from .vgg import vgg16
from .weights import load_weights

__all__ = [
    "IMAGENET",
    "build",
    "build_application",
    "build_preset",
    "cifar_resnet",
    "default_classes",
    "imagenet_resnet",
    "load_weights",
    "mobilenet_v1",
    "names",
    "targets",
    "vgg16",
]
