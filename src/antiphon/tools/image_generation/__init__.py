"""The image_generation tool: makes and edits images through an image service."""
