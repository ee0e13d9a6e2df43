"""The special tokens, in one place. Their ids are the same in every tokenizer of the project."""

PAD, UNK, BOS, EOS, MASK, CLS, SEP = range(7)
"""Token ids. EOS ends every document and, as in GPT-2, also precedes a text that is to be continued."""

PIECES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<cls>", "<sep>")
"""The pieces with the ids above. They are control symbols: no text can spell them."""
