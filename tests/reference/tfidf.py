#!/usr/bin/env python3
"""What a tf-idf logistic regression reaches on the demo's rows: examples/demo-reference.json, printed by the demo beside its own figure.

    tfidf.py            remakes the file from build/demo (made by examples/fetch-demo.py, which is run first where it is missing)
    tfidf.py --check    compares instead; exit 1 on a difference

Words and pairs of words, logarithmic counts, C from a 5-fold cross-validation on the training rows: what one would try first.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "build/demo"
OUT = ROOT / "examples/demo-reference.json"


def read(name):
    rows = [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]
    reviews = [row["prompt"].split("\n", 2)[2].rsplit("<|im_end|>", 1)[0] for row in rows]
    return reviews, [row["completion"].removesuffix("<|im_end|>") for row in rows]


def figures(train, test):
    reviews, ratings = read(train)
    pipeline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.3, 1, 3, 10, 30, 100]}, cv=5).fit(reviews, ratings)
    reviews, ratings = read(test)
    right = sum(a == b for a, b in zip(search.predict(reviews), ratings))
    majority = max(ratings.count(rating) for rating in set(ratings))
    return {
        "train_file": train,
        "test_file": test,
        "test_rows": len(ratings),
        "majority_class": majority / len(ratings),
        "tfidf_logistic_regression": right / len(ratings),
        "tfidf_c": search.best_params_["logisticregression__C"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not (DEMO / "train.jsonl").exists():
        subprocess.run([sys.executable, ROOT / "examples/fetch-demo.py", "--out", DEMO], check=True)
    made = {"demo": figures("train.jsonl", "test.jsonl"), "demo-full": figures("train-full.jsonl", "test-full.jsonl")}
    if not options.check:
        OUT.write_text(json.dumps(made, indent="\t") + "\n")
    elif json.loads(OUT.read_text()) != made:
        sys.exit(f"{OUT}: differs from what these rows give now: {json.dumps(made)}")
    print(json.dumps(made))


if __name__ == "__main__":
    main()
