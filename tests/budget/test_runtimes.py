"""The runtimes time what the models compute, and not something else."""

import keras
import numpy as np
from keras import layers as L

from resrep_tf.budget import runtimes


def test_models_that_are_converted_together_compute_what_keras_does():
    models = []
    for width in (3, 16):
        inputs = keras.Input((6, 6, width))
        models.append(keras.Model(inputs, L.Conv2D(8, 3, activation="relu")(inputs)))
    content = runtimes.convert_together(models, batch_size=2)
    for model, part in zip(models, runtimes.split(content, models), strict=True):
        interpreter = runtimes._interpreter_class()(model_content=part)
        interpreter.allocate_tensors()
        (image,) = runtimes.example(model, 2)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
        interpreter.invoke()
        (output,) = interpreter.get_output_details()
        np.testing.assert_allclose(
            interpreter.get_tensor(output["index"]), model(image), rtol=1e-5, atol=1e-5
        )
