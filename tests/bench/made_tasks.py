"""Two tasks from WikiText-2 that no one has to label: `python tests/bench/made_tasks.py WIKITEXT TARGET`.

``names``: a sentence without a name, to be found in the rest of its paragraph (the cloze questions of Hermann et al.
2015, "Teaching Machines to Read and Comprehend", without their anonymous names). ``endings``: which of four sentences
of an article follows a text (Zellers et al. 2018, "SWAG", without their adversarial choices). Articles are the groups,
and none is in two splits.
"""

import csv
import json
import random
import re
import sys
from pathlib import Path

from texts import articles

SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z\"'])")
NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w+(?: (?:[A-Z]\w+|of|the))* ?[A-Z]\w+|(?<=[a-z,] )[A-Z]\w{3,}")
PER_ARTICLE = 24
CHOICES = "wxyz"


def paragraphs(text: str) -> list[list[str]]:
    """The sentences of each paragraph that has enough of them and no word left out."""
    split = [SENTENCE.split(line) for line in text.splitlines()]
    return [sentences for sentences in split if len(sentences) >= 4 and "<unk>" not in " ".join(sentences)[:300]]


def question(draw: random.Random, sentences: list[str]) -> dict | None:
    """A question in SQuAD's layout, if a name stands in two sentences."""
    for place in draw.sample(range(1, len(sentences)), len(sentences) - 1):
        context = " ".join(sentences[:place] + sentences[place + 1 :])
        names = [name for name in NAME.findall(sentences[place]) if context.count(name) and "unk" not in name]
        if names:
            name = draw.choice(names)
            answer = {"text": name, "answer_start": context.index(name)}
            return {"question": sentences[place].replace(name, "___"), "answers": [answer], "context": context}
    return None


def ending(draw: random.Random, sentences: list[str], others: list[str]) -> list[str] | None:
    """A text, four sentences and the place of the one that follows."""
    at = draw.randrange(1, len(sentences))
    others = [sentence for sentence in others if sentence not in sentences]
    if len(others) < len(CHOICES) - 1:
        return None
    choices = [sentences[at], *draw.sample(others, len(CHOICES) - 1)]
    order = draw.sample(range(len(choices)), len(choices))
    return [" ".join(sentences[max(0, at - 2) : at]), *(choices[i] for i in order), str(order.index(0))]


def main(wikitext: Path, target: Path) -> None:
    """Write ``names/<split>.json`` and ``endings/<split>.csv`` for train, valid and test."""
    names: dict[str, list] = {split: [] for split in ("train", "valid", "test")}
    endings: dict[str, list] = {split: [] for split in names}
    for article in articles(wikitext):
        draw = random.Random(article["id"])
        # WikiText's own held-out articles are few: every sixth article is for tests.
        split = ("test", "valid", "train", "train", "train", "train")[int(article["id"].split("-")[1]) % 6]
        chosen = draw.sample(texts := paragraphs(article["text"]), min(len(texts), PER_ARTICLE))
        every = [sentence for sentences in texts for sentence in sentences]
        made = []
        for i, sentences in enumerate(chosen):
            if made_question := question(draw, sentences):
                context = made_question.pop("context")
                made.append({"context": context, "qas": [{"id": f"{article['id']}-{i}", **made_question}]})
            if row := ending(draw, sentences, every):
                endings[split].append([article["id"], *row])
        names[split].append({"title": article["id"], "paragraphs": made})
    for split in names:
        for folder in ("names", "endings"):
            (target / folder).mkdir(parents=True, exist_ok=True)
        (target / f"names/{split}.json").write_text(json.dumps({"data": names[split]}), encoding="utf-8")
        with (target / f"endings/{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["article", "text", *CHOICES, "next"], *endings[split]])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
