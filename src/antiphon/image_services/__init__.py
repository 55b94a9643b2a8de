"""Image services: servers that make and edit images, behind one interface."""
