"""Models whose cost is counted on TensorFlow and on JAX."""


def build_models():
    import keras
    from keras import layers

    class Own(layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], 7), name="w")

        def call(self, x):
            return keras.ops.tanh(keras.ops.matmul(x, self.w))

    class Pictures(layers.Layer):
        def build(self, shape):
            self.filters = self.add_weight(shape=(3, 3, shape[-1], 6), name="filters")
            self.mixed = self.add_weight(shape=(6, 5), name="mixed")

        def call(self, x):
            ops = keras.ops
            seen = ops.max_pool(ops.conv(x, self.filters), (2, 2), (2, 2))
            return ops.mean(ops.einsum("bhwc,cd->bhwd", seen, self.mixed), (1, 2))

    inner = keras.Sequential([keras.Input((64,)), layers.Dense(16, "relu")], name="inner")
    models = {
        "dense": [keras.Input((20,)), layers.Dense(64, "relu"), layers.Dropout(0.1), inner, Own()],
        "images": [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4),
        ],
        "operations": [keras.Input((16, 16, 3)), Pictures()],
        "series": [keras.Input((9, 4)), layers.LSTM(8), layers.Dense(1)],
    }
    made = {name: keras.Sequential(stack) for name, stack in models.items()}
    for model in made.values():
        model.compile("adam", "mse")
    return made


def cost_all():
    from gpukeras.profiler.cost.model_cost import model_cost

    found = {}
    for name, model in build_models().items():
        cost = model_cost(model, 32)
        layers = [[row.kind, row.params, row.flops, row.counted_by] for row in cost.layers]
        found[name] = {
            "layers": layers,
            "flops": cost.flops,
            "kept": cost.activation_bytes,
            "total": cost.memory["total_bytes"],
            "notes": list(cost.notes),
        }
    return found
