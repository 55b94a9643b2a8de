"""What operators control and observe: settings, reload, metrics and traces."""
