"""Small networks that several tests look at."""

import keras
from keras import layers as L

from support.checks import randomise


def small_model(activation="relu"):
    inputs = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(6, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = L.BatchNormalization(name="bn1")(x)
    x = L.ReLU(name="relu1")(x)
    skip = L.Conv2D(5, 3, padding="same", activation=activation, name="conv2")(x)
    x = L.Conv2D(5, 3, padding="same", name="conv3")(skip)
    x = L.Add(name="add")([skip, x])
    x = L.GlobalAveragePooling2D(name="pool")(x)
    x = L.Dense(4, activation="relu", name="hidden")(x)
    return randomise(keras.Model(inputs, L.Dense(3, name="logits")(x), name="small"))
