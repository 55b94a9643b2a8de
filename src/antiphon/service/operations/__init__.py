"""Operations: settings, reload, metrics and traces."""
