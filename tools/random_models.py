"""Very small models that nobody trained, for engines that embed, rank and classify: what they say means nothing, and
how they say it is all that is looked at. `MAKE` is run by a Python that has transformers, with a folder for them."""

EMBEDS, RANKS, CLASSIFIES = "embeds", "ranks", "classifies"  # by a vector, by one score, by one of three labels

MAKE = """
import string, sys, torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

letters = string.ascii_lowercase + string.digits + string.punctuation
marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
words = [*marks.values(), *letters, *["##" + letter for letter in letters]]
plain = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
plain.normalizer = normalizers.BertNormalizer()
plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
plain.decoder = decoders.WordPiece()
plain.post_processor = processors.BertProcessing(("[SEP]", words.index("[SEP]")), ("[CLS]", words.index("[CLS]")))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=128, **marks)

size = {"vocab_size": len(words), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
size |= {"intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.5}
kinds = {"embeds": (BertModel, 2), "ranks": (BertForSequenceClassification, 1)}
kinds["classifies"] = (BertForSequenceClassification, 3)
for name, (kind, labels) in kinds.items():
    torch.manual_seed(0)
    kind(BertConfig(num_labels=labels, **size)).eval().save_pretrained(Path(sys.argv[1]) / name)
    tokenizer.save_pretrained(Path(sys.argv[1]) / name)
"""
