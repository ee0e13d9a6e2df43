"""From a pretrained checkpoint to a classifier: the table of GLUE-like tasks, their examples, the classifier."""
