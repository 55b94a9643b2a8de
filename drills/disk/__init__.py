"""Drill on full and failing disks under a running server."""
