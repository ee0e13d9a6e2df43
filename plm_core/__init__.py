"""The pure library: corpora, tokenizers, models, objectives, training, evaluation. It knows no platform."""
