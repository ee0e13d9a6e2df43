"""Small published models as transformers writes them, with tokenizers of their own, and texts of several scripts."""

import json
import random

import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from plm_core.corpus.normalize import normalize

SCRIPTS = [
    "The state of the Union, 1790.",
    "Ελληνικά γράμματα",
    "नमस्ते दुनिया",
    "العربية من اليمين",
    "👩\u200d🚀 e\u0301",
    "def f(x):\n    return 7",
]
ALPHABET = "".join(SCRIPTS) + "ABCdefghi 0123456789\n\t.,;()[]{}=+-" + "漢字かな한국어İßﬁ"


def texts(count):
    """Texts of several scripts: half of them sentences, half of them characters in any order."""
    draw = random.Random(7)
    for i in range(count):
        parts = draw.choices(SCRIPTS, k=1 + i % 4) if i % 2 else ["".join(draw.choices(ALPHABET, k=1 + i % 40))]
        yield normalize(" ".join(parts))


def wordpiece(folder):
    """As BERT's, uncased, with special tokens in the middle of the vocabulary."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    plain = [f"[unused{i}]" for i in range(9)]
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", *plain, *special], show_progress=False)
    made.train_from_iterator(SCRIPTS * 3, trainer)
    made.post_processor = processors.BertProcessing(
        ("[SEP]", made.token_to_id("[SEP]")), ("[CLS]", made.token_to_id("[CLS]"))
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return saved(folder, made, names)


def bytelevel(folder, first, names):
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(SCRIPTS * 3, trainer)
    return saved(folder, made, names)


def gpt2(folder):
    return bytelevel(folder, ["!", "<|endoftext|>"], {"bos": "<|endoftext|>", "eos": "<|endoftext|>"})


def gpt1(folder):
    """As GPT-1's: lower-case words whose last piece has a mark, and no special token but the unknown one."""
    made = transformers.OpenAIGPTTokenizer().train_new_from_iterator(SCRIPTS * 3, 300, show_progress=False)
    made.save_pretrained(folder)
    return len(made)


def roberta(folder):
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return bytelevel(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], names)


def xlnet(folder):
    """A model of sentencepiece."""
    folder.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SCRIPTS * 20), model_prefix=str(folder / "spiece"), vocab_size=200,
        hard_vocab_limit=False, unk_id=0, bos_id=1, eos_id=2, pad_id=5, minloglevel=2,
        control_symbols=["<cls>", "<sep>", "<mask>"], pad_piece="<pad>",
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    return 200


def saved(folder, made, names):
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    facts = {f"{role}_token": piece for role, piece in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return made.get_vocab_size()


ENCODER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50}
SHORT = ENCODER | {"max_position_embeddings": 40}
DECODER = ENCODER | {"num_key_value_heads": 1, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 900.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROBERTA = {"max_position_embeddings": 42, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 50, "max_position_embeddings": 40}
MODERNBERT = SHORT | {"local_attention": 8, "classifier_pooling": "mean", "pad_token_id": 0}
LLAMA = {"rms_norm_eps": 1e-5, "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}}
# A class of transformers, its sizes, its tokenizer.
FOLDERS = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}, gpt2),
    "openai-gpt": ("OpenAIGPTLMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40}, gpt1),
    "bert": ("BertForPreTraining", SHORT, wordpiece),
    "bert-encoder": ("BertModel", SHORT, wordpiece),
    "roberta": ("RobertaForMaskedLM", ENCODER | ROBERTA, roberta),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT, wordpiece),
    "electra": ("ElectraForPreTraining", SHORT | {"intermediate_size": 96, "embedding_size": 12}, wordpiece),
    "modernbert": ("ModernBertForMaskedLM", MODERNBERT, wordpiece),
    "llama": ("LlamaForCausalLM", DECODER | LLAMA, gpt2),
    "llama-tied": ("LlamaForCausalLM", DECODER | {"tie_word_embeddings": True}, gpt2),
    "qwen2": ("Qwen2ForCausalLM", DECODER, gpt2),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": None}, gpt2),
    "xlnet": ("XLNetLMHeadModel", {"d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 96}, xlnet),
}


def write(paper, folder, padding=0):
    """Write the model of ``FOLDERS`` with this name, and return it; its vocabulary has ``padding`` unused rows."""
    kind, sizes, tokenizer = FOLDERS[paper]
    rows = tokenizer(folder) + padding
    torch.manual_seed(3)
    model = getattr(transformers, kind)
    made = model(model.config_class(vocab_size=rows, **sizes))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    made.save_pretrained(folder)
    return made.eval()
