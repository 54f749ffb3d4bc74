# SPDX-License-Identifier: MIT
"""Puts the text that `make accuracy` measures on into the demo model's cache.

Two corpora of news from the Australian Broadcasting Corporation (Lee, Pincombe and Welsh, 2005), as
the PyPI package gensim carries them for its tests, become token ids for the demo's tokenizer:

    evaluation.safetensors    `ids`, I32 [texts, 64]: pieces of lee_background.cor (300 articles)
    calibration.safetensors   `ids`, I32 [texts, 64]: pieces of lee.cor (50 other articles)

A text is 64 tokens in a row from one article; what is left over at an article's end is not used.
The files of text are checked by SHA-256, and the articles of one are not in the other.
"""

import hashlib
import io
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import demo_setup

GENSIM = "gensim==4.4.0"
FOLDER = "gensim/test/test_data/"
TOKENS = 64
CORPORA = {
    "evaluation": (
        "lee_background.cor",
        "utf-8",
        "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
    ),
    "calibration": (
        "lee.cor",
        "latin-1",
        "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
    ),
}


def paths(cache):
    return {name: cache / f"{name}.safetensors" for name in CORPORA}


def fetch_articles():
    """Corpus name -> its articles, one a line in the file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", folder, GENSIM]
        subprocess.run(command, check=True)
        (wheel,) = pathlib.Path(folder).glob("gensim-*")
        package = zipfile.ZipFile(io.BytesIO(wheel.read_bytes()))
    articles = {}
    for name, (file, encoding, expected) in CORPORA.items():
        text = package.read(FOLDER + file)
        found = hashlib.sha256(text).hexdigest()
        if found != expected:
            sys.exit(f"{file}: SHA-256 is {found}, expected {expected}")
        articles[name] = text.decode(encoding).splitlines()
    return articles


def main():
    cache = demo_setup.cache_folder()
    targets = paths(cache)
    if all(path.exists() for path in targets.values()):
        return
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(cache / "tokenizer.json"))
    articles = fetch_articles()
    if set(articles["evaluation"]) & set(articles["calibration"]):
        sys.exit("an article is in both corpora")
    for name, path in targets.items():
        rows = []
        for article in articles[name]:
            ids = tokenizer.encode(article).ids
            rows += [ids[i : i + TOKENS] for i in range(0, len(ids) - TOKENS + 1, TOKENS)]
        array = np.array(rows, dtype=np.int32)
        file, _, digest = CORPORA[name]
        metadata = {"text": file, "text_sha256": digest}
        demo_setup.publish(
            path,
            lambda temporary, ids=array, about=metadata: demo_setup.write_safetensors(
                temporary, {"ids": ("I32", ids)}, about
            ),
        )
        print(f"{path}: {len(rows)} texts of {TOKENS} tokens")


if __name__ == "__main__":
    main()
