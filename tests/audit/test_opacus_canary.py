"""The canary for Opacus is inserted once per step, at its rate, and changes nothing else."""

import numpy as np
import pytest
from scipy import stats

from audit.errors import InputError

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")

from opacus.optimizers import DPOptimizer  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

from audit import directions  # noqa: E402
from audit.laws import cosine_law  # noqa: E402
from audit.opacus_canary import CanaryOptimizer, DirectionsOptimizer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RATE, NORM, BATCH, SIZE = 0.5, 2.0, 10, 60


def trained(present, epochs=1, physical=None, **given):
    """Trains without noise, with a Poisson loader, and without a canary optimizer if present is None.

    Returns the score, the steps that the engine's accountant counted, and the final model.
    """
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(SIZE, 4), torch.randint(2, (SIZE,)))
    model, engine = torch.nn.Linear(4, 2), opacus.PrivacyEngine()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    made = {"module": model, "optimizer": sgd, "data_loader": loader}
    model, optimizer, loader = engine.make_private(
        **made,
        noise_multiplier=0.0,
        max_grad_norm=NORM,
        noise_generator=torch.Generator().manual_seed(0),
    )
    if present is not None:
        optimizer = CanaryOptimizer(optimizer, present, **given)
    batches = loader
    if physical:
        batches = BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
        ).__enter__()
    for _ in range(epochs):
        for features, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    steps = sum(entry[-1] for entry in engine.accountant.history)
    score = None if present is None else optimizer.score()
    return score, steps, [one.detach().numpy().copy() for one in model.parameters()]


@pytest.mark.parametrize("physical", [None, 3])
def test_every_step_takes_the_canary_once_whatever_its_batches_are(physical):
    (inside, steps, _), (outside, _, _) = (trained(one, physical=physical) for one in (True, False))
    assert steps == SIZE // BATCH
    assert inside - outside == pytest.approx(steps * RATE * NORM / BATCH, rel=0.3)


def test_without_it_a_training_is_opacus_own():
    _, steps, expected = trained(None)
    assert steps == SIZE // BATCH
    for given in ({}, {"sampling_rate": 0.3, "seed": 1}):
        np.testing.assert_array_equal(
            np.concatenate([one.ravel() for one in trained(False, **given)[2]]),
            np.concatenate([one.ravel() for one in expected]),
        )


def test_coins_take_it_at_their_rate():
    scores = [trained(True, sampling_rate=rate, epochs=4, seed=3)[0] for rate in (0.01, 0.5, 1.0)]
    assert scores == sorted(scores) and scores[2] > scores[1] + 0.1 > scores[0] + 0.2


def make_private(parameters, noise_multiplier=0.0, rate=RATE):
    sgd = torch.optim.SGD(parameters, lr=rate)
    given = {"noise_multiplier": noise_multiplier, "max_grad_norm": NORM}
    return DPOptimizer(sgd, expected_batch_size=BATCH, **given)


def trained_with_directions(present, count=3, noise_multiplier=0.0):
    """Trains with Opacus and fresh directions; each batch is split into several physical batches."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    model = opacus.GradSampleModule(network)
    optimizer = make_private(model.parameters(), noise_multiplier)
    optimizer = DirectionsOptimizer(optimizer, seed=1, run=2, count=count, present=present)
    features, labels = torch.randn(BATCH, 4), torch.randint(2, (BATCH,))
    for _ in range(5):
        for half in (slice(0, 5), slice(5, 10)):
            optimizer.signal_skip_step(half.start == 0)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features[half]), labels[half]).backward()
            optimizer.step()
    return optimizer


def test_a_rehearsal_with_noise_gives_no_drift():
    """Its noise would be removed from the run with the same seed, and the claim would seem violated."""
    rehearsal = trained_with_directions(False, noise_multiplier=2.0)
    with pytest.raises(InputError, match="`noise_multiplier=2.0` .*: rehearse with noise_mult"):
        rehearsal.movement()
    assert len(rehearsal.cosines()) == 3  # those of a run whose directions are out


def test_every_step_takes_all_directions_once_and_they_are_what_is_scored():
    drift = trained_with_directions(False).movement()
    optimizer = trained_with_directions(True)
    total = directions.inserted(1, 2, 3, optimizer.dimension, NORM)
    pushed = drift - optimizer.movement()
    cosine = pushed @ total / np.linalg.norm(pushed) / np.linalg.norm(total)
    assert optimizer.dimension == 4 * 8 + 8 + 8 * 2 + 2 and cosine > 0.95
    assert np.linalg.norm(pushed) == pytest.approx(
        5 * RATE / BATCH * np.linalg.norm(total), rel=0.3
    )
    np.testing.assert_allclose(
        optimizer.cosines(drift), directions.cosines(pushed, 1, 2, 3), rtol=1e-9
    )


def trained_in_a_tensor(run, kind, present=True, count=40):
    """Trains with Opacus and directions in one tensor, in one of several ways; returns the optimizer."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    if kind == "tied":
        network.append(torch.nn.Linear(2, 32)).append(torch.nn.Linear(32, 2))
        network[4].weight = network[2].weight
    adam = torch.optim.AdamW(network.parameters(), lr=0.01)
    sgd = torch.optim.SGD(network.parameters(), lr=RATE)
    data = torch.utils.data.TensorDataset(torch.randn(SIZE, 8), torch.randint(2, (SIZE,)))
    engine = opacus.PrivacyEngine()
    made = engine.make_private(
        module=network,
        optimizer=adam if kind == "adamw" else sgd,
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        noise_multiplier=2.0,
        max_grad_norm=NORM,
        criterion=torch.nn.CrossEntropyLoss(),
        noise_generator=torch.Generator().manual_seed(run),
        grad_sample_mode="ghost" if kind == "ghost" else "hooks",
    )
    model, optimizer, *criterion, loader = made
    loss = criterion[0] if criterion else torch.nn.CrossEntropyLoss()
    weight = network[0].weight
    optimizer = DirectionsOptimizer(optimizer, 1, run, count, present, parameters=[weight])
    for features, labels in loader:
        halves = [slice(0, len(labels))]
        if kind == "accumulated":
            halves = [slice(0, 3), slice(3, len(labels))]
        for half in halves:
            optimizer.signal_skip_step(half is not halves[-1])
            optimizer.zero_grad()
            loss(model(features[half]), labels[half]).backward()
            optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", ["sgd", "adamw", "ghost", "accumulated", "tied"])
def test_directions_in_one_tensor_follow_the_law_unless_they_are_inserted(kind):
    out, inside = [], []
    for run in range(25):
        out.append(trained_in_a_tensor(run, kind, present=False).cosines())
        inside.append(trained_in_a_tensor(run, kind).cosines())
    law = lambda cosines: -np.expm1(cosine_law.log_sf(cosines, 256))  # noqa: E731
    assert stats.kstest(np.concatenate(out), law).pvalue > 0.001
    assert np.mean(inside) > 0.03


def test_parameters_that_do_not_fit_are_refused():
    network = torch.nn.Linear(8, 4)
    other = torch.nn.Linear(8, 4)
    network.bias.requires_grad_(False)
    model = opacus.GradSampleModule(network)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_private(trained)
    for given, says in (
        ([other.weight], "parameter 0 of `parameters` is not trained"),
        ([network.weight, network.bias], "parameter 1 of `parameters` is not trained"),
        ([network.weight] * 2, "parameter 1 of `parameters` is not trained, or is repeated"),
        ([], "`parameters` is empty"),
    ):
        with pytest.raises(InputError, match=says):
            DirectionsOptimizer(optimizer, 1, 0, 3, parameters=given)
