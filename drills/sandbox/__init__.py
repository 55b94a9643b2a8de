"""Drill on code in containers: programs that try to reach the host, or to use more than they may."""
