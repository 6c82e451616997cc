"""Plain JAX, as its experts would write this work: all clients of a device in one jitted loop.

The loop (`lax.scan`; `lax.map` is a case of it) keeps one client's model in the caches at a time.
Convolutions are products of matrices of patches, which XLA does faster on a CPU than its own
convolutions. With several devices (XLA_FLAGS), clients are dealt to them by pmap.
"""

from importlib.metadata import version
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
import work
from jax import lax


def patches(x):
    """(B, H - 4, W - 4, 25 C) the 5 x 5 surroundings of each place."""
    height, width = x.shape[1] - 4, x.shape[2] - 4
    shifted = [x[:, i : i + height, j : j + width] for i in range(5) for j in range(5)]
    return jnp.concatenate(shifted, axis=-1)


def pooled(x):
    """The largest of each 2 x 2 numbers."""
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


def loss(params, x, y, key):
    """Of the MNIST CNN, channels last."""
    one, two = jax.random.split(key)
    x = jax.nn.relu(pooled(patches(x) @ params["w1"] + params["b1"]))
    x = patches(x) @ params["w2"] + params["b2"]
    x = x * (2.0 * jax.random.bernoulli(one, 0.5, (x.shape[0], 1, 1, x.shape[3])))
    x = jax.nn.relu(pooled(x)).reshape(len(x), -1)
    x = jax.nn.relu(x @ params["w3"] + params["b3"])
    x = x * (2.0 * jax.random.bernoulli(two, 0.5, x.shape))
    out = jax.nn.log_softmax(x @ params["w4"] + params["b4"])
    return -jnp.take_along_axis(out, y[:, None], axis=1).mean()


def trained(start, client):
    """A client's model after its steps."""
    x, y, key = client
    order, rest = jax.random.split(key)
    picked = jax.random.permutation(order, work.EXAMPLES)[: work.STEPS * work.BATCH]

    def step(params, given):
        rows, key = given
        slopes = jax.grad(loss)(params, x[rows], y[rows], key)
        return jax.tree_util.tree_map(lambda p, g: p - work.RATE * g, params, slopes), None

    steps = picked.reshape(work.STEPS, work.BATCH), jax.random.split(rest, work.STEPS)
    return lax.scan(step, start, steps)[0]


def summed(start, x, y, keys):
    """The sum of all clients' models."""

    def add(total, client):
        return jax.tree_util.tree_map(jnp.add, total, trained(start, client)), None

    zero = jax.tree_util.tree_map(jnp.zeros_like, start)
    return lax.scan(add, zero, (x, y, keys))[0]


def main() -> None:
    devices = jax.local_device_count()
    draws = np.random.default_rng(0)
    shapes = {"w1": (25, 10), "w2": (250, 20), "w3": (320, 50), "w4": (50, work.CLASSES)}
    model = {n: 0.1 * draws.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    model |= {f"b{n[1]}": np.zeros(s[1], np.float32) for n, s in shapes.items()}
    assert sum(x.size for x in model.values()) == 21_840
    clients = work.data()
    dealt = (devices, work.CLIENTS // devices)
    x = jnp.stack([own.transpose(0, 2, 3, 1) for own, _ in clients])
    x = x.reshape(*dealt, *x.shape[1:])
    y = jnp.stack([own for _, own in clients]).reshape(*dealt, -1)
    run = jax.pmap(summed, in_axes=(None, 0, 0, 0))
    begins = [perf_counter()]
    for turn in range(work.COLD + work.WARM):
        keys = jax.random.split(jax.random.PRNGKey(turn), work.CLIENTS).reshape(*dealt, -1)
        sums = run(model, x, y, keys)
        model = jax.tree_util.tree_map(lambda t: t.sum(0) / work.CLIENTS, sums)
        jax.block_until_ready(model)
        begins.append(perf_counter())
    work.report("jax" if devices == 1 else f"jax-{devices}-devices", version("jax"), begins)


if __name__ == "__main__":
    main()
