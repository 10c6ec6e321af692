"""Reference architectures: the networks of the paper, and their close relatives.

Every model takes channels-last images and returns logits. `build` makes one by its
name, `targets` says which of its layers the paper prunes, and `load_weights` fills
it from a file.
"""

from resrep_tf import lazy

# Imported on first use: checking flags needs only the names.
__getattr__ = lazy.attributes(
    __name__,
    {
        "IMAGENET": "resrep_tf.models.registry",
        "build": "resrep_tf.models.registry",
        "build_application": "resrep_tf.models.pretrained",
        "build_preset": "resrep_tf.models.pretrained",
        "cifar_resnet": "resrep_tf.models.resnet_cifar",
        "default_classes": "resrep_tf.models.registry",
        "default_input_shape": "resrep_tf.models.registry",
        "imagenet_resnet": "resrep_tf.models.resnet",
        "load_weights": "resrep_tf.models.weights",
        "mobilenet_v1": "resrep_tf.models.mobilenet",
        "names": "resrep_tf.models.registry",
        "targets": "resrep_tf.models.registry",
        "vgg16": "resrep_tf.models.vgg",
    },
)

__all__ = [
    "IMAGENET",
    "build",
    "build_application",
    "build_preset",
    "cifar_resnet",
    "default_classes",
    "default_input_shape",
    "imagenet_resnet",
    "load_weights",
    "mobilenet_v1",
    "names",
    "targets",
    "vgg16",
]
