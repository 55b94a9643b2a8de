"""A real diffusion pipeline on the CPU of this machine, as an image service. Its weights are random, its images noise.

    python -m tools.diffusers_cpu set-up FOLDER          about 1.3 GB
    python -m tools.diffusers_cpu serve FOLDER [PORT]    then: antiphon serve --image-service http://127.0.0.1:PORT

Sizes up to 128 pixels take less than a second. Edits begin with the first image that is sent.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.engine_install import TORCH_PACKAGE, EngineFolder, main

PACKAGES = ("diffusers==0.42.0", "transformers==5.23.0")
IMAGE_MODEL = "random-diffusion"

# Run by the Python of the new environment.
_SERVER_SCRIPT = '''
import base64, io, json, sys
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from diffusers import (
    AutoencoderKL, DDIMScheduler, StableDiffusionImg2ImgPipeline, StableDiffusionPipeline, UNet2DConditionModel,
)
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


def make_tokenizer():
    """A vocabulary of single characters, each also at the end of a word, without merges."""
    characters = [chr(code) for code in range(33, 127)]
    words = [*characters, *[one + "</w>" for one in characters], "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77), len(words)


def make_pipeline():
    torch.manual_seed(0)
    tokenizer, words = make_tokenizer()
    text = CLIPTextConfig(
        vocab_size=words, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=words - 2, eos_token_id=words - 1, pad_token_id=words - 1,
    )
    unet = UNet2DConditionModel(
        sample_size=32, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64), latent_channels=4, sample_size=64,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return StableDiffusionPipeline(
        vae=vae, text_encoder=CLIPTextModel(text), tokenizer=tokenizer, unet=unet, scheduler=DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )


def encode(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({"data": [{"id": "random-diffusion", "object": "model"}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        fields, images = self.read_form(body) if "multipart" in self.headers["content-type"] else (json.loads(body), [])
        kind = "image_edit" if images else "image_generation"
        width, _, height = fields.get("size", "64x64").partition("x")
        options = {"size": f"{width}x{height}", "quality": "auto", "background": "opaque", "output_format": "png"}
        is_streamed = str(fields.get("stream")).lower() == "true"
        if is_streamed:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
        partial = int(fields.get("partial_images", 0)) if is_streamed else 0

        def show(pipe, step, timestep, values):
            if step < partial:
                decoded = pipe.vae.decode(values["latents"] / pipe.vae.config.scaling_factor).sample
                picture = pipe.image_processor.postprocess(decoded.detach())[0]
                shown = {"partial_image_index": step, "b64_json": encode(picture), **options}
                self.send(f"{kind}.partial_image", shown)
            return values

        common = {
            "prompt": fields["prompt"][:70],  # the pipeline reads 77 tokens, each a character
            "num_inference_steps": 4,
            "num_images_per_prompt": int(fields.get("n", 1)),
            "callback_on_step_end": show,
        }
        if images:
            source = Image.open(io.BytesIO(images[0])).convert("RGB").resize((int(width), int(height)))
            made = EDITS(image=source, strength=1.0, **common).images
        else:
            made = PIPELINE(width=int(width), height=int(height), **common).images
        if is_streamed:
            self.send(f"{kind}.completed", {"b64_json": encode(made[0]), "created_at": 0, **options})
        else:
            self.reply({"created": 0, "data": [{"b64_json": encode(one)} for one in made], **options})

    def read_form(self, body):
        head = f"content-type: {self.headers['content-type']}\\r\\n\\r\\n".encode()
        fields, images = {}, []
        for part in BytesParser().parsebytes(head + body).get_payload():
            name = part.get_param("name", header="content-disposition")
            content = part.get_payload(decode=True)
            if part.get_filename():
                images.append(content)
            else:
                fields[name] = content.decode()
        return fields, images

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send(self, name, value):
        self.wfile.write(f"event: {name}\\ndata: {json.dumps({'type': name, **value})}\\n\\n".encode())


PIPELINE = make_pipeline()
EDITS = StableDiffusionImg2ImgPipeline(**PIPELINE.components, requires_safety_checker=False)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''


class DiffusersFolder(EngineFolder):
    kind = "http"
    models = (IMAGE_MODEL,)

    def set_up(self) -> None:
        if self.is_ready:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self.run(sys.executable, "-m", "venv", self.path / "venv")
        self.run_pip("install", TORCH_PACKAGE, *PACKAGES)
        (self.path / "server.py").write_text(_SERVER_SCRIPT)
        self._ready_file.touch()

    def build_command(self, port: int, model: str) -> Sequence["str | Path"]:
        return self.bin / "python", self.path / "server.py", str(port)


if __name__ == "__main__":
    sys.exit(main(DiffusersFolder, __doc__ or "", sys.argv[1:]))
