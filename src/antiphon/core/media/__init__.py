"""Images, documents and data URLs, recognised by their bytes without decoding images."""
