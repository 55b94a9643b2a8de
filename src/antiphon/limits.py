"""The one table of bounds on what a client may send; each is a setting (`--limit-body-bytes`).

They are applied before anything else looks at a request, so that bad input is cheap.
"""

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]


class Limits(Struct, frozen=True, kw_only=True):
    body_bytes: Annotated[Count, Meta(description="Bytes of a request body.")] = 20 * 1024 * 1024
    structural_bytes: Annotated[Count, Meta(description="Braces, brackets, commas and colons outside of strings.")] = (
        200_000
    )
    json_depth: Annotated[Count, Meta(description="Nesting of JSON in a request.")] = 64
    escapes: Annotated[Count, Meta(description="Backslashes in a request body.")] = 1_500_000
    header_bytes: Annotated[Count, Meta(description="Bytes of the request line and headers together.")] = 64 * 1024
    header_seconds: Annotated[float, Meta(gt=0, description="Seconds for the headers to arrive.")] = 10.0
    body_seconds: Annotated[float, Meta(gt=0, description="Seconds for the body to arrive.")] = 60.0
    items: Annotated[Count, Meta(description="Items in `input`.")] = 10_000
    parts: Annotated[Count, Meta(description="Content parts of one item.")] = 2_000
    tools: Annotated[Count, Meta(description="Tools of one request.")] = 512
    schema_bytes: Annotated[Count, Meta(description="Bytes of one JSON schema.")] = 256 * 1024
    schema_depth: Annotated[Count, Meta(description="Nesting of one JSON schema.")] = 32
    schema_nodes: Annotated[Count, Meta(description="Sub-schemas of one JSON schema, references followed.")] = 5_000
    schema_enum: Annotated[Count, Meta(description="Values of one enum.")] = 1_000
    pattern_length: Annotated[Count, Meta(description="Characters of a regular expression in a schema.")] = 512
    metadata_pairs: Annotated[Count, Meta(description="Pairs of metadata.")] = 16
    metadata_key: Annotated[Count, Meta(description="Characters of a metadata key.")] = 64
    metadata_value: Annotated[Count, Meta(description="Characters of a metadata value.")] = 512
    id_length: Annotated[Count, Meta(description="Characters of an id, a name or another short string.")] = 512
    stop_strings: Annotated[Count, Meta(description="Stop sequences.")] = 4
    stop_length: Annotated[Count, Meta(description="Characters of a stop sequence.")] = 256
    choices: Annotated[Count, Meta(description="`n` and `best_of`.")] = 16
    biases: Annotated[Count, Meta(description="Tokens in `logit_bias`.")] = 10_000
    prompts: Annotated[Count, Meta(description="Prompts of one completion, times `n` or `best_of`.")] = 128
    output_tokens: Annotated[Count, Meta(description="`max_output_tokens`.")] = 1_000_000
    tool_calls: Annotated[Count, Meta(description="`max_tool_calls`.")] = 10_000
    tool_output_bytes: Annotated[Count, Meta(description="Bytes of a tool's output; more is cut off.")] = 1024 * 1024
    mcp_tools: Annotated[Count, Meta(description="Tools of one MCP server.")] = 512
    images: Annotated[Count, Meta(description="Images in one prompt, those of earlier turns included.")] = 100
    image_bytes: Annotated[Count, Meta(description="Bytes of one image.")] = 20 * 1024 * 1024
    image_pixels: Annotated[Count, Meta(description="Pixels of one image, all of its frames together.")] = 64_000_000
    image_frames: Annotated[Count, Meta(description="Frames of one animated image.")] = 256
    image_side: Annotated[Count, Meta(description="Least pixels of an image's width and height.")] = 4
    files: Annotated[Count, Meta(description="Files in one prompt, those of earlier turns included.")] = 50
    file_bytes: Annotated[Count, Meta(description="Bytes of one file.")] = 20 * 1024 * 1024
    file_pages: Annotated[Count, Meta(description="Pages of one PDF.")] = 500
    file_characters: Annotated[Count, Meta(description="Characters of text in one file.")] = 4_000_000
    attached_bytes: Annotated[Count, Meta(description="Images and text of files in one prompt, all together.")] = (
        64 * 1024 * 1024
    )
    embedding_inputs: Annotated[
        Count, Meta(description="Inputs of one request for embeddings, and documents of one that ranks them.")
    ] = 2048
    tokenize_characters: Annotated[Count, Meta(description="Characters of a prompt that is only tokenised.")] = (
        1_000_000
    )
    audio_bytes: Annotated[Count, Meta(description="Bytes of a request with an audio file.")] = 25 * 1024 * 1024
