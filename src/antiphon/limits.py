"""Limits on client input. Each field is a setting (`body_bytes` is `--limit-body-bytes`).

They are checked before any other processing of a request, so that rejecting bad input is cheap.
"""

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]


class Limits(Struct, frozen=True, kw_only=True):
    """Limits on what a client may send in one request."""

    body_bytes: Annotated[Count, "Maximum size of a request body, in bytes."] = 20 * 1024 * 1024
    structural_bytes: Annotated[
        Count,
        "Maximum number of JSON braces, brackets, commas and colons outside strings, in bodies with "
        "more than five times as many bytes.",
    ] = 200_000
    json_depth: Annotated[Count, "Maximum nesting depth of JSON in a request."] = 64
    escapes: Annotated[Count, "Maximum number of backslashes in a request body."] = 1_500_000
    header_bytes: Annotated[Count, "Maximum size of the request line and headers, in bytes."] = 64 * 1024
    header_seconds: Annotated[float, Meta(gt=0), "Time limit to receive the headers, in seconds."] = 10.0
    body_seconds: Annotated[float, Meta(gt=0), "Time limit to receive the body, in seconds."] = 60.0
    items: Annotated[Count, "Maximum number of items in `input`."] = 10_000
    parts: Annotated[Count, "Maximum number of content parts of one item."] = 2_000
    tools: Annotated[Count, "Maximum number of tools of one request."] = 512
    schema_bytes: Annotated[Count, "Maximum size of one JSON schema, in bytes."] = 256 * 1024
    schema_depth: Annotated[Count, "Maximum nesting depth of one JSON schema."] = 32
    schema_nodes: Annotated[Count, "Maximum number of subschemas of one JSON schema, references resolved."] = 5_000
    schema_enum: Annotated[Count, "Maximum number of values of one enum."] = 1_000
    pattern_length: Annotated[Count, "Maximum length of a regular expression in a schema, in characters."] = 512
    metadata_pairs: Annotated[Count, "Maximum number of metadata pairs."] = 16
    metadata_key: Annotated[Count, "Maximum length of a metadata key, in characters."] = 64
    metadata_value: Annotated[Count, "Maximum length of a metadata value, in characters."] = 512
    id_length: Annotated[Count, "Maximum length of an id, a name or another short string, in characters."] = 512
    stop_strings: Annotated[Count, "Maximum number of stop sequences."] = 4
    stop_length: Annotated[Count, "Maximum length of a stop sequence, in characters."] = 256
    choices: Annotated[Count, "Maximum of `n` and `best_of`."] = 16
    biases: Annotated[Count, "Maximum number of tokens in `logit_bias`."] = 10_000
    prompts: Annotated[Count, "Maximum number of prompts of one completion, times `n` or `best_of`."] = 128
    output_tokens: Annotated[Count, "Maximum of `max_output_tokens`."] = 1_000_000
    tool_calls: Annotated[Count, "Maximum of `max_tool_calls`."] = 10_000
    tool_output_bytes: Annotated[Count, "Size at which the output of a tool is truncated, in bytes."] = 1024 * 1024
    mcp_tools: Annotated[Count, "Maximum number of tools of one MCP server."] = 512
    images: Annotated[Count, "Maximum number of images in one prompt, earlier turns included."] = 100
    image_bytes: Annotated[Count, "Maximum size of one image, in bytes."] = 20 * 1024 * 1024
    image_pixels: Annotated[Count, "Maximum number of pixels of one image, all frames together."] = 64_000_000
    image_frames: Annotated[Count, "Maximum number of frames of one animated image."] = 256
    image_side: Annotated[Count, "Minimum width and height of an image, in pixels."] = 4
    files: Annotated[Count, "Maximum number of files in one prompt, earlier turns included."] = 50
    file_bytes: Annotated[Count, "Maximum size of one file, in bytes."] = 20 * 1024 * 1024
    stored_file_bytes: Annotated[Count, "Maximum size of one file of `/v1/files`, in bytes."] = 512 * 1024 * 1024
    upload_part_bytes: Annotated[Count, "Maximum size of one part of an upload, in bytes."] = 64 * 1024 * 1024
    file_pages: Annotated[Count, "Maximum number of pages of one PDF."] = 500
    file_characters: Annotated[Count, "Maximum length of the text of one file, in characters."] = 4_000_000
    attached_bytes: Annotated[Count, "Maximum size of all images and file texts of a prompt, in bytes."] = 64 * 1024**2
    embedding_inputs: Annotated[Count, "Maximum number of texts to embed or documents to rerank in a request."] = 2048
    tokenize_characters: Annotated[Count, "Maximum number of characters of a tokenised prompt."] = 1_000_000
    audio_bytes: Annotated[Count, "Maximum size of a request with an audio file, and of an audio part, in bytes."] = (
        25 * 1024 * 1024
    )
