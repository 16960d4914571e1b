"""Write a model that vLLM's API server accepts images for: a configuration, a processor and a tokenizer.

    python tests/vllm/tiny_model.py FOLDER      (in the environment of environment.py)

It has no weights. Rendering a chat request, that is parsing it, fetching and decoding its images and
preparing what the model would see, needs none. BLIP-2, because its image processor has a form which
doesn't import torchvision.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AddedToken, Blip2Config, Blip2Processor, PreTrainedTokenizerFast
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

IMAGE_SIDE = 32  # pixels; every image is scaled to a square of this
TOKENS_PER_IMAGE = 4
MAX_LENGTH = 512
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<image>")


def write_tiny_model(folder: Path) -> Path:
    """Write the model's files into `folder`, made if need be, and return it."""
    _processor().save_pretrained(folder)
    _configuration().save_pretrained(folder)
    return folder


def _processor() -> Blip2Processor:
    words = (*SPECIAL_TOKENS, "Question", "Answer", ":")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    image_token = AddedToken("<image>", normalized=False, special=True)
    return Blip2Processor(
        image_processor=BlipImageProcessorPil(size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}),
        tokenizer=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token="<pad>",
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
            extra_special_tokens={"image_token": image_token},
            model_max_length=MAX_LENGTH,
            # vLLM's own template for BLIP-2 is not a .py file, so it isn't in the environment.
            chat_template="{% for message in messages %}Question: {{ message['content'] }} {% endfor %}Answer:",
        ),
        num_query_tokens=TOKENS_PER_IMAGE,
    )


def _configuration() -> Blip2Config:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Blip2Config(
        vision_config={**small, "intermediate_size": 64, "image_size": IMAGE_SIDE, "patch_size": 16},
        qformer_config={**small, "intermediate_size": 64, "encoder_hidden_size": 32, "vocab_size": 64},
        text_config={
            **small,
            "model_type": "opt",
            "vocab_size": 64,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": MAX_LENGTH,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        num_query_tokens=TOKENS_PER_IMAGE,
        image_token_index=SPECIAL_TOKENS.index("<image>"),
        architectures=["Blip2ForConditionalGeneration"],
    )


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
