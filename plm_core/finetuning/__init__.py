"""From a pretrained checkpoint to a classifier: how it reads examples, its training, its results; a linear baseline."""
