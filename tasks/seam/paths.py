"""The paths of the files that stages hand to each other; `dvc.yaml` declares the same ones, and a test compares."""

from pathlib import Path

ARTIFACTS = Path("artifacts")
RAW = ARTIFACTS / "corpus/raw"
QUARANTINED = ARTIFACTS / "corpus/quarantined"
ORIGINS = ARTIFACTS / "corpus/origins"
CLEAN = ARTIFACTS / "corpus/clean.parquet"
CORPUS = ARTIFACTS / "corpus/splits"
REMOVED = ARTIFACTS / "corpus/removed"
CONTAMINATION = ARTIFACTS / "corpus/contamination.parquet"
CARD = ARTIFACTS / "card"
TOKENIZER = ARTIFACTS / "tokenizer"
TOKENS = ARTIFACTS / "tokens"
MODELS = ARTIFACTS / "models"
FINETUNED = ARTIFACTS / "finetuned"
CURVES = ARTIFACTS / "curves"
EVIDENCE = ARTIFACTS / "evidence"
SAMPLES = ARTIFACTS / "samples"
METRICS = ARTIFACTS / "metrics"
REPORT = ARTIFACTS / "report"
SNAPSHOTS = ARTIFACTS / "snapshots"
COMPILED = ARTIFACTS / "compiled"
