"""A client talks to a server that runs this engine."""

from openai import OpenAI

from antiphon.testing import server


def test_the_server_repeats_what_a_client_says() -> None:
    with server(engine="echo") as antiphon, OpenAI(base_url=antiphon.v1, api_key=antiphon.api_key) as client:
        assert client.responses.create(model="echo", input="Hello!").output_text == "Hello!"
