"""The pure library: corpora, tokenizers, models, objectives, training, evaluation. It depends on no platform."""
