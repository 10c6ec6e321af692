"""Files of weights as PyTorch has them."""

import json

import numpy as np

# Of a CIFAR ResNet of 8 layers: the blocks of each stage, the convolutions of a block,
# and what the last layer and the shortcuts are called.
CIFAR = ((1, 1, 1), 2, "linear", "shortcut")
# Of ResNet-50.
RESNET50 = ((3, 4, 6, 3), 3, "fc", "downsample")


def write_safetensors(path, tensors, dtype="F32"):
    """Writes float32 arrays as tensors of a type, from the format's description."""
    header, buffers = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, array in tensors.items():
        if dtype == "BF16":
            data = (np.ascontiguousarray(array).view("<u4") >> 16).astype("<u2")
        else:
            data = array.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype])
        content = data.tobytes()
        offsets = [len(buffers), len(buffers) + len(content)]
        entry = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        header[name] = entry
        buffers += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + buffers)


def norm_names(prefix, norm):
    return {
        f"{prefix}.weight": norm.gamma.numpy(),
        f"{prefix}.bias": norm.beta.numpy(),
        f"{prefix}.running_mean": norm.moving_mean.numpy(),
        f"{prefix}.running_var": norm.moving_variance.numpy(),
        f"{prefix}.num_batches_tracked": np.float32(7),
    }


def torch_state(model, blocks, convs, head, shortcut):
    """What PyTorch's state_dict of the same ResNet would hold."""

    def kernel(name):
        return model.get_layer(name).kernel.numpy().transpose(3, 2, 0, 1)

    state = {"conv1.weight": kernel("stem_conv")}
    state |= norm_names("bn1", model.get_layer("stem_bn"))
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            ours, theirs = f"stage{stage}_block{block}", f"layer{stage}.{block}"
            for index in range(1, convs + 1):
                state[f"{theirs}.conv{index}.weight"] = kernel(f"{ours}_conv{index}")
                norm = model.get_layer(f"{ours}_bn{index}")
                state |= norm_names(f"{theirs}.bn{index}", norm)
            if any(x.name == f"{ours}_shortcut_conv" for x in model.layers):
                state[f"{theirs}.{shortcut}.0.weight"] = kernel(f"{ours}_shortcut_conv")
                norm = model.get_layer(f"{ours}_shortcut_bn")
                state |= norm_names(f"{theirs}.{shortcut}.1", norm)
    dense = model.get_layer("logits")
    state[f"{head}.weight"] = dense.kernel.numpy().T
    return state | {f"{head}.bias": dense.bias.numpy()}
