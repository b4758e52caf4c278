"""The clients of a measured training, each with one example, so that a round is a step of DP-SGD with the
cohort as its mini-batch; and the samples that are designed against them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.game import root
from audit.mechanism import base, dpsgd
from audit.mechanism.clipping.base import per_example, scale_to_norm
from experiments.canife.attacked import Attacked
from experiments.settings.build import CLIPPING
from experiments.settings.tasks import task
from models import soft
from models.base import Model
from models.data.base import ImageDataset
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD, load_cifar10
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD, load_fashion_mnist

Indices = NDArray[np.int64]
_TEST_BLOCK = 1000


class Sample(NamedTuple):
    """What is designed: pixels (height, width, ...), normalised, and a label's log weights (classes,)."""

    pixels: Array
    label: Array


class Clients(NamedTuple):
    """A training and its clients.

    dress(sample) -> the features that the model takes of it. gradients(theta, features (n, ...), labels
    (n,), C) -> clipped updates (n, p). train(state, first round, rounds) -> the state after them.
    """

    model: Model
    images: ImageDataset
    classes: int
    normal: tuple[Array, Array]
    dress: Callable[[Sample], Array]
    gradients: Callable[[Array, Array, Array], Array]
    train: Callable[[base.State, int, int], base.State]
    correct: Callable[[Array, Array, Array], Array]


def images_of(model: str) -> ImageDataset:
    """The images that a model is trained on."""
    return load_cifar10() if model == "convnet" else load_fashion_mnist()


def clients(attacked: Attacked, images: ImageDataset) -> Clients:
    """The training of a setting on its images."""
    model = task(attacked.model).make(images.train_images.shape[1:])
    colour = attacked.model == "convnet"
    mean, deviation = (CIFAR10_MEAN, CIFAR10_STD) if colour else (FASHION_MNIST_MEAN, FASHION_MNIST_STD)
    normal = jnp.asarray(mean, jnp.float32), jnp.asarray(deviation, jnp.float32)

    def dress(sample: Sample) -> Array:
        if colour:
            return (sample.pixels * normal[1] + normal[0]) * 255  # the model divides and normalises
        return sample.pixels.reshape(-1)

    norm = jnp.float32(attacked.clipping_norm)

    def gradients(theta: Array, features: Array, labels: Array) -> Array:
        found: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return found * scale_to_norm(jnp.sum(found**2, axis=1), norm)[:, None]

    def correct(theta: Array, features: Array, labels: Array) -> Array:
        logits: Any = model.module.apply({"params": model.unravel(theta)}, features)
        return jnp.sum(jnp.argmax(logits, -1) == labels)

    def one(theta: Array, features: Array, labels: Array) -> Array:
        return jnp.sum(jax.vmap(correct, (None, 0, 0))(theta, features, labels))

    train = _trainer(attacked, model, images)
    return Clients(model, images, 10, normal, dress, jax.jit(gradients), train, jax.jit(one))


def _trainer(
    attacked: Attacked, model: Model, images: ImageDataset
) -> Callable[[base.State, int, int], base.State]:
    """Rounds of DP-SGD."""
    make = CLIPPING[task(attacked.model).clipping[0]]
    mechanism = dpsgd.mechanism(dpsgd.DPSGD(make(model)))
    hyper = base.Hyperparameters(
        *map(jnp.float32, (attacked.learning_rate, attacked.clipping_norm, attacked.noise_multiplier))
    )
    data = jnp.asarray(images.train_images), jnp.asarray(images.train_labels)
    key = root(attacked.seed, "noise")

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        return mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        cohorts = [cohort(attacked, len(images.train_labels), r) for r in range(first, first + rounds)]
        schedule = base.Schedule(jnp.asarray(np.stack(cohorts), jnp.int32), jnp.zeros(rounds))
        after: base.State = segment(state, data, schedule)
        return after

    return train


def start(attacked: Attacked, model: Model) -> base.State:
    """The state before the first round."""
    theta = jax.jit(model.init)(root(attacked.seed, "theta"))
    return dpsgd.mechanism(dpsgd.DPSGD(per_example(model.loss))).start(theta)


def cohort(attacked: Attacked, train_clients: int, number: int) -> Indices:
    """A round's clients, drawn without replacement."""
    return drawn(attacked, f"cohort {number}", train_clients, attacked.cohort)


def drawn(attacked: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """So many clients, drawn without replacement by the seed and a purpose."""
    return generator(attacked, purpose).choice(clients, size, replace=False, shuffle=False)


def generator(attacked: Attacked, purpose: str) -> np.random.Generator:
    """A generator of its own for each purpose."""
    return np.random.default_rng([attacked.seed, *purpose.encode()])


def accuracy(known: Clients, theta: Array) -> float:
    """The share of test examples that a model gets right."""
    images, labels = known.images.test_images, known.images.test_labels
    right = 0
    for begin in range(0, len(labels), _TEST_BLOCK):
        part = slice(begin, begin + _TEST_BLOCK)
        right += int(known.correct(theta, jnp.asarray(images[part]), jnp.asarray(labels[part])))
    return right / len(labels)


def first_sample(attacked: Attacked, known: Clients, number: int, pool: Indices) -> tuple[Sample, Indices]:
    """The sample that a round's design begins with, and the mock clients that it is designed on: all but its
    own, where it is one of theirs."""
    rng = generator(attacked, f"sample {number}")
    shape = known.images.test_images.shape[1:]
    chosen = rng.integers(len(pool))
    label = int(rng.integers(known.classes))
    pixels = rng.random(shape, np.float32)
    if attacked.start == "sample":
        pixels = known.images.test_images[pool[chosen]].astype(np.float32) / 255
        label = int(known.images.test_labels[pool[chosen]])
        pool = np.delete(pool, chosen)
    mean, deviation = known.normal
    log_weights = 4.0 * jax.nn.one_hot(label, known.classes)
    return Sample((jnp.asarray(pixels) - mean) / deviation, log_weights), pool


def sample_loss(attacked: Attacked, known: Clients) -> Callable[[Array, Sample, Array], Array]:
    """The model's loss of a sample, with a fixed label or a mixture."""
    mixed = soft.soft_label(known.model, known.classes)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        if attacked.soft_label:
            return mixed(theta, (known.dress(sample), jax.nn.softmax(sample.label)))
        label = jnp.argmax(jax.lax.stop_gradient(sample.label))
        return known.model.loss(theta, (known.dress(sample), label))

    return loss


def within(attacked: Attacked, known: Clients) -> Callable[[Sample], Sample]:
    """The projection of a sample onto images, where pixels are clamped."""
    mean, deviation = known.normal

    def project(sample: Sample) -> Sample:
        pixels = jnp.clip(sample.pixels, (0 - mean) / deviation, (1 - mean) / deviation)
        return sample._replace(pixels=pixels) if attacked.clamp else sample

    return project
