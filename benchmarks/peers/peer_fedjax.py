"""FedJAX: one jitted step; with several devices (XLA_FLAGS), clients in parallel by pmap."""

from importlib.metadata import version
from time import perf_counter

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import work


def forward(x, train: bool):
    """The MNIST CNN, channels last as JAX likes it."""
    y = hk.Conv2D(10, 5, padding="VALID")(x)
    y = hk.MaxPool((2, 2, 1), (2, 2, 1), padding="VALID")(y)
    y = jax.nn.relu(y)
    y = hk.Conv2D(20, 5, padding="VALID")(y)
    if train:
        kept = jax.random.bernoulli(hk.next_rng_key(), 0.5, (y.shape[0], 1, 1, y.shape[3]))
        y = jnp.where(kept, y / 0.5, 0)
    y = hk.MaxPool((2, 2, 1), (2, 2, 1), padding="VALID")(y)
    y = jax.nn.relu(y)
    y = hk.Flatten()(y)
    y = jax.nn.relu(hk.Linear(50)(y))
    if train:
        y = hk.dropout(hk.next_rng_key(), 0.5, y)
    return hk.Linear(work.CLASSES)(y)


def main() -> None:
    transformed = hk.transform(forward)
    data = {
        b"%04d" % n: {"x": x.transpose(0, 2, 3, 1), "y": y} for n, (x, y) in enumerate(work.data())
    }

    def loss(params, batch, rng):
        out = transformed.apply(params, rng, batch["x"], True)
        hot = jax.nn.one_hot(batch["y"], work.CLASSES)
        return -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(out), axis=1))

    several = jax.local_device_count() > 1
    with fedjax.for_each_client_backend("pmap" if several else "jit"):
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(loss),
            fedjax.optimizers.sgd(work.RATE),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(
                batch_size=work.BATCH, num_steps=work.STEPS, num_epochs=None
            ),
        )
    federated = fedjax.InMemoryFederatedData(data)
    sampler = fedjax.client_samplers.UniformGetClientSampler(federated, work.CLIENTS, seed=0)
    start = transformed.init(jax.random.PRNGKey(0), jnp.zeros((1, 28, 28, 1)), True)
    assert sum(x.size for x in jax.tree_util.tree_leaves(start)) == 21_840
    state = algorithm.init(start)
    begins = [perf_counter()]
    for _ in range(work.COLD + work.WARM):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        begins.append(perf_counter())
    name = f"fedjax-{jax.local_device_count()}-devices" if several else "fedjax"
    work.report(name, version("fedjax"), begins)


if __name__ == "__main__":
    main()
