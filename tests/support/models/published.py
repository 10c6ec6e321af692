"""Networks written the way people publish them: as subclassed models and layers.

Each is small, for images of 32 x 32.
"""

from support.models.published_light import Detector, GhostNet, RepVGG, ShuffleNetV2
from support.models.published_residual import ResNet, UNet, regnet, resnext

PUBLISHED = {
    "ResNet": ResNet,
    "UNet": UNet,
    "ResNeXt": resnext,
    "RegNet": regnet,
    "ShuffleNetV2": ShuffleNetV2,
    "GhostNet": GhostNet,
    "RepVGG": RepVGG,
    "Detector": Detector,
}
