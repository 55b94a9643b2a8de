"""Very small models that nobody trained, for engines that embed, rank, classify and hear: what they say means nothing,
and how they say it is all that is looked at. `MAKE` and `MAKE_HEARS` are run by a Python that has transformers, with a
folder for them."""

EMBEDS, RANKS, CLASSIFIES = "embeds", "ranks", "classifies"  # by a vector, by one score, by one of three labels
HEARS = "hears"

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

MAKE_HEARS = """
import string, sys, torch
from pathlib import Path
from tokenizers import pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

place = Path(sys.argv[1]) / "hears"
names = ["startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
marks = ["<|endoftext|>", *[f"<|{name}|>" for name in [*names, "notimestamps"]]]
words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *marks]
tokenizer = WhisperTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[])
tokenizer.add_special_tokens({"additional_special_tokens": marks[1:]})
tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])  # the moments of half a minute
tokenizer.save_pretrained(place)
WhisperFeatureExtractor(feature_size=80).save_pretrained(place)

end, start = tokenizer.convert_tokens_to_ids(marks[:2])
size = {"vocab_size": len(tokenizer), "d_model": 64, "init_std": 0.5}
size |= {f"{part}_{count}": 1 for part in ("encoder", "decoder") for count in ("layers", "attention_heads")}
size |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "suppress_tokens": None, "begin_suppress_tokens": None}
size |= {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
torch.manual_seed(0)
model = WhisperForConditionalGeneration(WhisperConfig(**size)).eval()
letters = [words.index(letter) for letter in string.ascii_letters]
model.model.decoder.embed_tokens.weight.data[letters] *= 4  # it is to say letters more than moments and marks
model.save_pretrained(place)
"""
