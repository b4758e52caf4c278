"""Simulates coverage until the binomial test decides."""

from collections import Counter

import numpy as np
import pytest
from scipy import optimize, stats

MISSED = (
    0.01  # with this probability a method that `audits` audits would catch 99% of the time passes
)


@pytest.fixture
def plain(monkeypatch):
    """Reports have no pictures, which take a second each."""
    from audit.report import audit_panels, style

    monkeypatch.setattr(audit_panels, "audit_panels", lambda conclusion: {"scores": b"<svg/>"})
    monkeypatch.setattr(style, "png", lambda figure: b"")
    monkeypatch.setattr(audit_panels, "audit_figure", lambda conclusion, audited: None)


@pytest.fixture(scope="session")
def assert_covers():
    """assert_covers(draw, audits, claimed=0.05, error=1e-3): no method exceeds the truth too often.

    draw(first, number) -> {method: audits of these that exceed}. Wald's sequential test decides between
    the claimed share and the one that `audits` audits find too large with probability 99%: a method at the
    claimed share fails with probability `error`, one at the other passes with `MISSED` (by Ville's
    inequality, whatever the batches). Undecided after all audits, counts decide. Returns the audits drawn.
    """

    def check(draw, audits, claimed=0.05, error=1e-3, batch=10):
        allowed = int(stats.binom.ppf(1 - error, audits, claimed))
        caught = optimize.brentq(
            lambda share: stats.binom.sf(allowed, audits, share) - 0.99, claimed, 1
        )
        excess, other = np.log(caught / claimed), np.log((1 - caught) / (1 - claimed))
        counts, drawn = Counter(), 0
        while drawn < audits:
            number = min(batch, audits - drawn)
            for method, exceeding in draw(drawn, number).items():
                counts[method] += exceeding
            drawn += number
            evidence = max(count * excess + (drawn - count) * other for count in counts.values())
            assert evidence < np.log(1 / error), (drawn, counts)
            if evidence <= np.log(MISSED):
                break
        assert max(counts.values()) <= allowed, (drawn, counts)
        return drawn

    return check
