"""Let commands that see a run's directory ask its controller to join and remove engines."""
