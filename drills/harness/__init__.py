"""What the drills share: servers as processes, clients, kill points, journals and the oracle."""
