"""Very small models with random weights, for engines that embed, rerank, classify and transcribe. Their output has no
meaning; only its format is tested.

`CREATE_TEXT_MODELS` and `CREATE_SPEECH_MODEL` are scripts for a Python with transformers; their argument is the target
folder.
"""

EMBEDDING_MODEL, RERANKING_MODEL, CLASSIFICATION_MODEL = (
    "embeds",
    "ranks",
    "classifies",
)  # they return a vector, one score, one of three labels
SPEECH_MODEL = "hears"

CREATE_TEXT_MODELS = """
import string, sys, torch
from pathlib import Path
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

letters = string.ascii_lowercase + string.digits + string.punctuation
special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
special["mask_token"] = "[MASK]"
tokens = [*special.values(), *letters, *["##" + letter for letter in letters]]
plain = Tokenizer(models.WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
plain.normalizer = normalizers.BertNormalizer()
plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
plain.decoder = decoders.WordPiece()
plain.post_processor = processors.BertProcessing(("[SEP]", tokens.index("[SEP]")), ("[CLS]", tokens.index("[CLS]")))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=128, **special)

size = {"vocab_size": len(tokens), "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
size |= {"intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.5}
kinds = {"embeds": (BertModel, 2), "ranks": (BertForSequenceClassification, 1)}
kinds["classifies"] = (BertForSequenceClassification, 3)
for name, (kind, labels) in kinds.items():
    torch.manual_seed(0)
    kind(BertConfig(num_labels=labels, **size)).eval().save_pretrained(Path(sys.argv[1]) / name)
    tokenizer.save_pretrained(Path(sys.argv[1]) / name)
"""

CREATE_SPEECH_MODEL = """
import string, sys, torch
from pathlib import Path
from tokenizers import pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

target = Path(sys.argv[1]) / "hears"
names = ["startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
special = ["<|endoftext|>", *[f"<|{name}|>" for name in [*names, "notimestamps"]]]
tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
tokenizer = WhisperTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[])
tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])  # the timestamps of 30 seconds
tokenizer.save_pretrained(target)
WhisperFeatureExtractor(feature_size=80).save_pretrained(target)

end, start = tokenizer.convert_tokens_to_ids(special[:2])
size = {"vocab_size": len(tokenizer), "d_model": 64, "init_std": 0.5}
size |= {f"{part}_{count}": 1 for part in ("encoder", "decoder") for count in ("layers", "attention_heads")}
size |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "suppress_tokens": None, "begin_suppress_tokens": None}
size |= {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
torch.manual_seed(0)
model = WhisperForConditionalGeneration(WhisperConfig(**size)).eval()
letters = [tokens.index(letter) for letter in string.ascii_letters]
model.model.decoder.embed_tokens.weight.data[letters] *= 4  # prefer letters to timestamps and special tokens
model.save_pretrained(target)
"""
