"""Words that fit the number before them."""

from audit.written import counted


def test_a_noun_and_its_verb_agree_with_the_number():
    assert counted(1, "layer") == "1 layer" and counted(0, "layer") == "0 layers"
    assert counted(1, "batch holds", "batches hold") == "1 batch holds"
    assert counted(2000, "batch holds", "batches hold") == "2,000 batches hold"
